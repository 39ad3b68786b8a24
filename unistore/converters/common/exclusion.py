"""Skip sources by name, and collect the problems of several sources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

from unistore.converters.common.faults import as_problem
from unistore.errors import InputError, Location, Problem, first_few

_LISTED = 5


class Exclusion:
    """Names to skip, written as in messages (``"a.hdf5: data/demo_3"``). It remembers which were found."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(name.rstrip("/") for name in names)
        self._found: dict[str, None] = {}

    def __bool__(self) -> bool:
        return bool(self._names)

    def covers(self, name: str) -> bool:
        """Return whether a name, or a folder above it, is skipped."""
        if not self._names:
            return False
        for covering_name in (name, *folders_of(name)):
            if covering_name in self._names:
                self._found[covering_name] = None
                return True
        return False

    @property
    def covered(self) -> tuple[str, ...]:
        """The names that were found so far, as the user wrote them."""
        return tuple(self._found)

    def add_covered(self, names: Iterable[str]) -> None:
        """Add names that another `Exclusion` of the same names has found."""
        self._found |= dict.fromkeys(names)

    def notes(self) -> list[str]:
        """Return a note that lists the skipped names. Empty: nothing was skipped."""
        return [f"skipped: {first_few(list(self._found), _LISTED)}"] if self._found else []

    def not_found(self, expected: Iterable[str], existing: Iterable[str]) -> list[Problem]:
        """Return a problem for each name that skipped nothing, with similar names as a suggestion.

        Parameters
        ----------
        expected : iterable of str
            Names that should have been found.
        existing : iterable of str
            All names.
        """
        absent = sorted({name.rstrip("/") for name in expected} - set(self._found))
        if not absent:
            return []
        covering = chain.from_iterable((name, *folders_of(name)) for name in existing)
        names = list(dict.fromkeys(covering))
        return [_not_found(name, names) for name in absent]


class ProblemCollector:
    """Collects the problems of several attempts, to raise them together.

    Parameters
    ----------
    problems : list of Problem, optional
        List to add to. None: a new list.

    Attributes
    ----------
    problems : list of Problem
        The problems so far.

    Examples
    --------
    >>> collector = ProblemCollector()  # doctest: +SKIP
    >>> for file in files:  # doctest: +SKIP
    ...     with collector.attempt(file.name):
    ...         check(file)
    >>> collector.check()  # doctest: +SKIP
    """

    def __init__(self, problems: list[Problem] | None = None) -> None:
        self.problems: list[Problem] = [] if problems is None else problems

    @contextmanager
    def attempt(self, location: Location | str) -> Iterator[None]:
        """Collect errors that are raised inside this context, as problems of a place."""
        try:
            with as_problem(location):
                yield
        except InputError as error:
            self.problems += error.problems_at(location)

    def check(self) -> None:
        """Raise InputError with all problems, if there are any."""
        if self.problems:
            raise InputError(self.problems)


def folders_of(name: str) -> list[str]:
    """Return the folders above a name, the outermost first."""
    return [name[:index] for index, letter in enumerate(name) if letter == "/"]


def _not_found(name: str, existing: Sequence[str]) -> Problem:
    import difflib

    stem = name.rsplit("/", 1)[-1].partition(".")[0]
    similar = [candidate for candidate in existing if candidate.rsplit("/", 1)[-1].partition(".")[0] == stem]
    similar = similar or difflib.get_close_matches(name, existing, _LISTED, cutoff=0.6)
    fix = "copy the name from 'unistore inspect', or remove the option"
    if similar:
        fix = f"did you mean {first_few(similar, _LISTED)}? Otherwise {fix}"
    message = "no file, folder or episode has this name"
    return Problem(f"--exclude {name}", message, fix, "exclude")
