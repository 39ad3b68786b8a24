"""Compare what a family restores from a store with what other libraries read from the files of a source."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unistore.converters.common.columns import is_lossless
from unistore.converters.common.exported import ExportedArray, objects
from unistore.converters.common.faults import is_read_error, reason_of
from unistore.converters.files.libraries import ONLY, Open, OpenedByLibrary, open_with_library
from unistore.errors import Location, UnistoreError, names_without_numbers
from unistore.system.types import AnyArray, Dtype, Shape


def difference(stored: AnyArray, other: AnyArray, first: int = 0) -> str | None:
    """Describe the first difference of two arrays, or return None if they are equal.

    Values of different dtypes are compared in a dtype that represents both exactly.

    Parameters
    ----------
    stored : array of shape (rows, …)
        Values of the store.
    other : array of shape (rows, …)
        Values of the file.
    first : int, default 0
        Number of the first row, for the message.

    Returns
    -------
    str or None
        For example ``"row 5: 1.0 and 2.0, 1 of 30 values differ"``.
    """
    if stored.shape != other.shape:
        return f"shapes {stored.shape} and {other.shape}"
    if stored.dtype.names is not None:
        fields = (difference(stored[name], other[name], first) for name in stored.dtype.names)
        return next((reason for reason in fields if reason is not None), None)
    if stored.dtype.kind in "OSU":
        return _text_difference(stored, other, first)
    if stored.dtype.kind == "c" and stored.size:
        real = difference(stored.real, other.real, first)
        return real or difference(stored.imag, other.imag, first)
    common = np.promote_types(stored.dtype, other.dtype)
    if not (is_lossless(stored.dtype, common) and is_lossless(other.dtype, common)):
        return f"dtypes {stored.dtype} and {other.dtype}, which no common dtype represents exactly"
    if not stored.size:
        return None
    one = _bits(stored, common)
    two = _bits(other, common)
    if np.array_equal(one, two):
        return None
    wrong = (one != two).reshape(len(stored), -1)
    row = int(np.flatnonzero(wrong.any(axis=1))[0])
    column = int(np.flatnonzero(wrong[row])[0])
    ours = stored.reshape(len(stored), -1)[row, column]
    theirs = other.reshape(len(other), -1)[row, column]
    count = np.count_nonzero(wrong)
    return f"row {first + row}: {ours} and {theirs}, {count} of {wrong.size} values differ"


def _text_difference(stored: AnyArray, other: AnyArray, first: int) -> str | None:
    for row, (one, two) in enumerate(zip(stored.flat, other.flat, strict=True)):
        ours = _bytes(one)
        theirs = _bytes(two)
        if ours != theirs:
            return f"row {first + row}: {ours!r:.60} and {theirs!r:.60}"
    return None


def _bytes(text: Any) -> bytes:
    return text.encode("utf-8", "surrogateescape") if isinstance(text, str) else bytes(text)


def _bits(values: AnyArray, dtype: Dtype) -> AnyArray:
    """Return values in a dtype, viewed as unsigned integers of native byte order."""
    plain = np.ascontiguousarray(values, dtype.newbyteorder("="))
    return plain.view(f"u{plain.itemsize}")


class RestoredArray(NamedTuple):
    """One array of a file, restored from a store.

    Attributes
    ----------
    name : str
        Name in the file. Any text if the file has one array without a name.
    values : ExportedArray
        Its rows. Axes of length 1 may be missing.
    field : str, default ""
        Field of its records. Empty: the array has no fields, or `values` has all of them.
    of_file : callable, optional
        Converts rows of the file to rows like these, for example by decoding images. None: no conversion.
    differ : callable
        ``differ(stored, other, first)`` describes the first difference; see `difference`, the default.
    may_differ : bool, default False
        Whether an array that differs counts as not stored, and not as a fault.
    decoder : str, default ""
        Library that `of_file` decodes with. Empty: none.
    """

    name: str
    values: ExportedArray
    field: str = ""
    of_file: Callable[[AnyArray], AnyArray] | None = None
    differ: Callable[[AnyArray, AnyArray, int], str | None] = difference
    may_differ: bool = False
    decoder: str = ""


class RestoredFile(NamedTuple):
    """A file of a source, restored from a store.

    Attributes
    ----------
    path : Path
        The file of the source.
    arrays : sequence of RestoredArray
        Arrays that the store has of it.
    open : callable
        ``open(path)`` opens the file with another library. The default chooses NumPy or h5py by the ending.
    naming : callable
        Called with the open file; returns a function from the names in `arrays` to names in the file.
    remarks : mapping of str to str
        Notes about arrays of the file that the store has in another form.
    attributes : str, optional
        Its attributes as text; see `attribute_texts`. None: attributes are not compared.
    is_rewritten : callable
        ``is_rewritten(path, object, name)`` returns whether the store has an attribute in another form.
    metadata : mapping
        Other metadata of the file in the store.
    format : str, default ""
        Name of its format, which opens the file if no other library does. Attributes of an HDF5 file are then
        compared, too. Empty: as `open` and `attributes` state.
    by_format : bool, default False
        Whether its format decides which arrays are values, and whether `metadata` is compared.
    parts : sequence of Path
        Files that continue it, as its format opens them.
    adapt : callable
        Called with the file as its format opened it; returns the file to compare.
    """

    path: Path
    arrays: Sequence[RestoredArray]
    open: Open = open_with_library
    naming: Callable[[OpenedByLibrary], Callable[[str], str]] = lambda _: str
    remarks: Mapping[str, str] = {}
    attributes: str | None = None
    is_rewritten: Callable[[str, Any, Any], bool] = lambda *_: False
    metadata: Mapping[str, Any] = {}
    format: str = ""
    by_format: bool = False
    parts: Sequence[Path] = ()
    adapt: Callable[[OpenedByLibrary], OpenedByLibrary] = lambda opened: opened


class RestoredFiles(NamedTuple):
    """The files of a source, restored from a store.

    Attributes
    ----------
    files : sequence of RestoredFile
        The files.
    left_out : sequence of str
        Content of the files that is not stored.
    """

    files: Sequence[RestoredFile]
    left_out: Sequence[str] = ()


# Restores a source by its number
Restore = Callable[[int], RestoredFiles]


class Compared(NamedTuple):
    """Result of the comparison of one array, attribute or metadata of a source.

    Attributes
    ----------
    location : Location
        Source and name.
    file : Path
        The file that was read.
    values : int
        Number of compared values.
    difference : str or None
        The first difference. None: they are equal.
    library : str
        Library that read the file.
    """

    location: Location
    file: Path
    values: int
    difference: str | None
    library: str


class SourceComparison(NamedTuple):
    """Result of the comparison of a source.

    Attributes
    ----------
    compared : sequence of Compared
        Everything that was compared.
    left_out : sequence of str
        Content of the source that is not stored.
    unread : sequence of str
        Files that the other library cannot read, each with the reason.
    """

    compared: Sequence[Compared]
    left_out: Sequence[str]
    unread: Sequence[str]


class _UnreadError(Exception):
    """The other library does not read a file, which the converter reads."""


@contextmanager
def _by_library() -> Iterator[None]:
    """Tell what a library raises of a file from a difference. What the system cannot read passes."""
    try:
        yield
    except UnistoreError:
        raise
    except Exception as error:
        if is_read_error(error) or isinstance(error, MemoryError):
            raise
        raise _UnreadError(f"{type(error).__name__}: {reason_of(error)}") from error


def compare_source(name: str, path: Path, restored: RestoredFiles) -> SourceComparison:
    """Compare a source with a store.

    Parameters
    ----------
    name : str
        Name of the source.
    path : Path
        Its first file.
    restored : RestoredFiles
        The files, restored from the store.
    """
    compared: list[Compared] = []
    left_out: list[str] = []
    unread: list[str] = []
    for file in restored.files:
        try:
            with ExitStack() as stack:
                with _by_library():
                    opened = stack.enter_context(file.open(file.path))
                differences, lacking = _compare_file(file, opened)
        except _UnreadError as error:
            unread.append(f"{name if file.path == path else file.path.name} ({error})")
            continue
        for part, size, differing, library in differences:
            location = Location(name, _label(part, file.path, path))
            compared.append(Compared(location, file.path, size, differing, library))
        for array in lacking:
            remark = f" ({file.remarks[array]})" if array in file.remarks else ""
            left_out.append(f"{_label(array, file.path, path) or file.path.stem}{remark}")
    return SourceComparison(compared, names_without_numbers([*left_out, *restored.left_out]), unread)


# Name of an array, an attribute or metadata of a file, number of values, difference, and library
_Part = tuple[str, int, str | None, str]


def _compare_file(file: RestoredFile, opened: OpenedByLibrary) -> tuple[list[_Part], list[str]]:
    """Compare arrays, attributes and metadata of an open file. Names that are left out come second."""
    actual = file.naming(opened)
    stored: set[str] = set()
    parts: list[_Part] = []
    for array in file.arrays:
        name = ONLY if ONLY in opened.names else actual(array.name)
        differing = _array_difference(array, name, opened)
        if differing is None or not array.may_differ:
            size = prod(array.values.shape)
            parts.append((name, size, differing, array.decoder or opened.library))
            stored.add(name)
    left_out = [name for name in opened.names if name not in stored]
    left_out += _other_fields(file.arrays, opened)
    if opened.hdf5 is not None and file.attributes is not None:
        # h5py is imported for sources that need it
        from unistore.converters.files.hdf5 import attributes

        differences = attributes.attribute_differences(opened.hdf5, file.attributes)
        parts += [(*part, opened.library) for part in differences]
        single_values = attributes.single_values(file.attributes)
        left_out = [name for name in left_out if name not in single_values]
        left_out += attributes.attributes_left_out(
            opened.hdf5, file.attributes, stored.__contains__, file.is_rewritten
        )
    if opened.metadata is not None:
        for key in {**opened.metadata, **file.metadata}:
            ours, theirs = (
                json.dumps(metadata.get(key), sort_keys=True) for metadata in (file.metadata, opened.metadata)
            )
            parts.append((key, 1, None if ours == theirs else f"{ours} and {theirs}", opened.library))
    return parts, left_out


def _label(array: str, file: Path, first: Path) -> str:
    """Return what an array is called in a source: files beside the first are named."""
    parts = [file.name] if file != first else []
    return ": ".join([*parts, array] if array != ONLY else parts)


def _other_fields(arrays: Sequence[RestoredArray], opened: OpenedByLibrary) -> Iterator[str]:
    """Yield fields of records that are not stored, of arrays with others that are."""
    fields: dict[str, set[str]] = {}
    for array in arrays:
        if array.field:
            fields.setdefault(array.name, set()).add(array.field)
    for name, stored in fields.items():
        yield from (f"{name}/{field}" for field in opened.array(name).dtype.names if field not in stored)


def _array_difference(array: RestoredArray, name: str, opened: OpenedByLibrary) -> str | None:
    try:
        with _by_library():
            of_file = opened.array(name)
    except _UnreadError as error:
        if isinstance(error.__cause__, KeyError) and name not in opened.names:
            return "only the store has it"
        raise
    if len(of_file) != array.values.shape[0]:
        return f"shapes {array.values.shape} and {tuple(of_file.shape)}"
    first = 0
    try:
        for block in array.values.blocks():
            with _by_library():
                rows = of_file[first : first + len(block)]
            if array.field:
                rows = rows[array.field]
            if array.of_file is not None:
                rows = array.of_file(rows)
            elif array.values.dtype.hasobject:
                rows = objects(rows)
            if _without_ones(rows.shape) == _without_ones(block.shape):
                rows = rows.reshape(block.shape)
            reason = array.differ(block, rows, first)
            if reason is not None:
                return reason
            first += len(block)
    except ValueError as error:  # a dtype that does not hold the values
        return str(error)
    return None


def _without_ones(shape: Shape) -> Shape:
    return (*shape[:1], *(extent for extent in shape[1:] if extent != 1))
