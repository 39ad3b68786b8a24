"""Who takes each file: every family is asked once, and all that is said of files is read from the table."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exclusion import folders_of
from unistore.converters.common.faults import UNREADABLE, as_problem, is_read_error
from unistore.converters.files.folders import Folders
from unistore.converters.files.formats import has_ending, is_about, unread_format, why_left_out
from unistore.converters.files.paths import (
    common_root,
    is_inside,
    is_store,
    list_files,
    natural_key,
    real_path,
    rows_below,
)
from unistore.converters.protocol import Ask, Converter, ask_here
from unistore.converters.registry import Family, families, get_family, is_own, leave_out, reason_of
from unistore.converters.scan import TWO_FAMILIES, Candidate, LeftOut, Refused, Taken, Verdict
from unistore.errors import InputError, Problem, UnistoreError, first_few, printable
from unistore.system.packed import PackedObjects, view

if TYPE_CHECKING:
    from unistore.converters.scan import Scan

# Numbers of files that are taken, left out and refused, with a few of their names.

TAKEN = "taken"
LEFT_OUT = "left out"
REFUSED = "refused"
EXCLUDED = "excluded"
"""Reason for files that the user, or a problem, excludes."""
_EXAMPLES = 3


class Count(NamedTuple):
    """Number of files (or folders that are not searched) with one verdict and reason."""

    verdict: str
    """``"taken"``, ``"left out"`` or ``"refused"``."""
    why: str
    """The family and layout, or the reason."""
    files: int
    """Number of files."""
    examples: tuple[str, ...]
    """Names of the first files."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**self._asdict(), "examples": list(self.examples)}


def counted(files: Iterable[tuple[str, str, str | Path]]) -> tuple[Count, ...]:
    """Count files by (verdict, reason); taken ones first, refused ones last."""
    counts = Counter[tuple[str, str]]()
    examples = defaultdict[tuple[str, str], list[str]](list)
    for verdict, why, path in files:
        key = verdict, why
        counts[key] += 1
        if counts[key] <= _EXAMPLES:
            examples[key].append(printable(Path(path).name))
    ordered = sorted(counts, key=lambda key: (TAKEN, LEFT_OUT, REFUSED).index(key[0]))
    return tuple(Count(*key, counts[key], tuple(examples[key])) for key in ordered)


def name_of(path: Path, names: Container[str], start: int = 1) -> str | None:
    """The source name, among `names`, of a file or a folder above it; None if there is none.

    The first `start` parts of the path are not part of names.
    """
    parts = path.parts
    spans = ((lo, hi) for hi in range(len(parts), start, -1) for lo in range(start, hi))
    return next((name for lo, hi in spans if (name := "/".join(parts[lo:hi])) in names), None)


def counted_scan(scan: Scan) -> tuple[Count, ...]:
    """Counts of a scan: files it takes, each once, and files it leaves out; skipped sources are refused."""
    family = scan.family.replace("_", " ")
    wrong = {entry["left_out"]: entry["reason"] for entry in reversed(scan.options.get("skipped", ()))}

    def left_out() -> Iterator[tuple[str, str, str | Path]]:
        for path, why in scan.left_out:
            name = name_of(path, wrong) if wrong and why == EXCLUDED else None
            yield (LEFT_OUT, why, path) if name is None else (REFUSED, wrong[name], path)

    counts = counted(chain(((TAKEN, family, path) for path in _each_once(scan)), left_out()))
    return tuple([count._replace(examples=()) for count in counts]) if scan.unnamed else counts


def _each_once(scan: Scan) -> Iterator[str]:
    """Files of all sources, each once, told apart by their hashes, as there may be millions."""

    def files() -> Iterator[str]:
        return chain.from_iterable(scan.sources.files())

    hashes = np.fromiter(map(hash, files()), np.int64)
    first = np.zeros(len(hashes), np.bool_)
    first[np.unique(hashes, return_index=True)[1]] = True
    return compress(files(), first)


def verdict_counts(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """``"12 taken, 3 left out"``: numbers of files."""
    counts = Counter({TAKEN: 0})
    for group in verdicts:  # which are in order: taken, left out, refused
        counts[group["verdict"]] += group["files"]
    return ", ".join(f"{count:,} {verdict}" for verdict, count in counts.items())


_SHOWN = 3

Rows = NDArray[np.int64]
"""Rows of the table."""


class FileVerdict(NamedTuple):
    """A file, the family that takes or refuses it (empty if none), and the verdict.

    Folders that are not searched (hidden ones, Zarr) have a verdict of their own.
    """

    path: Path
    family: str
    verdict: Verdict


class Answer(NamedTuple):
    """What all families together say of a file."""

    taker: str = ""  # family that takes it
    refuser: str = ""  # the first family that refuses it
    layout: str = ""
    why: str | Problem = ""  # a problem if it is refused, and taken by no family
    is_assumed: bool = False  # whether the taker was not asked


class Claims:
    """A table of the files under some paths, in natural order: which family takes each, and why.

    A file is asked about when it is first needed: the particular families before the general ones, up to the
    first that takes it.

    Parameters
    ----------
    roots
        Files and folders as the user gave them.
    converter
        Converter with the user's options, which is asked in the place of its family's default one.

    Attributes
    ----------
    paths
        Path of each row.
    takers, refusers
        Number in `families` of the family that takes or refuses each row; 0: none, or not asked about. Row -1
        stands for paths that are not in the table.
    unreadable
        Problems of files that could not be read, by row.
    """

    def __init__(self, roots: Sequence[Path], converter: Converter | None = None) -> None:
        self.roots = list(roots)
        self._converter = converter
        self.listing = list_files(roots)
        self.paths = self.listing.files
        self.skipped = self.listing.skipped
        # A path that is not there is told elsewhere.
        problems = (*self.listing.problems, *(problem for _, problem in self.listing.file_problems))
        self.problems = tuple(problem for problem in problems if problem.kind != "missing")
        self.families = ["", *families()]
        # One more than there are paths: row -1, of a path that is not in the table, is nobody's.
        self.takers = np.zeros(len(self.paths) + 1, np.uint8)
        self.refusers = np.zeros(len(self.paths) + 1, np.uint8)
        self.unreadable: dict[int, Problem] = {}
        self._places = np.full(len(self.paths), -1, np.int64)  # of the rows in `_reasons`
        self._reasons: PackedObjects[tuple[str, str | Problem]] = PackedObjects()

    def serves(self, converter: Converter) -> bool:
        """Return whether the table would be the same with another converter."""
        own = self._converter
        if own is None and converter.family in self.families:
            own = _default_converter(get_family(converter.family))
        return own is not None and own.excluding(()) == converter.excluding(())

    def ask(self, rows: Rows | None = None, ask: Ask = ask_here, *, assumes_general: bool = False) -> None:
        """Ask about those of some rows, or of all, that were not asked about yet.

        `assumes_general`: the general family of the converter is not asked about what no other family wants:
        it is assumed to take these rows, which are asked about when a reason is needed.
        """
        is_wanted = self._places < 0
        if rows is not None:
            is_chosen = np.zeros(len(self.paths), np.bool_)
            is_chosen[rows[rows >= 0]] = True
            is_wanted &= is_chosen
        todo = np.flatnonzero(is_wanted)
        if not len(todo):
            return
        numbers = {family: number for number, family in enumerate(self.families)}
        paths = view(cast("Sequence[int]", todo), self.paths.__getitem__)
        answers = ask(_Asker(self.roots, self._converter, assumes_general=assumes_general), paths)
        for row, answer in zip(todo.tolist(), answers, strict=True):
            self.takers[row] = numbers.get(answer.taker, 0)
            self.refusers[row] = numbers.get(answer.refuser, 0)
            if answer.is_assumed:
                continue
            self._places[row] = len(self._reasons)
            self._reasons.append((answer.layout, answer.why))
            if isinstance(answer.why, Problem) and answer.why.kind == UNREADABLE:
                path = Path(self.paths[row])
                if path.exists():
                    self.unreadable[row] = replace(answer.why, source=name_below(path, self.roots))

    def number(self, family: str) -> int:
        """Return the number of a family; that of one which is not registered takes no file."""
        return self.families.index(family) if family in self.families else len(self.families)

    @cached_property
    def is_general(self) -> NDArray[np.bool_]:
        """Whether a family takes what no other does, by its number."""
        return np.array([False, *(family.general for family in families().values()), False])

    def taker(self, row: int) -> str:
        """Return the family that takes a row's file; empty if none."""
        return self.families[int(self.takers[row])]

    def __getitem__(self, row: int) -> FileVerdict:
        path = Path(self.paths[row])
        layout, why = self._reasons[int(self._places[row])]
        if isinstance(why, Problem):
            return FileVerdict(path, self.families[self.refusers[row]], Refused(why))
        taker = self.taker(row)
        return FileVerdict(path, taker, Taken(layout, why) if taker else LeftOut(why))

    def __iter__(self) -> Iterator[FileVerdict]:
        """Yield the verdict on every file, and on every folder that is not searched, in natural order."""
        skipped = [FileVerdict(path, "", LeftOut(why)) for path, why in self.skipped]
        for row, path in enumerate(self.paths):
            while skipped and natural_key(skipped[0].path.as_posix()) < natural_key(Path(path).as_posix()):
                yield skipped.pop(0)
            yield self[row]
        yield from skipped

    def rows(self, paths: Iterable[str]) -> Rows:
        """Return the row of each path; -1 for a path that is not in the table."""
        hashes = np.fromiter(map(hash, paths), np.int64)
        if not len(self.paths):
            return np.full(len(hashes), -1)
        ordered, order = self._hashes
        places = np.minimum(ordered.searchsorted(hashes), len(ordered) - 1)
        return np.where(ordered[places] == hashes, order[places], -1)

    @cached_property
    def _hashes(self) -> tuple[NDArray[np.int64], Rows]:
        """Sorted hashes of all paths, and their rows: there may be millions."""
        hashes = np.fromiter(map(hash, self.paths), np.int64)
        order = np.argsort(hashes)
        return hashes[order], order

    def rows_of_files(self, paths: Iterable[str]) -> Rows:
        """Return the row of each path, or of the file that it leads to; -1 if neither has one."""
        names = list(paths)
        rows = self.rows(names)
        is_absent = rows < 0
        rows[is_absent] = self.rows(map(os.path.realpath, compress(names, is_absent)))
        return rows

    def rows_at(self, path: Path) -> Rows:
        """Return the row of a file, if it has one, or the rows of the files below a folder."""
        if path.is_dir():
            return np.arange(*rows_below(self.paths, real_path(path)))
        rows = self.rows_of_files([str(path)])
        return rows[rows >= 0]

    def detected(self) -> list[Detection]:
        """Return the families that take files, each by its first; general ones only if there is no other."""
        taking = np.flatnonzero(np.bincount(self.takers, minlength=1))
        taking = taking[taking > 0]
        particular = taking[~self.is_general[taking]]
        chosen = particular if len(particular) else taking
        return [self._detection(int(np.argmax(self.takers == number))) for number in chosen]

    def _detection(self, row: int) -> Detection:
        path, family, verdict = self[row]
        assert isinstance(verdict, Taken)
        return Detection(family, verdict.layout, f"{printable(path.name)} {verdict.reason}", self)

    def counts(self) -> dict[str, int]:
        """Return the number of files that each detected family takes."""
        taken_counts = np.bincount(self.takers, minlength=len(self.families)).tolist()
        return {
            detection.family: taken_counts[self.number(detection.family)] for detection in self.detected()
        }

    def unread(self) -> list[str]:
        """Return files of known formats that are not read: ``"a.nii is NIfTI, which is not read"``."""
        return [
            f"{printable(file.path.name)} is {file.verdict.reason}"
            for file in self
            if isinstance(file.verdict, LeftOut) and unread_format(file.path) and not is_about(file.path)
        ]

    def verdicts(self, problems: Iterable[Problem] = ()) -> tuple[Count, ...]:
        """Count files by verdict and reason, with a few of their names.

        Files of general families count as left out if another family was detected, and files that `problems`
        name, those of the detected family's scan, as refused.
        """
        detected = {detection.family for detection in self.detected()}
        wrong = {problem.source: problem.message for problem in problems if problem.source}
        files = list(self) if wrong else self
        depth = len(common_root([file.path for file in files] or self.roots).parts) if wrong else 0

        def verdict(file: FileVerdict) -> tuple[str, str]:
            name = name_of(file.path, wrong, depth) if wrong else None
            if name is not None:
                return REFUSED, wrong[name]
            if isinstance(file.verdict, LeftOut):
                return LEFT_OUT, file.verdict.reason
            if isinstance(file.verdict, Refused):
                return REFUSED, file.verdict.problem.message
            if file.family not in detected:
                return LEFT_OUT, other_family_reason(file.family)
            return TAKEN, f"{file.family.replace('_', ' ')} ({file.verdict.layout})"

        return counted((*verdict(file), file.path) for file in files)

    def general_only(self, family: str) -> list[str]:
        """Return names of files with the family's suffixes that only a general family takes.

        They are refused where the user names the family. A folder without files of the family, and without
        unreadable ones, stands for all that lie in it.
        """
        suffixes = _default_converter(get_family(family)).suffixes
        is_own = self.takers == self.number(family)
        is_other = self.is_general[self.takers] & ~is_own
        is_refused = (self.takers == 0) & (self.refusers > 0)
        own_folders = set(
            chain.from_iterable(folders_of(name) for name, _ in self._named(is_own | is_refused))
        )
        names: dict[str, None] = {}
        for name, path in self._named(is_other):
            if has_ending(path, suffixes):
                free = (folder for folder in folders_of(name) if folder not in own_folders)
                names[next(free, name)] = None
        return list(names)

    def _named(self, is_wanted: NDArray[np.bool_]) -> Iterator[tuple[str, str]]:
        """Yield the names of files, below the given folder that holds each, and their paths."""
        folders = [f"{root.resolve()}{os.sep}" for root in self.roots if root.is_dir()]
        for row in np.flatnonzero(is_wanted).tolist():
            path = self.paths[row]
            start = next((len(folder) for folder in folders if path.startswith(folder)), None)
            name = Path(path).name if start is None else path[start:].replace(os.sep, "/")
            yield printable(name), path

    def refused(self) -> list[Problem]:
        """Return the problems of refused files and of unreadable folders."""
        rows = np.flatnonzero((self.refusers > 0) & (self.takers == 0)).tolist()
        verdicts = (self[row].verdict for row in rows)
        return [*self.problems, *(verdict.problem for verdict in verdicts if isinstance(verdict, Refused))]


@dataclass(frozen=True)
class Detection:
    """Family and layout that paths were recognised as.

    Attributes
    ----------
    family
        Name of the family: ``"point_cloud"``.
    layout
        Name of the layout inside the family: ``"pointsuite_indices"``, ``"robomimic"``, ….
    reason
        One sentence for the user: ``"thin-1.h5 holds segments/segment_0000/indices"``.
    claims
        The table that it was read from, so that a conversion that follows at once asks no file again.
    """

    family: str
    layout: str
    reason: str
    claims: Claims = field(repr=False, compare=False)


def survey(roots: Sequence[Path], ask: Ask = ask_here) -> Claims:
    """Ask every family about every file."""
    claims = Claims(roots)
    claims.ask(ask=ask)
    return claims


class _Asker:
    """Asks the families about a file."""

    def __init__(self, roots: Sequence[Path], converter: Converter | None, *, assumes_general: bool) -> None:
        self._roots = roots
        self._converter = converter
        self._assumes_general = assumes_general
        self._folders = Folders(roots)

    def __reduce__(self) -> tuple[Any, ...]:
        make_asker = partial(_Asker, assumes_general=self._assumes_general)
        return make_asker, (self._roots, self._converter)

    @cached_property
    def _converters(self) -> dict[str, tuple[Family, Converter]]:
        """Families in the order in which they are asked; imported on first use."""
        converters: dict[str, tuple[Family, Converter]] = {}
        for family in families().values():
            is_named = self._converter is not None and self._converter.family == family.name
            converter = self._converter if is_named else _converter(family)
            if converter is not None:
                converters[family.name] = family, converter
        return converters

    def _order(self, path: Path) -> list[tuple[Family, Converter]]:
        """The families; of the particular ones, those last that do not name the format of a file."""
        ending = path.name.lower()

        def place(asked: tuple[Family, Converter]) -> tuple[bool, bool]:
            family, converter = asked
            return family.general, ending.endswith(converter.further_suffixes)

        return sorted(self._converters.values(), key=place)

    def __call__(self, name: str) -> Answer:
        path = Path(name)
        refuser = ""
        problem = None
        with Candidate(path, self._roots, folders=self._folders) as file:
            for family, converter in self._order(path):
                # A general family could read what another one finds ambiguous.
                if family.general and problem is not None and problem.kind == TWO_FAMILIES:
                    continue
                if family.general and self._assumes_general and converter is self._converter:
                    return Answer(family.name, refuser, is_assumed=True)
                verdict = _verdict(file, family, converter)
                if verdict is None:
                    del self._converters[family.name]
                elif isinstance(verdict, Taken):
                    return Answer(family.name, refuser, verdict.layout, verdict.reason)
                elif isinstance(verdict, Refused) and problem is None:
                    refuser = family.name
                    problem = _named_as(verdict.problem, path, self._roots)
                    # A general family could take what a particular one would have taken.
                    if problem.kind == UNREADABLE:
                        break
        return Answer(refuser=refuser, why=problem or why_left_out(path))


def _verdict(file: Candidate, family: Family, converter: Converter) -> Verdict | None:
    """Return the verdict of a family on a file; None if the family of a package fails."""
    try:
        return converter.look(file)
    except Exception as failure:  # noqa: BLE001  named below; a context around each question takes as long
        location = printable(str(file.path))
        raised = failure
    try:
        with as_problem(location):
            raise raised
    except InputError as error:
        # A fault of the code of a package is not one of the file: the family is asked no more.
        is_fault = any(problem.kind == "plugin" for problem in error.problems)
        is_fault = is_fault or not (isinstance(raised, UnistoreError) or is_read_error(raised))
        if is_own(family.name) or not is_fault:
            problems = error.problems_at(location)
            # That the file could not be read says more than what was found before.
            return Refused(min(problems, key=lambda problem: problem.kind != UNREADABLE))
        leave_out(family.command, f"{family.converter} failed: {type(raised).__name__}: {raised}")
        return None


def _default_converter(family: Family) -> Converter:
    """Return the family's converter with default options."""
    converter: Converter = family.part("converter")()
    return converter


def _converter(family: Family) -> Converter | None:
    """Return the default converter; None, with a line on stderr, if that of a package fails."""
    try:
        return _default_converter(family)
    except Exception as error:
        if is_own(family.name):
            raise
        leave_out(family.command, reason_of(error, family.command))
        return None


def _named_as(problem: Problem, path: Path, roots: Sequence[Path]) -> Problem:
    """Return the problem with a file name relative to the given folder."""
    name = name_below(path, roots)
    for start in (printable(str(path)), printable(path.name)):
        if problem.file.startswith(start):
            return replace(problem, file=name + problem.file.removeprefix(start))
    return problem


def name_below(path: Path, roots: Sequence[Path]) -> str:
    """Return the name of a file relative to the given folder that holds it."""
    folder = next((root for root in roots if root.is_dir() and path.is_relative_to(root.resolve())), None)
    return printable(path.name if folder is None else path.relative_to(folder.resolve()).as_posix())


def other_family_reason(family: str) -> str:
    """Return the reason for leaving out a file that another family takes."""
    return f"of another family: {convert_command(family)}"


def convert_command(family: str) -> str:
    """Return the command that converts files of a family."""
    return f"unistore convert {get_family(family).command}"


def nothing_found(claims: Claims, family: str = "") -> Problem:
    """Return the problem of paths without sources of a family (empty: any): what is there, and what to do."""
    paths = claims.roots
    where = ", ".join(map(str, paths))
    name = family.replace("_", " ")
    folders = [path for path in paths if path.is_dir()]
    for folder in folders:
        if (folder / "zarr.json").exists():
            cure = f"'unistore export {folder} DST' gives its files back; other Zarr: save its arrays as .npy"
            return Problem(str(folder), "is a store already, or other Zarr", cure, "zarr")
        if is_store(folder):
            return Problem(str(folder), "is Zarr, which is no source", "save its arrays as .npy", "zarr")
    for folder in folders:
        if not any(folder.iterdir()):
            return Problem(str(folder), "is an empty folder", "check the path", "missing")
    other_counts = {other: count for other, count in claims.counts().items() if other != family}
    if other_counts:
        counts = " and ".join(
            f"{count} of {other.replace('_', ' ')}" for other, count in other_counts.items()
        )
        commands = " or ".join(map(convert_command, other_counts))
        return Problem(where, f"holds no source of {name}, but {counts}", commands, "family")
    if unread := claims.unread():
        message = f"holds nothing that is read: {first_few(unread, _SHOWN, '; ')}"
        cure = "load them with their own library and save the values as .npy or HDF5"
        return Problem(where, message, cure, "format")
    for path in paths:
        for link in path.rglob("*"):
            if not is_inside(link, paths):
                return Problem(str(link), "is a link out of the given paths", "name what it leads to", "link")
    commands = ", ".join(sorted(family.command for family in families().values()))
    message = f"holds no source of {name or f'any family ({commands})'}: not recognised"
    cure = "unistore inspect says more; or name the family: unistore convert FAMILY SRC... DST"
    return Problem(where, message, cure, "unknown")
