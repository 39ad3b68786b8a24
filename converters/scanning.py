"""Sources of one family: found, scanned one by one, and brought to one form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from unistore.converters.common.exclusion import Exclusion, about
from unistore.converters.common.faults import as_problem
from unistore.converters.files.formats import has_ending, unread_format
from unistore.converters.files.paths import list_files, real_path
from unistore.converters.parts import Part, Scanned, Taken
from unistore.converters.protocol import Converter
from unistore.converters.registry import families, get_family
from unistore.converters.scan import Scan
from unistore.converters.survey import look_at
from unistore.errors import InputError, Problem, printable

__all__ = ["scan_sources"]

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
    seen = look_at(part.files[0], part.roots, others)
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
        elif excluding and has_ending(path, converter.suffixes):
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
