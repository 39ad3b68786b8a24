"""Choose the coordinates and the other columns of a file, by their names or by ``--map``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unistore.converters.common.columns import Column, length_table, storable
from unistore.converters.files.hdf5.file import location_of
from unistore.converters.point_cloud.cures import how_to_leave_out, how_to_name, how_to_rename
from unistore.converters.point_cloud.names import (
    ArrayHeader,
    distinct_names,
    is_coordinates,
    named_coordinates,
    raw_coordinates,
)
from unistore.converters.point_cloud.source import AXES
from unistore.errors import InputError, Problem, printable
from unistore.schemas.tables import name_problem

_SHOWN = 3
FEATURES = "features"
"""Stored name of the values that follow x, y, z in one array."""
_RESERVED = ("xyz", "source_row", "origin", "index")
"""Names of arrays and sample keys that a source's column cannot have."""
_WRITE = "write it again as float64"


@dataclass(frozen=True, slots=True)
class Chosen:
    """Coordinates and columns of a point cloud, each a dataset of the file.

    Attributes
    ----------
    rows
        Points.
    xyz
        Datasets of x, y and z, or one dataset of shape (N, 3).
    xyz_stored
        Their dtypes, byte order included.
    columns
        Dataset and `Column` (dtype and row shape) of each column, by stored name.
    left_out
        Scalar datasets.
    notes
        Remarks: which datasets are the coordinates, which columns were renamed or left out.
    """

    rows: int
    xyz: tuple[str, ...]
    xyz_stored: tuple[str, ...]
    columns: dict[str, tuple[str, Column]]
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def choose(
    datasets: Mapping[str, ArrayHeader],
    group: str,
    mapping: Mapping[str, str],
    name: str,
    check: Callable[[Any, str], list[Problem]] | None = None,
    *,
    wide: bool = False,
) -> Chosen:
    """Choose coordinates and columns among the datasets of a file.

    Every dataset directly in `group` is a column under its own name; a name that differs from another in
    case only gets a number. The coordinates are x, y and z (in either case), or one dataset (N, 3) whose
    name is in `COORDINATES`. With `wide` that dataset may have more columns, which become ``features``.

    Parameters
    ----------
    datasets
        Datasets of the file by path.
    group
        Path of the group of the columns.
    mapping
        ``--map``: dataset (name in the group, or path) by stored name; empty: leave that column out.
    name
        Name of the file in messages.
    check
        ``check(dataset, location)``: problems that make the values of a dataset unreadable.
    wide
        Whether the dataset of coordinates may be (N, 4) or more.

    Raises
    ------
    InputError
        With every problem: no or several x, y or z, names that collide, columns of different length, dtypes
        that cannot be stored, datasets that were never written.
    """
    prefix = f"{group}/" if group else ""
    own = {path.removeprefix(prefix): path for path in datasets if path.startswith(prefix)}
    own = {key: path for key, path in own.items() if "/" not in key}
    notes: list[str] = []
    own = _without_raw(own, datasets, mapping, notes)
    stored, problems = _named(own, datasets, mapping, name)
    problems += _coordinates(stored, datasets, name, notes, wide=wide)
    renamed = distinct_names(stored, mapping)
    notes += [case_note(key, other) for key, other in renamed.items()]
    stored = {renamed.get(key, key): path for key, path in stored.items()}
    missing = [] if "xyz" in stored else [role for role in AXES if role not in stored]
    if missing:
        listed = printable(", ".join(own)) or "none"
        message = f"has no {', '.join(missing)}; columns: {listed}"
        problems.append(Problem(location_of(name, group), message, how_to_name(datasets), "missing"))
    xyz = ("xyz",) if "xyz" in stored else AXES
    problems += name_problems(stored, xyz, name)
    if problems:
        raise InputError(problems)
    scalars = tuple(path for path in stored.values() if datasets[path].shape == ())
    used = {key: path for key, path in stored.items() if path not in scalars or key in xyz}
    if check is not None:
        problems += [
            each for path in used.values() for each in check(datasets[path], location_of(name, path))
        ]
    if not problems:
        problems += _dataset_problems(used, xyz, datasets, name)
    whole = datasets[used[xyz[0]]]
    columns = {
        key: (path, Column(datasets[path].dtype.str, datasets[path].shape[1:]))
        for key, path in used.items()
        if key not in xyz
    }
    if xyz == ("xyz",) and len(whole.shape) == 2 and whole.shape[1] != 3 and not problems:
        problems += _add_features(columns, used["xyz"], whole, name, notes, wide=wide)
    if problems:
        raise InputError(problems)
    return Chosen(
        rows=datasets[used[xyz[0]]].shape[0],
        xyz=tuple(used[key] for key in xyz),
        xyz_stored=tuple(datasets[used[key]].dtype.str for key in xyz),
        columns=columns,
        left_out=scalars,
        notes=tuple(notes),
    )


def _without_raw(
    own: Mapping[str, str], datasets: Mapping[str, ArrayHeader], mapping: Mapping[str, str], notes: list[str]
) -> dict[str, str]:
    """The datasets of a group, without X, Y and Z if they are raw integers beside x, y and z."""
    if set(mapping) & {*AXES, "xyz"}:
        return dict(own)
    found = raw_coordinates({key: datasets[path] for key, path in own.items()})
    raw = tuple(key for key in found if key not in mapping.values())
    if raw:
        notes.append(f"left out, being x, y, z before scaling: {', '.join(raw)}; --map raw_x=X keeps one")
    return {key: path for key, path in own.items() if key not in raw}


def _coordinates(
    stored: dict[str, str], datasets: Mapping[str, ArrayHeader], name: str, notes: list[str], *, wide: bool
) -> list[Problem]:
    """If there are neither x, y, z nor xyz, store the dataset with a name of coordinates as xyz."""
    if "xyz" in stored and is_coordinates(datasets[stored["xyz"]], wide=wide):
        return []
    if set(AXES) & set(stored) or "xyz" in stored:
        return []
    found = named_coordinates({key: datasets[path] for key, path in stored.items()}, wide=wide)
    if len(found) > 1:
        listed = printable(" and ".join(found))
        cure = f"choose one: --map xyz={stored[found[0]]}"
        return [Problem(name, f"holds {listed}: which are the coordinates?", cure, "ambiguous")]
    for key in found:
        stored["xyz"] = stored.pop(key)
        notes.append(
            f"coordinates are {printable(stored['xyz'])}, by its name; --map xyz=NAME says otherwise"
        )
    return []


def case_note(name: str, stored: str) -> str:
    """Remark on a column that is renamed; see `distinct_names`."""
    return f"{printable(name)} differs from another column in case alone: stored as {printable(stored)}"


def _add_features(
    columns: dict[str, tuple[str, Column]],
    path: str,
    whole: ArrayHeader,
    name: str,
    notes: list[str],
    *,
    wide: bool,
) -> list[Problem]:
    """Add the values that follow x, y, z in their dataset as a column."""
    if not wide or whole.shape[1] < 3:
        message = f"has shape {whole.shape}, expected (N, 3) for coordinates"
        return [Problem(location_of(name, path), message, "save it as (N, 3)", "shape")]
    if any(key.lower() == FEATURES for key in columns):
        message = (
            f"has shape {whole.shape}: what follows x, y, z would be stored as {FEATURES!r}, which is there"
        )
        return [Problem(location_of(name, path), message, how_to_rename(path), "ambiguous")]
    columns[FEATURES] = (path, Column(whole.dtype.str, (whole.shape[1] - 3,)))
    notes.append(f"{printable(path)} {whole.shape}: the first three are x, y, z, the others {FEATURES}")
    return []


def _named(
    own: Mapping[str, str], datasets: Mapping[str, ArrayHeader], mapping: Mapping[str, str], name: str
) -> tuple[dict[str, str], list[Problem]]:
    """Dataset by stored name."""
    problems: list[Problem] = []
    mapped: dict[str, str] = {}
    gone: set[str] = set()
    for key, wanted in mapping.items():
        source = wanted.strip("/") or key
        path = own.get(source) or (source if source in datasets else None)
        if path is None and wanted:
            listed = printable(", ".join(list(datasets)[:40]))
            message = f"--map {key}={wanted}: there is no {source!r}; datasets: {listed}"
            problems.append(Problem(name, message, kind="missing"))
        elif path is not None and wanted:
            mapped[key] = path
        elif path is not None:
            gone.add(path)
    stored: dict[str, str] = {}
    for key, path in own.items():
        if path in gone or path in mapped.values():
            continue
        role = key.lower() if key.lower() in (*AXES, "xyz") else key
        if role == "xyz" and (len(datasets[path].shape) != 2 or datasets[path].shape[1] < 3):
            role = key
        taken = stored.get(role) or mapped.get(role)
        if taken is not None:
            message = f"would be stored as {role!r}, as {printable(taken)} is"
            problems.append(Problem(location_of(name, path), message, how_to_rename(path), "ambiguous"))
        stored.setdefault(role, path)
    return {**stored, **mapped}, problems


def name_problems(stored: Mapping[str, str], coordinates: Sequence[str], name: str) -> list[Problem]:
    """Problems of stored names: differing in case only, invalid for an array, or reserved.

    Parameters
    ----------
    stored
        Dataset by stored name.
    coordinates
        Stored names of the coordinates.
    name
        Name of the file in messages.
    """
    problems: list[Problem] = []
    alike: dict[str, list[str]] = {}
    for key in stored:
        alike.setdefault(key.lower(), []).append(key)
        taken = key in _RESERVED and key not in coordinates
        reason = "this name is kept for something else" if taken else name_problem(key)
        if reason is not None or "/" in key:
            message = f"cannot be stored as {key!r}: {reason or 'it holds a slash'}"
            problems.append(
                Problem(location_of(name, stored[key]), message, how_to_rename(stored[key]), "name")
            )
    for keys in alike.values():
        if len(keys) > 1:
            message = f"holds both {printable(' and '.join(keys))}"
            problems.append(Problem(name, message, how_to_rename(stored[keys[1]]), "ambiguous"))
    return problems


def _dataset_problems(
    used: Mapping[str, str], xyz: Sequence[str], datasets: Mapping[str, ArrayHeader], name: str
) -> list[Problem]:
    problems: list[Problem] = []
    for key, path in used.items():
        shape, dtype = datasets[path].shape, datasets[path].dtype
        form = Column(dtype.str, shape[1:])
        problems += column_problems(form, location_of(name, path), coordinate=key in xyz)
        if key in xyz and len(shape) != (2 if xyz == ("xyz",) else 1):
            message = f"has shape {shape}, expected {'(N, 3)' if xyz == ('xyz',) else '(N,)'} for coordinates"
            others = {each: datasets[each] for each in datasets if each != path}
            problems.append(Problem(location_of(name, path), message, how_to_name(others), "shape"))
    problem = lengths_problem({path: datasets[path].shape for path in used.values()}, name)
    return problems if problem is None else [*problems, problem]


def lengths_problem(shapes: Mapping[str, tuple[int, ...]], name: str) -> Problem | None:
    """Problem with a table of lengths, if columns differ in length."""
    lengths = {printable(path): shape[0] if shape else 0 for path, shape in shapes.items()}
    if len(set(lengths.values())) <= 1:
        return None
    common = Counter(lengths.values()).most_common(1)[0][0]
    odd = [path for path, length in lengths.items() if length != common]
    cure = f"write the file again, or leave columns out: {how_to_leave_out(*odd[:_SHOWN])}"
    return Problem(name, f"columns differ in length:\n{length_table(lengths)}\n   ", cure, "length")


def _leave_out(location: str) -> str:
    return f"leave it out: {how_to_leave_out(location.rpartition(': ')[2])}"


def column_problems(form: Column, location: str, *, coordinate: bool = False) -> list[Problem]:
    """Problems of a column's dtype and row shape."""
    dtype = np.dtype(form.dtype)
    largest = {"f": 8, "i": 4, "u": 4}.get(dtype.kind, 0)
    if coordinate and dtype.itemsize > largest:
        message = f"has dtype {dtype}, expected a float or an integer of at most 32 bits for coordinates"
        return [Problem(location, message, _WRITE, "dtype")]
    if not storable(dtype):
        message = f"has dtype {dtype}, expected bool, integers or floats of up to 8 bytes"
        return [Problem(location, message, _leave_out(location), "dtype")]
    if 0 in form.row_shape:
        return [
            Problem(
                location, f"has rows of shape {form.row_shape}, without values", _leave_out(location), "empty"
            )
        ]
    return []
