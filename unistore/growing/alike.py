"""Unite several stores: give each array the form that one conversion of all their sources would write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, cast

import numpy as np

from unistore.converters.common.columns import (
    Merged,
    SourceColumn,
    missing_value,
    promote,
    reconcile,
)
from unistore.converters.family_types import Alike, ArraysOfStore
from unistore.converters.registry import family_of, find_family
from unistore.errors import AddOptions, InputError, Problem
from unistore.growing.sources import KeptSource
from unistore.growing.united_rules import united_rules
from unistore.schemas.array_specs import SAMPLES, ArraySpec
from unistore.schemas.indices import ArrayView, RowsOfSources, whole
from unistore.schemas.recorded_rules import RecordedSpecs
from unistore.schemas.table_rows import table_of_offsets
from unistore.schemas.tables import (
    DTYPES,
    MISSING,
    Field,
    IndexValues,
    SourceForms,
    offsets_of,
    parse_row_shape,
)
from unistore.store.joined import FIX, OF_SOURCES, MadeArray, UnitedStores
from unistore.store.reader import Store
from unistore.system.types import AnyArray, Attributes, Int64s, JsonObject
from unistore.zarr3.documents import is_list_of

_FILL = AddOptions(("--columns", "union"), "to fill missing columns and pad smaller rows")
_KEEP_APART = "convert sources with another dtype or shape into a separate store"
# What an array is called in the sources
_NAMES = ("source_array", "source_field", "source_position")
# Fields of the arrays that a store lacks or has in another form, with their values; None: it has one too many
NewArrays = Mapping[str, tuple[Field, IndexValues] | None]


def _with_values(field: Field, values: IndexValues) -> MadeArray:
    return MadeArray(field, len(values), partial(_rows, values))


def _rows(values: IndexValues, lo: int, hi: int) -> AnyArray:
    return values[lo:hi]


def _constant_rows(row: AnyArray, lo: int, hi: int) -> AnyArray:
    return np.broadcast_to(row, (hi - lo, *row.shape))


def _refilled_rows(array: ArrayView, field: Field, missing: Int64s, lo: int, hi: int) -> AnyArray:
    """Return rows of an array in the form of a field, of which ranges (first row, end) are missing."""
    values = array.read(lo, hi)
    out = np.full((len(values), *field.row_shape), field.fill, field.dtype)
    out[(slice(None), *map(slice, values.shape[1:]))] = values
    first, stop = missing.T
    for start, end in missing[(first < hi) & (stop > lo)].tolist():
        out[max(0, start - lo) : end - lo] = missing_value(field.dtype)
    return out


def unite(
    stores: Sequence[Store],
    sources: Sequence[KeptSource],
    columns: str | None,
) -> UnitedStores:
    """Unite several stores.

    Parameters
    ----------
    stores : sequence of Store
        Stores of the same family and options.
    sources : sequence of KeptSource
        Their sources, in the order of the united store.
    columns : str or None
        The option ``columns`` of the family. ``"union"``: columns that some sources lack are filled.
        None: the family does not have the option.

    Returns
    -------
    UnitedStores
        The stores as one: every array equals the one that a conversion of these sources would write.

    Raises
    ------
    InputError
        If arrays differ so that no form represents all of them. It lists all of them.
    """
    family = find_family(stores[0].family)
    joining = None if family is None else family.alike()
    own: Sequence[ArraysOfStore] = [{} for _ in stores] if joining is None else joining.arrays(stores)
    described = []
    for store, new_arrays in zip(stores, own, strict=True):
        fields = {path: _stored_field(store, path) for path in store.paths() if path not in new_arrays}
        forms = filter(None, new_arrays.values())
        described.append(fields | {field.path: field for field, _ in forms})
    if family is None:
        _check_alike(stores, described)
    rules = united_rules([_rules(*each) for each in zip(stores, described, strict=True)])
    fields = _Joining(joining, stores, described, rules).fields(sources, columns)
    specs = RecordedSpecs(rules)
    all_made = []
    problems = []
    for store, new_arrays, before in zip(stores, own, described, strict=True):
        completed = _Completed(joining, store, new_arrays, before, fields)
        made = completed.arrays()
        table_offsets = completed.table_offsets(UnitedStores([store], [made], fields, specs))
        all_made.append({**made, **table_offsets})
        problems += completed.problems
    if problems:
        raise InputError(problems)
    return UnitedStores(stores, all_made, fields, specs)


def _rules(store: Store, fields: Mapping[str, Field]) -> dict[str, ArraySpec]:
    """Return the rules of the arrays that a store has in the form of fields."""
    recorded = store.specs.rules()
    return {path: recorded[path] if field.rule is None else field.rule for path, field in fields.items()}


def _check_alike(stores: Sequence[Store], described: Sequence[Mapping[str, Field]]) -> None:
    """Refuse stores that only their family, which cannot be imported, may know how to join."""
    forms = [{path: (field.dtype, field.row_shape) for path, field in fields.items()} for fields in described]
    for store, form in zip(stores, forms, strict=True):
        if form != forms[0]:
            family_of(store.root)  # says why it cannot be imported


def _stored_field(store: Store, path: str) -> Field:
    """Return the form of an array, with the chunks that it has."""
    array = store.array(path)
    stated = store.root.fields[path]
    run, *tile = array.chunk_shape
    from_field = ("units", "long_name")
    attributes = {name: value for name, value in array.attributes.items() if name not in from_field}
    return Field(
        path=path,
        dtype=array.dtype.name,
        row_shape=array.shape[1:],
        axes=stated.axes,
        unit=stated.unit,
        description=stated.description,
        fill=array.metadata.fill_value.item(),
        tile=tuple(tile),
        run=run,
        statistics=path in store.root.statistics,
        attributes=attributes,
    )


class _Joining:
    """Finds the one form of each array of several stores."""

    def __init__(
        self,
        joining: Alike | None,
        stores: Sequence[Store],
        described: Sequence[Mapping[str, Field]],
        rules: Mapping[str, ArraySpec],
    ) -> None:
        store = stores[0]
        self._joining = joining
        self._names = [store.path for store in stores]
        self._source_counts = [len(store.array("sources/bytes")) for store in stores]
        self._described = described
        self._paths = dict.fromkeys(chain.from_iterable(described))
        self._rules = rules
        # whose rows are padded in all families, as another array says how far they reach
        limits = chain.from_iterable(rule.limits for rule in rules.values())
        self._limited = {limit.path for limit in limits}
        self._has_columns = "columns" in store.root.options
        self._may_pad = self._joining is not None or store.sample_table == store.root.main_table

    def fields(self, sources: Sequence[KeptSource], columns: str | None) -> dict[str, Field]:
        """Return the fields of all arrays by path."""
        mode = "union" if columns in (None, "union") else "exact"
        merged, problems = reconcile(self._columns(sources), mode, self._is_padded)
        fix = _KEEP_APART if mode == "union" else (_FILL, _KEEP_APART)
        problems = [replace(problem, fix=fix) for problem in problems]
        joined = {}
        for path in self._paths:
            forms = [fields[path] for fields in self._described if path in fields]
            form = merged.get(path)
            dtype = promote([np.dtype(field.dtype) for field in forms])
            if form is None and dtype is None:
                dtypes = " and ".join(sorted({field.dtype for field in forms}))
                problems.append(Problem(path, f"has different dtypes in the parts: {dtypes}", FIX, "compact"))
            elif len({len(field.row_shape) for field in forms}) == 1:
                field = self._joined(forms, form, "" if dtype is None else dtype.name)
                names = self._names_in_sources(path, sources)
                attributes = {**field.attributes, **names}
                joined[path] = replace(field, attributes=attributes, rule=self._rules[path])
            elif not problems:
                problems.append(
                    Problem(path, "has rows with different numbers of axes in the parts", FIX, "compact")
                )
        if problems:
            raise InputError(problems)
        return joined

    def _names_in_sources(self, path: str, sources: Sequence[KeptSource]) -> JsonObject:
        """Return what an array was called in the sources, as their new store numbers them."""
        names: JsonObject = {}
        for attribute in _NAMES:
            stated = [
                _by_number(fields[path], attribute) if path in fields else None for fields in self._described
            ]
            if not any(stated):
                continue
            numbers: dict[str | None, list[int]] = {}
            for number, source in enumerate(sources):
                of_part = stated[source.part]
                if of_part is not None:
                    name = of_part.get(source.number, of_part.get(None))
                    numbers.setdefault(name, []).append(number)
            if len(numbers) == 1:
                names[attribute] = next(iter(numbers))
            else:
                names[attribute] = {name: own for name, own in numbers.items() if name is not None}
        return names

    def _is_padded(self, path: str) -> bool:
        return self._may_pad and not path.endswith("/data")

    def _columns(self, sources: Sequence[KeptSource]) -> Iterator[tuple[str, dict[str, SourceColumn]]]:
        """Yield what each source has of columns."""
        if self._joining is not None:  # columns belong to samples, and say what forms there are
            for name, fields in zip(self._names, self._described, strict=True):
                for columns in self._in_sources(fields, max(map(_count_forms, fields.values()))):
                    yield name, columns
            return
        of_parts = list(map(self._in_sources, self._described, self._source_counts))
        for source in sources:
            yield source.name, of_parts[source.part][source.number]

    def _in_sources(self, fields: Mapping[str, Field], count: int) -> list[dict[str, SourceColumn]]:
        columns: list[dict[str, SourceColumn]] = [{} for _ in range(count)]
        for path, field in fields.items():
            forms = SourceForms.of(field.attributes)
            if forms.dtypes is None:
                continue
            missing = {*(forms.missing or ())}
            shape = () if path in self._limited else field.row_shape
            dtypes = _spread(forms.dtypes, count)
            shapes = _spread(forms.row_shapes or "x".join(map(str, shape)), count)
            for number in range(count):
                dtype = dtypes[number]
                if dtype is not None and number not in missing:
                    columns[number][path] = SourceColumn(dtype, parse_row_shape(shapes[number] or ""))
        return columns

    def _joined(self, forms: Sequence[Field], form: Merged | None, dtype: str) -> Field:
        """Return the field that holds the rows of all stores."""
        first = forms[0]
        field = replace(
            first,
            dtype=dtype if form is None else form.dtype,
            row_shape=tuple(map(max, zip(*(own.row_shape for own in forms), strict=True))),
            run=max(own.run for own in forms),
            tile=tuple(map(max, zip(*(own.tile or own.row_shape for own in forms), strict=True))),
            statistics=all(own.statistics for own in forms),
            attributes=_joined_attributes(forms),
        )
        if form is None:
            return field
        if self._joining is not None:
            return self._joining.column(field, form)
        further = dict(form.attributes)
        if not any(MISSING in own.attributes for own in forms) and not self._has_columns:
            further.pop(MISSING, None)
        return replace(field, attributes={**field.attributes, **further})


def _by_number(field: Field, attribute: str) -> dict[int | None, str]:
    """Return what is stated of an array by numbers of sources, or of all sources by None."""
    stated: Any = field.attributes.get(attribute)
    if not isinstance(stated, Mapping):
        return {} if stated is None else {None: stated}
    return {number: name for name, numbers in stated.items() for number in numbers}


def _count_forms(field: Field) -> int:
    forms = SourceForms.of(field.attributes)
    return max(len(stated) if isinstance(stated, list) else 1 for stated in (forms.dtypes, forms.row_shapes))


def _spread(stated: str | Mapping[str, Sequence[int]] | Sequence[str], count: int) -> list[str | None]:
    """Return a form for each source: the one of all, those of sources by form, or of a list each once."""
    if not isinstance(stated, Mapping):
        one_each = [stated] if isinstance(stated, str) else stated
        return [one_each[number % len(one_each)] for number in range(count)]
    forms: list[str | None] = [None] * count
    for form, numbers in stated.items():
        for number in numbers:
            if number < count:
                forms[number] = form
    return forms


def _joined_attributes(forms: Sequence[Field]) -> JsonObject:
    """Return what all say of an array, and what each adds to lists and names."""
    joined: JsonObject = {}
    for name in dict.fromkeys(chain.from_iterable(field.attributes for field in forms)):
        values: list[Any] = [field.attributes[name] for field in forms if name in field.attributes]
        if name in OF_SOURCES:
            continue
        if all(isinstance(value, Mapping) for value in values):
            joined[name] = _united(values, f"{forms[0].path}: {name}")
        elif all(value == values[0] for value in values) and len(values) == len(forms):
            joined[name] = values[0]
        elif all(is_list_of(value, str) for value in values):
            joined[name] = [*dict.fromkeys(chain.from_iterable(values))]
    return joined


def _united(values: Sequence[Attributes], where: str) -> JsonObject:
    united: JsonObject = {}
    for own in values:
        for key, value in own.items():
            if united.setdefault(key, value) != value:
                message = f"{key} differs between the parts: {united[key]!r} and {value!r}"
                raise InputError(Problem(where, message, FIX, "compact"))
    return united


class _Completed:
    """Makes the arrays that a store lacks, or has in another form than all stores together."""

    def __init__(
        self,
        joining: Alike | None,
        store: Store,
        new_arrays: NewArrays,
        before: Mapping[str, Field],
        fields: Mapping[str, Field],
    ) -> None:
        self.problems: list[Problem] = []
        self._joining = joining
        self._store = store
        self._before = before
        self._fields = fields
        present = filter(None, new_arrays.values())
        self._new = {field.path: _with_values(field, values) for field, values in present}
        self._table_offsets = [
            path for path in fields if path not in before and table_of_offsets(path, fields)
        ]

    def arrays(self) -> dict[str, MadeArray]:
        for path, field in self._fields.items():
            if path in self._table_offsets:
                continue
            if path not in self._before:
                self._array(path)
            elif DTYPES in field.attributes and self._is_other(self._before[path], field):
                missing = self._missing(path)
                if len(missing):
                    array = self._array(path)
                    read = partial(_refilled_rows, array, field, missing)
                    self._new[path] = MadeArray(field, len(array), read)
        return self._new

    def table_offsets(self, store: Store) -> dict[str, MadeArray]:
        """Return the rows of each source in tables that the store lacks: those that are filled, or none."""
        rows = RowsOfSources(store, self._table_offsets)
        arrays = {}
        for path in self._table_offsets:
            column = store.specs.of(path).offsets_of
            assert isinstance(column, str)
            counts = np.zeros(len(store.array("sources/bytes")), np.int64)
            if len(store.array(column)):
                counts = rows.of(column)
            arrays[path] = _with_values(self._fields[path], offsets_of(counts))
        return arrays

    def _is_other(self, before: Field, field: Field) -> bool:
        is_of_kind = np.dtype(before.dtype).kind == np.dtype(field.dtype).kind
        return not is_of_kind or before.row_shape != field.row_shape

    def _missing(self, path: str) -> Int64s:
        """Return ranges of rows that sources lack."""
        if self._joining is not None:
            return self._joining.missing(self._store, path)
        missing = SourceForms.of(self._before[path].attributes).missing
        numbers = np.array(missing or (), np.int64)
        counts = RowsOfSources(self._store).of(path)
        ends = np.cumsum(counts)
        return np.stack([ends - counts, ends], axis=1)[numbers]

    def _array(self, path: str) -> ArrayView:
        """Return an array, which is made where the store has none."""
        if path not in self._before and path not in self._new:
            field = self._fields[path]
            self._new[path] = self._absent(field)
        return cast("ArrayView", self._new[path]) if path in self._new else self._store.array(path)

    def _absent(self, field: Field) -> MadeArray:
        """Return the array that the store lacks."""
        path = field.path
        spec = self._rule(path)
        group, _, name = path.rpartition("/")
        absent = spec.absent
        if isinstance(absent, str):
            length = len(absent.encode())
            offsets = self._rule(f"{group}/offsets")
            bounds = self._rows(offsets)
            if name == "offsets":
                return _with_values(field, np.arange(bounds, dtype=np.int64) * length)
            return _with_values(field, np.tile(np.frombuffer(absent.encode(), np.uint8), bounds - 1))
        is_bound = spec.rows is not None and spec.rows[1] == 1
        if DTYPES in field.attributes:
            absent = missing_value(field.dtype)
        elif is_bound and {*spec.needs}.isdisjoint(self._before):
            absent = 0
        elif absent is None:
            message = f"only some parts have the array {path}"
            self.problems.append(Problem(self._store.path, message, FIX, "compact"))
            absent = field.fill
        row = np.full(field.row_shape, absent, field.dtype)
        return MadeArray(field, self._rows(spec), partial(_constant_rows, row))

    def _rule(self, path: str) -> ArraySpec:
        rule = self._fields[path].rule
        assert rule is not None
        return rule

    def _rows(self, spec: ArraySpec) -> int:
        if spec.rows is None:
            bounds = [path for path in spec.beside if path in self._before]
            return int(whole(self._store, bounds[0])[-1]) if bounds else 0
        owner, more = spec.rows
        return (self._store.sample_count if owner == SAMPLES else len(self._array(owner))) + more
