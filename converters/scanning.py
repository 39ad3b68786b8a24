"""Sources of one family: found, scanned one by one, and brought to one form."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Protocol

from unistore.converters.common.exclusion import Exclusion, with_source
from unistore.converters.common.faults import as_problem
from unistore.converters.files.formats import has_ending
from unistore.converters.files.paths import PathListing, list_files, real_path, resolve_parents
from unistore.converters.instead import nothing_found
from unistore.converters.parts import Found, Part, Scanned
from unistore.converters.protocol import Converter
from unistore.converters.registry import find_family, get_family
from unistore.converters.scan import Scan
from unistore.converters.survey import Owners, of_another, survey
from unistore.converters.verdicts import EXCLUDED
from unistore.errors import InputError, Problem, printable
from unistore.system.packed import Packed, view
from unistore.system.sizes import count_of

__all__ = ["LookAtAll", "Looked", "Scans", "scan_here", "scan_part", "scan_sources"]

_THREADS = 8
_AHEAD = 1024
"""Parts that threads may scan before the first of them is looked at."""
_SHOWN = 5
_REASONS = 8
_BESIDE = "beside what is taken, and not needed"


Looked = tuple[Scanned | None, Sequence[Problem]]
"""What the scan of a part gives, and what is wrong with it."""


class Scans(Protocol):
    """A converter, or what else is asked about each part; it can be pickled."""

    @property
    def thread_safe(self) -> bool:
        """As in `Converter`."""
        ...

    def scan(self, part: Part) -> Scanned:
        """As in `Converter`."""
        ...


LookAtAll = Callable[[Scans, Sequence[Part]], Iterable[Looked]]
"""Scans every part, and yields what that gives in their order."""


def scan_part(converter: Scans, part: Part) -> Looked:
    """Scan one part."""
    try:
        with as_problem(part.name):
            scanned = converter.scan(part)
    except InputError as error:
        return None, error.problems or [Problem(part.name, str(error))]
    return scanned, scanned.problems


def scan_here(converter: Scans, parts: Sequence[Part]) -> Iterator[Looked]:
    """Scan all parts in this process: in threads, if they may be."""
    one = partial(scan_part, converter)
    if not converter.thread_safe or len(parts) < 2:
        yield from map(one, parts)
        return
    with ThreadPoolExecutor(_THREADS, "unistore-scan") as pool:
        left = iter(parts)
        while some := list(islice(left, _AHEAD)):
            yield from pool.map(one, some)


def scan_sources(
    converter: Converter,
    paths: Sequence[Path],
    must_exclude: Collection[str] | None = None,
    scan_all: LookAtAll = scan_here,
) -> Scan:
    """Find the sources of a family, scan each, and bring them to one form.

    Files in given folders that another particular family takes are left out; files that are given are not.

    Parameters
    ----------
    converter, paths
        What to scan, and how.
    must_exclude
        Names that must leave something out; None: all that the converter excludes.
    scan_all
        Scans the parts: here, or in other processes.

    Raises
    ------
    InputError
        With every problem of every file.
    """
    owners = Owners(converter, paths)
    folders = [path for path in paths if path.is_dir()]
    given = set(resolve_parents([path for path in paths if not path.is_dir()]))
    listed = list_files(folders)
    apart = _of_others(listed.files, converter, owners, scan_all)
    exclusion = Exclusion(converter.exclude, map(real_path, apart))
    found = _find(converter, paths, exclusion, apart)
    parts = (
        Packed(part for part in found.parts if not exclusion.covers(part.name)) if exclusion else found.parts
    )
    taken = _scan_parts(converter, parts, given, owners, exclusion, scan_all)
    apart |= taken.of_others
    problems = [*found.problems, *taken.problems]
    if not taken.parts and not problems:
        nothing = Problem(count_of(len(found.parts), "source"), "nothing is left", kind="empty")
        problems.append(_all_of_others(converter, paths, apart) if parts else nothing)
    scan = None
    if taken.parts:
        try:
            scan = converter.gather(taken.parts, taken.scanned)
        except InputError as error:
            problems += error.problems or [Problem("sources", str(error))]
    left_out = list(_passed_by(found.left_out, owners))
    used = {str(path) for path, _ in left_out}
    if scan is not None:
        used.update(str(path) for source in scan.sources for path in source.files)
    listed = listed._replace(files=list(dict.fromkeys((*listed.files, *sorted(given)))))
    beside = partial(_reasons, found.parts, parts, apart)
    left_out += _unused(listed, folders, converter, used, owners, beside, exclusion)
    must_exclude = converter.exclude if must_exclude is None else must_exclude
    problems += exclusion.not_found(must_exclude, (part.name for part in found.parts))
    if scan is None or problems:
        raise InputError(list(_with_commands(problems, parts, given | taken.plain, owners)))
    return replace(
        scan,
        notes=(*scan.notes, *found.notes, *_named(left_out), *exclusion.notes()),
        left_out=tuple(left_out),
    )


@dataclass(slots=True)
class _Sorted:
    """Parts that are scanned.

    Attributes
    ----------
    parts, scanned
        Sources of the family.
    problems
        Of these, and of what no other family takes.
    of_others
        Files that another family takes, with its name.
    plain
        Files that only a general one takes.
    """

    parts: Packed[Part] = field(default_factory=Packed)
    scanned: Packed[Scanned] = field(default_factory=Packed)
    problems: list[Problem] = field(default_factory=list)
    of_others: dict[Path, str] = field(default_factory=dict)
    plain: set[Path] = field(default_factory=set)


def _scan_parts(
    converter: Converter,
    parts: Sequence[Part],
    given: Collection[Path],
    owners: Owners,
    exclusion: Exclusion,
    scan_all: LookAtAll,
) -> _Sorted:
    """Scan all parts; of files in folders that are not certainly the family's, others are asked."""
    found = _Sorted()
    plain: dict[Path, str] = {}
    of_plain: list[Problem] = []
    for part, (scanned, wrong) in zip(parts, scan_all(converter, parts), strict=True):
        asked = scanned is None or (converter.scan_identifies and not scanned.certain)
        asked = asked and not any(path in given for path in part.files)
        if asked and all(others := [owners.other(path) for path in part.files]):
            found.of_others |= dict(zip(part.files, others, strict=True))
            continue
        if scanned is not None:
            found.parts.append(part)
            found.scanned.append(scanned)
            exclusion.add_covered(scanned.excluded)
        if asked and scanned is None and all(others := [owners.another(path) for path in part.files]):
            plain |= dict(zip(part.files, others, strict=True))
            of_plain += with_source(part.name, wrong)
        else:
            found.problems += with_source(part.name, wrong)
    found.plain = set(plain)
    if found.parts:
        found.of_others |= plain
    else:
        found.problems += of_plain
    return found


def _reasons(found: Sequence[Part], parts: Sequence[Part], apart: Mapping[Path, str]) -> dict[Path, str]:
    """Why files are in no source that were found or are of other families."""
    names = {part.name for part in parts}
    files = ((path, part.name) for part in found for path in part.files)
    reasons = {path: _BESIDE if name in names else EXCLUDED for path, name in files}
    return reasons | {path: of_another(other) for path, other in apart.items()}


@dataclass(frozen=True, kw_only=True)
class _Owned(Scanned):
    """Name of the family that takes a file; empty if none does."""

    owner: str


class _Asking:
    """Asks whose files are, where sources are scanned."""

    thread_safe = False

    def __init__(self, owners: Owners) -> None:
        self._owners = owners

    def scan(self, part: Part) -> _Owned:
        """Ask about one file."""
        return _Owned(owner=self._owners.owner(part.files[0]))


def _of_others(
    files: Sequence[Path], converter: Converter, owners: Owners, scan_all: LookAtAll
) -> dict[Path, str]:
    """Files in given folders that the family could take and another has, with the other's name.

    Where none is certainly its own, it has been asked for by name, and takes what it can of what no
    particular family has; a general one takes what it can of all. Of a family that knows its files by their
    content, those that are in doubt are asked about once they are scanned.
    """
    own = find_family(converter.family)
    if own is None or converter.scan_identifies:
        return {}
    asked = [path for path in files if has_ending(path, converter.suffixes)]
    parts = view(asked, lambda path: Part(name=str(path), files=(path,), roots=()))
    possible = {}
    for path, (scanned, wrong) in zip(asked, scan_all(_Asking(owners), parts), strict=True):
        if not isinstance(scanned, _Owned):
            raise InputError(wrong)
        possible[path] = scanned.owner
    others = {path: owner for path, owner in possible.items() if owner not in ("", own.name)}
    if own.name in possible.values():
        return others
    return {path: other for path, other in others.items() if not (own.general or get_family(other).general)}


def _passed_by(left_out: Iterable[tuple[Path, str]], owners: Owners) -> Iterator[tuple[Path, str]]:
    """What the family leaves out, with the other family's command where one takes it, also in folders."""
    for path, why in left_out:
        others = [
            (file, of_another(other)) for file in list_files([path]).files if (other := owners.another(file))
        ]
        yield from others or [(path, why)]


def _find(
    converter: Converter, paths: Sequence[Path], exclusion: Exclusion, apart: Mapping[Path, str]
) -> Found:
    """What the family finds; where all is of other families, that is the one problem."""
    try:
        with as_problem(", ".join(map(str, paths))):
            found = converter.find(paths, exclusion)
    except InputError as error:
        found = Found(parts=(), problems=error.problems or [Problem(str(paths[0]), str(error))])
    kinds = {problem.kind for problem in found.problems}
    if found.parts or not all(path.is_dir() for path in paths) or kinds - {"missing"}:
        if found.problems and not found.parts:
            raise InputError(found.problems)
        return found
    if apart:
        raise InputError(_all_of_others(converter, paths, apart))
    if not kinds:
        return found
    raise InputError(nothing_found(paths, survey(paths), converter.family))


def _with_commands(
    problems: Iterable[Problem], parts: Sequence[Part], asked: Collection[Path], owners: Owners
) -> Iterator[Problem]:
    """Problems, those of some files with the command of another family that takes them."""
    files = {part.name: part.files[0] for part in parts if part.files[0] in asked} if asked else {}
    for problem in problems:
        path = files.get(problem.source or problem.location)
        other = owners.another(path) if path is not None else ""
        cures = (problem.cure, f"it is {of_another(other)}" if other else "")
        yield replace(problem, cure="; or ".join(cure for cure in cures if cure))


def _all_of_others(converter: Converter, paths: Sequence[Path], apart: Mapping[Path, str]) -> Problem:
    listed = ", ".join(map(str, paths))
    others = list(dict.fromkeys(apart.values()))
    family = converter.family.replace("_", " ")
    named = ", ".join(others).replace("_", " ")
    message = f"holds no source of {family}: {count_of(len(apart), 'file')} of {named}"
    commands = " or ".join(of_another(each).partition(": ")[2] for each in others)
    cure = f"{commands}; or, to take files for {family} all the same, name each"
    return Problem(listed, message, cure, "family")


def _unused(
    listed: PathListing,
    folders: Sequence[Path],
    converter: Converter,
    used: set[str],
    owners: Owners,
    beside: Callable[[], Mapping[Path, str]],
    exclusion: Exclusion,
) -> list[tuple[Path, str]]:
    """What no source uses, and why: nothing is passed over without a word."""
    roots = [folder.resolve() for folder in folders]
    rest = [path for path in listed.files if str(path) not in used]
    if not rest:
        return [(path, why) for path, why in listed.skipped if str(path) not in used]
    reasons, others = beside(), used.difference(map(str, listed.files))
    known = {real_path(Path(path)) for path in others}
    folded = {path for path in known if path.is_dir()}
    found = []
    for path in rest:
        real = real_path(path) if path.is_symlink() else path
        if str(real) in used or real in known or not folded.isdisjoint(real.parents):
            continue
        if any(exclusion.covers(name) for name in _names(path, roots)):
            reason = EXCLUDED
        elif path in reasons:
            reason = reasons[path]
        elif exclusion and has_ending(path, converter.suffixes):
            reason = EXCLUDED
        else:
            reason = owners.why_unused(path)
        found.append((path, reason))
    return found + [
        (path, why) for path, why in listed.skipped if path not in known and str(path) not in used
    ]


def _names(path: Path, roots: Sequence[Path]) -> list[str]:
    """Names of a file below each of the given folders that it lies in."""
    return [printable(path.relative_to(root).as_posix()) for root in roots if path.is_relative_to(root)]


def _named(left_out: Sequence[tuple[Path, str]]) -> list[str]:
    """Remarks on files that belong to no source, one a reason; hidden ones are only counted."""
    by_reason: dict[str, list[Path]] = {}
    for path, reason in left_out:
        by_reason.setdefault(reason, []).append(path)
    for each in ("hidden", EXCLUDED):  # these are told by `Exclusion.notes`
        by_reason.pop(each, None)
    notes = []
    for reason, files in list(by_reason.items())[:_REASONS]:
        shown = ", ".join(printable(path.name) for path in files[:_SHOWN])
        more = f" and {len(files) - _SHOWN} more" if len(files) > _SHOWN else ""
        notes.append(f"left out, {reason}: {shown}{more}")
    if len(by_reason) > _REASONS:
        notes.append(f"and files left out for {len(by_reason) - _REASONS} further reasons")
    return notes
