"""Several sealed stores, read as one: parts of one schema as they are, and stores of a family in one form."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from typing import Any, cast

import numpy as np

from unistore.errors import CorruptionError, InputError, Problem, StoreError
from unistore.schemas.array_specs import SAMPLES, SOURCE_BOUNDS, ArraySpec
from unistore.schemas.indices import ArrayView, RowsOfSources, whole
from unistore.schemas.recorded_rules import RecordedSpecs, StoredField, StoreRoot
from unistore.schemas.tables import DTYPES, OF_SOME, Field, SourceForms, offsets_of
from unistore.store.listing import ABSENT, ListedArray, describe_array
from unistore.store.names import part_folder
from unistore.store.reader import Store
from unistore.store.versions import OpenedStores
from unistore.system.types import AnyArray, Attributes, Dtype, Int64s, JsonObject, Shape, UInt8s
from unistore.zarr3.array import StoredArray
from unistore.zarr3.joined import ArrayParts, JoinedArray, UnalikeError
from unistore.zarr3.metadata import ArrayMetadata

# Attributes of arrays that say something of single sources, by their numbers
OF_SOURCES = (DTYPES, "source_array", "source_field", "source_position", *OF_SOME)
# Attribute of a group: what all sources say alike
_OF_ALL = "attributes"
# How sources that no rule joins become those of one store
FIX = "convert all sources together"


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


class _SeveralStores(Store):
    """Stores whose samples and sources follow one another, by the rules of their arrays."""

    def __init__(self, path: str, stores: Sequence[Store]) -> None:
        self.path = path
        self.stores = tuple(stores)
        self.family = self.example.family
        self.sample_table = self.example.sample_table
        self.sample_count = sum(store.sample_count for store in stores)
        self.cached_indices = {}
        self.side_seals = []
        self._arrays = {}

    @property
    def example(self) -> Store:
        return self.stores[0]

    @property
    def root(self) -> StoreRoot:
        """What the root of the first store states, with all samples."""
        return replace(self.example.root, sample_count=self.sample_count)

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

    def _added(
        self, path: str, dtype: Dtype, rows_of: Callable[[str], Int64s], last_values: Callable[[], Int64s]
    ) -> Int64s | None:
        """Return what is added to the values of an array in each store: rows that stand before its own.

        `rows_of` returns the rows of an array in each store, `last_values` the last value of `path` in each.
        None: values stay as they are.
        """
        spec = self.specs.of(path)
        if isinstance(spec.offsets_of, str):
            counts = rows_of(spec.offsets_of)
        elif spec.is_offsets:
            counts = last_values()
        elif spec.indexes is not None:
            target, more = spec.indexes
            counts = rows_of(target) + more
        else:
            return None
        if counts.sum() > np.iinfo(dtype).max:
            raise self._unalike(path, f"has counts that do not fit into {dtype}")
        return np.concatenate([[0], np.cumsum(counts[:-1])])

    def _unalike(self, path: str, why: str) -> UnalikeError:
        return UnalikeError(f"{self.path}: {path} {why}")


class JoinedStore(_SeveralStores):
    """Parts of one schema, whose samples and sources follow one another.

    Parts open with the first use of their rows. Offsets and numbers of rows are those of the compacted
    store. Raises `UnalikeError` where the parts differ in what one store has once: forms and attributes of
    an array, and attributes of a group.
    """

    def __init__(self, opened: OpenedStores, numbers: Sequence[int]) -> None:
        assert opened.version is not None
        assert opened.storage is not None
        super().__init__(opened.path, [opened.stores[number] for number in numbers])
        self._opened = opened
        self._numbers = np.array(numbers)
        self.place = opened.place
        self.storage = opened.storage
        self._index_values: dict[str, _ValuesOfParts] = {}
        self._listed_arrays: dict[str, ListedArray] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return JoinedStore, (self._opened, self._numbers.tolist())

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
            raise self._unalike(path, "has other attributes than in the first store")
        return attributes

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
            msg = f"{self.path}: this version has no array '{path}' in all parts"
            raise StoreError(msg)
        return self._listed_arrays.setdefault(path, array.of(self._numbers))

    def _joined(self, path: str) -> JoinedArray:
        listed = self._listed(path)
        numbers, form_of = np.unique(listed.form_of, return_inverse=True)
        forms = [listed.forms[number] for number in numbers]
        said = _said(forms[0])
        for form in forms:
            if _said(form) != said or _numbers_sources(form):
                raise self._unalike(path, "has other attributes than in the first store")
        row_shapes = listed.shapes[:, 1:]
        if not self._has_extents(path) and (row_shapes != row_shapes[0]).any():
            raise self._unalike(path, "has rows of another shape than in the first store")
        if not self._has_rows_of_one(path):
            raise self._unalike(path, "does not state which rows belong to which store")
        rows = listed.shapes[:, 0].copy()
        if self._specs_by_path[path].is_offsets:
            rows[:-1] -= 1  # the last bound is the first one of the next store
        parts = ArrayParts(
            folders=[part_folder(store.root.seal.digest) for store in self.stores],
            forms=forms,
            form_of=form_of,
            rows=rows,
            row_shape=tuple(row_shapes.max(axis=0).tolist()),
            open=lambda part: self._open(part, path, listed),
        )
        added = self._added(path, forms[0].dtype, self._rows_of, partial(self._last_values, path))
        return JoinedArray(self.storage, path, parts, added)

    def _open(self, part: int, path: str, listed: ListedArray) -> StoredArray:
        # its root is not parsed: array by array it was checked when it was listed
        store = self.stores[part]
        array = store._arrays.get(path)
        if array is None:
            store.check_listed()
            array = StoredArray.open(store.storage, path)
            if describe_array(array) != listed.in_part(part):
                msg = f"{store.path}: {path} differs from the version's list. Fix: restore it from a copy"
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

    def _rows_of(self, path: str) -> Int64s:
        return self._listed(path).shapes[:, 0]

    def _last_values(self, path: str) -> Int64s:
        return np.array([self.values_of_part(part, path)[-1] for part in range(len(self.stores))])


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
    # Columns of steps list only the shapes
    forms = SourceForms.of(form.attributes)
    return forms.missing is not None or isinstance(forms.row_shapes, Mapping)


def _said(form: ArrayMetadata) -> JsonObject:
    return {name: value for name, value in form.attributes.items() if name not in OF_SOURCES}


class MadeArray:
    """An array that a store has in another form, or not at all, made when its rows are read."""

    def __init__(self, field: Field, rows: int, read: Callable[[int, int], AnyArray]) -> None:
        self.path = field.path
        self.attributes = field.attributes
        self.dtype = np.dtype(field.dtype)
        self.shape: Shape = (rows, *field.row_shape)
        self._read = read

    def __len__(self) -> int:
        return self.shape[0]

    def read(self, lo: int = 0, hi: int | None = None) -> AnyArray:
        """Return rows ``lo:hi`` (None: up to the end)."""
        lo, hi, _ = slice(lo, hi).indices(len(self))
        return self._read(lo, max(lo, hi))


class UnitedStores(_SeveralStores):
    """Stores of one family, each array in one form, whose samples and sources follow one another.

    Arrays are read in the order of their rows. Values are in the dtype of the field, rows that are smaller
    in a store are padded with its fill, offsets and numbers of rows count those of the stores before.

    Parameters
    ----------
    stores
        The stores.
    made
        For each store, the arrays that it has in another form, or not at all.
    fields
        The form of each array by path.
    specs
        The rule of each array.
    """

    def __init__(
        self,
        stores: Sequence[Store],
        made: Sequence[Mapping[str, MadeArray]],
        fields: Mapping[str, Field],
        specs: RecordedSpecs,
    ) -> None:
        super().__init__(stores[0].path, stores)
        self._made = made
        self.fields = fields
        self.specs = specs
        self._united: dict[str, ArrayView] = {}
        self._counts: dict[str, Int64s] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return UnitedStores, (self.stores, self._made, self.fields, self.specs)

    @property
    def root(self) -> StoreRoot:
        """What the root of the first store states, with all samples and arrays."""
        return replace(super().root, fields=self._stored_fields)

    @cached_property
    def _stored_fields(self) -> dict[str, StoredField]:
        return {
            path: StoredField(axes=field.axes, members={"axes": list(field.axes)})
            for path, field in self.fields.items()
        }

    @cached_property
    def first_sources(self) -> list[int]:
        """Return the number of the first source of each store."""
        counts = [len(store.array("sources/bytes")) for store in self.stores]
        first: list[int] = offsets_of(counts)[:-1].tolist()
        return first

    def array(self, path: str) -> ArrayView:  # type: ignore[override]
        """Return the rows of an array in all stores."""
        array = self._united.get(path)
        if array is None:
            array = self._united[path] = cast("ArrayView", self._unite(path))
        return array

    def source_counts(self, path: str) -> Int64s:
        """Return rows of each source, ranges where the array has offsets, (sources,)."""
        counts = self._counts.get(path)
        if counts is None:
            counts = np.concatenate([rows.of(path) for rows in self._rows_of_sources])
            self._counts[path] = counts
        return counts

    @cached_property
    def _rows_of_sources(self) -> list[RowsOfSources]:
        # store by store, as rules that repeat rows do so in each store
        each = [
            UnitedStores([store], [made], self.fields, self.specs)
            for store, made in zip(self.stores, self._made, strict=True)
        ]
        return [RowsOfSources(store) for store in each]

    def _unite(self, path: str) -> _UnitedArray:
        arrays = self._arrays_of(path)
        lengths = np.array([len(array) for array in arrays], np.int64)
        if self.specs.of(path).is_offsets:
            lengths[:-1] -= 1  # the last bound is the first one of the next store
        field = self.fields[path]
        added = self._added(path, np.dtype(field.dtype), self._rows_of, partial(self._last_values, path))
        return _UnitedArray(field, arrays, offsets_of(lengths), added)

    def _arrays_of(self, path: str) -> list[StoredArray | MadeArray]:
        return [
            made[path] if path in made else store.array(path)
            for store, made in zip(self.stores, self._made, strict=True)
        ]

    def _rows_of(self, path: str) -> Int64s:
        return np.array([len(array) for array in self._arrays_of(path)], np.int64)

    def _last_values(self, path: str) -> Int64s:
        arrays = self._arrays_of(path)
        return np.array([array.read(len(array) - 1)[-1] for array in arrays], np.int64)


class _UnitedArray:
    """The rows of an array of several stores in one form, one store after the other."""

    def __init__(
        self,
        field: Field,
        arrays: Sequence[StoredArray | MadeArray],
        starts: Int64s,  # (stores + 1,) first row of each store, and the number of rows
        added: Int64s | None,  # (stores,) number that is added to all values of each store
    ) -> None:
        self.path = field.path
        self.attributes = field.attributes
        self.dtype = np.dtype(field.dtype)
        self.shape: Shape = (int(starts[-1]), *field.row_shape)
        self._fill = field.fill
        self._arrays = arrays
        self._starts = starts.tolist()
        self._added = [0] * len(arrays) if added is None else added.tolist()

    def __len__(self) -> int:
        return self.shape[0]

    def read(self, lo: int = 0, hi: int | None = None) -> AnyArray:
        """Return rows ``lo:hi`` (None: up to the end)."""
        lo, hi, _ = slice(lo, hi).indices(len(self))
        blocks = [np.empty((0, *self.shape[1:]), self.dtype)]
        first, last = bisect_right(self._starts, lo) - 1, bisect_left(self._starts, hi)
        for number in range(first, last):
            start, stop = self._starts[number], self._starts[number + 1]
            if max(lo, start) < min(hi, stop):
                values = self._arrays[number].read(max(lo, start) - start, min(hi, stop) - start)
                blocks.append(self._in_form(values, self._added[number]))
        return blocks[-1] if len(blocks) == 2 else np.concatenate(blocks)

    def _in_form(self, values: AnyArray, added: int) -> AnyArray:
        if values.shape[1:] != self.shape[1:]:
            padded = np.full((len(values), *self.shape[1:]), self._fill, self.dtype)
            padded[(slice(None), *map(slice, values.shape[1:]))] = values
            values = padded
        values = values.astype(self.dtype, copy=False)
        return values + self.dtype.type(added) if added else values


class SelectedSources:
    """Sources of united stores in an order of one's own: their rows, and the arrays of a store of them.

    Parameters
    ----------
    store
        The stores.
    numbers
        Numbers of the sources in these, in the order in which the new store has them.
    """

    def __init__(self, store: UnitedStores, numbers: Sequence[int]) -> None:
        self.store = store
        self.numbers = np.array(numbers, np.int64)

    def __len__(self) -> int:
        return len(self.numbers)

    def rows(self, path: str) -> tuple[Int64s, Int64s]:
        """Return the first row of each source, and the number of its rows, (sources,) each."""
        counts = self.store.source_counts(path)
        starts = offsets_of(counts)[:-1]
        return starts[self.numbers], counts[self.numbers]

    def _runs(self, path: str) -> Iterator[tuple[int, int]]:
        """Yield (start, stop) of rows that follow one another."""
        first, count = self.rows(path)
        end = first + count
        starts = np.flatnonzero(np.concatenate([[True], first[1:] != end[:-1]]))
        last = np.append(starts[1:], len(first)) - 1
        yield from zip(first[starts].tolist(), end[last].tolist(), strict=True)

    def values(self, path: str) -> AnyArray:
        """Return the values of an index array."""
        spec = self.store.specs.of(path)
        stored = self.store.array(path).read()
        if spec.is_offsets:
            return offsets_of(self._selected(path, np.diff(stored)))
        values = self._selected(path, stored)
        if spec.indexes is not None:
            first, indexed = self.rows(spec.indexes[0])
            moved = offsets_of(indexed)[:-1] - first
            values = values + np.repeat(moved, self.rows(path)[1])
        return values.astype(self.store.fields[path].dtype, copy=False)

    def splits(self) -> tuple[UInt8s, list[str]]:
        """Return the split code of every sample, and the names by code.

        Raises
        ------
        InputError
            If some stores have splits, and others have none.
        """
        codes, names = self.store.splits()
        for store in self.store.stores:
            if names and not store.split_names():
                message = "has no splits, but other parts have"
                raise InputError(Problem(store.path, message, FIX, "compact"))
        return self._selected("splits/code", codes), names

    def _selected(self, path: str, values: AnyArray) -> AnyArray:
        return np.concatenate([values[start:stop] for start, stop in self._runs(path)])

    def ranges_of_samples(self, path: str) -> tuple[Int64s, list[str]]:
        """Return offsets of named ranges of samples that hold several sources, and their names."""
        table = path.rpartition("/")[0]
        samples = self.store.specs.of(path).offsets_of
        assert isinstance(samples, str)
        bounds = self.store.array(path).read()
        texts = self.store.text(f"{table}/name")
        rows = chain.from_iterable(range(start, stop) for start, stop in self._runs(samples))
        names: list[str] = []
        starts = []
        place = 0
        for place, row in enumerate(rows, 1):
            name = texts[int(np.searchsorted(bounds, row, side="right")) - 1]
            if not names or name != names[-1]:
                names.append(name)
                starts.append(place - 1)
        return np.array([*starts, place], np.int64), names

    def says_nothing(self, path: str) -> bool:
        """Return whether the sources have no other values than a store without the array stands for."""
        absent = self.store.specs.of(path).absent
        if absent is None:
            return False
        if not isinstance(absent, str):
            return bool((self.values(path) == absent).all())
        group = path.rpartition("/")[0]
        rows = int(self.rows(f"{group}/offsets")[1].sum())
        return int(self.rows(f"{group}/data")[1].sum()) == rows * len(absent.encode())

    def spans_sources(self, path: str) -> bool:
        """Return whether offsets divide the samples into ranges that may hold several sources."""
        specs = self.store.specs
        spec = specs.of(path)
        is_free = spec.rows is None and path != SOURCE_BOUNDS
        return is_free and isinstance(spec.offsets_of, str) and specs.of(spec.offsets_of).rows == (SAMPLES, 0)
