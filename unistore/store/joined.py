"""The sealed stores of a version, read as one store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from unistore.errors import CorruptionError, StoreError
from unistore.schemas.array_specs import ArraySpec
from unistore.schemas.indices import whole
from unistore.store.listing import ABSENT, ListedArray, describe_array
from unistore.store.names import OF_SOME, part_folder
from unistore.store.reader import Store
from unistore.store.versions import OpenedStores
from unistore.system.types import AnyArray, Attributes, Dtype, Int64s, JsonObject, UInt8s
from unistore.zarr3.array import StoredArray
from unistore.zarr3.joined import ArrayParts, JoinedArray, UnalikeError
from unistore.zarr3.metadata import ArrayMetadata

# Attributes of arrays that say something of single sources, by their numbers
OF_SOURCES = ("source_dtype", "source_array", "source_field", "source_position", *OF_SOME)
# Attribute of a group: what all sources say alike
_OF_ALL = "attributes"


def joined_attributes(groups: Sequence[Attributes]) -> JsonObject | None:
    """Return attributes of a group of several stores, None where these say different things."""
    attributes = dict(groups[0])
    for group in groups:
        if {**group, _OF_ALL: None} != {**attributes, _OF_ALL: None}:
            return None
        if _OF_ALL in attributes:
            own = group.get(_OF_ALL, {})
            shared = attributes[_OF_ALL].items()
            attributes[_OF_ALL] = {key: value for key, value in shared if key in own and own[key] == value}
    return attributes


class JoinedStore(Store):
    """Parts of one schema, whose samples and sources follow one another.

    Parts open with the first use of their rows. Offsets and numbers of rows are those of the compacted
    store. Raises `UnalikeError` where the parts differ in what one store has once: forms and attributes of
    an array, and attributes of a group.
    """

    def __init__(self, opened: OpenedStores, numbers: Sequence[int]) -> None:
        assert opened.version is not None
        assert opened.storage is not None
        self._opened = opened
        self._numbers = np.array(numbers)
        self.path = opened.path
        self.place = opened.place
        self.stores = tuple(opened.stores[number] for number in numbers)
        self.storage = opened.storage
        self.cached_indices = {}
        self.family = self.example.family
        self.sample_table = self.example.sample_table
        self.sample_count = sum(store.sample_count for store in self.stores)
        self.side_seals = []
        self._arrays = {}
        self._index_values: dict[str, _ValuesOfParts] = {}
        self._listed_arrays: dict[str, ListedArray] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return JoinedStore, (self._opened, self._numbers.tolist())

    @property
    def example(self) -> Store:
        return self.stores[0]

    @property
    def attributes(self) -> JsonObject:  # type: ignore[override]
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
        arrays = {}
        for path in self.paths():
            try:
                arrays[path] = self.array(path)
            except UnalikeError:
                continue
        return arrays

    def group(self, path: str) -> JsonObject:
        attributes = joined_attributes([store.group(path) for store in self.stores])
        if attributes is None:
            raise self._unalike(path, "says other things than in the first store")
        return attributes

    def splits(self) -> tuple[UInt8s, list[str]]:
        return self._splits

    def split_names(self) -> list[str]:
        return self._splits[1]

    @cached_property
    def _splits(self) -> tuple[UInt8s, list[str]]:
        names: dict[str, int] = {}
        codes = []
        for store in self.stores:
            own, own_names = store.splits()
            new = [names.setdefault(name, len(names)) for name in own_names]
            codes.append(np.array(new or [0], np.uint8)[own])
        return np.concatenate(codes), [*names]

    @cached_property
    def _specs_by_path(self) -> Mapping[str, ArraySpec]:
        return self.specs.rules()

    def index_values(self, path: str) -> _ValuesOfParts:
        """Return the values of a small index array, of each part with the first use of its rows."""
        values = self._index_values.get(path)
        if values is None:
            values = self._index_values[path] = _ValuesOfParts(self, path)
        return values

    def _listed(self, path: str) -> ListedArray:
        """Return what the version says of an array."""
        listed = self._listed_arrays.get(path)
        if listed is not None:
            return listed
        assert self._opened.version is not None
        array = self._opened.version.arrays.get(path)
        if array is None or ABSENT in array.form_of[self._numbers]:
            msg = f"{self.path}: the version lists no array {path!r} of all parts"
            raise StoreError(msg)
        return self._listed_arrays.setdefault(path, array.of(self._numbers))

    def _joined(self, path: str) -> JoinedArray:
        listed = self._listed(path)
        numbers, form_of = np.unique(listed.form_of, return_inverse=True)
        where = f"{self.path}: array {path!r} of the version"
        forms = [ArrayMetadata.from_json(listed.forms[number], where) for number in numbers]
        said = _said(forms[0])
        for form in forms:
            if _said(form) != said or _numbers_sources(form):
                raise self._unalike(path, "has other attributes than in the first store")
        row_shapes = listed.shapes[:, 1:]
        if not self._has_extents(path) and (row_shapes != row_shapes[0]).any():
            raise self._unalike(path, "has rows of another shape than in the first store")
        if not self._has_rows_of_one(path):
            raise self._unalike(path, "does not say which of its rows are of which store")
        rows = listed.shapes[:, 0].copy()
        if self._specs_by_path[path].is_offsets:
            rows[:-1] -= 1  # the last bound is the first one of the next store
        parts = ArrayParts(
            folders=[part_folder(store.attributes["seal"]["digest"]) for store in self.stores],
            forms=forms,
            form_of=form_of,
            rows=rows,
            row_shape=tuple(row_shapes.max(axis=0).tolist()),
            open=lambda part: self._open(part, path, listed),
        )
        return JoinedArray(self.storage, path, parts, self._added(path, forms[0].dtype))

    def _open(self, part: int, path: str, listed: ListedArray) -> StoredArray:
        # its root is not parsed: array by array it was checked when it was listed
        store = self.stores[part]
        array = store._arrays.get(path)
        if array is None:
            store.check_listed()
            array = StoredArray.open(store.storage, path)
            if describe_array(array) != listed.in_part(part):
                msg = f"{store.path}: {path} is not as the version lists it; restore it from a copy"
                raise CorruptionError(msg)
            store._arrays[path] = array
        return array

    def values_of_part(self, part: int, path: str) -> AnyArray:
        """Return the values of an index array of one part, checked within the part."""
        for needed in (path, *self._specs_by_path[path].needs):
            self._open(part, needed, self._listed(needed))
        return whole(self.stores[part], path)

    def _has_rows_of_one(self, path: str) -> bool:
        """Return whether rows of an array belong to samples, sources, or rows of other arrays."""
        spec = self._specs_by_path[path]
        if spec.rows is not None or spec.offsets_of is not None:
            return True
        return any(path in other.needs for other in self._specs_by_path.values())

    def _has_extents(self, path: str) -> bool:
        """Return whether another array says how much of each row there is, so that rows may be padded."""
        specs = self._specs_by_path.values()
        return any(limit.path == path for spec in specs for limit in spec.limits)

    def _added(self, path: str, dtype: Dtype) -> Int64s | None:
        """Return what is added to the values of each part: rows that stand before its own."""
        spec = self._specs_by_path[path]
        if isinstance(spec.offsets_of, str):
            counts = self._listed(spec.offsets_of).shapes[:, 0]
        elif spec.is_offsets:
            counts = np.array([self.values_of_part(part, path)[-1] for part in range(len(self.stores))])
        elif spec.indexes is not None:
            target, more = spec.indexes
            counts = self._listed(target).shapes[:, 0] + more
        else:
            return None
        if counts.sum() > np.iinfo(dtype).max:
            raise self._unalike(path, f"counts further than {dtype} does")
        return np.concatenate([[0], np.cumsum(counts[:-1])])

    def _unalike(self, path: str, why: str) -> UnalikeError:
        return UnalikeError(f"{self.path}: {path} {why}")


class _ValuesOfParts:
    """Values of an index array, read part by part."""

    def __init__(self, store: JoinedStore, path: str) -> None:
        array = store.array(path)
        assert isinstance(array, JoinedArray)
        self._store = store
        self._array = array
        self._values = np.empty(array.shape, array.dtype)
        self._is_missing = np.ones(len(store.stores), bool)
        self._complete = False

    def __getitem__(self, rows: Int64s) -> AnyArray:
        if not self._complete:
            self._read(np.unique(self._array.part_of(rows)))
        values: AnyArray = self._values[rows]
        return values

    def _read(self, parts: Int64s) -> None:
        starts = self._array.starts
        array = self._array
        for part in parts[self._is_missing[parts]].tolist():
            out = self._values[starts[part] : starts[part + 1]]
            own = self._store.values_of_part(part, array.path)[: len(out)]
            out[...] = array.metadata.fill_value
            out[tuple(map(slice, own.shape))] = own
            if array.added is not None:
                out += array.added[part].astype(out.dtype)
            self._is_missing[part] = False
        self._complete = not self._is_missing.any()


def _numbers_sources(form: ArrayMetadata) -> bool:
    # Columns of steps list the shapes alone
    said = form.attributes
    return "missing_in" in said or isinstance(said.get("source_row_shape"), dict)


def _said(form: ArrayMetadata) -> JsonObject:
    return {name: value for name, value in form.attributes.items() if name not in OF_SOURCES}
