"""Choose the coordinates and the other columns of a file, by their names or by ``--map``."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain

from unistore.converters.common.columns import length_table, storable
from unistore.converters.common.left_out import NO_COLUMN, has_values
from unistore.converters.plugin import Array
from unistore.converters.point_cloud.names import (
    distinct_names,
    named_coordinates,
    own_names,
    raw_coordinates,
)
from unistore.converters.point_cloud.source import AXES, ColumnPlace, Described, FileLayout
from unistore.errors import InputError, Location, Problem, first_few, location_of, printable
from unistore.schemas.tables import name_problem

FEATURES = "features"  # stored name of the values that follow x, y, z in one array
HOW_TO_NAME = "name the coordinates: --map xyz=NAME, or --map x=NAME --map y=NAME --map z=NAME"
_RAW = "being x, y, z before scaling (--map raw_x=X keeps one)"
_SHOWN_ARRAYS = 40
# Names of arrays and sample keys that a source's column cannot have
_RESERVED = ("xyz", "source_row", "origin", "index")
_RESERVED_OF_SEGMENTS = ("offsets", "origin", "bounds", "source", "number", "name")


def choose(
    layout: str,
    datasets: Mapping[str, Array],
    group: str,
    mapping: Mapping[str, str],
    name: Location | str,
    *,
    wide: bool = False,
    of_segments: Collection[str] = (),
) -> Described:
    """Choose the coordinates and columns among the datasets of a file, or raise every problem."""
    # Coordinates are x, y and z (in either case), or one dataset (N, 3) named in `COORDINATES`; with `wide`
    # it may have more columns, `features`. A name that differs from another in case only gets a number.
    # `mapping` is `--map`: a dataset's name or path by stored name, empty to leave it out. `of_segments` have
    # a row a segment.
    own = own_names(datasets, group)
    raw: tuple[str, ...] = ()
    if not set(mapping) & {*AXES, "xyz"}:
        raw = raw_coordinates({key: datasets[path] for key, path in own.items()})
    unscaled = [own.pop(key) for key in raw if key not in mapping.values()]
    stored, problems = _named(own, datasets, mapping, name)
    notes: list[str] = []
    if not {*AXES, "xyz"} & set(stored):
        problems += _name_coordinates(stored, datasets, name, notes, wide=wide)
    renamed = distinct_names(stored, mapping)
    notes += [
        f"{printable(key)} differs from another column in case alone: stored as {printable(other)}"
        for key, other in renamed.items()
    ]
    stored = {renamed.get(key, key): path for key, path in stored.items()}
    xyz = ("xyz",) if "xyz" in stored else AXES
    if missing := [role for role in xyz if role not in stored]:
        message = f"has no {', '.join(missing)}; columns: {', '.join(own) or 'none'}"
        problems.append(Problem.at(location_of(name, group), message, HOW_TO_NAME, "missing"))
    for key, path in stored.items():
        problems += _name_problems(key, path, name, xyz, of_segments=path in of_segments)
    if problems:
        raise InputError(problems)
    used = {key: path for key, path in stored.items() if key in xyz or datasets[path].shape != ()}
    problems = list(chain.from_iterable(datasets[path].problems() for path in used.values()))
    if problems:
        raise InputError(problems)
    places = {}
    for key, path in used.items():
        array = datasets[path]
        places[key] = ColumnPlace(path, array.dtype.str, array.shape[1:])
        problems += _form_problems(path, array, name, xyz if key in xyz else ())
    shapes = {path: datasets[path].shape for path in used.values() if path not in of_segments}
    problems += _lengths_problems(shapes, name)
    if problems:
        raise InputError(problems)
    coordinates = [places.pop(key) for key in xyz]
    whole = coordinates[0]
    shape = datasets[whole.array].shape
    if len(shape) == 2 and shape[1] != 3:
        places[FEATURES] = _features(whole, shape, places, location_of(name, whole.array), wide=wide)
        notes.append(f"{printable(whole.array)} {shape}: the first three are x, y, z, the others {FEATURES}")
    return Described(
        layout=FileLayout(
            name=layout,
            xyz=tuple([place.array for place in coordinates]),
            xyz_stored=tuple([place.dtype for place in coordinates]),
            columns={key: place for key, place in places.items() if place.array not in of_segments},
            segment_columns={key: place for key, place in places.items() if place.array in of_segments},
        ),
        points=shape[0],
        notes=tuple(notes),
        left_out=(*[(path, _RAW) for path in unscaled], *left_out_of(datasets, {*used.values(), *unscaled})),
    )


def left_out_of(datasets: Mapping[str, Array], used: Collection[str]) -> list[tuple[str, str]]:
    """Return the paths of datasets with values that are not used, each with the reason."""
    return [
        (path, NO_COLUMN) for path, dataset in datasets.items() if path not in used and has_values(dataset)
    ]


def shown_arrays(datasets: Iterable[str]) -> str:
    """Return names of arrays for a message."""
    return first_few(list(datasets), _SHOWN_ARRAYS) or "none"


def _named(
    own: Mapping[str, str],
    datasets: Mapping[str, Array],
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
            message = f"--map {key}={source_key}: there is no {source!r}; datasets: {shown_arrays(datasets)}"
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
            message = f"would be stored as {role!r}, as {other_column} is"
            problems.append(Problem.at(location_of(name, path), message, _how_to_rename(path), "ambiguous"))
        stored.setdefault(role, path)
    return {**stored, **mapped}, problems


def _name_coordinates(
    stored: dict[str, str],
    datasets: Mapping[str, Array],
    name: Location | str,
    notes: list[str],
    *,
    wide: bool,
) -> list[Problem]:
    """Store the dataset with a name of coordinates as xyz."""
    usual = named_coordinates({key: datasets[path] for key, path in stored.items()}, wide=wide)
    if len(usual) > 1:
        message = f"holds {' and '.join(usual)}: which are the coordinates?"
        return [Problem.at(name, message, f"choose one: --map xyz={stored[usual[0]]}", "ambiguous")]
    for key in usual:
        path = stored.pop(key)
        stored["xyz"] = path
        notes.append(f"coordinates are {printable(path)}, by its name; --map xyz=NAME says otherwise")
    return []


def _features(
    place: ColumnPlace, shape: tuple[int, ...], names: Iterable[str], location: Location, *, wide: bool
) -> ColumnPlace:
    """Return where the values are that follow x, y, z in their dataset. `names` are those of the columns."""
    if not wide or shape[1] < 3:
        message = f"has shape {shape}, expected (N, 3) for coordinates"
        raise InputError(Problem.at(location, message, "save it as (N, 3)", "shape"))
    if any(key.lower() == FEATURES for key in names):
        message = f"has shape {shape}: what follows x, y, z would be stored as {FEATURES!r}, which is there"
        raise InputError(Problem.at(location, message, _how_to_rename(place.array), "ambiguous"))
    return place._replace(row_shape=(shape[1] - 3,))


def _name_problems(
    key: str, path: str, name: Location | str, xyz: Collection[str], *, of_segments: bool
) -> Iterator[Problem]:
    """Yield the problem of a stored name that is invalid for an array, or reserved."""
    reserved = (*_RESERVED, *_RESERVED_OF_SEGMENTS) if of_segments else _RESERVED
    reason = name_problem(key) or ("it holds a slash" if "/" in key else "")
    if key in reserved and key not in xyz:
        reason = "this name is kept for something else"
    if reason:
        message = f"cannot be stored as {key!r}: {reason}"
        yield Problem.at(location_of(name, path), message, _how_to_rename(path), "name")


def _form_problems(path: str, array: Array, name: Location | str, xyz: Collection[str]) -> Iterator[Problem]:
    """Problem of the dtype or the shape of a column. `xyz` are the names of coordinates if it is one."""
    shape = array.shape
    dtype = array.dtype
    largest = {"f": 8, "i": 4, "u": 4}.get(dtype.kind, 0)
    axes = "(N, 3)" if len(xyz) == 1 else "(N,)"
    location = location_of(name, path)
    cure = f"leave it out: {_map(path, '')}"
    if xyz and dtype.itemsize > largest:
        message = f"has dtype {dtype}, expected a float or an integer of at most 32 bits for coordinates"
        yield Problem.at(location, message, "write it again as float64", "dtype")
    elif xyz and len(shape) != (2 if len(xyz) == 1 else 1):
        message = f"has shape {shape}, expected {axes} for coordinates"
        yield Problem.at(location, message, HOW_TO_NAME, "shape")
    elif not storable(dtype):
        message = f"has dtype {dtype}, expected bool, integers or floats of up to 8 bytes"
        yield Problem.at(location, message, cure, "dtype")
    elif 0 in shape[1:]:
        yield Problem.at(location, f"has rows of shape {shape[1:]}, without values", cure, "empty")


def _lengths_problems(shapes: Mapping[str, tuple[int, ...]], name: Location | str) -> list[Problem]:
    """Return the problem with a table of lengths, if columns differ in length."""
    lengths = {printable(path): shape[0] if shape else 0 for path, shape in shapes.items()}
    if len(set(lengths.values())) < 2:
        return []
    cure = "write the file again, or leave columns out: --map NAME="
    return [Problem.at(name, f"columns differ in length:\n{length_table(lengths)}\n   ", cure, "length")]


def _how_to_rename(path: str) -> str:
    return f"rename it, as in {_map('NEW', path)}, or leave it out: {_map(path, '')}"


def _map(name: str, path: str) -> str:
    return f"--map {shlex.quote(printable(f'{name}={path}'))}"
