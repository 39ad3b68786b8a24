"""Sources looked at together: which file is whose, and what those of one family hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from unistore.converters.common.exclusion import Exclusion, about
from unistore.converters.common.faults import as_problem
from unistore.converters.files.paths import list_files
from unistore.converters.parts import Candidate, LeftOut, Part, Refused, Scanned, Taken, Verdict
from unistore.converters.protocol import Converter
from unistore.converters.registry import Family, families, is_own, leave_out
from unistore.converters.scan import Scan
from unistore.errors import InputError, Problem, printable

__all__ = ["Detection", "Seen", "Survey", "scan_sources", "survey"]

_THREADS = 8
_SHOWN = 5


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
    problems = list(found.problems)
    kept: list[Part] = []
    sound: list[Scanned] = []
    for part, (scanned, wrong) in zip(parts, _scan_all(converter, parts), strict=True):
        problems += about(part.name, wrong)
        if scanned is not None:
            kept.append(part)
            sound.append(scanned)
            exclusion.met(scanned.excluded)
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
    return replace(scan, notes=(*scan.notes, *found.notes, *_named(found.left_out), *exclusion.notes()))


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


def _named(left_out: Sequence[tuple[Path, str]]) -> list[str]:
    """A remark on files that belong to no source."""
    if not left_out:
        return []
    shown = ", ".join(f"{printable(path.name)} ({why})" for path, why in left_out[:_SHOWN])
    more = f" and {len(left_out) - _SHOWN} more" if len(left_out) > _SHOWN else ""
    return [f"left out: {shown}{more}"]


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
    converters = [(each, made) for each in families().values() if (made := _converter(each)) is not None]
    return Survey(tuple(_look(path, paths, converters) for path in files), tuple(problems))


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
                refused = Seen(path, family.name, verdict)
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
