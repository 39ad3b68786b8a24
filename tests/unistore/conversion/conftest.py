"""A toy family of sources that uses everything a converter may do, and its truth by plain numpy loops.

A source is an ``.npz`` file with ``value`` (n, 3) f8, ``image`` (n, h, w) u1 (h and w may differ between
sources) and ``label`` (n,) i8. The store has

- ``rows``: a direct table: the values, a flag in a deeper path, the images padded to a common size in tiles;
- ``points``: a spilled table: rows of ``value`` whose first component is positive, int32 where that is exact;
- ``windows/low``: a counted table: (row, component) of every value below -1, read once their number is known;
- index arrays: offsets of both, and the sources' labels as text.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.executors import Stopping
from unistore.conversion.run import run
from unistore.converters.adapter.converter import Converter
from unistore.converters.protocol import Emit, Finalized, Scan, Source, SourceArrays, Sources
from unistore.converters.scan_types import Scanned, SourcePart
from unistore.errors import InputError, Problem
from unistore.plugin import Family, Group, Openable, Schema
from unistore.schemas.recorded_rules import Package, StatedFamily
from unistore.schemas.tables import Field, Table, text_arrays

Arrays = dict[str, NDArray[Any]]

SPLITS = ("train", "val", "test")
SMALL = 16 << 10
"""Bytes of a shard."""


def _load(path: Path) -> Arrays:
    with path.open("rb") as file, np.load(file) as members:
        return {name: members[name] for name in members.files}


def _offsets(counts: Sequence[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class _Shape(Scanned):
    """Rows of a toy, and the size of its images."""

    rows: int
    height: int
    width: int


class _Origin(NamedTuple):
    """The file of a source, and its format."""

    files: tuple[str, ...]
    formats: tuple[str, ...] = ("npz",)


UNDECLARED = StatedFamily(["unistore.Rows()"], Package("unistore", "0.1.0"))


@dataclass(frozen=True, kw_only=True)
class ToyFamily(Family):
    """The toy family; which tables it writes, and one option that decides the content."""

    name = "rows"
    summary = "Toys."
    formats = ("npz",)
    schema = Schema(table="rows")
    tables: tuple[str, ...] = ("rows", "points", "windows/low")
    brightness: int = 0
    undeclared: bool = True  # whether the rules of the family in whose name toys are stored do not hold

    def scan(self, group: Group, files: Sequence[Openable]) -> _Shape:
        file = files[0].file
        try:
            arrays = _load(file.path)
        except (OSError, ValueError) as error:
            raise InputError(
                Problem(file.path.name, f"cannot be read ({error})", kind="unreadable")
            ) from error
        if missing := {"value", "image", "label"} - set(arrays):
            raise InputError(Problem(file.path.name, f"lacks {', '.join(sorted(missing))}", kind="missing"))
        _, height, width = arrays["image"].shape
        return _Shape(rows=len(arrays["value"]), height=height, width=width)

    def reconcile(self, parts: Sequence[SourcePart], scanned: Sequence[_Shape]) -> Scan:
        sources = [
            Source(
                path=part.files[0],
                name=f"{part.files[0].parent.name}/{part.files[0].name}",
                files=part.files,
                rows={"rows": shape.rows},
                split=part.files[0].parent.name if part.files[0].parent.name in SPLITS else None,
                detail=_Origin((part.name,)),
            )
            for part, shape in zip(parts, scanned, strict=True)
        ]
        height, width = max(each.height for each in scanned), max(each.width for each in scanned)
        tables = [self._rows(height, width)]
        if "points" in self.tables:
            tables.append(self._points("float64"))
        return Scan(
            family=self.name,
            sources=Sources(sources),
            tables=tuple(tables),
            sample_table="rows",
            main_table="rows",
            options={
                "tables": list(self.tables),
                "brightness": self.brightness,
                "exclude": list(self.exclude),
            },
            notes=("toys",),
            needs_prepare="windows/low" in self.tables,
            recorded=UNDECLARED if self.undeclared else None,
        )

    def read(
        self,
        scan: Scan,
        source: int,
        files: Sequence[Openable],
        table: str,
        lo: int,
        hi: int,
        out: Mapping[str, NDArray[Any]],
    ) -> None:
        arrays = _load(files[0].file.path)
        if table == "windows/low":
            out["coords"][...] = np.argwhere(arrays["value"] < -1)[lo:hi]
            return
        if np.isnan(arrays["value"]).any():
            raise InputError(Problem(scan.sources[source].name, "holds NaN", "fix it", "nan"))
        image = arrays["image"][lo:hi]
        out["value"][...] = arrays["value"][lo:hi]
        out["deep/flag"][...] = arrays["label"][lo:hi] % 2 == 0
        out["image"][:, : image.shape[1], : image.shape[2]] = image + self.brightness

    def prepare(
        self, scan: Scan, source: int, files: Sequence[Openable], emit: Emit, folder: Path | None
    ) -> SourceArrays:
        value = _load(files[0].file.path)["value"]
        if np.isnan(value).any():
            raise InputError(Problem(scan.sources[source].name, "holds NaN", "fix it", "nan"))
        kept = np.flatnonzero(value[:, 0] > 0)
        if "points" in self.tables:
            for part in np.array_split(kept, 3):
                emit("points", "xyz", value[part])
                emit("points", "source_row", part.astype(np.int64))
        exact = bool((value[kept] == np.rint(value[kept])).all())
        low = int((value < -1).sum())
        return {"kept": np.array(len(kept)), "exact": np.array(exact), "low": np.array(low)}

    def finish(self, scan: Scan, prepared: Sequence[SourceArrays]) -> Finalized:
        arrays: list[tuple[Field, NDArray[Any]]] = []
        spilled: tuple[Table, ...] = ()
        direct: tuple[Table, ...] = ()
        rows: dict[str, tuple[int, ...]] = {}
        if "points" in self.tables:
            spilled = (self._points("int32" if all(arrays["exact"] for arrays in prepared) else "float64"),)
            arrays.append((_column("points/offsets"), _offsets([int(arrays["kept"]) for arrays in prepared])))
        if "windows/low" in self.tables:
            coords = Field(path="windows/low/coords", dtype="uint16", row_shape=(2,), axes=("point", "axis"))
            direct = (Table(name="windows/low", fields=(coords,)),)
            rows = {"windows/low": tuple(int(arrays["low"]) for arrays in prepared)}
            arrays.append((_column("windows/low/offsets"), _offsets(rows["windows/low"])))
        arrays += text_arrays("labels/name", [f"höhe {source.name}" for source in scan.sources])
        counts = [source.rows["rows"] for source in scan.sources]
        return Finalized(
            arrays=arrays,
            spilled=spilled,
            direct=direct,
            rows=rows,
            samples=sum(counts),
            sample_source=np.repeat(np.arange(len(counts)), counts),
            groups={"windows/low": {"level": -1}} if direct else {},
        )

    def pack(
        self, scan: Scan, table: Table, column: str, source: int, rows: NDArray[Any], out: NDArray[Any]
    ) -> None:
        out[...] = rows

    def _rows(self, height: int, width: int) -> Table:
        return Table(
            name="rows",
            fields=(
                Field(
                    path="rows/value",
                    dtype="float64",
                    row_shape=(3,),
                    axes=("row", "component"),
                    unit="m",
                    statistics=True,
                ),
                Field(path="rows/deep/flag", dtype="bool", axes=("row",)),
                Field(
                    path="rows/image",
                    dtype="uint8",
                    row_shape=(height, width),
                    axes=("row", "height", "width"),
                    fill=255,
                    tile=(8, 8),
                ),
            ),
        )

    def _points(self, dtype: str) -> Table:
        return Table(
            name="points",
            fields=(
                Field(path="points/xyz", dtype=dtype, row_shape=(3,), axes=("point", "coordinate")),
                Field(path="points/source_row", dtype="int64", axes=("point",)),
            ),
            spilled=True,
        )


class Toy(Converter):
    """The converter of the toy family, of which tests make others."""

    def __init__(self, family: Family | None = None, **options: Any) -> None:
        super().__init__(family or ToyFamily(**options))


def _column(path: str) -> Field:
    return Field(path=path, dtype="int64", axes=("bound",))


def make_sources(folder: Path, *, sources: int = 4, rows: int = 100, seed: int = 0) -> Path:
    """Write toy sources below ``folder/train`` and ``folder/val``; returns the folder."""
    rng = np.random.default_rng(seed)
    for number in range(sources):
        split = "val" if number % 3 == 2 else "train"
        (folder / split).mkdir(parents=True, exist_ok=True)
        n = rows + 37 * number if number != 1 else 1
        height, width = (16, 20) if number == 1 else (10 + number % 2, 17 + number % 3)
        np.savez(
            folder / split / f"s{number}.npz",
            value=np.rint(rng.normal(0, 3, (n, 3))),
            image=rng.integers(0, 100, (n, height, width), dtype=np.uint8),
            label=rng.integers(0, 50, n),
        )
    return folder


def toy_truth(folder: Path) -> Arrays:
    """Every array that a store of these sources must hold, by numpy alone."""
    return truth_of(sorted(folder.rglob("*.npz")))


def truth_of(files: Sequence[Path], brightness: int = 0) -> Arrays:
    """The same of some files."""
    loaded = [_load(file) for file in files]
    names = [f"{file.parent.name}/{file.name}" for file in files]
    height = max(a["image"].shape[1] for a in loaded)
    width = max(a["image"].shape[2] for a in loaded)
    images = []
    for arrays in loaded:
        h, w = arrays["image"].shape[1:]
        image = arrays["image"] + np.uint8(brightness)
        images.append(np.pad(image, ((0, 0), (0, height - h), (0, width - w)), constant_values=255))
    kept = [arrays["value"][arrays["value"][:, 0] > 0] for arrays in loaded]
    low = [np.argwhere(arrays["value"] < -1) for arrays in loaded]
    counts = [len(arrays["value"]) for arrays in loaded]
    splits = list(dict.fromkeys(file.parent.name for file in files))
    truth = {
        "rows/value": np.concatenate([arrays["value"] for arrays in loaded]),
        "rows/deep/flag": np.concatenate([arrays["label"] % 2 == 0 for arrays in loaded]),
        "rows/image": np.concatenate(images),
        "points/xyz": np.concatenate(kept).astype(np.int32),
        "points/source_row": np.concatenate([np.flatnonzero(a["value"][:, 0] > 0) for a in loaded]),
        "points/offsets": _offsets([len(part) for part in kept]),
        "windows/low/coords": np.concatenate(low).astype(np.uint16),
        "windows/low/offsets": _offsets([len(part) for part in low]),
        "sources/bytes": np.array([file.stat().st_size for file in files]),
        "sources/rows/offsets": _offsets(counts),
        "sources/points/offsets": _offsets([len(part) for part in kept]),
        "sources/windows/low/offsets": _offsets([len(part) for part in low]),
        "splits/code": np.repeat([splits.index(f.parent.name) for f in files], counts).astype(np.uint8),
    }
    for path, strings in (("labels/name", [f"höhe {name}" for name in names]), ("sources/path", names)):
        encoded = [string.encode() for string in strings]
        truth[f"{path}/data"] = np.frombuffer(b"".join(encoded), np.uint8)
        truth[f"{path}/offsets"] = _offsets([len(item) for item in encoded])
    return truth


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: every step of a conversion waits for the disk."""
    memory = Path("/dev/shm")  # no power is cut here, so nothing need reach a disk
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with TemporaryDirectory(prefix="unistore-conversion-", dir=memory) as folder:
        yield Path(folder)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "out.zarr"


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Digest of an undisturbed conversion of the toys."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unistore.conversion.plan.SHARD", SMALL)
        return run(Toy(), [make_sources(folder / "sources")], folder / "whole.zarr").digest


@pytest.fixture(scope="session")
def stopping() -> type[Stopping]:
    """An executor that is interrupted after some steps."""
    return Stopping


@pytest.fixture(scope="session")
def toy() -> type[Toy]:
    """The class of the toy family's converter."""
    return Toy


@pytest.fixture(scope="session")
def truth() -> Callable[[Path], Arrays]:
    """Function that gives every array by path."""
    return toy_truth


@pytest.fixture(scope="session")
def truth_of_files() -> Callable[..., Arrays]:
    """Function that gives every array by path, of files and a brightness."""
    return truth_of


@pytest.fixture(scope="session")
def make_toys() -> Callable[..., Path]:
    """Function that writes toy sources into a folder."""
    return make_sources


@pytest.fixture
def toys(tmp_path: Path) -> Path:
    """Folder of four toy sources in two splits, with source 1 a single row."""
    return make_sources(tmp_path / "sources")


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a hundred rows make several shards."""
    monkeypatch.setattr("unistore.conversion.plan.SHARD", SMALL)
