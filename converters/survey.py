"""Sources looked at together: which file is whose, and what those of one family hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from unistore.converters.common.exclusion import Exclusion, about
from unistore.converters.common.faults import as_problem
from unistore.converters.files.formats import unread_format
from unistore.converters.files.paths import list_files, real_path
from unistore.converters.parts import Candidate, LeftOut, Part, Refused, Scanned, Taken, Verdict
from unistore.converters.protocol import Converter
from unistore.converters.registry import Family, families, get_family, is_own, leave_out
from unistore.converters.scan import Scan
from unistore.errors import InputError, Problem, printable

__all__ = ["Detection", "Seen", "Survey", "scan_sources", "survey"]

_THREADS = 8
_SHOWN = 5
_REASONS = 8


def scan_sources(converter: Converter, paths: Sequence[Path]) -> Scan:
    """Find the sources of a family, scan each, and bring them to one form.

    Raises
    ------
    InputError
        With every problem of every file.
    """
    exclusion = Exclusion(converter.exclude)
    found = converter.find(paths, exclusion)
    parts = [part for part in found.parts if not exclusion.covers(part.name)]
    problems, left_out = list(found.problems), list(found.left_out)
    given = {path.parent.resolve() / path.name for path in paths if not path.is_dir()}
    kept: list[Part] = []
    sound: list[Scanned] = []
    for part, (scanned, wrong) in zip(parts, _scan_all(converter, parts), strict=True):
        if scanned is not None:
            kept.append(part)
            sound.append(scanned)
            exclusion.met(scanned.excluded)
        elif part.files[0] not in given and (other := _other_family(part, converter)) is not None:
            left_out.append((part.files[0], other))
            continue
        problems += about(part.name, wrong)
    if not parts and not problems:
        problems.append(Problem(f"{len(found.parts)} source(s)", "are all left out", kind="empty"))
    scan = None
    if kept:
        try:
            scan = converter.gather(kept, sound)
        except InputError as error:
            problems += error.problems or [Problem("sources", str(error))]
    if scan is None or problems:
        raise InputError(problems)
    used = [path for source in scan.sources for path in source.files]
    used += [path for part in found.parts for path in part.files] + [path for path, _ in left_out]
    left_out += _unused(paths, converter, used, excluding=bool(exclusion))
    return replace(
        scan,
        notes=(*scan.notes, *found.notes, *_named(left_out), *exclusion.notes()),
        left_out=tuple(left_out),
    )


def _scan_all(
    converter: Converter, parts: Sequence[Part]
) -> Iterator[tuple[Scanned | None, Sequence[Problem]]]:
    """What the scan of each part gives, or what is wrong with it."""

    def one(part: Part) -> tuple[Scanned | None, Sequence[Problem]]:
        try:
            with as_problem(part.name):
                scanned = converter.scan(part)
        except InputError as error:
            return None, error.problems or [Problem(part.name, str(error))]
        return scanned, scanned.problems

    if not converter.concurrent or len(parts) < 2:
        yield from map(one, parts)
        return
    with ThreadPoolExecutor(_THREADS, "unistore-scan") as pool:
        yield from pool.map(one, parts)


def _other_family(part: Part, converter: Converter) -> str | None:
    """Which other family knows a file that cannot be scanned, and how it is converted."""
    others = [each for each in families().values() if not each.general and each.name != converter.family]
    seen = _look(part.files[0], part.roots, _converters(others))
    if not isinstance(seen.verdict, Taken):
        return None
    command = get_family(seen.family).command
    return f"is of another family: unistore convert {command}"


def _unused(
    paths: Sequence[Path], converter: Converter, used: Iterable[Path], *, excluding: bool
) -> list[tuple[Path, str]]:
    """Files in given folders that no source uses, and why: none is passed over without a word."""
    known = {real_path(path) for path in used}
    apart = {path for path in known if path.is_dir()}
    folders = [path for path in paths if path.is_dir()]
    files = list_files(folders, ("",))[0] if folders else []
    found = []
    for path in files:
        real = real_path(path)
        if real in known or not apart.isdisjoint(real.parents):
            continue
        unread = unread_format(path)
        if unread:
            reason = f"{unread}, which is not read"
        elif excluding and path.name.lower().endswith(converter.suffixes):
            reason = "excluded"
        else:
            reason = f"no source of {converter.family.replace('_', ' ')}"
        found.append((path, reason))
    return found


def _named(left_out: Sequence[tuple[Path, str]]) -> list[str]:
    """Remarks on files that belong to no source, one a reason."""
    by_reason: dict[str, list[Path]] = {}
    for path, reason in left_out:
        by_reason.setdefault(reason, []).append(path)
    notes = []
    for reason, files in list(by_reason.items())[:_REASONS]:
        shown = ", ".join(printable(path.name) for path in files[:_SHOWN])
        more = f" and {len(files) - _SHOWN} more" if len(files) > _SHOWN else ""
        notes.append(f"left out, {reason}: {shown}{more}")
    if len(by_reason) > _REASONS:
        notes.append(f"and files left out for {len(by_reason) - _REASONS} further reasons")
    return notes


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
    """A file, the verdict on it, and the family that takes or refuses it; empty where none does."""

    path: Path
    family: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Survey:
    """The verdict on every file under some paths, in natural order, and what cannot be looked into."""

    files: tuple[Seen, ...]
    problems: tuple[Problem, ...]

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
    files, problems = list_files(paths, ("",))
    converters = _converters(families().values())
    return Survey(tuple(_look(path, paths, converters) for path in files), tuple(problems))


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


def _look(path: Path, roots: Sequence[Path], converters: list[tuple[Family, Converter]]) -> Seen:
    refused: Seen | None = None
    with Candidate(path, roots) as file:
        for family, converter in list(converters):
            verdict = _verdict(file, family, converter)
            if verdict is None:
                converters.remove((family, converter))
            elif isinstance(verdict, Taken):
                return Seen(path, family.name, verdict)
            elif isinstance(verdict, Refused) and refused is None:
                refused = Seen(path, family.name, Refused(_named_as(verdict.problem, path, roots)))
    return refused or Seen(path, "", LeftOut("is of no known format"))


def _verdict(file: Candidate, family: Family, converter: Converter) -> Verdict | None:
    """What a family says of a file; None if a package's fails, which leaves the others their turn."""
    location = printable(str(file.path))
    try:
        if is_own(family.name):
            with as_problem(location):
                return converter.look(file)
        return converter.look(file)
    except InputError as error:
        return Refused(error.problems[0] if error.problems else Problem(location, str(error)))
    except Exception as error:  # noqa: BLE001  whatever a package raises, the other families work
        leave_out(family.command, f"{family.converter} failed: {type(error).__name__}: {error}")
        return None
