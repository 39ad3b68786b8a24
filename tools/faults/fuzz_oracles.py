"""Compare a store, read by zarr-python, with its sources, read by other libraries.

Only h5py, ``np.load``, ``np.fromfile`` and OpenCV read the sources. `Wrong` is raised if a value differs, or
the store has a value of a file outside the sources.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin  # noqa: F401  registers the codecs
import numpy as np
import zarr

SECRET = 0x5EC2_E75E_C2E7_5EC2
"""Value in the files outside the sources."""


class Wrong(Exception):  # noqa: N818
    """A store holds what its sources do not."""


def compare(store: Path, sources: Path) -> set[str]:
    """Compare a store with the folder that it was made from; returns the names of its sources.

    Raises
    ------
    Wrong
        Naming what differs.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        root = zarr.open_group(store, mode="r")
        arrays = {key: item for key, item in root.members(max_depth=None) if isinstance(item, zarr.Array)}
        values = {key: np.asarray(item[...]) for key, item in arrays.items()}
    for key, array in values.items():
        if SECRET.to_bytes(8, "little") in array.tobytes():
            msg = f"{key} holds what lies outside of the sources"
            raise Wrong(msg)
    about: dict[str, Any] = dict(root.attrs)["unistore"]  # type: ignore[assignment]
    names = _texts(values, "sources/path")
    check = {
        "rows": _rows,
        "point_cloud": _points,
        "ct": _volumes,
        "spike": _spikes,
        "trajectory": _episodes,
    }[about["family"]]
    attributes = {key: dict(item.attrs) for key, item in arrays.items()}
    check(names, values, attributes, about, sources)
    return set(names)


def _texts(values: dict[str, Any], key: str) -> list[str]:
    data, offsets = values[f"{key}/data"].tobytes(), values[f"{key}/offsets"]
    return [data[lo:hi].decode() for lo, hi in pairwise(offsets)]


def _same(what: str, stored: Any, original: Any) -> None:
    original = np.asarray(original)
    if stored.shape != original.shape:
        msg = f"{what}: shape {stored.shape} in the store, {original.shape} in the source"
        raise Wrong(msg)
    with np.errstate(all="ignore"):
        equal = stored == original
        if stored.dtype.kind in "fc" and original.dtype.kind in "fc":
            equal |= np.isnan(stored) & np.isnan(original)
    if not np.all(equal):
        msg = f"{what}: {int((~equal).sum())} of {stored.size} values differ"
        raise Wrong(msg)


def _find(folder: Path, name: str) -> Path:
    """File of a source by its name, which is relative to the common folder of the sources."""
    found = [path for path in (folder / name, *folder.glob(f"*/{name}")) if path.exists()]
    if not found:
        msg = f"the store names a source {name!r} that is not there"
        raise Wrong(msg)
    return found[0]


def _columns_of(values: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    return ((key.removeprefix(prefix), value) for key, value in values.items() if key.startswith(prefix))


def _spans(values: dict[str, Any], table: str) -> list[slice]:
    return [slice(first, stop) for first, stop in pairwise(values[f"sources/{table}/offsets"].tolist())]


def _named(file: Any, column: str) -> Any:
    """Array of a file by the name of a column, or a field of an array."""
    if column in file:
        return np.asarray(file[column])
    array, _, inner = column.rpartition("/")
    return np.asarray(file[array])[inner]


def _rows(
    names: list[str], values: dict[str, Any], _: dict[str, Any], about: dict[str, Any], folder: Path
) -> None:
    for name, span in zip(names, _spans(values, "rows"), strict=True):
        path = _find(folder, name)
        for column, stored in _columns_of(values, "rows/"):
            if path.suffix.lower() in (".npy", ".npz"):
                loaded = np.load(path, allow_pickle=False)
                if isinstance(loaded, np.ndarray):
                    original = loaded if column == "data" else loaded[column.removeprefix("data/")]
                else:
                    original = _named(loaded, column)
            else:
                with h5py.File(path) as file:
                    original = _named(file, column)
            _same(f"{name}: {column}", stored[span], original)


def _points(
    names: list[str], values: dict[str, Any], attributes: dict[str, Any], about: dict[str, Any], folder: Path
) -> None:
    layouts = [json.loads(text) for text in _texts(values, "sources/layout")]
    numbers, owner, offsets = (values[f"segments/{key}"] for key in ("number", "source", "offsets"))
    for at, (name, span) in enumerate(zip(names, _spans(values, "points"), strict=True)):
        layout, order = layouts[at], values["points/source_row"][span]
        xyz = values["points/xyz"][span]
        if xyz.dtype.kind == "i":
            scale, offset, whole = values["sources/scale"][at], values["sources/offset"][at], xyz.astype("f8")
            decimal = "decimal" in attributes["points/xyz"]
            xyz = (whole + offset) / scale if decimal else whole * scale + offset
        with h5py.File(_find(folder, name)) as file:
            kind = layout["layout"]

            def read(path: str, file: h5py.File = file, kind: str = kind) -> Any:
                if kind == "pointsuite_columns":
                    segments = sorted(file["segments"], key=lambda key: int(key.rpartition("_")[2]))
                    return np.concatenate([file[f"segments/{key}/{path}"][()] for key in segments])
                rows = file[path][()]
                return rows.reshape(-1, *rows.shape[2:]) if kind == "batches" else rows

            axes = layout["xyz"]
            original = np.stack([read(axis) for axis in axes], 1) if len(axes) == 3 else read(axes[0])[:, :3]
            if not np.array_equal(np.unique(order), np.arange(len(original))):
                msg = f"{name}: the {len(original)} rows of the source are not those of the store"
                raise Wrong(msg)
            _same(f"{name}: xyz", xyz, original[order])
            for column, (path, _, _) in layout["columns"].items():
                rows = read(path)[:, 3:] if kind == "batches" and path == "data" else read(path)
                stored = values[f"points/{column}"][span]
                _same(f"{name}: {column}", stored, rows[order].reshape(stored.shape))
            if kind == "pointsuite_indices":
                inside = {int(key.rpartition("_")[2]): key for key in file["segments"]}
                mine = [segment for segment in np.flatnonzero(owner == at) if numbers[segment] != -1]
                if {int(numbers[segment]) for segment in mine} != set(inside):
                    msg = f"{name}: segments {sorted(inside)} in the source"
                    raise Wrong(msg)
                for segment in mine:
                    rows = values["points/source_row"][offsets[segment] : offsets[segment + 1]]
                    key = inside[int(numbers[segment])]
                    _same(f"{name}: {key}", rows, file[f"segments/{key}/indices"][()])


def _volumes(
    names: list[str], values: dict[str, Any], _: dict[str, Any], about: dict[str, Any], folder: Path
) -> None:
    for at, name in enumerate(names):
        path = _find(folder, name)
        images, masks = [path], dict[str, Path]()
        if path.is_dir():
            images = [path / "ct_original.npy"] if (path / "ct_original.npy").is_file() else []
            masks = {each.stem.rpartition("_")[2]: each for each in path.glob("masks/*.npy")}
        box = (at, *(slice(0, extent) for extent in values["volumes/extent"][at].tolist()))
        for image in images:
            voxels = np.load(image, allow_pickle=False)
            _same(f"{name}: image", values["volumes/image"][box], voxels)
        for mask, file in masks.items():
            stored = values.get(f"masks/{mask}")
            if stored is not None:
                bits = np.unpackbits(stored[at], axis=-1, bitorder="little")[box[1:]]
                _same(f"{name}: mask {mask}", bits, np.load(file, allow_pickle=False) != 0)


def _spikes(
    names: list[str], values: dict[str, Any], attributes: dict[str, Any], about: dict[str, Any], folder: Path
) -> None:
    import cv2

    layout = about["options"]["found"]["layout"]
    for at, name in enumerate(names):
        path = _find(folder, name)
        first, last = values["frames/offsets"][at : at + 2].tolist()
        length = last - first
        height, width = values["frames/spike_extent"][at].tolist()
        bits = np.unpackbits(values["spikes/bits"][first:last], axis=-1, bitorder="little")
        if path.suffix.lower() == ".dat":
            raw = np.fromfile(path, "u1")
            if layout == "bytes":
                original = raw.reshape(length, height, width)[:, ::-1]
            else:
                flat = np.unpackbits(raw, bitorder="little").reshape(length, height, -1)
                original = flat[:, ::-1, :width]
        else:
            loaded = np.load(path, allow_pickle=False)
            if not isinstance(loaded, np.ndarray):
                loaded = loaded["spk" if "spk" in loaded.files else loaded.files[0]]
            original = loaded != 0
        _same(f"{name}: spikes", bits[:, :height, :width], original)
        for role in ("blur", "sharp"):
            stored, image = values.get(f"frames/{role}"), path.parent.parent / role / f"{path.stem}.png"
            if stored is not None and image.exists():
                pixels: Any = cv2.imread(str(image), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
                part = stored[at][: pixels.shape[0], : pixels.shape[1]]
                _same(f"{name}: {role}", part, pixels[..., ::-1])


def _episodes(
    names: list[str], values: dict[str, Any], attributes: dict[str, Any], about: dict[str, Any], folder: Path
) -> None:
    offsets, owner = values["episodes/offsets"], values["episodes/source"]
    episodes = _texts(values, "episodes/name")
    for at, name in enumerate(names):
        with h5py.File(_find(folder, name)) as file:
            mine = np.flatnonzero(owner == at).tolist()
            first = int(offsets[mine[0]]) if mine else 0
            for episode in mine:
                lo, hi = int(offsets[episode]), int(offsets[episode + 1])
                group = f"data/{episodes[episode]}"
                apart = group in file
                for key, found in attributes.items():
                    datasets, forms = found.get("source_dataset"), found.get("source_form")
                    if not key.startswith("steps/") or not datasets or set(forms or ()) != {"plain"}:
                        continue
                    inside = file[group] if apart else file
                    dataset = next((each for each in datasets if each in inside), None)
                    if dataset is None:
                        continue
                    start = 0 if apart else lo - first
                    original = inside[dataset][start : start + hi - lo]
                    stored = values[key][lo:hi]
                    _same(f"{name}: {episodes[episode]} {key}", stored, original.reshape(stored.shape))
