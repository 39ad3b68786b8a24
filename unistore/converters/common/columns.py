"""Merge the columns of many sources without loss of values, and note the arrays that are not stored."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.errors import AddOptions, Fix, Fixes, Problem, first_few, names_without_numbers, printable
from unistore.schemas.tables import DTYPES, MISSING, ROW_SHAPES
from unistore.system.types import AnyArray, Dtype, JsonObject, Shape

_STORABLE = ("?", "u1", "i1", "u2", "i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8")
_MAX_FORMS = 6
TEXT_KINDS = "SUO"  # kinds of the dtypes of texts: of one length, and of any
ANY_TEXT = np.dtype(object, metadata={"vlen": str})  # of texts of any length, as h5py has it
# Reasons why an array is not stored, as they follow "not stored, "
NOT_EVERYWHERE = "because sources differ in it (--columns intersection)"
NOT_MAPPED = "because --map does not name it"
BOOKKEEPING = "because it is bookkeeping of the program that wrote the file"
_LISTED = 20


@dataclass(frozen=True)
class SourceColumn:
    """Dtype and row shape of a column in one source.

    Attributes
    ----------
    dtype : str
        NumPy's dtype string with byte order: ``">f4"``. Texts have kind S, U or O.
    row_shape : tuple of int, default ()
        Shape of a row; for a column of variable length, shape of one value.
    """

    dtype: str
    row_shape: Shape = ()

    def __str__(self) -> str:
        dtype = np.dtype(self.dtype)
        name = "text" if dtype.kind in TEXT_KINDS else dtype.name
        return f"{name} {self.row_shape}" if self.row_shape else name


class Merged(NamedTuple):
    """Dtype and row shape of a column in the store.

    Attributes
    ----------
    dtype : str
        NumPy's native dtype name: the smallest that represents the values of every source exactly.
    row_shape : tuple of int
        Shape of a row; if rows are padded, the largest extent of each axis.
    attributes : mapping
        ``source_dtype``: the dtype in all sources, or the numbers of the sources by dtype.
        ``missing_in``: numbers of the sources without the column, which is filled there; absent if all
        have it. ``source_row_shape``: numbers of the sources by row shape (``"4x3"``); absent if no row
        is padded.
    origins : mapping of str to sequence of str
        Names of sources, by the dtype that they had.
    """

    dtype: str
    row_shape: Shape
    attributes: Mapping[str, Any]
    origins: Mapping[str, Sequence[str]] = {}

    @property
    def is_padded(self) -> bool:
        """Whether rows are larger than the rows of some source."""
        return ROW_SHAPES in self.attributes

    @property
    def is_filled(self) -> bool:
        """Whether statistics would count values that no source has and that are not NaN."""
        return self.is_padded or (MISSING in self.attributes and np.dtype(self.dtype).kind != "f")

    @property
    def source_forms(self) -> JsonObject:
        """Attributes without the numbers of sources: dtypes, and row shapes if rows are padded."""
        dtypes = self.attributes.get(DTYPES)
        forms: JsonObject = {DTYPES: dtypes if isinstance(dtypes, str) else sorted(dtypes or [])}
        if self.is_padded:
            forms[ROW_SHAPES] = sorted(self.attributes[ROW_SHAPES])
        return forms

    @staticmethod
    def promotion_notes(merged: Mapping[str, Merged]) -> list[str]:
        """Return a note for each column whose sources differ in dtype, with the dtype that is stored."""
        notes = [promotion_note(name, form.dtype, form.origins) for name, form in merged.items()]
        return list(filter(None, notes))

    @staticmethod
    def padding_notes(merged: Mapping[str, Merged]) -> list[str]:
        """Return a note that lists the padded columns. Empty: none is padded."""
        padded = [f"{printable(name)} to {form.row_shape}" for name, form in merged.items() if form.is_padded]
        return (
            [f"padded with zeros; <name>_mask marks the values of the sources: {', '.join(padded)}"]
            if padded
            else []
        )


def storable(dtype: Dtype) -> bool:
    """Return whether values of a dtype can be stored: bool, integers and floats of up to 8 bytes."""
    return dtype.kind in "biuf" and dtype.newbyteorder("=") in map(np.dtype, _STORABLE)


def any_length(values: Dtype, row_shape: Shape = ()) -> Dtype:
    """Return the dtype, as in h5py, of an array whose rows have any number of values.

    Parameters
    ----------
    values : numpy.dtype
        Dtype of the values.
    row_shape : tuple of int, default ()
        Shape of one value.
    """
    return np.dtype(object, metadata={"vlen": values, "shape": row_shape})


def is_text(dtype: Dtype) -> bool:
    """Return whether rows are texts or byte strings, of fixed or variable length."""
    metadata: Mapping[str, Any] = dtype.metadata or {}
    values = metadata.get("vlen")
    return dtype.kind in "SU" or values is str or values is bytes


def values_of(dtype: Dtype) -> SourceColumn | None:
    """Return dtype and shape of the values in rows of variable length, such as texts, or None."""
    if is_text(dtype):
        return SourceColumn(dtype.str)
    metadata: Mapping[str, Any] = dtype.metadata or {}
    values = metadata.get("vlen")
    if not isinstance(values, np.dtype) or not storable(values):
        return None
    return SourceColumn(values.str, metadata.get("shape", ()))


def is_lossless(source: Dtype, target: Dtype) -> bool:
    """Return whether `target` represents every value of `source` exactly.

    This is stricter than NumPy's "safe" casts: int32 does not fit into float32.
    """
    if source.kind in "iu" and target.kind == "f":
        return 8 * source.itemsize - (source.kind == "i") <= np.finfo(target).nmant + 1
    return np.can_cast(source, target)


def promote(dtypes: Sequence[Dtype]) -> Dtype | None:
    """Return the smallest storable dtype that represents all values of all dtypes exactly, or None."""
    for target in map(np.dtype, _STORABLE):
        if all(is_lossless(dtype, target) for dtype in dtypes):
            return target
    return None


def missing_value(dtype: str) -> float | bool:
    """Return the fill value for a source without a column: NaN for floats, otherwise 0 or False."""
    return float("nan") if np.dtype(dtype).kind == "f" else 0


def reconcile(
    sources: Iterable[tuple[str, Mapping[str, SourceColumn]]],
    mode: str,
    may_pad: Callable[[str], bool] = lambda _: False,
    modes: Collection[str] = ("union", "intersection"),
    is_enough: Callable[[str], bool] = lambda _: True,
) -> tuple[dict[str, Merged], list[Problem]]:
    """Merge the columns of all sources, in the order of their first appearance.

    Parameters
    ----------
    sources : iterable of (str, mapping of str to SourceColumn)
        Name and columns of each source, in the order of their numbers.
    mode : {"exact", "union", "intersection"}
        ``"exact"``: every source must have every column. ``"union"``: columns of some sources are stored,
        and filled in the others. ``"intersection"``: only columns that all sources have in one row shape
        are stored.
    may_pad : callable, optional
        Called with the name of a column; returns whether ``"union"`` may pad its smaller rows. By default
        no column.
    modes : collection of str, default ("union", "intersection")
        Values of the option ``--columns`` of the family, in addition to ``"exact"``, that fixes may name.
    is_enough : callable, optional
        Called with the name of a column; returns whether sources that have only this column in common can be
        stored. A fix names ``"intersection"`` only if there is such a column. By default every column.

    Returns
    -------
    merged : dict of str to Merged
        The merged columns.
    problems : list of Problem
        One problem that lists the columns that differ; or one for each padded column whose mask would
        have the name of another column. Empty: the columns fit.
    """
    sets: dict[tuple[tuple[str, SourceColumn], ...], _ColumnSet] = {}
    numbers = array("i")
    for source, columns in sources:
        same = sets.setdefault(tuple(columns.items()), _ColumnSet(source, dict(columns), len(sets)))
        same.count += 1
        numbers.append(same.number)
    column_sets = list(sets.values())
    names = list(dict.fromkeys(name for column_set in column_sets for name in column_set.columns))
    everywhere = [name for name in names if all(name in column_set.columns for column_set in column_sets)]
    if mode == "intersection":
        names = everywhere
    missing = [name for name in names if name not in everywhere] if mode == "exact" else []
    merged: dict[str, Merged] = {}
    incompatible: list[str] = []
    uneven: list[str] = []
    for name in names:
        of_sets = [column_set.columns.get(name) for column_set in column_sets]
        column = _merge(of_sets, np.frombuffer(numbers, np.intc), is_padded=may_pad(name))
        if column is not None:
            column = column._replace(origins=_origins(name, column_sets))
        if column is not None and (mode == "union" or not column.is_padded):
            merged[name] = column
        elif mode != "intersection":
            (incompatible if column is None else uneven).append(name)
    differing = [name for name in names if name in {*missing, *incompatible, *uneven}]
    if differing:
        fixes: list[Fix] = []
        if not incompatible and "union" in modes:
            purpose = "to pad with zeros" if uneven else "to fill what is missing"
            fixes.append(AddOptions(("--columns", "union"), purpose))
        alike = [name for name in everywhere if name in merged and not merged[name].is_padded]
        if any(map(is_enough, alike)) and "intersection" in modes:
            fixes.append(AddOptions(("--columns", "intersection"), "to store only what is alike in all"))
        if incompatible or uneven:
            fixes.append(AddOptions(("--one-store-per-shape",)))
        if incompatible:
            fixes.append("rename columns that no common shape and dtype can store with --map")
        return merged, [_columns_differ(column_sets, differing, len(numbers), tuple(fixes))]
    return merged, [
        Problem(
            name,
            f"needs a mask {name}_mask, because it is padded, but a column has this name",
            f"rename {name}_mask with --map",
            "columns",
        )
        for name, column in merged.items()
        if column.is_padded and f"{name}_mask" in merged
    ]


@dataclass(slots=True)
class _ColumnSet:
    """Sources with the same columns: the first, and how many there are."""

    source: str
    columns: Mapping[str, SourceColumn]
    number: int
    count: int = 0


def _merge(
    columns: Sequence[SourceColumn | None], numbers: NDArray[np.intc], *, is_padded: bool
) -> Merged | None:
    """Merge a column, given as each set of columns has it. `numbers` are the sets of the sources."""
    present = [column for column in columns if column is not None]
    dtypes_present = [np.dtype(column.dtype) for column in present]
    are_texts = all(dtype.kind in TEXT_KINDS for dtype in dtypes_present)
    dtype = np.dtype(np.uint8) if are_texts else promote(dtypes_present)
    shapes = {column.row_shape for column in present}
    has_axes_alike = len({len(shape) for shape in shapes}) == 1
    if dtype is None or not has_axes_alike or (len(shapes) > 1 and not is_padded):
        return None

    def sources(forms: Sequence[str | None]) -> dict[str | None, list[int]]:
        """Return the indices of the sources by form, None where they lack the column."""
        own = np.array(forms, object)[numbers]
        return {form: np.flatnonzero(own == form).tolist() for form in dict.fromkeys(forms)}

    dtypes = sources([None if column is None else column.dtype for column in columns])
    attributes: JsonObject = {}
    missing = dtypes.pop(None, None)
    attributes[DTYPES] = dtypes if len(dtypes) > 1 else next(iter(dtypes))
    if missing is not None:
        attributes[MISSING] = missing
    if len(shapes) > 1:
        by_shape = sources([None if column is None else _sizes(column.row_shape) for column in columns])
        by_shape.pop(None, None)
        attributes[ROW_SHAPES] = by_shape
    return Merged(dtype.name, tuple(map(max, zip(*shapes, strict=True))), attributes)


def _sizes(row_shape: Shape) -> str:
    return "x".join(map(str, row_shape))


def within(target: AnyArray, shape: Shape) -> AnyArray:
    """Return a view of padded rows with only the part of a smaller row shape."""
    if len(shape) != target.ndim or target.shape[1:] == shape[1:]:
        return target
    return target[(slice(None), *map(slice, shape[1:]))]


def _origins(name: str, column_sets: Sequence[_ColumnSet]) -> dict[str, list[str]]:
    """Return which sources have a column of numbers in which dtype: of alike ones the first, with a count."""
    origins: dict[str, list[str]] = {}
    for column_set in column_sets:
        column = column_set.columns.get(name)
        if column is not None and np.dtype(column.dtype).kind not in TEXT_KINDS:
            others = f" (+{column_set.count - 1})" if column_set.count > 1 else ""
            origins.setdefault(np.dtype(column.dtype).name, []).append(f"{column_set.source}{others}")
    return origins


def promotion_note(name: str, dtype: str, origins: Mapping[str, Sequence[str]]) -> str:
    """Return a note about a column whose sources differ in dtype. Empty: they do not differ.

    Parameters
    ----------
    name : str
        Name of the column.
    dtype : str
        Dtype in the store.
    origins : mapping of str to sequence of str
        Names of sources by dtype, as `Merged.origins`.
    """
    if len(origins) < 2:
        return ""
    held = ", ".join([f"{own} in {first_few(sources)}" for own, sources in origins.items()])
    return f"{printable(name)} is stored as {dtype}, which represents every value of {held}"


def left_out_notes(left_out: Iterable[tuple[str, str]]) -> list[str]:
    """Return one note per reason.

    Parameters
    ----------
    left_out : iterable of (str, str)
        Name of each array that is not stored, and the reason, as it follows "not stored, ": ``"because it is
        text"``. An empty reason: the column is not in every source, or differs in form.
    """
    names: dict[str, list[str]] = {}
    for name, reason in left_out:
        names.setdefault(reason or NOT_EVERYWHERE, []).append(name)
    return [
        f"not stored, {reason}: {first_few(names_without_numbers(left_out_names), _LISTED)}"
        for reason, left_out_names in names.items()
    ]


def shape_labels(sources: Iterable[tuple[str, Mapping[str, SourceColumn]]]) -> dict[str, str]:
    """Return a label for each source, by its name.

    Sources whose columns have the same dtypes and shapes share a label.
    """
    of_sources = {source: dict(columns) for source, columns in sources}
    names = list(dict.fromkeys(chain.from_iterable(of_sources.values())))
    forms = list(dict.fromkeys(tuple(map(columns.get, names)) for columns in of_sources.values()))
    parts: list[list[str]] = [[] for _ in forms]
    for number, name in enumerate(names):
        own = [form[number] for form in forms]
        if len(set(own)) > 1 and len(set(map(tuple, parts))) < len(forms):
            for label, column in zip(parts, own, strict=True):
                label.append(_form_label(name, column))
    labels = {form: "-".join(label) for form, label in zip(forms, parts, strict=True)}
    return {source: labels[tuple(map(columns.get, names))] for source, columns in of_sources.items()}


def _form_label(name: str, column: SourceColumn | None) -> str:
    short = re.sub(r"[^A-Za-z0-9]+", "_", name.rpartition("/")[2]).strip("_")
    if column is None:
        return f"no_{short}"
    sizes = _sizes(column.row_shape)
    return f"{short}_{np.dtype(column.dtype).name}" + (f"_{sizes}" if sizes else "")


def _columns_differ(
    column_sets: Sequence[_ColumnSet], names: Sequence[str], count: int, fix: Fixes
) -> Problem:
    """Return the problem with a line for each column: its forms, each with the first source that has it."""
    lines = []
    for name in names:
        sources: dict[str, tuple[str, int]] = {}  # by form: the first, and how many others there are
        for column_set in column_sets:
            form = str(column_set.columns[name]) if name in column_set.columns else "missing"
            first, others = sources.get(form, (column_set.source, -1))
            sources[form] = first, others + column_set.count
        forms = [
            f"{form} in {first}" + (f" (+{others})" if others else "")
            for form, (first, others) in sources.items()
        ]
        lines.append(f"    {printable(name)}: {first_few(forms, _MAX_FORMS)}")
    message = "\n".join(["their columns differ:", *lines, "   "])
    return Problem(f"{count} sources", message, fix, "columns")
