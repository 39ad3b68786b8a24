"""Which file is whose: every family is asked about every file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from unistore.converters.common.faults import as_problem
from unistore.converters.files.formats import is_about, unread_format, why_left_out
from unistore.converters.files.paths import common_root, list_files, natural_key
from unistore.converters.parts import TWO_FAMILIES, Candidate, LeftOut, Refused, Taken, Verdict
from unistore.converters.protocol import Converter
from unistore.converters.registry import Family, families, find_family, get_family, is_own, leave_out
from unistore.converters.verdicts import LEFT_OUT, REFUSED, TAKEN, Count, counted, name_of
from unistore.errors import InputError, Problem, printable

__all__ = ["Detection", "Owners", "Seen", "Survey", "survey"]


@dataclass(frozen=True, slots=True)
class Detection:
    """What some paths were recognised as.

    Attributes
    ----------
    family
        Name of the family: ``"point_cloud"``.
    layout
        Name of the layout inside the family: ``"pointsuite_indices"``, ``"robomimic"``, ….
    reason
        One sentence for the user, naming what decided: ``"thin-1.h5 holds segments/segment_0000/indices"``.
    """

    family: str
    layout: str
    reason: str


@dataclass(frozen=True, slots=True)
class Seen:
    """A file, the verdict on it, and the family that takes or refuses it; empty where none does.

    Folders that are not looked into (hidden ones, Zarr) have a verdict of their own.
    """

    path: Path
    family: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Survey:
    """The verdict on every file under some paths, in natural order, and what cannot be looked into.

    Names of sources begin below the first `depth` parts of each path.
    """

    files: tuple[Seen, ...]
    problems: tuple[Problem, ...]
    depth: int = 1

    def detected(self) -> list[Detection]:
        """The families whose files are there, by the first of each, in the order of the registry.

        A general family counts only where there is no other.
        """
        first: dict[str, Detection] = {}
        for seen in self.files:
            if isinstance(seen.verdict, Taken) and seen.family not in first:
                reason = f"{printable(seen.path.name)} {seen.verdict.reason}"
                first[seen.family] = Detection(seen.family, seen.verdict.layout, reason)
        known = families().values()
        particular = [first[each.name] for each in known if each.name in first and not each.general]
        return particular or list(first.values())

    def counts(self) -> dict[str, int]:
        """Files taken by each family that was detected."""
        taken = [seen.family for seen in self.files if isinstance(seen.verdict, Taken)]
        return {each.family: taken.count(each.family) for each in self.detected()}

    def unread(self) -> list[str]:
        """Files whose format is known by name but not read: ``"a.nii is NIfTI, which is not read"``."""
        return [
            f"{printable(seen.path.name)} is {seen.verdict.reason}"
            for seen in self.files
            if isinstance(seen.verdict, LeftOut) and unread_format(seen.path) and not is_about(seen.path)
        ]

    def verdicts(self, problems: Iterable[Problem] = ()) -> tuple[Count, ...]:
        """Files by verdict and reason, with a few of their names.

        What only a general family takes is left out where files of particular ones are there.

        Parameters
        ----------
        problems
            What the scan of the detected family found wrong: the files it names are refused.
        """
        detected = {each.family for each in self.detected()}
        wrong = {problem.source: problem.message for problem in problems if problem.source}
        return counted((*self._verdict(seen, detected, wrong), seen.path) for seen in self.files)

    def _verdict(self, seen: Seen, detected: Collection[str], wrong: Mapping[str, str]) -> tuple[str, str]:
        named = name_of(seen.path, wrong, self.depth) if wrong else None
        if named is not None:
            return REFUSED, wrong[named]
        if isinstance(seen.verdict, LeftOut):
            return LEFT_OUT, seen.verdict.reason
        if isinstance(seen.verdict, Refused):
            return REFUSED, seen.verdict.problem.message
        if seen.family not in detected:
            return LEFT_OUT, of_another(seen.family)
        return TAKEN, f"{seen.family.replace('_', ' ')} ({seen.verdict.layout})"

    def refused(self) -> list[Problem]:
        """What is wrong with files, and with folders that cannot be looked into."""
        of_files = [seen.verdict.problem for seen in self.files if isinstance(seen.verdict, Refused)]
        return [*self.problems, *of_files]


def survey(paths: Sequence[Path]) -> Survey:
    """Ask every family about every file; the first that takes it has it.

    Parameters
    ----------
    paths
        Files or folders as the user gave them.
    """
    listed = list_files(paths)
    converters = _converters(families().values())
    closed = tuple(each for each in listed.problems if each.kind != "missing")  # of a folder without files
    seen = [_look(path, paths, converters) for path in listed.files]
    seen += [Seen(path, "", LeftOut(why)) for path, why in listed.skipped]
    seen.sort(key=lambda each: natural_key(each.path.as_posix()))
    return Survey(tuple(seen), closed, len(common_root([each.path for each in seen] or paths).parts))


def of_another(family: str) -> str:
    """Why a file is left out that another family takes."""
    return f"of another family: unistore convert {get_family(family).command}"


class Owners:
    """Whose files are, as a survey has it, but for the options of one family.

    Parameters
    ----------
    converter
        Of that family.
    roots
        Files or folders as the user gave them.
    """

    def __init__(self, converter: Converter, roots: Sequence[Path]) -> None:
        self._converter, self._family, self._roots = converter, converter.family, roots

    def __reduce__(self) -> tuple[type[Owners], tuple[Converter, Sequence[Path]]]:
        return Owners, (self._converter, self._roots)

    @cached_property
    def _converters(self) -> list[tuple[Family, Converter]]:
        """Families in the order in which they are asked; imported with the first question."""
        asked = [each for each in families().values() if each.name != self._family]
        own = find_family(self._family)
        if own is None:
            return _converters(asked)
        made = _converters(each for each in asked if not each.general)
        order = list(families())
        particular = sorted([*made, (own, self._converter)], key=lambda each: order.index(each[0].name))
        return [*particular, *_converters(each for each in asked if each.general)]

    def other(self, path: Path) -> str:
        """Name of the other particular family that a file belongs to; empty if there is none."""
        seen = _look(path, self._roots, self._converters, lambda family: not family.general)
        return seen.family if isinstance(seen.verdict, Taken) and seen.family != self._family else ""

    def owner(self, path: Path) -> str:
        """Name of the family that takes a file; empty if there is none."""
        seen = _look(path, self._roots, self._converters)
        return seen.family if isinstance(seen.verdict, Taken) else ""

    def another(self, path: Path) -> str:
        """Name of another family, general or not, that takes a file which this one does not refuse."""
        own = _look(path, self._roots, self._converters, lambda family: family.name == self._family)
        owner = "" if isinstance(own.verdict, Refused) else self.owner(path)
        return owner if owner != self._family else ""

    def why_unused(self, path: Path) -> str:
        """Why a file that was found is in no source of the family."""
        seen = _look(path, self._roots, self._converters)
        if isinstance(seen.verdict, LeftOut):
            return seen.verdict.reason
        if isinstance(seen.verdict, Refused):
            return "cannot be read"
        if seen.family == self._family:
            return f"of no source of {self._family.replace('_', ' ')}"
        return of_another(seen.family)


def _converters(chosen: Iterable[Family]) -> list[tuple[Family, Converter]]:
    """Families with their converters, without those of packages that cannot be made."""
    return [(each, made) for each in chosen if (made := _converter(each)) is not None]


def _converter(family: Family) -> Converter | None:
    """Converter with default options; None if a package's cannot be made, which is said."""
    try:
        made: Converter = family.part("converter")()
    except Exception as error:
        if is_own(family.name):
            raise
        leave_out(family.command, str(error))
        return None
    return made


def _named_as(problem: Problem, path: Path, roots: Sequence[Path]) -> Problem:
    """A problem whose location is named relative to the given folder."""
    folder = next((root for root in roots if root.is_dir() and path.is_relative_to(root.resolve())), None)
    name = printable(path.name if folder is None else path.relative_to(folder.resolve()).as_posix())
    for start in (printable(str(path)), printable(path.name)):
        if problem.location.startswith(start):
            return replace(problem, location=name + problem.location.removeprefix(start))
    return problem


def _look(
    path: Path,
    roots: Sequence[Path],
    converters: list[tuple[Family, Converter]],
    is_asked: Callable[[Family], bool] = lambda _: True,
) -> Seen:
    """What the first family that takes a file says of it; a family that fails is removed from the list."""
    refused: Seen | None = None
    with Candidate(path, roots) as file:
        for family, converter in [each for each in converters if is_asked(each[0])]:
            if family.general and refused is not None and _of_two(refused.verdict):
                continue
            verdict = _verdict(file, family, converter)
            if verdict is None:
                converters.remove((family, converter))
            elif isinstance(verdict, Taken):
                return Seen(path, family.name, verdict)
            elif isinstance(verdict, Refused) and refused is None:
                refused = Seen(path, family.name, Refused(_named_as(verdict.problem, path, roots)))
    return refused or Seen(path, "", LeftOut(why_left_out(path)))


def _of_two(verdict: Verdict) -> bool:
    """Whether a file is refused because a general family could read it as well."""
    return isinstance(verdict, Refused) and verdict.problem.kind == TWO_FAMILIES


def _verdict(file: Candidate, family: Family, converter: Converter) -> Verdict | None:
    """What a family says of a file; None if a package's fails, which leaves the others their turn."""
    try:
        return converter.look(file)
    except Exception as failure:  # noqa: BLE001  named below; a context around each question takes as long
        location, raised = printable(str(file.path)), failure
    try:
        with as_problem(location):
            raise raised
    except InputError as error:
        meant = not any(problem.trace for problem in error.problems) or isinstance(raised, OSError)
        if meant or is_own(family.name):
            return Refused(error.problems[0] if error.problems else Problem(location, str(error)))
        leave_out(family.command, f"{family.converter} failed: {type(raised).__name__}: {raised}")
        return None
