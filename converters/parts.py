"""Values between converters and the scan: files to look at, verdicts on them, parts, scanned parts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from copy import copy
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from unistore.errors import Problem
from unistore.system.packed import Items, Packed, Texts

Opened = TypeVar("Opened")
T = TypeVar("T")


class Candidate:
    """A file that every family looks at in turn; what one family opens, the next reuses.

    Attributes
    ----------
    path
        The file.
    roots
        Where links may lead: the paths that the user gave.
    name
        Its name in messages; the path by default.
    """

    def __init__(self, path: Path, roots: Sequence[Path], name: str = "") -> None:
        self.path, self.roots, self.name = path, tuple(roots), name or str(path)
        self._stack = ExitStack()
        self._opened: dict[Hashable, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def opened(self, by: Callable[[Path], AbstractContextManager[Opened]]) -> Opened:
        """Result of ``by(path)``, entered on the first call and closed with the candidate.

        An exception from opening is raised again by each call.
        """
        if by not in self._opened:
            try:
                self._opened[by] = self._stack.enter_context(by(self.path))
            except Exception as error:  # noqa: BLE001  kept to be raised again
                self._opened[by] = error
        found = self._opened[by]
        if isinstance(found, Exception):
            raise found
        opened: Opened = found
        return opened


@dataclass(frozen=True, slots=True)
class Taken:
    """A file of the family.

    Attributes
    ----------
    layout
        Name of the layout inside the family: ``"pointsuite_indices"``, ``"robomimic"``, ….
    reason
        What decided; continues a sentence that begins with the file's name:
        ``"holds segments/segment_0000/indices"``.
    """

    layout: str
    reason: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file that is not one of the family's, and why: ``"has 2 axes, a volume 3"``."""

    reason: str


TWO_FAMILIES = "two families"
"""Kind of the problem of a file that a general family could read as well: neither takes it unless named."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A file that cannot be read, or contradicts itself."""

    problem: Problem


Verdict = Taken | LeftOut | Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The files that make up one source; can be pickled.

    Attributes
    ----------
    name
        Path relative to the common root of all sources, with ``/``; unique; becomes ``Source.name``.
    files
        The files, the one that names the source first.
    roots
        Where links may lead: the paths that the user gave, the same for every part.
    detail
        What the family found out from names: the role of each file, the recording it belongs to, ….
    """

    name: str
    files: tuple[Path, ...]
    roots: tuple[Path, ...]
    detail: Any = None


class Columns(Items[T]):
    """Millions of objects that consist of files, as columns: each is made again when it is asked for.

    Attributes
    ----------
    names
        Name of each.
    details
        What the family knows of each, ``detail``.
    """

    def __init__(self, items: Iterable[T] = ()) -> None:
        self.names = Texts()
        self.details: Packed[Any] = Packed()
        self._files = Texts()
        for item in items:
            self.append(item)

    @abstractmethod
    def append(self, item: T) -> None:
        """Add one more object."""

    @abstractmethod
    def _made(self, number: int, name: str, files: list[str], detail: Any) -> T:
        """The object of a number."""

    def _add(self, name: str, files: Iterable[str | Path], detail: Any) -> None:
        self.names.append(name)
        self._files.append("\0".join(map(str, files)))
        self.details.append(detail)

    def files(self) -> Iterator[list[str]]:
        """Paths of the files of each."""
        return map(_split, self._files)

    def paths(self, number: int) -> list[str]:
        """Paths of the files of one."""
        return _split(self._files[number])

    def only(self, numbers: Collection[int]) -> Self:
        """As `Packed.only`."""
        found = copy(self)
        found.names, found._files = self.names.only(numbers), self._files.only(numbers)
        found.details = self.details.only(numbers)
        return found

    def __iter__(self) -> Iterator[T]:
        columns = range(len(self)), self.names, map(_split, self._files), self.details
        return starmap(self._made, zip(*columns, strict=True))

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self.names)

    def _item(self, number: int) -> T:
        return self._made(number, self.names[number], Columns.paths(self, number), self.details[number])


def _split(files: str) -> list[str]:
    return files.split("\0") if files else []


class Parts(Columns[Part]):
    """All parts of a scan; `roots` as in `Part`."""

    def __init__(self, items: Iterable[Part] = (), roots: tuple[Path, ...] = ()) -> None:
        self.roots = roots
        super().__init__(items)

    def append(self, item: Part) -> None:
        """See `Columns.append`."""
        self.add(item.name, item.files, item.detail)
        self.roots = item.roots

    def add(self, name: str, files: Iterable[str | Path], detail: Any = None) -> None:
        """Add a part."""
        self._add(name, files, detail)

    def _made(self, number: int, name: str, files: list[str], detail: Any) -> Part:
        return Part(name=name, files=tuple(map(Path, files)), roots=self.roots, detail=detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Sources under the given paths, by names alone.

    Attributes
    ----------
    parts
        In natural order of their names.
    left_out
        Files that belong to no source, each with the reason.
    notes, problems
        Remarks, and what is wrong with names.
    """

    parts: Sequence[Part]
    left_out: Sequence[tuple[Path, str]] = ()
    notes: Sequence[str] = ()
    problems: Sequence[Problem] = ()


@dataclass(frozen=True, kw_only=True)
class Scanned:
    """Result of scanning one part; families add fields of their own (plain values and flat arrays).

    Attributes
    ----------
    problems
        What is wrong with some episodes or items of the source; the rest is valid. What is wrong with the
        whole source is raised instead.
    excluded
        Names of items of the source (episodes) that the options exclude.
    certain
        Whether ``look`` would take the file too; used if `Converter.scan_identifies`.
    """

    problems: Sequence[Problem] = ()
    excluded: Sequence[str] = ()
    certain: bool = False
