"""Sources that are left out by name, and problems told apart by the source that they are about."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from unistore.converters.common.faults import as_problem
from unistore.errors import InputError, Problem, printable

__all__ = ["Collected", "Exclusion", "about"]

_SHOWN = 5


class Exclusion:
    """Names that a scan leaves out, and which of them it met.

    Parameters
    ----------
    names
        Names as messages give them: of a source, of a folder that sources lie in, or of a part of a source
        (``"a.hdf5: data/demo_3"``).
    apart
        Files to leave out whatever they are called, those of other families: with every link resolved.
    """

    def __init__(self, names: Iterable[str], apart: Iterable[Path] = ()) -> None:
        self._names = frozenset(name.rstrip("/") for name in names)
        self._met: dict[str, None] = {}
        self._apart = frozenset(apart)

    def __bool__(self) -> bool:
        return bool(self._names)

    def covers(self, name: str) -> bool:
        """Whether a name, or a folder above it, is left out."""
        if not self._names:
            return False
        for each in (name, *_folders(name)):
            if each in self._names:
                self._met[each] = None
                return True
        return False

    def is_apart(self, path: Path) -> bool:
        """Whether a file is one of another family."""
        return bool(self._apart) and Path(os.path.realpath(path)) in self._apart

    @property
    def covered(self) -> tuple[str, ...]:
        """The names that were met so far, as they were given."""
        return tuple(self._met)

    def met(self, names: Iterable[str]) -> None:
        """Note names that were left out elsewhere, with another `Exclusion` of the same names."""
        self._met |= dict.fromkeys(names)

    def notes(self) -> list[str]:
        """A remark on what was left out."""
        return [f"left out: {_some(list(self._met))}"] if self._met else []

    def unmet(self, asked: Iterable[str], there: Iterable[str]) -> list[Problem]:
        """A Problem for each name that nothing has, naming what is near it.

        Parameters
        ----------
        asked
            Names that must leave something out.
        there
            Names of what there is.
        """
        absent = sorted({name.rstrip("/") for name in asked} - set(self._met))
        if not absent:
            return []
        names = list(dict.fromkeys(each for name in there for each in (name, *_folders(name))))
        return [_absent(name, names) for name in absent]


class Collected:
    """Problems of several attempts: each may fail, and all that are wrong are told together.

    Parameters
    ----------
    problems
        List to collect them in; a new one if not given.
    """

    def __init__(self, problems: list[Problem] | None = None) -> None:
        self.problems: list[Problem] = [] if problems is None else problems

    @contextmanager
    def attempt(self, location: str, source: str = "") -> Iterator[None]:
        """Look at something of a source: what is raised is kept for later, see `as_problem`."""
        try:
            with as_problem(location):
                yield
        except InputError as error:
            problems = error.problems or [Problem(location, str(error))]
            self.problems += about(source, problems) if source else problems

    def check(self) -> None:
        """Raise what was collected.

        Raises
        ------
        InputError
            If any attempt failed.
        """
        if self.problems:
            raise InputError(self.problems)


def about(source: str, problems: Iterable[Problem]) -> list[Problem]:
    """Problems that are about one source, unless they already say which part of it."""
    return [replace(problem, source=problem.source or source) for problem in problems]


def _folders(name: str) -> list[str]:
    """Names of the folders above."""
    return [name[:at] for at, letter in enumerate(name) if letter == "/"]


def _absent(name: str, there: Sequence[str]) -> Problem:
    last = name.rsplit("/", 1)[-1]
    near = [each for each in there if each.rsplit("/", 1)[-1].partition(".")[0] == last.partition(".")[0]]
    near = near or difflib.get_close_matches(name, there, _SHOWN, cutoff=0.6)
    cure = f"is it {_some(near)}? names are" if near else "names are"
    message = "leaves nothing out: nothing here has this name"
    return Problem(f"--exclude {name}", message, f"{cure} as inspect and messages give them", "exclude")


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(printable(name) for name in names[:_SHOWN]) + more
