"""Which family each file belongs to: every family looks at every file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from unistore.converters.asking import Ask, ask_here
from unistore.converters.common.faults import UNREADABLE, as_problem, is_read_error
from unistore.converters.files.formats import has_ending, is_about, unread_format, why_left_out
from unistore.converters.files.paths import common_root, list_files, natural_key
from unistore.converters.parts import TWO_FAMILIES, Candidate, LeftOut, Refused, Taken, Verdict
from unistore.converters.protocol import Converter
from unistore.converters.registry import Family, families, find_family, get_family, is_own, leave_out
from unistore.converters.verdicts import LEFT_OUT, REFUSED, TAKEN, Count, counted, name_of
from unistore.errors import InputError, Problem, UnistoreError, printable


class Detection(NamedTuple):
    """Family and layout that paths were recognised as.

    Attributes
    ----------
    family
        Name of the family: ``"point_cloud"``.
    layout
        Name of the layout inside the family: ``"pointsuite_indices"``, ``"robomimic"``, ….
    reason
        One sentence for the user: ``"thin-1.h5 holds segments/segment_0000/indices"``.
    """

    family: str
    layout: str
    reason: str


class FileVerdict(NamedTuple):
    """A file, the family that takes or refuses it (empty if none), and the verdict.

    Folders that are not searched (hidden ones, Zarr) have a verdict of their own.
    """

    path: Path
    family: str
    verdict: Verdict


class Survey(NamedTuple):
    """The verdict on every file under some paths, in natural order, and problems of unreadable folders.

    Names of sources do not contain the first `depth` parts of a path.
    """

    files: tuple[FileVerdict, ...]
    problems: tuple[Problem, ...]
    depth: int = 1

    def detected(self) -> list[Detection]:
        """Detected families, each by its first file, in the order of the registry.

        General families only if there is no other.
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
        """Number of files that each detected family takes."""
        taken = [seen.family for seen in self.files if isinstance(seen.verdict, Taken)]
        return {each.family: taken.count(each.family) for each in self.detected()}

    def unread(self) -> list[str]:
        """Files of known formats that are not read: ``"a.nii is NIfTI, which is not read"``."""
        return [
            f"{printable(seen.path.name)} is {seen.verdict.reason}"
            for seen in self.files
            if isinstance(seen.verdict, LeftOut) and unread_format(seen.path) and not is_about(seen.path)
        ]

    def verdicts(self, problems: Iterable[Problem] = ()) -> tuple[Count, ...]:
        """Number of files by verdict and reason, with a few of their names.

        Files of general families count as left out if another family was detected.

        Parameters
        ----------
        problems
            Problems from the scan of the detected family; the files that they name count as refused.
        """
        detected = {each.family for each in self.detected()}
        wrong = {problem.source: problem.message for problem in problems if problem.source}
        return counted((*self._verdict(seen, detected, wrong), seen.path) for seen in self.files)

    def _verdict(
        self, seen: FileVerdict, detected: Collection[str], wrong: Mapping[str, str]
    ) -> tuple[str, str]:
        named = name_of(seen.path, wrong, self.depth) if wrong else None
        if named is not None:
            return REFUSED, wrong[named]
        if isinstance(seen.verdict, LeftOut):
            return LEFT_OUT, seen.verdict.reason
        if isinstance(seen.verdict, Refused):
            return REFUSED, seen.verdict.problem.message
        if seen.family not in detected:
            return LEFT_OUT, other_family_reason(seen.family)
        return TAKEN, f"{seen.family.replace('_', ' ')} ({seen.verdict.layout})"

    def general_only(self, family: str, roots: Sequence[Path]) -> list[str]:
        """Names of files with the family's suffixes that only a general family takes.

        They are refused where the user names the family.
        """
        suffixes = _converter_of(family).suffixes
        return [
            _name_below(seen.path, roots)
            for seen in self.files
            if isinstance(seen.verdict, Taken)
            and seen.family != family
            and get_family(seen.family).general
            and has_ending(seen.path, suffixes)
        ]

    def refused(self) -> list[Problem]:
        """Problems of refused files and of unreadable folders."""
        of_files = [seen.verdict.problem for seen in self.files if isinstance(seen.verdict, Refused)]
        return [*self.problems, *of_files]


def survey(paths: Sequence[Path], ask: Ask = ask_here) -> Survey:
    """Ask every family about every file; it belongs to the first family that takes it.

    Parameters
    ----------
    paths
        Files or folders as the user gave them.
    ask
        Asks in this process, or in others.
    """
    listed = list_files(paths)
    # an empty folder is reported elsewhere
    closed = tuple(each for each in listed.problems if each.kind != "missing")
    seen = list(ask(_Looker(paths), [Path(path) for path in listed.files]))
    seen += [FileVerdict(path, "", LeftOut(why)) for path, why in listed.skipped]
    seen.sort(key=lambda each: natural_key(each.path.as_posix()))
    return Survey(tuple(seen), closed, len(common_root([each.path for each in seen] or paths).parts))


class _Looker:
    """Asks every family about a file."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = roots

    def __reduce__(self) -> tuple[type[_Looker], tuple[Sequence[Path]]]:
        return _Looker, (self._roots,)

    @cached_property
    def _converters(self) -> list[tuple[Family, Converter]]:
        return _converters(families().values())

    def __call__(self, path: Path) -> FileVerdict:
        return _look(path, self._roots, self._converters)


def other_family_reason(family: str) -> str:
    """Reason for leaving out a file that another family takes."""
    return f"of another family: {convert_command(family)}"


def convert_command(family: str) -> str:
    """Command that converts files of a family."""
    return f"unistore convert {get_family(family).command}"


class Owners:
    """The family of single files, as in `survey`, but with the user's options for one family.

    Parameters
    ----------
    converter
        Converter of that family ("this family" below), with its options.
    roots
        Files or folders as the user gave them.
    """

    def __init__(self, converter: Converter, roots: Sequence[Path]) -> None:
        self._converter, self._family, self._roots = converter, converter.family, roots

    def __reduce__(self) -> tuple[type[Owners], tuple[Converter, Sequence[Path]]]:
        return Owners, (self._converter, self._roots)

    @cached_property
    def _converters(self) -> list[tuple[Family, Converter]]:
        """Families in the order in which they are asked; imported on first use."""
        asked = [each for each in families().values() if each.name != self._family]
        own = find_family(self._family)
        if own is None:
            return _converters(asked)
        made = _converters(each for each in asked if not each.general)
        order = list(families())
        particular = sorted([*made, (own, self._converter)], key=lambda each: order.index(each[0].name))
        return [*particular, *_converters(each for each in asked if each.general)]

    def other_specific(self, path: Path) -> str:
        """Name of the other, not general, family that a file belongs to; empty if none."""
        taken = _taken(self._asked(path, lambda family: not family.general))
        return taken if taken != self._family else ""

    def owner(self, path: Path) -> str:
        """Name of the family that takes a file; empty if none."""
        return _taken(self._asked(path))

    def other_or_general(self, path: Path) -> str:
        """Like `other_specific`, but of any other family; empty if this family refuses the file."""
        own = self._asked(path, lambda family: family.name == self._family)
        owner = "" if own is not None and isinstance(own.verdict, Refused) else self.owner(path)
        return owner if owner != self._family else ""

    def why_unused(self, path: Path) -> tuple[str, str]:
        """Reason why a file is in no source of this family, and the other family that takes it, or empty."""
        seen = self._asked(path)
        if seen is None:
            return why_left_out(path), ""
        if isinstance(seen.verdict, Refused):
            return "cannot be read", ""
        if seen.family == self._family:
            return f"in no source of {self._family.replace('_', ' ')}", ""
        return other_family_reason(seen.family), seen.family

    def _asked(self, path: Path, is_asked: Callable[[Family], bool] = lambda _: True) -> FileVerdict | None:
        """As the function; a file that cannot be read is an error: it may be of any family."""
        seen = _asked(path, self._roots, self._converters, is_asked)
        if seen is not None and (problem := read_problem(seen)) is not None:
            raise InputError(replace(problem, source=_name_below(path, self._roots)))
        return seen


def read_problem(seen: FileVerdict) -> Problem | None:
    """Return the problem of a file that is there and could not be read; None if it could."""
    problem = seen.verdict.problem if isinstance(seen.verdict, Refused) else None
    is_unread = problem is not None and problem.kind == UNREADABLE
    return problem if is_unread and seen.path.exists() else None


def _converters(chosen: Iterable[Family]) -> list[tuple[Family, Converter]]:
    """Families with default converters, without packages whose converter fails to construct."""
    return [(each, made) for each in chosen if (made := _converter(each)) is not None]


def _converter_of(name: str) -> Converter:
    """The converter of a family that was detected, with default options."""
    made: Converter = get_family(name).part("converter")()
    return made


def _converter(family: Family) -> Converter | None:
    """Converter with default options; None, with a line on stderr, if that of a package fails."""
    try:
        made: Converter = family.part("converter")()
    except Exception as error:
        if is_own(family.name):
            raise
        leave_out(family.command, str(error))
        return None
    return made


def _named_as(problem: Problem, path: Path, roots: Sequence[Path]) -> Problem:
    """The problem with a file name relative to the given folder."""
    name = _name_below(path, roots)
    for start in (printable(str(path)), printable(path.name)):
        if problem.file.startswith(start):
            return replace(problem, file=name + problem.file.removeprefix(start))
    return problem


def _name_below(path: Path, roots: Sequence[Path]) -> str:
    """Return the name of a file relative to the given folder that holds it."""
    folder = next((root for root in roots if root.is_dir() and path.is_relative_to(root.resolve())), None)
    return printable(path.name if folder is None else path.relative_to(folder.resolve()).as_posix())


def _look(path: Path, roots: Sequence[Path], converters: list[tuple[Family, Converter]]) -> FileVerdict:
    """Verdict on a file of every family together; removes families that fail."""
    return _asked(path, roots, converters) or FileVerdict(path, "", LeftOut(why_left_out(path)))


def _taken(seen: FileVerdict | None) -> str:
    """Name of the family that takes a file; empty if none."""
    return seen.family if seen is not None and isinstance(seen.verdict, Taken) else ""


def _asked(
    path: Path,
    roots: Sequence[Path],
    converters: list[tuple[Family, Converter]],
    is_asked: Callable[[Family], bool] = lambda _: True,
) -> FileVerdict | None:
    """Verdict of the family that takes a file, else the first refusal; removes families that fail.

    Once the file cannot be read, no further family is asked: a general one could take what a particular one
    would have taken.
    """
    refused: FileVerdict | None = None
    with Candidate(path, roots) as file:
        for family, converter in [each for each in converters if is_asked(each[0])]:
            if family.general and refused is not None and _is_ambiguous(refused.verdict):
                continue
            verdict = _verdict(file, family, converter)
            if verdict is None:
                converters.remove((family, converter))
            elif isinstance(verdict, Taken):
                return FileVerdict(path, family.name, verdict)
            elif isinstance(verdict, Refused):
                seen = FileVerdict(path, family.name, Refused(_named_as(verdict.problem, path, roots)))
                if read_problem(seen) is not None:
                    return seen
                refused = refused or seen
    return refused


def _is_ambiguous(verdict: Verdict) -> bool:
    """Whether a file is refused because a general family could read it as well."""
    return isinstance(verdict, Refused) and verdict.problem.kind == TWO_FAMILIES


def _verdict(file: Candidate, family: Family, converter: Converter) -> Verdict | None:
    """Verdict of a family on a file; None if the family of a package fails."""
    try:
        return converter.look(file)
    except Exception as failure:  # noqa: BLE001  named below; a context around each question takes as long
        location, raised = printable(str(file.path)), failure
    try:
        with as_problem(location):
            raise raised
    except InputError as error:
        # A fault of the code of a package is not one of the file: the family is asked no more.
        is_fault = any(problem.kind == "plugin" for problem in error.problems)
        is_fault = is_fault or not (isinstance(raised, UnistoreError) or is_read_error(raised))
        if is_own(family.name) or not is_fault:
            return Refused(_first(error.problems_at(location)))
        leave_out(family.command, f"{family.converter} failed: {type(raised).__name__}: {raised}")
        return None


def _first(problems: Sequence[Problem]) -> Problem:
    """Return that the file could not be read, if that is among the problems, else the first."""
    return min(problems, key=lambda problem: problem.kind != UNREADABLE)
