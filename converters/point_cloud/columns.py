"""Choose the coordinates and the other columns of a file, by their names or by ``--map``."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from unistore.converters.common.columns import length_table, storable
from unistore.converters.common.left_out import NO_COLUMN, has_values
from unistore.converters.plugin import Array
from unistore.converters.point_cloud.names import (
    ArrayHeader,
    distinct_names,
    named_coordinates,
    own_names,
    raw_coordinates,
)
from unistore.converters.point_cloud.source import AXES, Described, Layout, Place
from unistore.errors import InputError, Location, Problem, location_of, printable
from unistore.schemas.tables import name_problem

_RAW = "being x, y, z before scaling (--map raw_x=X keeps one)"
FEATURES = "features"
"""Stored name of the values that follow x, y, z in one array."""


def choose(
    layout: str,
    datasets: Mapping[str, Array],
    group: str,
    mapping: Mapping[str, str],
    name: Location | str,
    *,
    wide: bool = False,
) -> Described:
    """Choose the coordinates and columns among the datasets of a file.

    Every dataset directly in `group` is a column under its own name; a name that differs from another in
    case only gets a number. The coordinates are x, y and z (in either case), or one dataset (N, 3) whose
    name is in `COORDINATES`. With `wide` that dataset may have more columns, which become ``features``.
    Datasets without axes are left out.

    Parameters
    ----------
    datasets
        Datasets of the file by path.
    group
        Path of the group of the columns.
    mapping
        ``--map``: dataset (name in the group, or path) by stored name; empty: leave that column out.

    Raises
    ------
    InputError
        With every problem: no or several x, y or z, names that collide, columns of different length, dtypes
        that cannot be stored, datasets that were never written.
    """
    notes: list[str] = []
    raw = _raw(own_names(datasets, group), datasets, mapping)
    own = {key: path for key, path in own_names(datasets, group).items() if key not in raw}
    stored, problems = _named(own, datasets, mapping, name)
    problems += _coordinates(stored, datasets, name, notes, wide=wide)
    renamed = distinct_names(stored, mapping)
    notes += [case_note(key, other) for key, other in renamed.items()]
    stored = {renamed.get(key, key): path for key, path in stored.items()}
    xyz = ("xyz",) if "xyz" in stored else AXES
    if missing := [role for role in xyz if role not in stored]:
        shown_columns = printable(", ".join(own)) or "none"
        message = f"has no {', '.join(missing)}; columns: {shown_columns}"
        problems.append(Problem.at(location_of(name, group), message, how_to_name(datasets), "missing"))
    problems += name_problems(stored, xyz, name)
    if problems:
        raise InputError(problems)
    used = {key: path for key, path in stored.items() if key in xyz or datasets[path].shape != ()}
    for path in used.values():
        problems += datasets[path].problems()
    if problems or (problems := dataset_problems(used, xyz, datasets, name)):
        raise InputError(problems)
    places = {key: place_of(path, datasets[path]) for key, path in used.items()}
    coordinates = [places.pop(key) for key in xyz]
    points = datasets[coordinates[0].array].shape[0]
    if xyz == ("xyz",) and coordinates[0].row_shape != (3,):
        whole = coordinates[0]
        places[FEATURES] = _features(whole, points, places, name, wide=wide)
        shape = (points, *whole.row_shape)
        notes.append(f"{printable(whole.array)} {shape}: the first three are x, y, z, the others {FEATURES}")
    return Described(
        layout=Layout(
            name=layout,
            xyz=tuple([place.array for place in coordinates]),
            xyz_stored=tuple([place.dtype for place in coordinates]),
            columns=places,
        ),
        points=points,
        notes=tuple(notes),
        left_out=left_out_of(datasets, used.values(), raw.values()),
    )


def place_of(path: str, array: Array) -> Place:
    """Where a column is that is an array of its own."""
    return Place(path, array.dtype.str, array.shape[1:])


def _raw(
    own: dict[str, str], datasets: Mapping[str, ArrayHeader], mapping: Mapping[str, str]
) -> dict[str, str]:
    """Return X, Y and Z of a group, by name, if they are raw integers beside x, y and z."""
    if set(mapping) & {*AXES, "xyz"}:
        return {}
    raw = raw_coordinates({key: datasets[path] for key, path in own.items()})
    return {key: own[key] for key in raw if key not in mapping.values()}


def left_out_of(
    datasets: Mapping[str, ArrayHeader], used: Iterable[str], raw: Iterable[str] = ()
) -> tuple[tuple[str, str], ...]:
    """Return the paths of datasets with values that are not used, each with the reason."""
    used_paths = set(used)
    unscaled = set(raw)
    return tuple(
        (path, _RAW if path in unscaled else NO_COLUMN)
        for path, dataset in datasets.items()
        if path not in used_paths and has_values(dataset)
    )


def _named(
    own: Mapping[str, str],
    datasets: Mapping[str, ArrayHeader],
    mapping: Mapping[str, str],
    name: Location | str,
) -> tuple[dict[str, str], list[Problem]]:
    """Dataset by stored name."""
    problems: list[Problem] = []
    mapped: dict[str, str] = {}
    gone: set[str] = set()
    for key, source_key in mapping.items():
        source = source_key.strip("/") or key
        path = own.get(source) or (source if source in datasets else None)
        if path is None and source_key:
            shown_datasets = printable(", ".join(list(datasets)[:40]))
            message = f"--map {key}={source_key}: there is no {source!r}; datasets: {shown_datasets}"
            problems.append(Problem.at(name, message, kind="missing"))
        elif path is not None and source_key:
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
        other_column = stored.get(role) or mapped.get(role)
        if other_column is not None:
            message = f"would be stored as {role!r}, as {printable(other_column)} is"
            problems.append(Problem.at(location_of(name, path), message, how_to_rename(path), "ambiguous"))
        stored.setdefault(role, path)
    return {**stored, **mapped}, problems


def _coordinates(
    stored: dict[str, str],
    datasets: Mapping[str, ArrayHeader],
    name: Location | str,
    notes: list[str],
    *,
    wide: bool,
) -> list[Problem]:
    """If there are neither x, y, z nor xyz, store the dataset with a name of coordinates as xyz."""
    if {*AXES, "xyz"} & set(stored):
        return []
    usual = named_coordinates({key: datasets[path] for key, path in stored.items()}, wide=wide)
    if len(usual) > 1:
        message = f"holds {printable(' and '.join(usual))}: which are the coordinates?"
        return [Problem.at(name, message, f"choose one: --map xyz={stored[usual[0]]}", "ambiguous")]
    for key in usual:
        stored["xyz"] = stored.pop(key)
        notes.append(
            f"coordinates are {printable(stored['xyz'])}, by its name; --map xyz=NAME says otherwise"
        )
    return []


def _features(place: Place, points: int, names: Iterable[str], name: Location | str, *, wide: bool) -> Place:
    """Return where the values are that follow x, y, z in their dataset; `names` are those of the columns."""
    location = location_of(name, place.array)
    shape = (points, *place.row_shape)
    if not wide or place.row_shape[0] < 3:
        message = f"has shape {shape}, expected (N, 3) for coordinates"
        raise InputError(Problem.at(location, message, "save it as (N, 3)", "shape"))
    if any(key.lower() == FEATURES for key in names):
        message = f"has shape {shape}: what follows x, y, z would be stored as {FEATURES!r}, which is there"
        raise InputError(Problem.at(location, message, how_to_rename(place.array), "ambiguous"))
    return place._replace(row_shape=(place.row_shape[0] - 3,))


def case_note(name: str, stored: str) -> str:
    """Remark on a column that is renamed; see `distinct_names`."""
    return f"{printable(name)} differs from another column in case alone: stored as {printable(stored)}"


_SHOWN = 3
# Names of arrays and sample keys that a source's column cannot have
_RESERVED = ("xyz", "source_row", "origin", "index")


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
        is_reserved = key in _RESERVED and key not in coordinates
        reason = "this name is kept for something else" if is_reserved else name_problem(key)
        if reason is not None or "/" in key:
            message = f"cannot be stored as {key!r}: {reason or 'it holds a slash'}"
            problems.append(Problem.at(location_of(name, path), message, how_to_rename(path), "name"))
    for keys in alike.values():
        if len(keys) > 1:
            message = f"holds both {printable(' and '.join(keys))}"
            problems.append(Problem.at(name, message, how_to_rename(stored[keys[1]]), "ambiguous"))
    return problems


def dataset_problems(
    used: Mapping[str, str], xyz: Sequence[str], datasets: Mapping[str, Array], name: Location | str
) -> list[Problem]:
    """Problems of shapes and dtypes; `used` has the dataset of each stored name, `xyz` are coordinates."""
    problems: list[Problem] = []
    for key, path in used.items():
        shape = datasets[path].shape
        problems += column_problems(place_of(path, datasets[path]), name, coordinate=key in xyz)
        if key in xyz and len(shape) != (2 if xyz == ("xyz",) else 1):
            message = f"has shape {shape}, expected {'(N, 3)' if xyz == ('xyz',) else '(N,)'} for coordinates"
            candidates = {other: datasets[other] for other in datasets if other != path}
            problems.append(Problem.at(location_of(name, path), message, how_to_name(candidates), "shape"))
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


def column_problems(place: Place, name: Location | str, *, coordinate: bool = False) -> list[Problem]:
    """Problems of the dtype and row shape of a column of the file or segment `name`."""
    dtype = np.dtype(place.dtype)
    location = location_of(name, place.array)
    cure = f"leave it out: {_how_to_leave_out(place.array)}"
    largest = {"f": 8, "i": 4, "u": 4}.get(dtype.kind, 0)
    if coordinate and dtype.itemsize > largest:
        message = f"has dtype {dtype}, expected a float or an integer of at most 32 bits for coordinates"
        return [Problem.at(location, message, "write it again as float64", "dtype")]
    if not storable(dtype):
        message = f"has dtype {dtype}, expected bool, integers or floats of up to 8 bytes"
        return [Problem.at(location, message, cure, "dtype")]
    if 0 in place.row_shape:
        return [Problem.at(location, f"has rows of shape {place.row_shape}, without values", cure, "empty")]
    return []


def how_to_name(datasets: Mapping[str, ArrayHeader]) -> str:
    """How to name the coordinates: an array (N, 3), or three columns of the same length."""
    columns: dict[int, list[str]] = defaultdict(list)
    for path, array in datasets.items():
        shape = array.shape
        if len(shape) == 2 and shape[1] == 3:
            return f"name the coordinates, as in {_map('xyz', path)}"
        if len(shape) == 1 and array.dtype.kind in "fiu":
            columns[shape[0]].append(path)
    for paths in columns.values():
        if len(paths) > 2:
            return f"name the columns, as in {' '.join(map(_map, 'xyz', paths[:3]))}"
    return "none of its arrays can be coordinates; as plain arrays: unistore convert rows"


def how_to_rename(path: str) -> str:
    """How to rename a column or leave it out."""
    plain = "".join(char if char.isascii() and char.isalnum() else "_" for char in path.rpartition("/")[2])
    return f"rename it, as in {_map(f'{plain}_2', path)}, or leave it out: {_how_to_leave_out(path)}"


def _how_to_leave_out(*paths: str) -> str:
    return " ".join(_map(path, "") for path in paths)


def _map(name: str, path: str) -> str:
    return f"--map {shlex.quote(printable(f'{name}={path}'))}"
