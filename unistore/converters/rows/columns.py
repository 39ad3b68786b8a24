"""Which arrays of a file are columns, and which files belong together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from unistore.converters.common.columns import is_text, storable
from unistore.converters.common.left_out import NOT_MAPPED
from unistore.converters.files.npy import NPY_NAME
from unistore.converters.rows.grouping import group_files
from unistore.converters.rows.options import RowsOptions
from unistore.converters.seam.sources import common_length
from unistore.errors import AddOptions, location_of, printable
from unistore.plugin import (
    Chosen,
    Claim,
    Column,
    Grouping,
    Head,
    InputError,
    Problem,
    SourceFile,
    no,
    sure,
)
from unistore.schemas.ragged import RAGGED_SUFFIX, TEXT_SUFFIX
from unistore.system.hints import Dtype, Shape

_REVERSE = AddOptions(("--reverse-axes",), "if rows are on the last axis")
_MATLAB = b"MATLAB 7.3 MAT-file"
_ALIKE = 256  # arrays of many files have the same names and dtypes


def match(head: Head) -> Claim:
    """Take every file that holds numbers. This family is asked last."""
    if not any(storable(dtype) or dtype.names for _, dtype in head.arrays.values()):
        return no("holds no arrays of numbers")
    return sure(f"holds arrays ({', '.join(map(printable, list(head.arrays)[:3]))})", "arrays")


def group(files: Sequence[SourceFile]) -> Grouping:
    """Group ``.npy`` files of a folder that are columns of the same rows, see `group_files`."""
    groups, problems = group_files(files)
    parts = sum(group.arrays == (NPY_NAME,) for group in groups)
    note = f"{parts} .npy files of like rows: parts of one array, one after the other"
    return Grouping(sources=[*groups], problems=problems, notes=[note] if parts > 1 else [])


def choose(options: RowsOptions, head: Head) -> Chosen:
    """Take all arrays, or those that ``--map`` names."""
    ragged = {
        key: (array.shape, array.dtype)
        for key, array in head.opened.of_any_length.items()
        if array.value_form is not None
    }
    forms = {**head.arrays, **ragged}
    present = [key for key in forms if key not in head.facts]
    arrays = _mapped_arrays(options, head, present)
    if arrays and ragged.keys() >= set(arrays.values()):
        message = "has no array of numbers with a value a row: only texts, or rows of any length"
        raise InputError.at(head.file.name, message, "save the number of each row with them", "columns")
    named = [(name, key, forms[key][1]) for name, key in arrays.items()]
    columns = {
        **columns_of(tuple([one for one in named if one[1] not in ragged])),
        **_ragged_columns([one for one in named if one[1] in ragged]),
    }
    read = {location_of(head.file.name, key).dataset for key in ragged}
    problems = [problem for problem in head.problems if problem.dataset not in read]
    left_out: dict[str, str] = {}
    if options.map:
        places = {location_of(head.file.name, key).dataset for key in options.map.values()}
        unmapped = [key for key in present if key not in arrays.values()]
        unmapped += [problem.dataset for problem in problems]
        left_out = dict.fromkeys(unmapped, NOT_MAPPED)
        problems = [problem for problem in problems if problem.dataset in places]
    problems += _length_problems(options, head.file.name, {key: forms[key][0] for key in arrays.values()})
    return Chosen(columns, left_out, _notes(head.file, options.reverse_axes), problems)


def _mapped_arrays(options: RowsOptions, head: Head, present: Sequence[str]) -> dict[str, str]:
    """Return array in the file of each stored name."""
    if not options.map:
        return {key: key for key in present}
    mapped = {to: key.strip("/") for to, key in options.map.items()}
    absent = [key for key in mapped.values() if key not in present]
    if absent and options.columns == "exact":
        shown_keys = printable(", ".join(present)) or "none"
        message = f"is not there; arrays: {shown_keys}"
        places = [location_of(head.file.name, key) for key in absent]
        raise InputError([Problem.at(place, message, kind="missing") for place in places])
    return {to: key for to, key in mapped.items() if key not in absent}


def _length_problems(options: RowsOptions, file: str, shapes: Mapping[str, Shape]) -> list[Problem]:
    """Problem of arrays of different lengths, with the option that helps where their last axes agree."""
    _, problems = common_length(shapes, file)
    if problems and not options.reverse_axes:
        _, longest = common_length({key: shape[::-1] for key, shape in shapes.items()}, file)
        if not longest:
            problems = [replace(problem, fix=(_REVERSE, *problem.fixes)) for problem in problems]
    return problems


def _notes(file: SourceFile, reverse_axes: bool) -> tuple[str, ...]:
    if reverse_axes or not file.name.lower().endswith(".mat"):
        return ()
    is_by_matlab = file.head(len(_MATLAB)) == _MATLAB
    return (f"written by MATLAB, which reverses axes; {_REVERSE}",) if is_by_matlab else ()


@lru_cache(_ALIKE)
def columns_of(arrays: tuple[tuple[str, str, Dtype], ...]) -> Mapping[str, Column]:
    """Columns of arrays, given with their stored names: one, or one for each field of an array of records."""
    columns = {}
    for name, array, dtype in arrays:
        if dtype.names is None:
            columns[name] = _column(name, array, "")
        for field in dtype.names or ():
            columns[f"{name}/{field}"] = _column(f"{name}/{field}", array, field)
    return columns


def _ragged_columns(arrays: Sequence[tuple[str, str, Dtype]]) -> dict[str, Column]:
    """Columns of texts and of rows with any number of values, given as to `columns_of`."""
    columns = {}
    for name, array, dtype in arrays:
        suffix = TEXT_SUFFIX if is_text(dtype) else RAGGED_SUFFIX
        columns[f"{name}{suffix}"] = replace(_column(name, array, ""), ragged=True)
    return columns


def _column(name: str, array: str, field: str) -> Column:
    description = f"array {name} of the sources, files concatenated in natural order"
    return Column(axes=None, description=description, source=array, field=field)
