"""Interface of the formats of trajectory files: how to recognise, describe and open them.

A format is one module of `layouts` with a subclass of `Format`. Its `Contents` list the episodes of a file
and their arrays. Column names, bounds of joined episodes, frames, flags and next observations are the same
for all formats: the rest of the family uses `Format` alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.hdf5.attributes import Attributes
from unistore.converters.scan import Candidate, Source
from unistore.errors import Location, Problem, printable

if TYPE_CHECKING:
    from unistore.converters.common.exported import File, Values


Opened = TypeVar("Opened")
Opened_co = TypeVar("Opened_co", covariant=True)


def to_json(value: Any) -> Any:
    """An attribute or small array as JSON; what JSON lacks becomes text."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        return [to_json(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value if isinstance(value, (bool, int, float, str)) else str(value)


class Match(IntEnum):
    """How sure a format is that a file is one of its own."""

    NO = 0
    POSSIBLE = 1
    """If the user names its datasets."""
    CERTAIN = 2


class _Opens(Protocol[Opened_co]):
    """Opens a file, given its path and what messages call it (its path if empty)."""

    def __call__(self, path: Path, name: str = "", /) -> AbstractContextManager[Opened_co]: ...


class SourceFile:
    """A file that several formats check; it is opened once for all of them.

    Attributes
    ----------
    path, name
        The file, and what messages call it.
    roots
        Folders that links may lead to.
    """

    def __init__(self, file: Candidate, name: str = "") -> None:
        self.path, self.roots = file.path, file.roots
        self.name = name or printable(str(file.path))
        self._file, self._named = file, bool(name)
        self._openers: dict[Any, Any] = {}
        self._known: dict[str, Any] = {}

    def opened(self, by: _Opens[Opened]) -> Opened:
        """The result of ``by(path, name)``, cached; closed with the candidate.

        If no name was given, it is shared with other families that open the file with the same function.
        """
        if not self._named:
            return self._file.opened(by)
        opener = self._openers.setdefault(by, lambda path: by(path, self.name))
        opened: Opened = self._file.opened(opener)
        return opened

    def once(self, what: str, find: Callable[[], Opened]) -> Opened:
        """The result of `find`, cached under the name `what`."""
        if what not in self._known:
            self._known[what] = find()
        found: Opened = self._known[what]
        return found


class Array(Protocol):
    """One array of an open file. Reading errors raise `InputError`."""

    @property
    def location(self) -> Location:
        """What messages call it: file and dataset."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """As in the file, byte order included; ``object`` if rows are byte strings of variable length."""
        ...

    def problems(self, *, objects: bool = False) -> Sequence[Problem]:
        """Problems that are known without reading values; `objects`: whether object dtypes are accepted."""
        return ()

    def read(self, lo: int, hi: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Rows ``lo:hi`` in native byte order, in `out` (C-contiguous, of that shape) or a new array."""
        ...

    def value(self, row: int | None = None) -> Any:
        """One row, or the whole array, of any type: numbers, text, a byte string."""
        ...


class Group(NamedTuple):
    """Arrays with common rows: those of one episode, or of all episodes of a file.

    Attributes
    ----------
    name
        Of the episode; several episodes joined in the group are numbered: ``"hopper:2"``.
    path
        In the file, with ``/``; ``""`` for the root. Problems below this path belong to this episode, which
        can be excluded alone.
    arrays
        By path inside the group.
    bare
        Whether arrays outside a group of observations are observations, too.
    """

    name: str
    path: str
    arrays: Mapping[str, Array]
    bare: bool = False


class Mask(NamedTuple):
    """A named list of episode names in a file; `location` is what messages call it."""

    name: str
    location: Location
    episodes: Sequence[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Contents of an open file, known without reading values.

    Attributes
    ----------
    groups
        In the order of their episodes.
    masks
        Lists of episodes.
    problems
        What is wrong with the file or, by their locations, with one of its groups.
    files
        Other files that are read.
    memory
        Bytes of memory needed to read rows, besides the rows.
    left_out
        Paths of arrays of no group, each with the reason.
    attributes
        Of HDF5 datasets and groups, except the root and the groups whose attributes `EpisodeSource` returns.
    """

    groups: Sequence[Group]
    masks: Sequence[Mask] = ()
    problems: Sequence[Problem] = ()
    files: Collection[Path] = ()
    memory: int = 0
    left_out: Sequence[tuple[str, str]] = ()
    attributes: Attributes = field(default_factory=Attributes)


class EpisodeSource(Protocol):
    """An open file, for reading episodes."""

    def array(self, group: str, dataset: str) -> Array:
        """An array, by its group and its path inside the group.

        Raises
        ------
        InputError, KeyError
            If it no longer exists.
        """
        ...

    def attributes(self) -> Mapping[str, Any]:
        """Attributes of the file (JSON)."""
        return {}

    def group_attributes(self, group: str) -> Mapping[str, Any]:
        """Attributes of the group of one episode (JSON)."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredFile:
    """Contents of a file, restored from a store.

    Attributes
    ----------
    name
        Of the file, from the store.
    source
        Index of the source in the store.
    groups
        Arrays by path inside each group, in the order of the episodes.
    attributes, group_attributes
        As in `EpisodeSource`; group attributes of groups with one episode.
    masks
        Names of the episodes in each mask, without empty masks.
    """

    name: str
    source: int
    groups: Mapping[str, Mapping[str, Values]]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    group_attributes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    masks: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, Values]:
        """All arrays by path in the file."""
        return {
            f"{group}/{dataset}".strip("/"): values
            for group, arrays in self.groups.items()
            for dataset, values in arrays.items()
        }


class Format(ABC):
    """A source format; `layouts.FORMATS` has one instance of each.

    Attributes
    ----------
    name
        ``source_layout`` in a store.
    suffixes
        Lower-case file name suffixes.
    evidence
        What its files are recognised by, for messages, after "holds".
    joined
        Whether the rows of a group are several consecutive episodes, each ended by a flag. Then attributes
        and small arrays belong to the file, not to an episode.
    """

    name: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]
    evidence: ClassVar[str]
    joined: ClassVar[bool] = False

    @abstractmethod
    def match(self, look: SourceFile) -> Match:
        """Whether a file is of this format, by its content.

        Raises
        ------
        InputError
            If the file cannot be read.
        """

    @abstractmethod
    def names(self, look: SourceFile) -> Sequence[str]:
        """Names at the root of a file, for the message that it has no known format."""

    @abstractmethod
    def describe(self, look: SourceFile) -> Contents:
        """Contents of a file.

        Raises
        ------
        InputError
            If the file as a whole is unusable.
        """

    @abstractmethod
    def open_episodes(self, source: Source) -> AbstractContextManager[EpisodeSource]:
        """Open a file for reading episodes.

        Raises
        ------
        InputError
            If the file cannot be opened.
        """

    def episodes_in(self, look: SourceFile) -> EpisodeSource | None:
        """What `open_episodes` opens, of a file that is looked at; None: it must be opened again."""
        return None

    @abstractmethod
    def file(self, restored: RestoredFile) -> File:
        """The file that an export writes."""

    def group_of(self, episode: str) -> str:
        """Path of an episode's group; by default the root of the file."""
        return ""
