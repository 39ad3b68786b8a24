"""Problems of columns, and their remedies as ``--map`` options that fit the file."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from unistore.converters.common.columns import Column, length_table, storable
from unistore.converters.files.hdf5.file import location_of
from unistore.converters.point_cloud.names import ArrayHeader
from unistore.errors import Location, Problem, printable
from unistore.schemas.tables import name_problem

_SHOWN = 3
_RESERVED = ("xyz", "source_row", "origin", "index")
"""Names of arrays and sample keys that a source's column cannot have."""


def name_problems(
    stored: Mapping[str, str], coordinates: Sequence[str], name: Location | str
) -> list[Problem]:
    """Problems of stored names: differing in case only, invalid for an array, or reserved.

    Parameters
    ----------
    stored
        Dataset by stored name.
    coordinates
        Stored names of the coordinates.
    """
    problems: list[Problem] = []
    alike: dict[str, list[str]] = {}
    for key, path in stored.items():
        alike.setdefault(key.lower(), []).append(key)
        taken = key in _RESERVED and key not in coordinates
        reason = "this name is kept for something else" if taken else name_problem(key)
        if reason is not None or "/" in key:
            message = f"cannot be stored as {key!r}: {reason or 'it holds a slash'}"
            problems.append(Problem.at(location_of(name, path), message, how_to_rename(path), "name"))
    for keys in alike.values():
        if len(keys) > 1:
            message = f"holds both {printable(' and '.join(keys))}"
            problems.append(Problem.at(name, message, how_to_rename(stored[keys[1]]), "ambiguous"))
    return problems


def dataset_problems(
    used: Mapping[str, str], xyz: Sequence[str], datasets: Mapping[str, ArrayHeader], name: Location | str
) -> list[Problem]:
    """Problems of shapes and dtypes; `used` has the dataset of each stored name, `xyz` are coordinates."""
    problems: list[Problem] = []
    for key, path in used.items():
        shape, dtype = datasets[path].shape, datasets[path].dtype
        form = Column(dtype.str, shape[1:])
        problems += column_problems(form, name, path, coordinate=key in xyz)
        if key in xyz and len(shape) != (2 if xyz == ("xyz",) else 1):
            message = f"has shape {shape}, expected {'(N, 3)' if xyz == ('xyz',) else '(N,)'} for coordinates"
            others = {each: datasets[each] for each in datasets if each != path}
            problems.append(Problem.at(location_of(name, path), message, how_to_name(others), "shape"))
    return problems + lengths_problems({path: datasets[path].shape for path in used.values()}, name)


def lengths_problems(shapes: Mapping[str, tuple[int, ...]], name: Location | str) -> list[Problem]:
    """Problem with a table of lengths, if columns differ in length."""
    lengths = {printable(path): shape[0] if shape else 0 for path, shape in shapes.items()}
    common = Counter(lengths.values()).most_common(1)[0][0]
    odd = [path for path, length in lengths.items() if length != common]
    if not odd:
        return []
    cure = f"write the file again, or leave columns out: {_how_to_leave_out(*odd[:_SHOWN])}"
    return [Problem.at(name, f"columns differ in length:\n{length_table(lengths)}\n   ", cure, "length")]


def column_problems(
    form: Column, name: Location | str, path: str, *, coordinate: bool = False
) -> list[Problem]:
    """Problems of the dtype and row shape of a column, the dataset `path` in the file or segment `name`."""
    dtype = np.dtype(form.dtype)
    location = location_of(name, path)
    cure = f"leave it out: {_how_to_leave_out(path)}"
    largest = {"f": 8, "i": 4, "u": 4}.get(dtype.kind, 0)
    if coordinate and dtype.itemsize > largest:
        message = f"has dtype {dtype}, expected a float or an integer of at most 32 bits for coordinates"
        return [Problem.at(location, message, "write it again as float64", "dtype")]
    if not storable(dtype):
        message = f"has dtype {dtype}, expected bool, integers or floats of up to 8 bytes"
        return [Problem.at(location, message, cure, "dtype")]
    if 0 in form.row_shape:
        return [Problem.at(location, f"has rows of shape {form.row_shape}, without values", cure, "empty")]
    return []


def how_to_name(datasets: Mapping[str, ArrayHeader]) -> str:
    """How to name the coordinates: an array (N, 3), or three columns of the same length."""
    columns: dict[int, list[str]] = defaultdict(list)
    for path, each in datasets.items():
        if len(each.shape or ()) == 2 and each.shape[1] == 3:
            return f"name the coordinates, as in {_map('xyz', path)}"
        if len(each.shape or ()) == 1 and each.dtype.kind in "fiu":
            columns[each.shape[0]].append(path)
    found = next((paths[:3] for paths in columns.values() if len(paths) > 2), None)
    if found is None:
        return "none of its arrays can be coordinates; as plain arrays: unistore convert rows"
    return f"name the columns, as in {' '.join(map(_map, 'xyz', found))}"


def how_to_rename(path: str) -> str:
    """How to rename a column or leave it out."""
    plain = "".join(char if char.isascii() and char.isalnum() else "_" for char in path.rpartition("/")[2])
    return f"rename it, as in {_map(f'{plain}_2', path)}, or leave it out: {_how_to_leave_out(path)}"


def _how_to_leave_out(*paths: str) -> str:
    return " ".join(_map(path, "") for path in paths)


def _map(name: str, path: str) -> str:
    return f"--map {shlex.quote(printable(f'{name}={path}'))}"
