"""Scan of one family: find its sources, scan each, merge them, and say why other files are left out."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from unistore.converters.asking import Ask, ask_here
from unistore.converters.common.exclusion import Exclusion, ProblemCollector, with_source
from unistore.converters.common.faults import UNREADABLE, as_problem
from unistore.converters.files.formats import has_ending
from unistore.converters.files.paths import PathListing, list_files, real_path, resolve_parents
from unistore.converters.instead import nothing_found
from unistore.converters.parts import Found, Part, Parts, Scanned
from unistore.converters.protocol import Converter
from unistore.converters.registry import families, find_family, get_family
from unistore.converters.scan import Scan
from unistore.converters.survey import Owners, convert_command, other_family_reason, survey
from unistore.converters.verdicts import EXCLUDED
from unistore.errors import InputError, Problem, first_few, printable
from unistore.system.packed import Packed
from unistore.system.sizes import count_of

_THREADS = 8
_SHOWN = 5
_REASONS = 8
_NOT_NEEDED = "beside what is taken, and not needed"


PartResult = tuple[Scanned | None, Sequence[Problem]]
"""Result of scanning a part (None if it failed), and its problems."""


class PartScanner(Protocol):
    """A converter, or another object that scans parts; can be pickled."""

    def scan(self, part: Part) -> Scanned:
        """As in `Converter`."""
        ...


AskPaths = Callable[[Sequence[Path], list[Problem]], Sequence[Any]]
"""Asks about paths; None for each that cannot be read, with a problem in the list."""


class LeftOutFile(NamedTuple):
    """A file that is left out, why, and the family that takes it (empty if none)."""

    path: Path
    why: str
    family: str = ""


def scan_part(converter: PartScanner, part: Part) -> PartResult:
    """Scan one part; exceptions become its problems."""
    try:
        with as_problem(part.name):
            scanned = converter.scan(part)
    except InputError as error:
        return None, error.problems_at(part.name)
    return scanned, scanned.problems


@dataclass(frozen=True)
class _Attempt:
    """Ask about a path; the answer and no problem, or None and what is raised as problems."""

    function: Callable[[Path], Any]

    def __call__(self, path: Path) -> tuple[Any, Sequence[Problem]]:
        answer, collected = None, ProblemCollector()
        with collected.attempt(str(path)):
            answer = self.function(path)
        return answer, collected.problems


def _answers(
    ask: Ask, function: Callable[[Path], Any], paths: Sequence[Path], problems: list[Problem]
) -> list[Any]:
    """Ask about paths; None, and a problem, for each that cannot be read."""
    answers = []
    for answer, wrong in ask(_Attempt(function), paths):
        answers.append(answer)
        problems += wrong
    return answers


def scan_sources(
    converter: Converter,
    paths: Sequence[Path],
    must_exclude: Collection[str] | None = None,
    ask: Ask = ask_here,
    *,
    is_named: bool = False,
) -> Scan:
    """Find the sources of a family, scan each, and merge them.

    Files in given folders that belong to another (not general) family are left out; files that are given
    themselves are not. A file that cannot be read may be of any family: it is a problem.

    Parameters
    ----------
    converter, paths
        Converter of the family, and files and folders.
    must_exclude
        Names to exclude that must match something; None: all of the converter's.
    ask
        Asks about files and parts, in this process or in others.
    is_named
        Whether the user named the family. Then a file in a given folder with one of its suffixes that only a
        general family takes is a problem; else it is left out.

    Raises
    ------
    InputError
        With every problem of every file.
    """
    owners = Owners(converter, paths)
    folders = [path for path in paths if path.is_dir()]
    given = set(map(str, resolve_parents([path for path in paths if not path.is_dir()])))
    listed = list_files(folders)
    roots = [folder.resolve() for folder in folders]
    excluded = Exclusion(converter.exclude)
    candidates = listed.files
    if excluded:
        candidates = [path for path in candidates if not _is_excluded(Path(path), roots, excluded)]
    of_others, unreadable = _of_others(candidates, converter, owners, ask)
    exclusion = Exclusion(converter.exclude, of_others)
    found = _find(converter, paths, exclusion, of_others, ask)
    parts = found.parts
    if exclusion or not isinstance(parts, Parts):
        parts = Parts(part for part in found.parts if not exclusion.covers(part.name))
    taken = _scan_parts(converter, parts, given, owners, exclusion, ask, is_named=is_named)
    of_others |= taken.of_others
    problems = [*_with_parts(unreadable, found.parts), *found.problems, *taken.problems]
    if not taken.parts and not problems:
        nothing = Problem(count_of(len(found.parts), "source"), "nothing is left", kind="empty")
        problems.append(_all_of_others(converter, paths, of_others) if parts else nothing)
    scan = None
    if taken.parts:
        try:
            scan = converter.gather(taken.parts, taken.scanned)
        except InputError as error:
            problems += error.problems_at("sources")
    by_family = _left_out_by_family(found.left_out, partial(_answers, ask, owners.other_or_general), problems)

    def used() -> Iterator[str]:
        yield from (str(file.path) for file in by_family)
        yield from (path for files in (() if scan is None else scan.sources.files()) for path in files)

    if given:
        listed = listed._replace(files=list(dict.fromkeys((*listed.files, *sorted(given)))))
    reasons = partial(_reasons, found.parts, parts, of_others)
    left_out = by_family + _unused(
        listed,
        roots,
        converter,
        used,
        partial(_answers, ask, owners.why_unused),
        reasons,
        exclusion,
        problems,
    )
    # A family may leave out a file that the user excludes as well.
    left_out = [
        LeftOutFile(file.path, EXCLUDED)
        if file.family and _is_excluded(file.path, roots, exclusion)
        else file
        for file in left_out
    ]
    if is_named:
        problems += _general_problems(left_out, converter, roots)
    must_exclude = converter.exclude if must_exclude is None else must_exclude
    problems += exclusion.not_found(must_exclude, (part.name for part in found.parts))
    if scan is None or problems:
        raise InputError(list(_with_commands(problems, parts, given | taken.general, owners, ask)))
    return replace(
        scan,
        notes=(*scan.notes, *found.notes, *_notes(left_out), *exclusion.notes()),
        left_out=tuple((file.path, file.why) for file in left_out),
    )


@dataclass(slots=True)
class _ScannedParts:
    """Scanned parts by owner.

    Attributes
    ----------
    parts, scanned
        Sources of the family.
    problems
        Problems of the family's files and of files that no family takes.
    of_others
        Name of the family by file, for files of other families.
    general
        Failed files that a general family takes.
    """

    parts: Parts
    scanned: Packed[Scanned] = field(default_factory=Packed)
    problems: list[Problem] = field(default_factory=list)
    of_others: dict[str, str] = field(default_factory=dict)
    general: set[str] = field(default_factory=set)


class _Answer(NamedTuple):
    """What came of a part.

    Attributes
    ----------
    result
        Its scan.
    specific, general
        Families of its files, where other families have all of them: those that are not general, then any.
    problems
        Of files of which other families were asked in vain.
    """

    result: PartResult
    specific: Sequence[str] = ()
    general: Sequence[str] = ()
    problems: Sequence[Problem] = ()


@dataclass(frozen=True)
class _AskAbout:
    """Scan a part; ask other families about its files, unless these are surely the family's."""

    converter: Converter
    given: frozenset[str]
    owners: Owners

    def __call__(self, part: Part) -> _Answer:
        result = scan_part(self.converter, part)
        scanned, wrong = result
        is_asked = scanned is None or (self.converter.scan_identifies and not scanned.certain)
        is_unread = any(problem.kind == UNREADABLE for problem in wrong)
        if not is_asked or is_unread or not self.given.isdisjoint(map(str, part.files)):
            return _Answer(result)
        collected = ProblemCollector()
        specific: list[str] = []
        general: list[str] = []
        with collected.attempt(part.name):
            specific = _all_of([self.owners.other_specific(path) for path in part.files])
        with collected.attempt(part.name):
            if scanned is None and not specific:
                general = _all_of([self.owners.other_or_general(path) for path in part.files])
        return _Answer(result, specific, general, collected.problems)


def _all_of(families: list[str]) -> list[str]:
    return families if all(families) else []


def _scan_parts(
    converter: Converter,
    parts: Parts,
    given: set[str],
    owners: Owners,
    exclusion: Exclusion,
    ask: Ask,
    *,
    is_named: bool,
) -> _ScannedParts:
    """Scan all parts; files in folders that are not surely the family's may be claimed by another family."""
    found = _ScannedParts(Parts(roots=parts.roots))
    general: dict[str, str] = {}
    general_problems: list[Problem] = []
    threads = _THREADS if converter.thread_safe else 1
    answers = ask(_AskAbout(converter, frozenset(given), owners), parts, threads=threads)
    columns = parts.names, parts.files(), parts.details, answers
    for name, files, detail, answer in zip(*columns, strict=True):
        scanned, wrong = answer.result
        found.problems += answer.problems
        if answer.specific:
            found.of_others |= dict(zip(files, answer.specific, strict=True))
            continue
        if scanned is not None:
            found.parts.add(name, files, detail)
            found.scanned.append(scanned)
            exclusion.add_covered(scanned.excluded)
        if answer.general:
            general |= dict(zip(files, answer.general, strict=True))
            general_problems += with_source(name, wrong)
        else:
            found.problems += with_source(name, wrong)
    found.general = set(general)
    if found.parts and not is_named:
        found.of_others |= general
    else:
        found.problems += general_problems
    return found


def _reasons(found: Sequence[Part], parts: Parts, of_others: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Reasons for files that are in no source, and the other families that take them (empty if none)."""
    names = set(parts.names)
    not_needed, excluded = (_NOT_NEEDED, ""), (EXCLUDED, "")
    files = ((str(path), part.name) for part in found for path in part.files)
    reasons = {path: not_needed if name in names else excluded for path, name in files}
    return reasons | {path: (other_family_reason(other), other) for path, other in of_others.items()}


def _general_problems(
    left_out: Iterable[LeftOutFile], converter: Converter, roots: Sequence[Path]
) -> Iterator[Problem]:
    """Problems of files with a suffix of the named family that only a general family takes.

    A damaged or misread file often looks like plain arrays.
    """
    family = converter.family.replace("_", " ")
    for path, _, taker in left_out:
        if taker and get_family(taker).general and has_ending(path, converter.suffixes):
            name = next(iter(_names(path, roots)), printable(path.name))
            message = f"is not of {family}, only of {get_family(taker).command}"
            cure = f"get or write it again, or leave it out: --exclude {shlex.quote(name)}"
            yield Problem(name, message, cure, "family", name)


def _of_others(
    files: Sequence[str], converter: Converter, owners: Owners, ask: Ask
) -> tuple[dict[str, str], dict[str, Problem]]:
    """Files in given folders that have the family's suffixes but belong to another family, with its name.

    Also the problem of each file that cannot be read.

    If none of the files is surely the family's, the user named the family: then it also gets the files of
    general families, and a general family gets all files. Families with `scan_identifies` are skipped here:
    doubtful files are checked after their scan.
    """
    own = find_family(converter.family)
    if own is None or converter.scan_identifies:
        return {}, {}
    doubtful = [Path(path) for path in files if has_ending(path, converter.suffixes)]
    others: dict[str, str] = {}
    problems: dict[str, Problem] = {}
    is_general = [each.name for each in families().values() if each.general] == [own.name]
    attempt = _Attempt(owners.other_specific if is_general else owners.owner)
    for path, (owner, wrong) in zip(doubtful, ask(attempt, doubtful), strict=True):
        if wrong:
            problems[str(path)] = wrong[0]
        elif owner not in ("", own.name):
            others[str(path)] = owner
    rest = [path for path in doubtful if str(path) not in others]
    if not others or problems or own.name in list(ask(owners.owner, rest)):
        return others, problems
    specific = {
        path: other for path, other in others.items() if not (own.general or get_family(other).general)
    }
    return specific, {}


def _with_parts(unreadable: Mapping[str, Problem], parts: Sequence[Part]) -> list[Problem]:
    """Problems by file, with the part that the file belongs to as the source, if there is one."""
    names: dict[str, str] = {}
    if unreadable:
        names = {str(path): part.name for part in parts for path in part.files}
    return [replace(problem, source=names.get(path, problem.source)) for path, problem in unreadable.items()]


def _left_out_by_family(
    left_out: Sequence[tuple[Path, str]], ask: AskPaths, problems: list[Problem]
) -> list[LeftOutFile]:
    """Files that the family leaves out, with the command of the family that takes them, if any."""
    listed = [list(map(Path, list_files([path]).files)) for path, _ in left_out]
    answers = iter(ask(list(chain(*listed)), problems))
    found: list[LeftOutFile] = []
    for (path, why), files in zip(left_out, listed, strict=True):
        owners = list(zip(files, islice(answers, len(files)), strict=True))
        others = [LeftOutFile(file, other_family_reason(other), other) for file, other in owners if other]
        found += others or [LeftOutFile(path, why)]
    return found


def _find(
    converter: Converter,
    paths: Sequence[Path],
    exclusion: Exclusion,
    of_others: Mapping[str, str],
    ask: Ask,
) -> Found:
    """Parts that the family finds; raises one problem if all files belong to other families."""
    try:
        with as_problem(", ".join(map(str, paths))):
            found = converter.find(paths, exclusion)
    except InputError as error:
        found = Found(parts=(), problems=error.problems_at(str(paths[0])))
    kinds = {problem.kind for problem in found.problems}
    if found.parts or not all(path.is_dir() for path in paths) or kinds - {"missing"}:
        if found.problems and not found.parts:
            raise InputError(found.problems)
        return found
    if of_others:
        raise InputError(_all_of_others(converter, paths, of_others))
    if not kinds:
        return found
    raise InputError(nothing_found(paths, survey(paths, ask), converter.family))


def _with_commands(
    problems: Sequence[Problem], parts: Sequence[Part], asked: Collection[str], owners: Owners, ask: Ask
) -> Iterator[Problem]:
    """Add to the problems of `asked` files the command of another family that takes them."""
    files = {part.name: part.files[0] for part in parts if str(part.files[0]) in asked} if asked else {}
    paths = [
        None if problem.kind == UNREADABLE else files.get(problem.source or problem.location)
        for problem in problems
    ]
    others = iter(list(ask(owners.other_or_general, [path for path in paths if path is not None])))
    for problem, path in zip(problems, paths, strict=True):
        other = "" if path is None else next(others)
        cures = (problem.cure, f"it is {other_family_reason(other)}" if other else "")
        yield replace(problem, cure="; or ".join(cure for cure in cures if cure))


def _all_of_others(converter: Converter, paths: Sequence[Path], of_others: Mapping[str, str]) -> Problem:
    listed = ", ".join(map(str, paths))
    others = list(dict.fromkeys(of_others.values()))
    family = converter.family.replace("_", " ")
    named = ", ".join(others).replace("_", " ")
    message = f"holds no source of {family}: {count_of(len(of_others), 'file')} of {named}"
    commands = " or ".join(convert_command(each) for each in others)
    cure = f"{commands}; or, to take files for {family} all the same, name each"
    return Problem(listed, message, cure, "family")


def _unused(
    listed: PathListing,
    roots: Sequence[Path],
    converter: Converter,
    used: Callable[[], Iterable[str]],
    why_unused: AskPaths,
    reasons: Callable[[], Mapping[str, tuple[str, str]]],
    exclusion: Exclusion,
    problems: list[Problem],
) -> list[LeftOutFile]:
    """Files that no source uses, each with the reason; found by hashes, as there may be millions.

    Problems of those that cannot be read are collected.
    """
    hashes, there = (np.fromiter(map(hash, paths), np.int64) for paths in (used(), listed.files))
    taken = np.sort(hashes)

    def is_used(path: Path) -> bool:
        at = int(taken.searchsorted(hash(str(path))))
        return at < len(taken) and int(taken[at]) == hash(str(path))

    rest = [listed.files[at] for at in np.flatnonzero(~np.isin(there, taken)).tolist()]
    if not rest:
        return [LeftOutFile(path, why) for path, why in listed.skipped if not is_used(path)]
    why = reasons()
    others = [path for path, is_listed in zip(used(), np.isin(hashes, there), strict=True) if not is_listed]
    known = {real_path(Path(path)) for path in others}
    folders_used = {path for path in known if path.is_dir()}
    found: list[LeftOutFile | None] = []
    asked: list[Path] = []
    for path in map(Path, rest):
        real = real_path(path) if path.is_symlink() else path
        if is_used(real) or real in known or not folders_used.isdisjoint(real.parents):
            continue
        if _is_excluded(path, roots, exclusion):
            found.append(LeftOutFile(path, EXCLUDED))
        elif str(path) in why:
            found.append(LeftOutFile(path, *why[str(path)]))
        elif exclusion and has_ending(path, converter.suffixes):
            found.append(LeftOutFile(path, EXCLUDED))
        else:
            found.append(None)
            asked.append(path)
    answers = zip(asked, why_unused(asked, problems), strict=True)
    left_out = [file or _unused_file(*next(answers)) for file in found]
    return [file for file in left_out if file is not None] + [
        LeftOutFile(path, why) for path, why in listed.skipped if path not in known and not is_used(path)
    ]


def _unused_file(path: Path, answer: tuple[str, str] | None) -> LeftOutFile | None:
    """None if it is not known why, as the file cannot be read."""
    return None if answer is None else LeftOutFile(path, *answer)


def _is_excluded(path: Path, roots: Sequence[Path], exclusion: Exclusion) -> bool:
    """Return whether the user excludes a file by its name below one of the given folders."""
    return any(exclusion.covers(name) for name in _names(path, roots))


def _names(path: Path, roots: Sequence[Path]) -> list[str]:
    """Names of a file below each of the given folders that it lies in."""
    return [printable(path.relative_to(root).as_posix()) for root in roots if path.is_relative_to(root)]


def _notes(left_out: Sequence[LeftOutFile]) -> list[str]:
    """Notes on files that belong to no source, one for each reason."""
    by_reason: dict[str, list[Path]] = {}
    for path, reason, _ in left_out:
        by_reason.setdefault(reason, []).append(path)
    for each in ("hidden", EXCLUDED):  # reported by `Exclusion.notes`
        by_reason.pop(each, None)
    notes = []
    for reason, files in list(by_reason.items())[:_REASONS]:
        notes.append(f"left out, {reason}: {first_few([path.name for path in files], _SHOWN)}")
    if len(by_reason) > _REASONS:
        notes.append(f"and files left out for {len(by_reason) - _REASONS} further reasons")
    return notes
