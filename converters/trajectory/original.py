"""Comparison of a trajectory store with its source files, read by `Format.open_original` and OpenCV."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from math import prod
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exported import Values
from unistore.converters.common.left_out import names_without_numbers
from unistore.converters.common.originals import Compared, blocks_difference
from unistore.converters.files.hdf5.attributes import attribute_texts
from unistore.converters.files.hdf5.original_attributes import compare_attributes
from unistore.converters.protocol import Scan
from unistore.converters.trajectory.export import Run, is_resized, masks_of, runs
from unistore.converters.trajectory.layouts import format_named
from unistore.converters.trajectory.source import Format, Rows
from unistore.errors import Location
from unistore.schemas.store_view import StoreView
from unistore.schemas.trajectory.fields import FINAL, JPEG_SUFFIX, NEXT, OBSERVATION, STEPS

_ENCODED = ("padded", "variable")


class Originals:
    """Compares the sources of a trajectory store, one by one."""

    def __init__(self, store: StoreView, scan: Scan) -> None:
        self._store = store
        self._scan = scan
        self._runs = {number: parts for number, _, parts in runs(store)}
        self._attributes = attribute_texts(store, len(scan.sources))
        self._swapped = store.attributes["options"]["colour"] == "swapped"

    def compare(self, number: int) -> Iterator[Compared]:
        """Compare every stored dataset of every episode, and the attributes of datasets."""
        source = self._scan.sources[number]
        with self._format(number).open_original(source.path) as file:
            for run in self._runs[number]:
                for column, (dataset, kind, _, _) in self._features(number, run).items():
                    path = self._path_of(column)
                    if path is None:
                        continue
                    if is_resized(self._store, path):
                        continue
                    name = f"{run.group}/{dataset}".strip("/")
                    rows = file.rows(name)
                    if path.endswith(f"{JPEG_SUFFIX}/data"):
                        count, found = _frames_difference(run.frames(path), rows, kind)
                    else:
                        values = run.values(path, own_dtype=False)
                        count = prod(values.shape)
                        found = blocks_difference(values, partial(self._rows, rows, kind, values))
                    yield Compared(Location(source.name, name), source.path, count, found)
        yield from compare_attributes(source.name, source.path, self._attributes[number])

    def left_out(self, number: int) -> list[str]:
        """Return what a source has and the store does not, and datasets that it has in another form."""
        runs = self._runs[number]
        taken, elsewhere = set[str](), dict[str, str]()
        for run in runs:
            for column, (dataset, *_) in self._features(number, run).items():
                path, name = self._path_of(column), f"{run.group}/{dataset}".strip("/")
                if path is not None and is_resized(self._store, path):
                    elsewhere[name] = "only resized"
                elif path is not None:
                    taken.add(name)
            for dataset in self._variant(number, run)["values"]:
                elsewhere[f"{run.group}/{dataset}".strip("/")] = "only as an attribute"
        with self._format(number).open_original(self._scan.sources[number].path) as file:
            stored = masks_of(self._store, runs)
            taken |= {
                mask.location.dataset
                for mask in file.masks
                if set(mask.episodes) == set(stored.get(mask.name, ()))
            }
            groups = {run.group for run in runs}
            skipped = {"", *groups, *(group.rpartition("/")[0] for group in groups)}
            attributes = file.attributes_left_out(self._attributes[number], taken.__contains__, skipped)
            names = [
                f"{name} ({elsewhere[name]})" if name in elsewhere else name
                for name in file.names
                if name not in taken
            ]
            return names_without_numbers([*names, *attributes])

    def _format(self, number: int) -> Format:
        return format_named(self._scan.sources[number].detail["layout"])

    def _variant(self, number: int, run: Run) -> Mapping[str, Any]:
        """JSON of the `Variant` of a run's first episode, from the scan."""
        detail = self._scan.sources[number].detail
        first = self._runs[number][0].first
        return cast("Mapping[str, Any]", detail["variants"][detail["variant"][run.first - first]])

    def _features(self, number: int, run: Run) -> Mapping[str, list[Any]]:
        """JSON of every `Feature` of a run's first episode."""
        return cast("Mapping[str, list[Any]]", self._variant(number, run)["features"])

    def _path_of(self, column: str) -> str | None:
        """Array of the store with the values of a column; None if there is none."""
        if column.startswith("next_observation/"):
            key = column.removeprefix("next_observation/")
            paths = [f"{FINAL}/{key}"] if self._store.has(f"{OBSERVATION}/{key}") else []
            paths.append(f"{NEXT}/{key}")
        else:
            paths = [f"{STEPS}/{column}", f"{STEPS}/{column}{JPEG_SUFFIX}/data"]
        return next((path for path in paths if self._store.has(path)), None)

    def _rows(self, dataset: Rows, kind: str, values: Values, lo: int, hi: int) -> NDArray[Any]:
        """Rows of a dataset, with compressed frames decoded."""
        rows: NDArray[Any] = dataset[lo:hi]
        if kind in _ENCODED:
            return np.stack([self._decoded(_bytes_of(row)) for row in rows])
        return rows.reshape(len(rows), *values.shape[1:])

    def _decoded(self, frame: NDArray[np.uint8]) -> NDArray[Any]:
        import cv2

        png = frame[:4].tobytes() == b"\x89PNG"
        image = cv2.imdecode(frame, cv2.IMREAD_UNCHANGED if png else cv2.IMREAD_COLOR)
        if image is None or image.ndim < 3 or self._swapped:
            return np.asarray(image)
        return np.asarray(image[..., [2, 1, 0, *range(3, image.shape[2])]])


def _frames_difference(
    frames: Iterator[NDArray[np.uint8]], dataset: Rows, kind: str
) -> tuple[int, str | None]:
    """Number of bytes compared, and the first difference of kept frames and those of the file."""
    count = 0
    for row, frame in enumerate(frames):
        original = _bytes_of(dataset[row])
        if kind == "padded":
            original = original[: len(original.tobytes().rstrip(b"\0"))]
        count += len(original)
        if frame.tobytes() != original.tobytes():
            return count, f"row {row}: frames of {len(frame)} and {len(original)} bytes"
    return count, None


def _bytes_of(row: Any) -> NDArray[np.uint8]:
    """One compressed frame, (n,) u1."""
    if isinstance(row, bytes):
        return np.frombuffer(row, np.uint8)
    return np.ascontiguousarray(row).view(np.uint8)
