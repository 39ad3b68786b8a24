"""Scan of one family: find its sources, scan each, merge them, and say why other files are left out."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exclusion import Exclusion, with_source
from unistore.converters.common.faults import UNREADABLE, as_problem
from unistore.converters.files.formats import has_ending
from unistore.converters.protocol import Ask, Converter, ask_here
from unistore.converters.registry import find_family, get_family
from unistore.converters.scan import Columns, Found, LeftOut, Part, Parts, Refused, Scan, Scanned
from unistore.converters.survey import (
    EXCLUDED,
    Claims,
    Rows,
    convert_command,
    nothing_found,
    other_family_reason,
)
from unistore.errors import InputError, Problem, first_few, printable
from unistore.system.packed import PackedObjects
from unistore.system.sizes import count_of

_THREADS = 8
_SHOWN = 5
_REASONS = 8
_NOT_NEEDED = "beside what is taken, and not needed"

PartResult = tuple[Scanned | None, Sequence[Problem]]
"""Result of scanning a part (None if it failed), and its problems."""


class LeftOutFile(NamedTuple):
    """A file that is left out, why, and the family that takes it (empty if none)."""

    path: Path
    why: str
    family: str = ""


def scan_part(converter: Converter, part: Part) -> PartResult:
    """Scan one part; exceptions become its problems."""
    try:
        with as_problem(part.name):
            scanned = converter.scan(part)
    except InputError as error:
        return None, error.problems_at(part.name)
    return scanned, scanned.problems


def scan_sources(
    converter: Converter,
    paths: Sequence[Path],
    must_exclude: Collection[str] | None = None,
    ask: Ask = ask_here,
    *,
    is_named: bool = False,
    claims: Claims | None = None,
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
    claims
        See `claims_for`; rows that are missing are asked about.

    Raises
    ------
    InputError
        With every problem of every file.
    """
    claims = claims_for(converter, paths, claims)
    return _FamilyScan(converter, claims, ask, is_named=is_named).run(must_exclude)


def claims_for(converter: Converter, paths: Sequence[Path], claims: Claims | None = None) -> Claims:
    """Return the table of the paths with this converter in the place of its family's default one.

    That is `claims`, a table of the same paths, where the converter gives the same answers.
    """
    if claims is not None and claims.roots == list(paths) and claims.serves(converter):
        return claims
    return Claims(paths, converter)


class _FamilyScan:
    """Scan of one family; rows are those of the table of claims."""

    def __init__(self, converter: Converter, claims: Claims, ask: Ask, *, is_named: bool) -> None:
        self._converter = converter
        self._claims = claims
        self._ask = ask
        self._is_named = is_named
        self._number = claims.number(converter.family)
        self._exclusion = Exclusion(converter.exclude)
        self._folders = [path.resolve() for path in claims.roots if path.is_dir()]
        self._given = claims.listing.given
        self._of_others = np.zeros(len(claims.paths), np.bool_)  # rows that are left to other families
        self._doubtful: set[str] = set()  # files of failed parts that a general family takes
        self._problems: list[Problem] = []

    def run(self, must_exclude: Collection[str] | None) -> Scan:
        """See `scan_sources`."""
        converter = self._converter
        exclusion = self._exclusion
        unreadable = self._leave_to_others()
        found_sources = self._find()
        parts = found_sources.parts
        if exclusion or not isinstance(parts, Parts):
            parts = Parts(part for part in found_sources.parts if not exclusion.covers(part.name))
        self._problems += [*_with_parts(unreadable, found_sources.parts), *found_sources.problems]
        sources, scanned = self._scan(parts)
        if not sources and not self._problems:
            nothing = Problem(count_of(len(found_sources.parts), "source"), "nothing is left", kind="empty")
            self._problems.append(self._all_of_others() if parts else nothing)
        scan = None
        if sources:
            try:
                scan = converter.gather(sources, scanned)
            except InputError as error:
                self._problems += error.problems_at("sources")
        left_out = self._left_out(found_sources, parts, scan)
        if self._is_named:
            self._problems += self._general_problems(left_out)
        must_exclude = converter.exclude if must_exclude is None else must_exclude
        self._problems += exclusion.not_found(must_exclude, (part.name for part in found_sources.parts))
        if scan is None or self._problems:
            # A file that cannot be read is told by the survey and by the scan.
            raise InputError(list(dict.fromkeys(self._with_commands(parts))))
        return replace(
            scan,
            notes=(
                *scan.notes,
                *found_sources.notes,
                *_notes(left_out, unnamed=scan.unnamed),
                *exclusion.notes(),
            ),
            left_out=tuple((file.path, file.why) for file in left_out),
        )

    def _leave_to_others(self) -> dict[str, Problem]:
        """Leave files in folders to other families; returns the problem of each file that cannot be read.

        If none of the files is surely the family's, the user named the family: then it also gets the files of
        general families, and a general family gets all files. Of a family with `scan_identifies`, doubtful
        files are asked about after their scan.
        """
        claims = self._claims
        own = find_family(self._converter.family)
        if own is None or self._converter.scan_identifies:
            return {}
        rows = np.array([row for row, path in enumerate(claims.paths) if self._may_take(path)], np.int64)
        claims.ask(rows, self._ask, assumes_general=own.general)
        if own.general and (claims.takers[rows] != self._number).any():
            claims.ask(rows, self._ask)
        takers = claims.takers[rows]
        is_other = (takers > 0) & (takers != self._number)
        unreadable = {row: claims.unreadable[row] for row in rows.tolist() if row in claims.unreadable}
        if not unreadable and not (takers == self._number).any():
            is_other &= ~claims.is_general[takers] & (not own.general)
        self._of_others[rows[is_other]] = True
        return {claims.paths[row]: problem for row, problem in unreadable.items()}

    def _may_take(self, path: str) -> bool:
        """Return whether a file in a folder has one of the family's suffixes, and is not excluded."""
        if path in self._given or not has_ending(path, self._converter.suffixes):
            return False
        return not self._exclusion or not self._is_excluded(Path(path))

    def _find(self) -> Found:
        """Return the parts that the family finds; raise one problem if all files are of other families."""
        claims = self._claims
        left = self._of_others
        if self._exclusion:  # sources may have other names than files below the given folders
            left = left | np.array([self._is_excluded(Path(path)) for path in claims.paths], np.bool_)
        listing = replace(claims.listing, left=left)
        try:
            with as_problem(", ".join(map(str, claims.roots))):
                found_parts = self._converter.find(listing, self._exclusion)
        except InputError as error:
            found_parts = Found(parts=(), problems=error.problems_at(str(claims.roots[0])))
        kinds = {problem.kind for problem in found_parts.problems}
        if found_parts.parts or not all(path.is_dir() for path in claims.roots) or kinds - {"missing"}:
            if found_parts.problems and not found_parts.parts:
                raise InputError(found_parts.problems)
            return found_parts
        if self._of_others.any():
            raise InputError(self._all_of_others())
        if not kinds:
            return found_parts
        claims.ask(ask=self._ask)
        raise InputError(nothing_found(claims, self._converter.family))

    def _scan(self, parts: Parts) -> tuple[Parts, PackedObjects[Scanned]]:
        """Scan all parts; returns those of the family.

        Parts in folders that failed, or are not surely the family's, may be of other families.
        """
        converter = self._converter
        claims = self._claims
        results: PackedObjects[Scanned | None] = PackedObjects()
        wrong: dict[int, Sequence[Problem]] = {}
        unsure: list[int] = []
        threads = _THREADS if converter.thread_safe else 1
        answers = self._ask(partial(scan_part, converter), parts, threads=threads)
        for number, (files, (result, problems)) in enumerate(zip(parts.files(), answers, strict=True)):
            results.append(result)
            if problems:
                wrong[number] = problems
            is_sure = result is not None and (result.certain or not converter.scan_identifies)
            is_unread = any(problem.kind == UNREADABLE for problem in problems)
            if not is_sure and not is_unread and self._given.isdisjoint(files):
                unsure.append(number)
        rows = {number: claims.rows_of_files(parts.paths(number)) for number in unsure}
        if rows:
            claims.ask(np.concatenate(list(rows.values())), self._ask)
        sources = Parts(roots=parts.roots)
        scanned = PackedObjects[Scanned]()
        general: list[int] = []
        columns = zip(parts.names, parts.files(), parts.details, results, strict=True)
        for number, (name, files, detail, result) in enumerate(columns):
            if number in rows:
                self._problems += self._unread(rows[number])
                if self._is_of_others(rows[number]):
                    self._of_others[rows[number]] = True
                    continue
            if result is not None:
                sources.add(name, files, detail)
                scanned.append(result)
                self._exclusion.add_covered(result.excluded)
            elif number in rows and self._is_free(rows[number]).all():
                general.append(number)
                self._doubtful.update(files)
                continue
            self._problems += with_source(name, wrong.get(number, ()))
        for number in general:
            if sources and not self._is_named:
                self._of_others[rows[number]] = True
            else:
                self._problems += with_source(parts.names[number], wrong[number])
        return sources, scanned

    def _is_of_others(self, rows: Rows) -> bool:
        """Return whether other families, not general ones, take all of some files."""
        takers = self._claims.takers[rows]
        is_other = (takers > 0) & (takers != self._number)
        return bool(is_other.all() and not self._claims.is_general[takers].any())

    def _is_free(self, rows: Rows) -> NDArray[np.bool_]:
        """Return which files another family takes, and this one does not refuse."""
        takers = self._claims.takers[rows]
        refusers = self._claims.refusers[rows]
        is_free: NDArray[np.bool_] = (takers > 0) & (takers != self._number) & (refusers != self._number)
        return is_free

    def _unread(self, rows: Rows) -> list[Problem]:
        """Return the problems of files that could not be read."""
        unreadable = self._claims.unreadable
        return [unreadable[row] for row in rows.tolist() if row in unreadable]

    def _left_out(self, found: Found, parts: Parts, scan: Scan | None) -> list[LeftOutFile]:
        """Return the files that no source uses, each with the reason."""
        claims = self._claims
        is_used = np.zeros(len(claims.paths), np.bool_)
        left_out = self._left_out_by_family(found, is_used)
        # What is told of that is not in the table: folders, and files of sources with what they lead to.
        elsewhere = {str(file.path) for file in left_out}
        if scan is not None:
            rows = claims.rows(_paths(scan.sources))
            for path in compress(_paths(scan.sources), rows < 0):
                elsewhere |= {path, os.path.realpath(path)}
            rows = np.concatenate([rows, claims.rows(elsewhere)])
            is_used[rows[rows >= 0]] = True
        unused = np.flatnonzero(~is_used)
        reasons = self._reasons_of_parts(found, parts) if len(unused) else np.zeros(0, np.object_)
        untold: list[int] = []
        whys: list[tuple[int, str]] = []
        for row in unused.tolist():
            path = claims.paths[row]
            if Path(path).is_symlink() and os.path.realpath(path) in elsewhere:
                continue
            why = self._why(row, path, reasons[row])
            whys.append((row, why))
            if not why:
                untold.append(row)
        claims.ask(np.array(untold, np.int64), self._ask)
        for row, why in whys:
            if why:
                taker = claims.taker(row) if self._of_others[row] and why != EXCLUDED else ""
                left_out.append(LeftOutFile(Path(claims.paths[row]), why, taker))
            elif row in claims.unreadable:
                self._problems.append(claims.unreadable[row])
            else:
                left_out.append(self._unused(row))
        return left_out + [
            LeftOutFile(path, why) for path, why in claims.skipped if str(path) not in elsewhere
        ]

    def _left_out_by_family(self, found: Found, is_used: NDArray[np.bool_]) -> list[LeftOutFile]:
        """Return what the family leaves out; a file that another one takes, with that one's command."""
        claims = self._claims
        rows_of = [claims.rows_at(path) for path, _ in found.left_out]
        if rows_of:
            claims.ask(np.concatenate(rows_of), self._ask)
        left_out: list[LeftOutFile] = []
        for (path, why), rows in zip(found.left_out, rows_of, strict=True):
            self._problems += self._unread(rows)
            plain_rows = rows[self._is_free(rows)]
            is_used[plain_rows if len(plain_rows) else rows] = True
            left_out += [self._of_other(row) for row in plain_rows.tolist()] or [LeftOutFile(path, why)]
        return left_out

    def _reasons_of_parts(self, found: Found, parts: Parts) -> NDArray[np.object_]:
        """Return, by row, why a file of a part that was found may be in no source."""
        reasons = np.full(len(self._claims.paths), "", np.object_)
        for chosen, why in ((found.parts, EXCLUDED), (parts, _NOT_NEEDED)):
            rows = self._claims.rows(_paths(chosen))
            reasons[rows[rows >= 0]] = why
        return reasons

    def _why(self, row: int, path: str, why: str) -> str:
        """Return why a file is unused; empty if the table says it."""
        if self._is_excluded(Path(path)):
            return EXCLUDED
        if self._of_others[row]:
            return other_family_reason(self._claims.taker(row))
        is_of_excluded = not why and self._exclusion and has_ending(path, self._converter.suffixes)
        return EXCLUDED if is_of_excluded else why

    def _unused(self, row: int) -> LeftOutFile:
        """Return why a file is unused, as the table says it."""
        path, family, verdict = self._claims[row]
        if isinstance(verdict, LeftOut):
            return LeftOutFile(path, verdict.reason)
        if isinstance(verdict, Refused):
            return LeftOutFile(path, "cannot be read")
        if family == self._converter.family:
            return LeftOutFile(path, f"in no source of {family.replace('_', ' ')}")
        return self._of_other(row)

    def _of_other(self, row: int) -> LeftOutFile:
        path = Path(self._claims.paths[row])
        taker = self._claims.taker(row)
        if self._is_excluded(path):
            return LeftOutFile(path, EXCLUDED)
        return LeftOutFile(path, other_family_reason(taker), taker)

    def _general_problems(self, left_out: Iterable[LeftOutFile]) -> Iterator[Problem]:
        """Problems of files with a suffix of the named family that only a general family takes.

        A damaged or misread file often looks like plain arrays.
        """
        family = self._converter.family.replace("_", " ")
        for path, _, taker in left_out:
            if taker and get_family(taker).general and has_ending(path, self._converter.suffixes):
                name = next(iter(self._names(path)), printable(path.name))
                message = f"is not of {family}, only of {get_family(taker).command}"
                cure = f"get or write it again, or leave it out: --exclude {shlex.quote(name)}"
                yield Problem(name, message, cure, "family", name)

    def _with_commands(self, parts: Parts) -> list[Problem]:
        """Add to the problems of given and doubtful files the command of another family that takes them."""
        claims = self._claims
        doubtful = self._given | self._doubtful
        first_files = zip(parts.names, parts.files(), strict=True) if doubtful else ()
        files = {name: paths[0] for name, paths in first_files if paths[0] in doubtful}
        rows = dict(zip(files, claims.rows_of_files(files.values()).tolist(), strict=True))
        concerned = {
            problem.source or problem.location for problem in self._problems if problem.kind != UNREADABLE
        }
        claims.ask(np.array([rows[name] for name in rows.keys() & concerned], np.int64), self._ask)
        problems = []
        for problem in self._problems:
            row = rows.get(problem.source or problem.location, -1)
            if problem.kind == UNREADABLE or not self._is_free(np.array([row])).all():
                problems.append(problem)
                continue
            cure = f"it is {other_family_reason(claims.taker(row))}"
            cures = (problem.cure, cure) if problem.cure else (cure,)
            problems.append(replace(problem, cure="; or ".join(cures)))
        return problems

    def _all_of_others(self) -> Problem:
        claims = self._claims
        family = self._converter.family.replace("_", " ")
        rows = np.flatnonzero(self._of_others)
        other_takers = list(dict.fromkeys(map(claims.taker, rows.tolist())))
        named = ", ".join(other_takers).replace("_", " ")
        message = f"holds no source of {family}: {count_of(len(rows), 'file')} of {named}"
        commands = " or ".join(map(convert_command, other_takers))
        cure = f"{commands}; or, to take files for {family} all the same, name each"
        return Problem(", ".join(map(str, claims.roots)), message, cure, "family")

    def _is_excluded(self, path: Path) -> bool:
        """Return whether the user excludes a file by its name below one of the given folders."""
        return bool(self._exclusion) and any(map(self._exclusion.covers, self._names(path)))

    def _names(self, path: Path) -> list[str]:
        """Return the names of a file below each of the given folders that it lies in."""
        folders = [folder for folder in self._folders if path.is_relative_to(folder)]
        return [printable(path.relative_to(folder).as_posix()) for folder in folders]


def _paths(sources: Columns[Any] | Sequence[Part]) -> Iterator[str]:
    """Paths of all files of parts or sources."""
    if isinstance(sources, Columns):
        return chain.from_iterable(sources.files())
    return (str(path) for path in chain.from_iterable(part.files for part in sources))


def _with_parts(unreadable: Mapping[str, Problem], parts: Sequence[Part]) -> list[Problem]:
    """Problems by file, with the part that the file belongs to as the source, if there is one."""
    names = {str(path): part.name for part in parts for path in part.files} if unreadable else {}
    return [replace(problem, source=names.get(path, problem.source)) for path, problem in unreadable.items()]


def _notes(left_out: Sequence[LeftOutFile], *, unnamed: bool) -> list[str]:
    """Notes on files that belong to no source, one for each reason; `unnamed`: names may tell of patients."""
    by_reason: dict[str, list[str]] = {}
    for path, reason, _ in left_out:
        if reason not in ("hidden", EXCLUDED):  # reported by `Exclusion.notes`
            by_reason.setdefault(reason, []).append(path.name)
    reasons = list(by_reason.items())
    notes = []
    for reason, names in reasons[:_REASONS]:
        listed = count_of(len(names), "file") if unnamed else first_few(names, _SHOWN)
        notes.append(f"left out, {reason}: {listed}")
    if len(reasons) > _REASONS:
        notes.append(f"and files left out for {len(reasons) - _REASONS} further reasons")
    return notes
