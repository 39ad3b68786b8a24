"""Sources that are left out by name, and problems told apart by the source that they are about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

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
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(name.rstrip("/") for name in names)
        self._met: dict[str, None] = {}

    def __bool__(self) -> bool:
        return bool(self._names)

    def covers(self, name: str) -> bool:
        """Whether a name, or a folder above it, is left out."""
        if not self._names:
            return False
        folders = [name[:at] for at, letter in enumerate(name) if letter == "/"]
        for each in (name, *folders):
            if each in self._names:
                self._met[each] = None
                return True
        return False

    @property
    def covered(self) -> tuple[str, ...]:
        """The names that were met so far, as they were given."""
        return tuple(self._met)

    def met(self, names: Iterable[str]) -> None:
        """Note names that were left out elsewhere, with another `Exclusion` of the same names."""
        self._met |= dict.fromkeys(names)

    def notes(self) -> list[str]:
        """Remarks: what was left out, and names that nothing has."""
        met, unmet = list(self._met), sorted(self._names - set(self._met))
        return [
            *([f"left out: {_some(met)}"] if met else []),
            *([f"nothing here is called {_some(unmet)}, so it was not left out"] if unmet else []),
        ]


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


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(printable(name) for name in names[:_SHOWN]) + more
