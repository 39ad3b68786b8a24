"""What a format of trajectory files is: it recognises its files, describes them, and opens them.

A format is one module of `layouts` with a subclass of `Format`. It tells in `Contents` which episodes a file
holds and as which arrays. Which column an array becomes, where joined episodes end, frames, flags and next
observations are the same for all formats: the rest of the family reads files through a format alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exported import File, Values
from unistore.converters.files.hdf5.attributes import Attributes
from unistore.converters.parts import Candidate
from unistore.converters.scan import Source
from unistore.errors import Problem, printable

__all__ = [
    "Array",
    "Contents",
    "EpisodeSource",
    "Format",
    "Group",
    "Look",
    "Mask",
    "Match",
    "Original",
    "Restored",
    "Rows",
]

Opened = TypeVar("Opened")
Opened_co = TypeVar("Opened_co", covariant=True)


class Match(IntEnum):
    """How sure a format is that a file is one of its own."""

    NO = 0
    POSSIBLE = 1
    """If the user names its datasets."""
    CERTAIN = 2


class _Opens(Protocol[Opened_co]):
    """Opens a file that messages call by a name; by its path if none is given."""

    def __call__(self, path: Path, name: str = "", /) -> AbstractContextManager[Opened_co]: ...


class Look:
    """A file that formats look at; what one of them opens is there for the next.

    Attributes
    ----------
    path, name
        The file, and how messages call it.
    roots
        Where links may lead.
    """

    def __init__(self, file: Candidate, name: str = "") -> None:
        self.path, self.roots = file.path, file.roots
        self.name = name or printable(str(file.path))
        self._file, self._named = file, bool(name)
        self._openers: dict[Any, Any] = {}
        self._known: dict[str, Any] = {}

    def opened(self, by: _Opens[Opened]) -> Opened:
        """What ``by(path, name)`` opens, the first time it is asked for; closed with the candidate.

        Without a name of its own, the file is shared with other families that open it by `by`.
        """
        if not self._named:
            return self._file.opened(by)
        opener = self._openers.setdefault(by, lambda path: by(path, self.name))
        opened: Opened = self._file.opened(opener)
        return opened

    def once(self, what: str, find: Callable[[], Opened]) -> Opened:
        """What `find` finds, the first time that any format asks."""
        if what not in self._known:
            self._known[what] = find()
        found: Opened = self._known[what]
        return found


class Array(Protocol):
    """One array of an open file. What cannot be read raises `InputError`."""

    @property
    def location(self) -> str:
        """What messages call it: file and dataset."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Of all values."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """As in the file, byte order included; ``object`` where rows are byte strings of their own length."""
        ...

    def problems(self, *, objects: bool = False) -> Sequence[Problem]:
        """What makes its values unusable, known without reading them; `objects` are refused unless wanted."""
        return ()

    def read(self, lo: int, hi: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Rows ``lo:hi`` in native byte order: in `out`, C-contiguous and of that form, or in a new array."""
        ...

    def value(self, row: int | None = None) -> Any:
        """One row, or all of the array, whatever it holds: numbers, text, a byte string."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Arrays that share their rows: those of one episode, or of all episodes of a file.

    Attributes
    ----------
    name
        Of the episode; where several are joined in it, they are numbered: ``"hopper:2"``.
    path
        In the file, with ``/``; ``""`` for the root. A problem inside a path is about this episode, which can
        be left out alone.
    arrays
        By path inside the group.
    bare
        Whether arrays outside a group of observations are observations, too.
    """

    name: str
    path: str
    arrays: Mapping[str, Array]
    bare: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """Names of episodes that a file lists under a name; `location` is what messages call the list."""

    name: str
    location: str
    episodes: Sequence[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a file holds, known without reading values; its arrays can be read as long as the file is open.

    Attributes
    ----------
    groups
        In the order of their episodes.
    masks
        Lists of episodes.
    problems
        What is wrong with the file, or inside one of its groups, as their locations tell.
    files
        Further files that are read.
    memory
        Bytes held while rows are read, besides the rows.
    attributes
        Of HDF5 datasets and groups; not of the root and the groups that `EpisodeSource` tells of.
    """

    groups: Sequence[Group]
    masks: Sequence[Mask] = ()
    problems: Sequence[Problem] = ()
    files: Collection[Path] = ()
    memory: int = 0
    attributes: Attributes = field(default_factory=Attributes)


class EpisodeSource(Protocol):
    """One open file that was described."""

    def array(self, group: str, dataset: str) -> Array:
        """An array by its group and its path inside it.

        Raises
        ------
        InputError, KeyError
            If it is no longer there.
        """
        ...

    def attributes(self) -> Mapping[str, Any]:
        """What the file says about itself (JSON)."""
        return {}

    def group_attributes(self, group: str) -> Mapping[str, Any]:
        """What it says about the one episode of a group (JSON)."""
        return {}


class Rows(Protocol):
    """An array read without the converter: an array of NumPy, a dataset of h5py."""

    def __getitem__(self, rows: slice | int, /) -> Any:
        """Rows ``lo:hi``, or one row."""
        ...


def _none(_text: str, _stored: Callable[[str], bool], _told: Collection[str]) -> list[str]:
    return []


@dataclass(frozen=True, slots=True)
class Original:
    """A file's own values, read without the converter, for comparison with a store.

    Attributes
    ----------
    rows
        Opens an array by its path in the file, group included.
    names
        Paths of all arrays.
    attributes_left_out
        Attributes that are not kept, given the text of those that are, which arrays the store holds, and the
        groups that `EpisodeSource` tells of.
    """

    rows: Callable[[str], Rows]
    names: Sequence[str]
    attributes_left_out: Callable[[str, Callable[[str], bool], Collection[str]], list[str]] = _none


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a store gives back of one file.

    Attributes
    ----------
    name
        Of the file, as the store has it.
    source
        Its number in the store.
    groups
        Arrays by path inside each group, in the order of the episodes.
    attributes, group_attributes
        As in `EpisodeSource`; of the groups that hold one episode.
    masks
        Names of the episodes that each mask lists, if it lists any.
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
    """A source format; each is one object in `layouts.FORMATS`.

    Attributes
    ----------
    name
        As ``source_layout`` of a store has it.
    suffixes
        Lower-case file name endings that are taken from folders.
    evidence
        What its files are recognised by, in words that follow "holds".
    joined
        Whether a group's rows are several episodes, one after the other, each up to a step that is marked.
        Attributes and small arrays are then those of the file, not of an episode.
    """

    name: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]
    evidence: ClassVar[str]
    joined: ClassVar[bool] = False

    @abstractmethod
    def match(self, look: Look) -> Match:
        """Whether a file is of this format, by its content.

        Raises
        ------
        InputError
            If the file cannot be looked at.
        """

    @abstractmethod
    def names(self, look: Look) -> Sequence[str]:
        """Names at the top of a file, for the message that it is of no format."""

    @abstractmethod
    def describe(self, look: Look) -> Contents:
        """What a file holds.

        Raises
        ------
        InputError
            With what is wrong with all of it.
        """

    @abstractmethod
    def open_episodes(self, source: Source) -> AbstractContextManager[EpisodeSource]:
        """Open a file that was described.

        Raises
        ------
        InputError
            Where the file cannot be opened.
        """

    @abstractmethod
    def open_original(self, path: Path) -> AbstractContextManager[Original]:
        """Open a file to read its values without the converter: with h5py or numpy alone."""

    @abstractmethod
    def file(self, restored: Restored) -> File:
        """The file that an export writes."""

    def group_of(self, episode: str) -> str:
        """Path of the group of an episode, by its name; the root of the file by default."""
        return ""
