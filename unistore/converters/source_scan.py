"""Scan of one family: find its sources, scan each, merge them, and say why other files are left out."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain, compress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import shape_labels
from unistore.converters.common.exclusion import Exclusion
from unistore.converters.common.faults import UNREADABLE, WRITE_AGAIN, as_problem
from unistore.converters.detection import (
    EXCLUDED,
    Claims,
    Rows,
    files_of_families,
    nothing_found,
    other_family_reason,
)
from unistore.converters.files.formats import may_have_ending
from unistore.converters.files.paths import Listing, real_path, rows_below
from unistore.converters.opened import Origin
from unistore.converters.protocol import ParallelMap, serial_map
from unistore.converters.registry import conversion_of, families, get_family
from unistore.converters.scan_types import Found, Parts, Scan, Scanned, SourcePart, Stored
from unistore.errors import AddOptions, Fix, InputError, Problem, first_few, printable, with_source
from unistore.system.packed import PackedObjects
from unistore.system.sizes import count_of

if TYPE_CHECKING:
    from unistore.converters.adapter.converter import Converter

NOTHING_LEFT = "nothing left"  # kind of the problem that no source remains of the given ones
_THREADS = 8
_SHOWN = 5
_REASONS = 8
_NOT_NEEDED = "not needed for the source that it belongs to"


class LeftOutFile(NamedTuple):
    """A file that is left out, why, and the family that takes it (empty if none)."""

    path: Path
    why: str
    family: str = ""


def scan_part(converter: Converter, part: SourcePart) -> tuple[Scanned | None, Sequence[Problem]]:
    """Scan one part. Exceptions become its problems, and the result is None."""
    try:
        with as_problem(part.name):
            scanned = converter.scan(part)
    except InputError as error:
        return None, error.problems_at(part.name)
    return scanned, scanned.problems


def _origins(converter: Converter, scanned: tuple[SourcePart, Scanned]) -> Sequence[Origin]:
    part, one = scanned
    with as_problem(part.name):
        return converter.origins(part, one)


def claims_for(converter: Converter, paths: Sequence[Path], claims: Claims | None = None) -> Claims:
    """Return the table of the paths with this converter in the place of its family's default one.

    This is `claims`, a table of the same paths, if the converter gives the same answers.
    """
    if claims is not None and claims.roots == list(paths) and claims.serves(converter):
        return claims
    table = Claims(paths, converter)
    table.is_detected = claims is not None and claims.is_detected
    return table


def scan_sources(
    converter: Converter,
    paths: Sequence[Path],
    must_exclude: Collection[str] | None = None,
    ask: ParallelMap = serial_map,
    *,
    is_named: bool = False,
    claims: Claims | None = None,
    stored: Stored = Stored(),  # noqa: B008 - immutable
) -> Scan:
    """Find the sources of a family, scan each, and merge them.

    Files in given folders that belong to another (not general) family are skipped; given files are not.
    If the user named the family, a file that has one of its suffixes but that only a general family
    accepts is a problem. A file that cannot be read is a problem, because it may belong to any family. If
    the family was detected, a damaged file of another family is a problem, too: if it were intact, the
    user would have to choose.

    Parameters
    ----------
    converter : Converter
        The family with its options.
    paths : sequence of Path
        Files and folders that the user gave.
    must_exclude : collection of str, optional
        Names, each of which must exclude something. None: the names in the options.
    ask : ParallelMap
        Runs functions in other processes. By default in this process.
    is_named : bool, default False
        Whether the user named the family.
    claims : Claims, optional
        Table of the same paths. None: it is made.
    stored : Stored
        Sources that the store has already.

    Raises
    ------
    InputError
        If sources have problems. It contains the problems of all files.
    """
    scan = _FamilyScan(converter, claims_for(converter, paths, claims), stored, is_named=is_named)
    return scan.run(ask, converter.exclude if must_exclude is None else must_exclude)


def sources_by_shape(
    converter: Converter,
    paths: Sequence[Path],
    ask: ParallelMap = serial_map,
    *,
    is_named: bool = False,
    claims: Claims | None = None,
) -> dict[str, list[str]]:
    """Return the names of the sources whose columns are alike, by a label of what differs."""
    scan = _FamilyScan(converter, claims_for(converter, paths, claims), Stored(), is_named=is_named)
    return scan.by_shape(ask)


def _with_links(
    left_out: Mapping[int, str], linked: Mapping[int, int], names: Sequence[str]
) -> dict[int, str]:
    """Leave out all but one of the names of a file, and that one where another source shows its values."""
    left_out = dict(left_out)
    for number, first in linked.items():
        if number in left_out:
            left_out.setdefault(first, left_out[number])
    return {number: left_out.get(first, names[first]) for number, first in linked.items()} | left_out


class _FamilyScan:
    """Scan of one family. Rows are those of the table of claims."""

    def __init__(self, converter: Converter, claims: Claims, stored: Stored, *, is_named: bool) -> None:
        self._converter = converter
        self._stored = stored
        self._family = converter.family
        self._claims = claims
        self._is_named = is_named
        self._exclusion = Exclusion(converter.exclude)
        self._general = [family.name for family in families().values() if family.general]
        self._given = claims.listing.given
        self._of_others = np.zeros(len(claims.paths), np.bool_)  # rows that are left to other families
        self._doubtful: set[str] = set()  # files of failed parts that a general family takes
        self._problems: list[Problem] = []
        # Where the values of sources lie that show those of others, by number.
        self._shown: dict[int, Sequence[Origin]] = {}
        # By the name of a source that is left out, the one that shows its values, and its files.
        self._shown_by: dict[str, tuple[str, Sequence[Path]]] = {}

    def by_shape(self, ask: ParallelMap) -> dict[str, list[str]]:
        _, _, sources, scanned = self._collect(ask)
        by_label: dict[str, list[str]] = {}
        for name, label in shape_labels(self._converter.forms(sources, scanned)).items():
            by_label.setdefault(label, []).append(name)
        return by_label

    def _collect(self, ask: ParallelMap) -> tuple[Found, Parts, Parts, PackedObjects[Scanned]]:
        """Return what is found, the parts that are not excluded, and those of the family, scanned."""
        exclusion = self._exclusion
        if not self._converter.scan_identifies:
            self._claims.ask(ask, self._is_excluded)
            self._leave_to_others()
        found_sources = self._find(ask)
        parts = found_sources.parts
        if exclusion or self._stored.names or not isinstance(parts, Parts):
            # Sources may have other names than their files below the given folders.
            parts = Parts(
                part
                for part in found_sources.parts
                if part.name not in self._stored.names
                and not exclusion.covers(part.name)
                and not self._is_excluded(str(part.files[0]))
            )
        sources, scanned = self._scan(parts, ask)
        return found_sources, parts, *self._taken_once(found_sources.parts, sources, scanned, ask)

    def _taken_once(
        self, found: Sequence[SourcePart], sources: Parts, scanned: PackedObjects[Scanned], ask: ParallelMap
    ) -> tuple[Parts, PackedObjects[Scanned]]:
        """Return the sources without those whose values others show. Two of one name are problems."""
        stored = [part for part in found if part.name in self._stored.names] if self._stored.names else []
        if len(sources) + len(stored) < 2 and not self._shown:
            return sources, scanned
        from unistore.converters.routes import (
            are_alike,
            hard_links,
            routes_among,
            twin_problem,
            twins_among,
        )

        names = [*sources.names, *(part.name for part in stored)]
        paths = [files[0] for files in sources.files()] + [str(part.files[0]) for part in stored]
        linked = dict(hard_links(sources.files()))
        twins = [
            pair for pair in twins_among(paths, self._converter.twins()) if linked.keys().isdisjoint(pair[:2])
        ]
        if not twins and not self._shown and not linked:
            return sources, scanned

        def origins_of(numbers: Sequence[int]) -> Iterator[Sequence[Origin]]:
            items = [(sources[number], scanned[number]) for number in numbers]
            return ask(partial(_origins, self._converter), items)

        doubtful = sorted({number for pair in twins if not pair.is_declared for number in pair[:2]})
        doubtful = [number for number in doubtful if number < len(sources)]
        origins = dict(zip(doubtful, origins_of(doubtful), strict=True))
        for first, second, is_declared in twins:
            pair = (second, first) if second >= len(sources) else (first, second)
            is_double = is_declared or are_alike(origins.get(first, ()), origins.get(second, ()))
            if is_double and pair[1] < len(sources):
                self._problems.append(twin_problem(*(names[number] for number in pair)))
        routes = routes_among(sources.names, sources.files(), self._shown, origins_of, self._stored)
        self._problems += routes.problems
        left_out = _with_links(routes.left_out, linked, names)
        if not left_out:
            return sources, scanned
        taken = Parts(roots=sources.roots)
        taken_scanned = PackedObjects[Scanned]()
        for number, (part, one) in enumerate(zip(sources, scanned, strict=True)):
            if number in left_out:
                self._shown_by[part.name] = left_out[number], part.files
            else:
                taken.append(part)
                taken_scanned.append(one)
        return taken, taken_scanned

    def run(self, ask: ParallelMap, must_exclude: Collection[str]) -> Scan:
        exclusion = self._exclusion
        found_sources, parts, sources, scanned = self._collect(ask)
        self._problems += [*self._unread(found_sources.parts), *found_sources.problems]
        if not sources and not self._problems:
            place = count_of(len(found_sources.parts), "source")
            nothing = Problem(place, "nothing is left to convert", kind=NOTHING_LEFT)
            is_left = parts and not self._stored.names
            self._problems.append(self._all_of_others() if is_left else nothing)
        scan = None
        if sources:
            try:
                scan = self._converter.gather(sources, scanned)
            except InputError as error:
                self._problems += error.problems_at("sources")
        left_out = self._left_out(found_sources, parts, scan)
        if self._is_named:
            self._problems += self._general_problems(left_out)
        self._problems += exclusion.not_found(must_exclude, (part.name for part in found_sources.parts))
        if scan is None or self._problems:
            # A file that cannot be read is told by the survey and by the scan.
            problems = list(dict.fromkeys(self._with_commands(parts)))
            bad = {problem.source for problem in problems}
            raise InputError(problems, can_skip=any(part.name not in bad for part in parts))
        notes = _notes(left_out, unnamed=scan.unnamed)
        options = scan.options
        if self._shown_by:  # which an append leaves out again
            options = {**options, "exclude": [*options["exclude"], *self._shown_by]}
        return replace(
            scan,
            options=options,
            notes=(*scan.notes, *found_sources.notes, *notes, *exclusion.notes()),
            left_out=tuple((file.path, file.why) for file in left_out),
        )

    def _leave_to_others(self, *, is_sure: bool = False) -> None:
        """Leave suitable files to the families that take them. `is_sure`: some are surely this one's."""
        # If none of them is, it also gets the files of general families, and a general family gets all files.
        rows = [row for row in range(len(self._claims.paths)) if self._is_suitable(row)]
        # A damaged file that this family refuses is not one of arrays that a general one can read.
        refused = [self._claims.answer(row).refuser == self._family for row in rows]
        takers = [self._claims.answer(row).taker for row in rows]
        is_sure = is_sure or self._family in takers
        is_sure = is_sure or any(row in self._claims.unreadable for row in rows)
        for row, taker, is_refused in zip(rows, takers, refused, strict=True):
            is_left = taker not in ("", self._family) and not (is_refused and taker in self._general)
            if not is_sure and (taker in self._general or self._family in self._general):
                is_left = False
            self._of_others[row] = is_left

    def _is_suitable(self, row: int) -> bool:
        """Return whether a file in a folder has one of the family's suffixes, and is not excluded."""
        path = self._claims.paths[row]
        is_ours = path not in self._given and may_have_ending(path, self._converter.suffixes)
        return is_ours and not self._is_excluded(path)

    def _unread(self, parts: Sequence[SourcePart]) -> Iterator[Problem]:
        """Yield problems of suitable files that cannot be read, which name the part that they belong to."""
        unreadable = {
            self._claims.paths[row]: problem
            for row, problem in self._claims.unreadable.items()
            if self._is_suitable(row)
        }
        names: dict[str, str] = {}
        for part in parts if unreadable else ():
            names |= dict.fromkeys(map(str, part.files), part.name)
        for path, problem in unreadable.items():
            source = names.get(path, problem.source)
            if not self._exclusion.covers(source):
                yield replace(problem, source=source)

    def _find(self, ask: ParallelMap) -> Found:
        """Return the parts that the family finds. Raise one problem if all files are of other families."""
        claims = self._claims
        left = self._of_others
        listing = replace(claims.listing, left=left)
        found_parts = self._stored.found
        if not found_parts.parts or left.any() or self._exclusion:
            found_parts = self._found_in(listing)
        is_in_folders = all(path.is_dir() for path in claims.roots)
        if is_in_folders and 0 < len(found_parts.problems) < len(claims.roots):
            # A folder that other families take is left out, as it is below a given folder.
            claims.ask(ask, self._is_excluded)
            others = frozenset(folder for folder in claims.roots if self._is_of_others(folder))
            found_parts = self._found_in(replace(listing, others=others)) if others else found_parts
            is_in_folders = len(found_parts.problems) == len(claims.roots)
        if found_parts.parts:
            return found_parts
        kinds = {problem.kind for problem in found_parts.problems}
        if kinds - {"missing"} or (kinds and not is_in_folders):
            raise InputError(found_parts.problems)
        if self._of_others.any():
            raise InputError(self._all_of_others())
        if kinds:
            claims.ask(ask)
            unreadable = [
                problem
                for row, problem in claims.unreadable.items()
                if not self._is_excluded(claims.paths[row])
            ]
            raise InputError(unreadable or nothing_found(claims, self._family))
        return found_parts

    def _found_in(self, listing: Listing) -> Found:
        try:
            with as_problem(", ".join(map(str, listing.roots))):
                return self._converter.find(listing, self._exclusion)
        except InputError as error:
            return Found(parts=(), problems=error.problems_at(str(listing.roots[0])))

    def _is_of_others(self, folder: Path) -> bool:
        """Return whether other families take files of a given folder, and this one takes none."""
        rows = range(*rows_below(self._claims.paths, real_path(folder)))
        takers = {self._claims.answer(row).taker for row in rows} - {""}
        return bool(takers) and self._family not in takers

    def _scan(self, parts: Parts, ask: ParallelMap) -> tuple[Parts, PackedObjects[Scanned]]:
        # Parts in folders that failed may be of others. Of a family with `scan_identifies`, other families
        # are asked about what is not surely its own.
        claims = self._claims
        sources = Parts(roots=parts.roots)
        scanned = PackedObjects[Scanned]()
        general: list[tuple[str, Rows, Sequence[Problem]]] = []
        threads = _THREADS if self._converter.thread_safe else 1
        answers = ask(partial(scan_part, self._converter), parts, threads=threads)
        certain: set[str] = set()
        if self._converter.scan_identifies:
            results = PackedObjects(answers)
            for files, (result, _) in zip(parts.files(), results, strict=True):
                certain.update(files if result is not None and result.certain else ())
            claims.ask(ask, lambda path: path in certain or self._is_excluded(path))
            self._leave_to_others(is_sure=bool(certain))
            answers = iter(results)
        columns = zip(parts.names, parts.files(), parts.details, answers, strict=True)
        for name, files, detail, (result, problems) in columns:
            if self._of_others.any() and certain.isdisjoint(files) and self._are_left(files):
                continue
            if result is not None:
                sources.add(name, files, detail)
                scanned.append(result)
                if result.origins:
                    self._shown[len(sources) - 1] = result.origins
                self._exclusion.add_covered(result.excluded)
            elif self._given.isdisjoint(files):
                rows = claims.rows_of_files(files)
                takers = {claims.answer(row).taker for row in rows.tolist()}
                if takers.isdisjoint(("", self._family, *self._general)):
                    self._of_others[rows] = True
                    continue
                if all(map(self._is_free, rows.tolist())):
                    general.append((name, rows, problems))
                    self._doubtful.update(files)
                    continue
            self._problems += with_source(name, problems)
        for name, rows, problems in general:
            if sources and not self._is_named:
                self._of_others[rows] = True
            else:
                self._problems += with_source(name, problems)
        return sources, scanned

    def _are_left(self, files: Sequence[str]) -> bool:
        rows = self._claims.rows(files)
        return bool((rows >= 0).all() and self._of_others[rows].all())

    def _is_free(self, row: int) -> bool:
        """Return whether another family takes a file, and this one does not refuse it."""
        answer = self._claims.answer(row)
        return answer.taker not in ("", self._family) and answer.refuser != self._family

    def _left_out(self, found: Found, parts: Parts, scan: Scan | None) -> list[LeftOutFile]:
        claims = self._claims
        is_used = np.zeros(len(claims.paths), np.bool_)
        stored = claims.rows(self._stored.files)
        is_used[stored[stored >= 0]] = True
        left_out = self._left_out_by_family(found, is_used)
        # What is told of that is not in the table: folders, and files of sources with what they lead to.
        elsewhere = {str(file.path) for file in left_out}
        if scan is not None:
            files = list(chain.from_iterable(scan.sources.files()))
            rows = claims.rows(files)
            # A file has one verdict: a source may read what its family leaves to others.
            is_read = np.isin(claims.rows([str(file.path) for file in left_out]), rows[rows >= 0])
            left_out = list(compress(left_out, ~is_read))
            for file in compress(files, rows < 0):
                elsewhere |= {file, os.path.realpath(file)}
            rows = np.concatenate([rows, claims.rows(elsewhere)])
            is_used[rows[rows >= 0]] = True
        for shower, shown_files in self._shown_by.values():
            named = "another source" if scan is None or scan.unnamed else printable(shower)
            left_out += [LeftOutFile(path, f"its values are in {named}") for path in shown_files]
            rows = claims.rows_of_files(map(str, shown_files))
            is_used[rows[rows >= 0]] = True
        reasons = self._reasons_of_parts(found, parts)
        for row in np.flatnonzero(~is_used).tolist():
            path = Path(claims.paths[row])
            if path.is_symlink() and os.path.realpath(path) in elsewhere:
                continue
            is_excluded = self._is_excluded(str(path)) or reasons.get(row) == EXCLUDED
            problem = claims.unreadable.get(row)
            if problem is None and row not in reasons:
                problem = self._damage_of_others(row)
            if problem is not None and not is_excluded:
                self._problems.append(problem)
            else:
                left_out.append(self._unused(row, path, reasons.get(row, "")))
        return left_out + [
            LeftOutFile(path, why) for path, why in claims.listing.skipped if str(path) not in elsewhere
        ]

    def _left_out_by_family(self, found: Found, is_used: NDArray[np.bool_]) -> list[LeftOutFile]:
        """Return what the family leaves out. A file that another one takes, with that one's command."""
        claims = self._claims
        left_out: list[LeftOutFile] = []
        for path, why in found.left_out:
            rows = claims.rows_of_files([str(path)])
            if path.is_dir():
                rows = np.arange(*rows_below(claims.paths, real_path(path)))
            rows = rows[rows >= 0]
            for row in rows.tolist():
                problem = claims.unreadable.get(row) or self._damage_of_others(row)
                if problem is not None and not self._is_excluded(claims.paths[row]):
                    self._problems.append(problem)
            free = [row for row in rows.tolist() if self._is_free(row)]
            is_used[free or rows] = True
            left_out += [self._of_other(row) for row in free] or [LeftOutFile(path, why)]
        return left_out

    def _damage_of_others(self, row: int) -> Problem | None:
        """Return what is wrong with a damaged file of another family, None if the user named this one."""
        is_of_others = self._claims.answer(row).refuser != self._family
        return self._claims.damage(row) if self._claims.is_detected and is_of_others else None

    def _reasons_of_parts(self, found: Found, parts: Parts) -> dict[int, str]:
        """Return, by row, why a file of a part that was found may be in no source."""
        excluded = chain.from_iterable(part.files for part in found.parts)
        reasons = dict.fromkeys(self._claims.rows(map(str, excluded)).tolist(), EXCLUDED)
        unneeded = self._claims.rows(chain.from_iterable(parts.files()))
        return reasons | dict.fromkeys(unneeded.tolist(), _NOT_NEEDED)

    def _unused(self, row: int, path: Path, why: str) -> LeftOutFile:
        """Return why a file is unused. `why`: if it is of a part that was found."""
        if self._is_excluded(str(path)):
            return LeftOutFile(path, EXCLUDED)
        if self._of_others[row]:
            return self._of_other(row)
        if not why and self._exclusion and may_have_ending(path, self._converter.suffixes):
            why = EXCLUDED
        if why:
            return LeftOutFile(path, why)
        answer = self._claims.answer(row)
        if answer.problem is not None:
            return LeftOutFile(path, "cannot be read")
        if not answer.family:
            return LeftOutFile(path, answer.reason)
        if answer.family == self._family:
            return LeftOutFile(path, f"in no source of {answer.family.replace('_', ' ')}")
        return self._of_other(row)

    def _of_other(self, row: int) -> LeftOutFile:
        path = self._claims.paths[row]
        taker = self._claims.answer(row).taker
        if self._is_excluded(path):
            return LeftOutFile(Path(path), EXCLUDED)
        return LeftOutFile(Path(path), other_family_reason(taker), taker)

    def _general_problems(self, left_out: Sequence[LeftOutFile]) -> Iterator[Problem]:
        """Return problems of files with a suffix of the named family that only a general family takes."""
        # A damaged or misread file often looks like plain arrays.
        family = get_family(self._family).command()
        for path, _, taker in left_out:
            if taker in self._general and may_have_ending(path, self._converter.suffixes):
                name = next(iter(self._names(str(path))), printable(path.name))
                message = f"is not recognised as {family}, only as {get_family(taker).command()}"
                fix = WRITE_AGAIN, AddOptions(("--exclude", name), "to skip it")
                yield Problem(name, message, fix, "family", name)

    def _with_commands(self, parts: Parts) -> Iterator[Problem]:
        """Add to the problems of given and doubtful files the command of another family that takes them."""
        doubtful = self._given | self._doubtful
        files = {}
        for name, paths in zip(parts.names, parts.files(), strict=True) if doubtful else ():
            if paths[0] in doubtful:
                files[name] = paths[0]
        rows_of_files = self._claims.rows_of_files(files.values()).tolist()
        rows = dict(zip(files, rows_of_files, strict=True))
        for problem in self._problems:
            row = rows.get(problem.source or problem.location, -1)
            if problem.kind == UNREADABLE or not self._is_free(row):
                yield problem
                continue
            file = Path(self._claims.paths[row])
            root = next((root for root in self._claims.roots if file.is_relative_to(root.resolve())), file)
            taker = self._claims.answer(row).taker
            fix = conversion_of(taker, [root], purpose="if it is of another family")
            yield replace(problem, fix=(*problem.fixes, fix))

    def _all_of_others(self) -> Problem:
        rows = np.flatnonzero(self._of_others).tolist()
        takers = Counter(self._claims.answer(row).taker for row in rows)
        family = get_family(self._family).command()
        message = f"contains no {family} file, but {files_of_families(takers)}"
        roots = self._claims.roots
        commands = [conversion_of(taker, roots, is_alone=len(takers) == 1) for taker in takers]
        fixes: tuple[Fix, ...] = (*commands, f"give the files themselves to read them as {family}")
        return Problem(", ".join(map(str, roots)), message, fixes, "family")

    def _is_excluded(self, path: str) -> bool:
        """Return whether a file is stored, or one of its names is excluded."""
        if path in self._stored.files:
            return True
        return bool(self._exclusion) and any(map(self._exclusion.covers, self._names(path)))

    def _names(self, path: str) -> list[str]:
        """Return the names of a file: below each given folder that it lies in, and as a source."""
        roots = [root for root in (*self._claims.folders, self._root) if Path(path).is_relative_to(root)]
        return [printable(Path(path).relative_to(root).as_posix()) for root in roots]

    @cached_property
    def _root(self) -> Path:
        """The folder at which names of sources begin, unless suitable files are left to other families."""
        suitable = filter(self._may_be_source, self._claims.paths)
        folders = {os.path.dirname(path) for path in suitable}  # noqa: PTH120  text is faster
        return Path(os.path.commonpath(folders) if folders else os.sep)

    def _may_be_source(self, path: str) -> bool:
        return path in self._given or may_have_ending(path, self._converter.suffixes)


def _notes(left_out: Sequence[LeftOutFile], *, unnamed: bool) -> list[str]:
    """Notes on files that belong to no source, one for each reason. `unnamed`: names may tell of patients."""
    by_reason: dict[str, list[str]] = {}
    for path, reason, _ in left_out:
        if reason not in ("hidden", EXCLUDED):  # reported by `Exclusion.notes`
            by_reason.setdefault(reason, []).append(path.name)
    notes = []
    for reason, names in list(by_reason.items())[:_REASONS]:
        shown = count_of(len(names), "file") if unnamed else first_few(names, _SHOWN)
        notes.append(f"skipped, {reason}: {shown}")
    if len(by_reason) > _REASONS:
        notes.append(f"further files were skipped for {count_of(len(by_reason) - _REASONS, 'other reason')}")
    return notes
