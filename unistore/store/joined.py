"""The sealed stores of a version, read as one store."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.schemas.array_specs import GENERAL, ArraySpec
from unistore.schemas.indices import table_columns, whole
from unistore.store.names import OF_SOME
from unistore.store.reader import Store
from unistore.system.hints import Int64s
from unistore.zarr3.array import StoredArray
from unistore.zarr3.joined import JoinedArray, UnalikeError

# Attributes of arrays that say something of single sources, by their numbers
OF_SOURCES = ("source_dtype", *OF_SOME)


class JoinedStore(Store):
    """Stores of one schema, whose samples and sources follow one another.

    Offsets and numbers of rows are those of the compacted store. Raises `UnalikeError` where the stores
    differ in what one store has once: forms and attributes of an array, and attributes of a group.
    """

    def __init__(self, path: str, stores: Sequence[Store]) -> None:
        first = stores[0]
        self.path = path
        self.stores = tuple(stores)
        self.storage = first.storage
        self.cached_indices = {}
        self.family = first.family
        self.sample_table = first.sample_table
        self.sample_count = sum(store.sample_count for store in stores)
        self.side_seals = []
        self._arrays = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return JoinedStore, (self.path, self.stores)

    @property
    def example(self) -> Store:
        """Return the first store."""
        return self.stores[0]

    @property
    def attributes(self) -> dict[str, Any]:  # type: ignore[override]
        """Return what the first store says, with all samples."""
        said = self.example.attributes
        return {**said, "samples": {**said["samples"], "count": self.sample_count}}

    def array(self, path: str) -> StoredArray:
        """Return the array at `path`, which opens those of all stores."""
        array = self._arrays.get(path)
        if array is None:
            array = self._arrays[path] = self._joined(path)
        return array

    def arrays(self) -> dict[str, StoredArray]:
        """Return all arrays that are read as one, by path."""
        arrays = {}
        for path in self.paths():
            try:
                arrays[path] = self.array(path)
            except UnalikeError:
                continue
        return arrays

    def group(self, path: str) -> dict[str, Any]:
        """Return attributes of the group at `path`."""
        first = self.example.group(path)
        for store in self.stores:
            if store.group(path) != first:
                raise self._unalike(path, "says other things than in the first store")
        return first

    def splits(self) -> tuple[NDArray[np.uint8], list[str]]:
        """Return split code of every sample, (samples,) u1, and the names by code."""
        return self._splits

    def split_names(self) -> list[str]:
        """Return names of the splits by code."""
        return self._splits[1]

    @cached_property
    def _splits(self) -> tuple[NDArray[np.uint8], list[str]]:
        names: dict[str, int] = {}
        codes = []
        for store in self.stores:
            own, own_names = store.splits()
            new = [names.setdefault(name, len(names)) for name in own_names]
            codes.append(np.array(new or [0], np.uint8)[own])
        return np.concatenate(codes), [*names]

    @cached_property
    def _specs_by_path(self) -> dict[str, ArraySpec]:
        fields = self.example.attributes["fields"]
        return {path: self.specs.of(path, fields) for path in fields}

    def _joined(self, path: str) -> JoinedArray:
        arrays = [store.array(path) for store in self.stores]
        said = _said(arrays[0])
        for array in arrays:
            if _said(array) != said or _numbers_sources(array):
                raise self._unalike(path, "has other attributes than in the first store")
        if not self._has_extents(path) and len({array.shape[1:] for array in arrays}) > 1:
            raise self._unalike(path, "has rows of another shape than in the first store")
        if not self._has_rows_of_one(path):
            raise self._unalike(path, "does not say which of its rows are of which store")
        rows = np.array([len(array) for array in arrays], np.int64)
        if self._is_bounds(path):
            rows[:-1] -= 1  # the last bound is the first one of the next store
        return JoinedArray(arrays, rows, self._added(path, arrays))

    def _has_rows_of_one(self, path: str) -> bool:
        """Return whether rows of an array belong to samples, sources, or rows of other arrays."""
        spec = self._specs_by_path[path]
        if self.specs is GENERAL:
            return False
        if spec.rows is not None or spec.offsets_of is not None:
            return True
        needed = any(path in other.needs for other in self._specs_by_path.values())
        return needed or path in table_columns(self.example, self.attributes["main_table"])

    def _has_extents(self, path: str) -> bool:
        """Return whether another array says how much of each row there is, so that rows may be padded."""
        specs = self._specs_by_path.values()
        return any(limit.path == path for spec in specs for limit in spec.limits)

    def _is_bounds(self, path: str) -> bool:
        spec = self._specs_by_path[path]
        has_one_more = spec.rows is not None and spec.rows[1] == 1
        return spec.offsets_of is not None or (spec.indexes is not None and has_one_more)

    def _added(self, path: str, arrays: Sequence[StoredArray]) -> Int64s | None:
        """Return what is added to the values of each store: rows that stand before its own."""
        spec = self._specs_by_path[path]
        is_bounds = self._is_bounds(path)
        if not is_bounds and spec.indexes is None and path != "sources/first_row":
            return None
        values = [whole(store, path) for store in self.stores]  # checked within each store
        if is_bounds:
            counts = [int(own[-1]) for own in values]
        elif spec.indexes is not None:
            target, more = spec.indexes
            counts = [len(store.array(target)) + more for store in self.stores]
        else:
            counts = [int(whole(store, "sources/rows").sum()) for store in self.stores]
        if sum(counts) > np.iinfo(arrays[0].dtype).max:
            raise self._unalike(path, f"counts further than {arrays[0].dtype} does")
        return np.cumsum([0, *counts[:-1]])

    def _unalike(self, path: str, why: str) -> UnalikeError:
        return UnalikeError(f"{self.path}: {path} {why}")


def _numbers_sources(array: StoredArray) -> bool:
    # Columns of steps list the shapes alone
    said = array.attributes
    return "missing_in" in said or isinstance(said.get("source_row_shape"), dict)


def _said(array: StoredArray) -> dict[str, Any]:
    return {name: value for name, value in array.attributes.items() if name not in OF_SOURCES}
