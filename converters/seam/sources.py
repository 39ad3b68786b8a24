"""What the scan of a source finds, and what a store's source is read by."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from unistore.converters.files.hdf5.attributes import Attributes
from unistore.converters.plugin import Array, Column, Facts, Group, Opened, Schema, SourceFile
from unistore.converters.scan import Part, Parts, Scanned
from unistore.converters.seam.columns import Pick, Picked, Place
from unistore.converters.seam.specs import is_number, number_dtype
from unistore.errors import Problem

# Bytes of records that are read at a time, as all their fields are read
_RECORD_BLOCK = 8 << 20


class Origins(Protocol):
    """Files of a source: what every ``detail`` says."""

    @property
    def files(self) -> tuple[str, ...]:
        """Names, as messages call them."""
        ...

    @property
    def formats(self) -> tuple[str, ...]:
        """Format of each."""
        ...

    @property
    def arrays(self) -> tuple[str, ...]:
        """See `Group`."""
        ...


class TableRows(NamedTuple):
    """Rows of a source in a further table, and where they come from."""

    rows: int
    places: Mapping[str, Place]  # by column


class PickedTable(NamedTuple):
    """Columns of a source in a further table."""

    picked: Picked
    rows: int


class Origin(NamedTuple):
    """Where the rows of a source come from: the ``detail`` of the source."""

    files: tuple[str, ...]  # names of its files, as messages call them
    formats: tuple[str, ...]  # of these
    arrays: tuple[str, ...]  # as in `Group`
    rows: int
    places: Mapping[str, Place]  # by column
    facts: Facts
    attributes: str  # of its HDF5 file, JSON
    tables: Mapping[str, TableRows]  # further ones
    extent: tuple[int, ...]  # of its volumes


class Planned(NamedTuple):
    """What is known of all sources together: the ``shared`` of a scan."""

    schema: Schema
    has_facts: bool  # whether any file says something beside its arrays
    has_attributes: bool  # whether any HDF5 file has attributes
    has_formats: bool  # whether the ending of a file does not tell its format


@dataclass(frozen=True, kw_only=True)
class ScannedSource(Scanned):
    """What the headers of a source say; `picked` is None if it is none of the family's, for this `reason`."""

    picked: Picked | None
    reason: str = ""
    formats: tuple[str, ...] = ()
    rows: int = 0
    tables: Mapping[str, PickedTable] = field(default_factory=dict)
    extent: tuple[int, ...] = ()
    facts: Facts = field(default_factory=dict)
    attributes: Attributes | None = None
    left_out: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    further: tuple[str, ...] = ()
    sample_rows: int = 1
    forward_only: bool = False
    memory: int = 0


class PartGroup(NamedTuple):
    """Names of the files of a part, and what else its `Group` says."""

    names: tuple[str, ...]
    arrays: tuple[str, ...]
    roles: tuple[str, ...] = ()
    unit: str = ""
    detail: Any = None


def part_group(group: Group) -> PartGroup:
    """What a part keeps of a group beside its name and paths."""
    names = tuple([file.name for file in group.files])
    return PartGroup(names, group.arrays, group.roles, group.unit, group.detail)


def group_of(part: Part) -> Group:
    """The files of a part."""
    names, *labels = part.detail
    files = [SourceFile(path, name, part.roots) for path, name in zip(part.files, names, strict=True)]
    return Group(part.name, tuple(files), *labels)


Choice = SourceFile | Group | tuple[SourceFile, str] | Problem | str
"""See `Family.group`."""


class Choices:
    """Sources, files in no source, problems and remarks.

    Attributes
    ----------
    unused
        Path of each file of which nothing was said.
    """

    def __init__(self, roots: tuple[Path, ...], files: Sequence[SourceFile]) -> None:
        self.parts = Parts(roots=roots)
        self.left_out: list[tuple[Path, str]] = []
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self.unused = {str(file.path): file.path for file in files}

    def add(self, choice: Choice) -> None:
        """Add one more; a file that is in a source is not left out."""
        match choice:
            case Problem():
                self.problems.append(choice)
            case str():
                self.notes.append(choice)
            case Group():
                self._add_source(choice)
            case SourceFile():
                self._add_source(Group(choice.name, (choice,)))
            case (file, reason):
                if self.unused.pop(str(file.path), None) is not None:
                    self.left_out.append((file.path, reason))

    def _add_source(self, group: Group) -> None:
        for file in group.files:  # which the family may have named anew
            self.unused.pop(str(file.path), None)
        self.parts.add(group.name, [file.path for file in group.files], part_group(group))


def joined(group: Group, opened: Sequence[Opened]) -> Opened:
    """The files of a source as one."""
    first = opened[0]
    if len(opened) == 1 and (not group.arrays or first.arrays.keys() == set(group.arrays)):
        return first
    names = [names_in(group, number, one.arrays) for number, one in enumerate(opened)]
    arrays: dict[str, Array] = {}
    notes: dict[str, str] = {}
    for file, one, inner_names in zip(group.files, opened, names, strict=True):
        for name, inside in inner_names.items():
            if name in arrays:
                message = f"holds {inside}, as another file of {group.name} does"
                raise file.problem(message, "convert them apart", "name")
            arrays[name] = one.arrays[inside]
            if inside in one.notes:
                notes[name] = one.notes[inside]
    return Opened(
        arrays=arrays,
        facts=dict(chain.from_iterable(one.facts.items() for one in opened)),
        further=tuple(chain.from_iterable(one.further for one in opened)),
        forward_only=any(one.forward_only for one in opened),
        memory=max(one.memory for one in opened),
        problems=list(chain.from_iterable(one.problems for one in opened)),
        left_out=dict(chain.from_iterable(one.left_out.items() for one in opened)),
        notes=notes,
        file=first.file,
    )


def names_in(group: Group, number: int, arrays: Collection[str]) -> dict[str, str]:
    """Names of the arrays of a file in its source, each with the name in the file."""
    if not group.arrays:
        return {name: name for name in arrays}
    (name,) = arrays
    return {group.arrays[number]: name}


def picks_of(
    group: Group, opened: Sequence[Opened], whole: Opened, columns: Mapping[str, Column]
) -> tuple[Pick, ...]:
    """The columns that a source has, with their arrays; those that it lacks are left out."""
    owners = {}
    if whole is not opened[0]:
        for number, one in enumerate(opened):
            for name, inside in names_in(group, number, one.arrays).items():
                owners[name] = number, inside
    picks = []
    for name, column in columns.items():
        key = column.source or name
        array = whole.arrays.get(key)
        if array is not None:
            number, inside = owners.get(key, (0, key))
            step = _step(array) if column.field else 0
            place = Place(number, inside, column.field, step)
            picks.append(Pick(name, column, array.dtype, array.shape[1:], place))
    return tuple(picks)


def _step(array: Array) -> int:
    if not array.chunk_rows:
        return 0
    row_bytes = array.dtype.itemsize
    for extent in array.shape[1:]:
        row_bytes *= extent
    return max(_RECORD_BLOCK // max(1, row_bytes), array.chunk_rows)


def further_files(opened: Opened, part: Part) -> tuple[str, ...]:
    """Paths of the files that are read for a source beside its own."""
    return tuple(dict.fromkeys(str(file.path) for file in opened.further if file.path not in part.files))


def problems_of_facts(names: Mapping[str, Column], file: str, facts: Facts) -> list[Problem]:
    """Numbers of a source that its facts do not say."""
    problems = []
    for name, column in names.items():
        key = column.source or name
        value = facts.get(key)
        if not isinstance(value, (int, float)):
            message = f"says no {key}, but {value!r}"
            problems.append(Problem(file, message, "write it again", "missing"))
        elif not is_number(value, number_dtype(column)):
            message = f"says {key} {value!r}, expected a whole number"
            problems.append(Problem(file, message, "write it again", "dtype"))
    return problems


def source_file(paths: Sequence[str], number: int, name: str) -> SourceFile:
    """A file of a source, which may read the files that the scan named alone."""
    path = Path(paths[number])
    return SourceFile(path, name, (path,) if len(paths) == 1 else tuple(map(Path, paths)))
