"""Small stores written with zarr-python alone, so that readers are tested apart from converters."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray

from tests.support.programs import call, loaded
from tests.support.store_files import forge as forged
from unistore.conversion.sealing import tables_of
from unistore.converters.families import kinds_of, specs_of
from unistore.converters.registry import find_family
from unistore.schemas.array_specs import ArraySpec
from unistore.schemas.declared_rules import ArraySpecs, resolved
from unistore.schemas.recorded_rules import recorded

ROOT = Path(__file__).parents[2]
SEAL = {
    "manifest": "unistore-manifest.jsonl",
    "digest": "0" * 32,
    "files": 0,
    "bytes": 0,
    "content_digest": "0" * 32,
    "root": "0" * 32,
}
"""Well-formed, of no manifest."""


@dataclass
class StoreMaker:
    """Writes stores of the format: ``maker("rows", {"rows/data": array}, count=7)``.

    Zarr-python takes long: an array that was written for an earlier test is copied.
    """

    folder: Path
    kept: Path
    made: int = 0

    def __call__(
        self,
        family: str,
        arrays: Mapping[str, NDArray[Any] | list[str]],
        *,
        count: int,
        table: str = "rows",
        main_table: str | None = None,
        chunks: Mapping[str, tuple[int, ...]] | None = None,
        splits: Mapping[str, Sequence[int]] | None = None,
        axes: Mapping[str, Sequence[str]] | None = None,
        attributes: Mapping[str, Mapping[str, Any]] | None = None,
        rules: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Path:
        self.made += 1
        store = self.folder / f"{family}-{self.made}.zarr"
        everything = dict(arrays)
        own = dict(attributes or {})
        groups: dict[str, dict[str, Any]] = {}
        if splits:
            codes = np.zeros(count, np.uint8)
            for code, rows in enumerate(splits.values()):
                codes[list(rows)] = code
            everything["splits/code"] = codes
            groups["splits"] = {"names": list(splits)}
        plain = _without_texts(everything)
        for path, values in plain.items():
            self._add(store / path, values, (chunks or {}).get(path), own.pop(path, {}))
            for parent in Path(path).parents:
                groups.setdefault(parent.as_posix(), {})
        fields = {path: (axes or {}).get(path) or _axes(path) for path in plain}
        names = {path.partition("/")[0] for path in fields} - {"sources", "splits"}
        record = find_family(family)
        specs = _specs_by_axes(fields) if record is None else specs_of(record)
        own_rules = resolved(specs, fields)
        documents = {path: recorded(rule) for path, rule in own_rules.rules().items()}
        documents |= {path: {"rule": rule} for path, rule in (rules or {}).items()}
        groups["."] = {
            "unistore": {
                "format_version": 1,
                "family": family,
                "samples": {"count": count, "table": table},
                **({"main_table": main_table} if main_table else {}),
                "tables": tables_of(own_rules, {*names, main_table or table, table}, fields),
                "kinds": ["unistore.Rows()"] if record is None else kinds_of(record, fields),
                "package": {"name": "unistore", "version": ""},
                "fields": {path: {"axes": names, **documents[path]} for path, names in fields.items()},
                "seal": SEAL,
            }
        }
        for path, its in {**groups, **own}.items():
            document = {"zarr_format": 3, "node_type": "group", "attributes": its}
            (store / path).mkdir(parents=True, exist_ok=True)
            (store / path / "zarr.json").write_text(json.dumps(document))
        return store

    def _add(
        self, path: Path, values: NDArray[Any], chunk: tuple[int, ...] | None, attributes: Mapping[str, Any]
    ) -> None:
        own = (values.tobytes(), values.dtype.str, values.shape, chunk, attributes)
        kept = self.kept / hashlib.sha256(pickle.dumps(own)).hexdigest()
        if not kept.exists():
            _write(kept, values, chunk, attributes)
        shutil.copytree(kept, path, copy_function=shutil.copyfile)


def _specs_by_axes(axes: Mapping[str, Sequence[str]]) -> ArraySpecs:
    """Rules of a family that is not installed: arrays of a table with the same axis have the same rows."""
    first: dict[tuple[str, str], str] = {}
    arrays = {}
    for path, names in axes.items():
        counted = first.setdefault((path.partition("/")[0], names[0]), path)
        if counted != path and not path.startswith("sources/"):
            arrays[path] = ArraySpec(rows=(counted, 0))
    return ArraySpecs(arrays=arrays)


def _axes(path: str) -> list[str]:
    """The axis of the rows of an array, named as converters name it."""
    table, _, column = path.rpartition("/")
    if column in ("offsets", "data") and not table.startswith("rows"):
        return [f"{table.rpartition('/')[2]}_{'bound' if column == 'offsets' else 'byte'}"]
    return [table.partition("/")[0].removesuffix("s")]


def _without_texts(arrays: Mapping[str, NDArray[Any] | list[str]]) -> dict[str, NDArray[Any]]:
    """Arrays, in which texts are bytes and offsets."""
    plain: dict[str, NDArray[Any]] = {}
    for path, values in arrays.items():
        if isinstance(values, list):
            encoded = [text.encode() for text in values]
            plain[f"{path}/data"] = np.frombuffer(b"".join(encoded), np.uint8)
            plain[f"{path}/offsets"] = np.cumsum([0, *map(len, encoded)]).astype(np.int64)
        else:
            plain[path] = values
    return plain


def _write(
    path: Path, values: NDArray[Any], chunk: tuple[int, ...] | None, attributes: Mapping[str, Any]
) -> None:
    chunk = tuple(max(1, extent) for extent in chunk or (max(7, len(values) // 10), *values.shape[1:]))
    shard = (
        chunk[0] * 3,
        *(-(-extent // step) * step for extent, step in zip(values.shape[1:], chunk[1:], strict=True)),
    )
    array = zarr.create_array(
        path,
        shape=values.shape,
        dtype=values.dtype,
        chunks=chunk,
        shards=tuple(max(step, extent) for step, extent in zip(chunk, shard, strict=True)),
        compressors=[zarr.codecs.BloscCodec(cname="lz4"), zarr.codecs.Crc32cCodec()],
        fill_value=0,
        attributes=dict(attributes),
        config={"write_empty_chunks": True},  # a sealed store has every shard
    )
    array[...] = values


@pytest.fixture(scope="session")
def demo() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "examples")
        return loaded(ROOT / "examples" / "demo.py")


@pytest.fixture(scope="session")
def demo_sources(demo: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Source files of every family, where the guides have them."""
    folder = tmp_path_factory.mktemp("sources")
    demo.lay_out(folder)
    return folder


@pytest.fixture(scope="session")
def demo_stores(demo: ModuleType, demo_sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make demo` leaves, as far as guides and examples open it."""
    folder = tmp_path_factory.mktemp("demo-out")
    shutil.copytree(demo_sources, folder, dirs_exist_ok=True)
    with chdir(folder):
        for conversion in demo.CONVERSIONS:
            if conversion.name not in ("scan", "stream", "returns"):
                assert call(*conversion.words) == 0
    return folder


@pytest.fixture(scope="session")
def kept_stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def make_store(tmp_path: Path, kept_stores: Path) -> StoreMaker:
    return StoreMaker(tmp_path, kept_stores)


@dataclass
class Cloud:
    """A point cloud store and what is in it, segment by segment."""

    path: Path
    quantised: NDArray[np.int32]
    offsets: NDArray[np.int64]
    scale: NDArray[np.float64]
    offset: NDArray[np.float64]
    source: NDArray[np.int32]
    origin: NDArray[np.float64]
    columns: dict[str, NDArray[Any]]
    voxels: dict[str, NDArray[Any]]
    samples: list[int]

    def absolute(self, sample: int) -> NDArray[np.float64]:
        """The definition: ``q * scale + offset`` in float64."""
        segment = self.samples[sample]
        q = self.quantised[self.offsets[segment] : self.offsets[segment + 1]]
        return q * self.scale[self.source[segment]] + self.offset[self.source[segment]]

    def column(self, name: str, sample: int) -> NDArray[Any]:
        segment = self.samples[sample]
        return self.columns[name][self.offsets[segment] : self.offsets[segment + 1]]


@pytest.fixture
def make_cloud(make_store: StoreMaker) -> Callable[..., Cloud]:
    def make(lengths: Sequence[int] = (50, 0, 9000, 7, 300, 23), *, splits: Any = None) -> Cloud:
        """Two sources; the last segment of each is the pseudo-segment of points of no segment."""
        rng = np.random.default_rng(0)
        lengths = list(lengths)
        half = len(lengths) // 2
        number = np.array([*range(half - 1), -1, *range(len(lengths) - half - 1), -1], np.int64)
        source = np.array([0] * half + [1] * (len(lengths) - half), np.int32)
        offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
        total = int(offsets[-1])
        q = rng.integers(-(2**20), 2**20, (total, 3)).astype(np.int32)
        scale = np.array([[0.01, 0.01, 0.01], [0.001, 0.01, 0.25]])
        offset = np.array([[637_000.0, 849_000.0, 0.0], [1.5, -2.25, 1e6]])
        columns = {
            "classification": rng.integers(0, 20, total).astype(np.int32),
            "intensity": rng.integers(0, 60_000, total).astype(np.uint16),
            "rgb": rng.integers(0, 255, (total, 3)).astype(np.uint8),
        }
        segments = len(lengths)
        point_segment = np.repeat(np.arange(segments), lengths)
        absolute = q * scale[source[point_segment]] + offset[source[point_segment]]
        parts = [absolute[a:b] for a, b in pairwise(offsets)]
        origin = np.array([part.min(axis=0) if len(part) else np.zeros(3) for part in parts])
        bounds = np.array([[p.min(axis=0), p.max(axis=0)] if len(p) else np.zeros((2, 3)) for p in parts])
        coords, counts, point_voxel, bound = [], [], [], [0]
        for part, low in zip(parts, origin, strict=True):
            cells, inverse, number_of = np.unique(
                np.floor((part - low) / 500.0).astype(np.int32),
                axis=0,
                return_inverse=True,
                return_counts=True,
            )
            coords.append(cells.reshape(-1, 3))
            counts.append(number_of.astype(np.uint32))
            point_voxel.append(inverse.reshape(-1).astype(np.int32))
            bound.append(bound[-1] + len(cells))
        voxels = {
            "coords": np.concatenate(coords),
            "counts": np.concatenate(counts),
            "point_voxel": np.concatenate(point_voxel),
            "offsets": np.array(bound, np.int64),
        }
        samples = np.flatnonzero(number != -1).tolist()
        arrays: dict[str, Any] = {
            "points/xyz": q,
            **{f"points/{name}": values for name, values in columns.items()},
            "points/source_row": np.arange(total)[::-1].copy(),
            "segments/offsets": offsets,
            "segments/origin": origin,
            "segments/bounds": bounds,
            "segments/source": source,
            "segments/number": number,
            "sources/points/offsets": offsets[[0, half, segments]],
            "sources/segments/offsets": np.array([0, half, segments]),
            "sources/scale": scale,
            "sources/offset": offset,
            "sources/path": ["a/one.h5", "b/two.h5"],
            **{f"voxels/500/{name}": values for name, values in voxels.items()},
        }
        path = make_store(
            "point_cloud",
            arrays,
            count=len(samples),
            table="segments",
            main_table="points",
            chunks={"points/xyz": (1024, 3)},
            splits=splits,
        )
        return Cloud(path, q, offsets, scale, offset, source, origin, columns, voxels, samples)

    return make


@dataclass
class Scans:
    """A CT store and its volumes."""

    path: Path
    volumes: list[NDArray[np.int16]]

    def inside(self, sample: int) -> NDArray[np.bool_]:
        """Voxels of the window ``low``: 0 to 300, both included."""
        return (self.volumes[sample] >= 0) & (self.volumes[sample] <= 300)


@pytest.fixture
def make_scans(make_store: StoreMaker) -> Callable[..., Scans]:
    def make(
        extents: Sequence[tuple[int, int, int]] = ((20, 30, 41), (17, 33, 24), (8, 9, 10)),
        *,
        sparse: str = "coords",
        image: bool = True,
        splits: Any = None,
    ) -> Scans:
        rng = np.random.default_rng(1)
        volumes = [rng.integers(-1000, 2000, extent).astype(np.int16) for extent in extents]
        shape = np.max(extents, axis=0)
        padded = np.zeros((len(volumes), *shape), np.int16)
        masks = np.zeros((len(volumes), shape[0], shape[1], -(-shape[2] // 8)), np.uint8)
        coords, values, offsets = [], [], [0]
        for i, volume in enumerate(volumes):
            box = tuple(slice(extent) for extent in volume.shape)
            padded[i][box] = volume
            inside = (volume >= 0) & (volume <= 300)
            packed = np.packbits(inside, axis=-1, bitorder="little")
            masks[i][*box[:2], : packed.shape[2]] = packed
            points = np.argwhere(inside)
            coords.append(points.astype(np.uint16))
            values.append(volume[inside] if image else np.ones(len(points), np.uint8))
            offsets.append(offsets[-1] + len(points))
        arrays: dict[str, Any] = {
            "volumes/extent": np.array(extents, np.int32),
            "volumes/name": [f"case{i}" for i in range(len(volumes))],
            "volumes/spacing": np.arange(3 * len(volumes), dtype=np.float64).reshape(-1, 3),
            "windows/low/offsets": np.array(offsets, np.int64),
            "sources/path": [f"case{i}" for i in range(len(volumes))],
            "sources/volumes/offsets": np.arange(len(volumes) + 1),
        }
        if image:
            arrays["volumes/image"] = padded
        if sparse == "coords":
            arrays |= {
                "windows/low/coords": np.concatenate(coords),
                "windows/low/values": np.concatenate(values),
            }
        else:
            arrays["windows/low/mask"] = masks
        path = make_store(
            "ct",
            arrays,
            count=len(volumes),
            table="volumes",
            chunks={
                "volumes/image": (1, *(max(8, int(extent) // 6) for extent in shape)),
                "windows/low/mask": (1, 8, 16, 2),
                "windows/low/coords": (max(64, offsets[-1] // 200), 3),
                "windows/low/values": (max(64, offsets[-1] // 200),),
            },
            splits=splits,
        )
        return Scans(path, volumes)

    return make


@pytest.fixture
def forge() -> Callable[..., None]:
    """``forge(store, {path: array})``: see `tests.support.store_files.forge`."""
    return forged
