"""Who takes each file: every family is asked once, and all that is said of files is read from the table."""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import numpy as np

from unistore.converters.adapter.formats import unoffered_format
from unistore.converters.claims import Claim
from unistore.converters.common.exclusion import folders_of
from unistore.converters.common.faults import UNREADABLE, as_problem, is_read_error
from unistore.converters.families import converter_of
from unistore.converters.family import Family
from unistore.converters.files.formats import is_about, may_have_ending, unread_format, why_left_out
from unistore.converters.files.paths import Folders, common_root, is_inside, is_store, list_files, natural_key
from unistore.converters.protocol import ParallelMap, serial_map
from unistore.converters.registry import (
    conversion_of,
    families,
    get_family,
    is_own,
    leave_out,
    reason_of,
)
from unistore.converters.scan_types import TWO_FAMILIES, Candidate
from unistore.errors import AddOptions, InputError, Problem, RunCommand, UnistoreError, first_few, printable
from unistore.schemas.recorded_rules import skipped_entries
from unistore.system.foreign import NO_FAULTS
from unistore.system.packed import view
from unistore.system.sizes import count_of
from unistore.system.types import Int64s

if TYPE_CHECKING:
    from unistore.converters.adapter.converter import Converter
    from unistore.converters.scan_types import Scan

TAKEN = "taken"
LEFT_OUT = "left out"
REFUSED = "refused"
# How people read them, in terminals and on pages; stores and JSON have the words above
SHOWN_VERDICTS = {TAKEN: "used", LEFT_OUT: "skipped", REFUSED: "failed"}
# Reason for files that the user, or a problem, excludes
EXCLUDED = "excluded"
# Kinds of problems of a file that is not what its ending says. Others may be of sound files
_DAMAGE = frozenset(
    ("format", "truncated", "damaged", "empty", "header", "unclosed", "unwritten", "trailing")
)
_EXAMPLES = 3
_SHOWN = 3

# Rows of the table
Rows = Int64s


class CountReport(TypedDict):
    """A `Count` as JSON."""

    verdict: str
    why: str
    files: int
    examples: list[str]


class Count(NamedTuple):
    """Number of files (or folders that are not searched) with one verdict and reason."""

    verdict: str  # "taken", "left out" or "refused"
    why: str  # the family and layout, or the reason
    files: int
    examples: tuple[str, ...]  # names of the first files

    def to_json(self) -> CountReport:
        """Return the same as JSON."""
        return {
            "verdict": self.verdict,
            "why": self.why,
            "files": self.files,
            "examples": list(self.examples),
        }


def counted(files: Iterable[tuple[str, str, str | Path]]) -> tuple[Count, ...]:
    """Count files by (verdict, reason). Taken ones first, refused ones last."""
    counts = Counter[tuple[str, str]]()
    examples = defaultdict[tuple[str, str], list[str]](list)
    for verdict, why, path in files:
        key = verdict, why
        counts[key] += 1
        if counts[key] <= _EXAMPLES:
            examples[key].append(printable(Path(path).name))
    ordered = sorted(counts, key=lambda key: (TAKEN, LEFT_OUT, REFUSED).index(key[0]))
    groups = [Count(*key, counts[key], tuple(examples[key])) for key in ordered]
    return tuple(groups)


def counted_scan(scan: Scan) -> tuple[Count, ...]:
    """Counts of a scan: files it takes, each once, and files it leaves out. Skipped sources are refused."""
    family = scan.family.replace("_", " ")
    wrong = {entry.left_out: entry.reason for entry in reversed(skipped_entries(scan.options))}

    def verdicts() -> Iterator[tuple[str, str, str | Path]]:
        # Hashes, as there may be millions. Files that are left out may be read for sources.
        seen = {hash(str(path)) for path, _ in scan.left_out}
        for path in chain.from_iterable(scan.sources.files()):
            if hash(path) not in seen:
                seen.add(hash(path))
                yield TAKEN, family, path
        for left_out, why in scan.left_out:
            name = _name_of(left_out, wrong) if why == EXCLUDED else None
            yield (LEFT_OUT, why, left_out) if name is None else (REFUSED, wrong[name], left_out)

    counts = counted(verdicts())
    return tuple([count._replace(examples=()) for count in counts]) if scan.unnamed else counts


def _name_of(path: Path, names: Container[str], start: int = 1) -> str | None:
    """Return the source name, among `names`, of a file or a folder above it."""
    # The first `start` parts of the path are not part of names.
    if not names:
        return None
    parts = path.parts
    for stop in range(len(parts), start, -1):
        for first in range(start, stop):
            name = "/".join(parts[first:stop])
            if name in names:
                return name
    return None


def verdict_counts(verdicts: Sequence[CountReport]) -> str:
    """``"12 used, 3 skipped"``: numbers of files."""
    counts = Counter({TAKEN: 0})
    for group in verdicts:  # which are in order: taken, left out, refused
        counts[group["verdict"]] += group["files"]
    texts = [f"{count:,} {SHOWN_VERDICTS[verdict]}" for verdict, count in counts.items()]
    return ", ".join(texts)


class Answer(NamedTuple):
    """What all families together say of a file."""

    family: str  # that takes it, or the first that refuses it; empty: none does
    reason: str  # why it is taken or left out; continues a sentence that begins with its name
    layout: str = (
        ""  # name of the layout inside the family that takes it: "pointsuite_indices", "robomimic", …
    )
    problem: Problem | None = None  # why it is refused: it cannot be read, or contradicts itself
    refuser: str = ""  # the first family that refuses it

    @property
    def taker(self) -> str:
        """The family that takes it, empty if none."""
        return self.family if self.problem is None else ""


_NOT_ASKED = Answer("", EXCLUDED)


class Claims:
    """A table of the files under some paths, in natural order: which family takes each, and why."""

    def __init__(self, roots: Sequence[Path], converter: Converter | None = None) -> None:
        self.begun = time.time_ns()  # before any file is looked at, in ns since 1970
        self.roots = list(roots)
        self.folders = _folders_among(roots)  # those of `roots` that are folders, without links
        self._converter = converter
        self.listing = list_files(roots)
        self.paths = self.listing.files
        self.unreadable: dict[int, Problem] = {}  # problems of files that could not be read, by row
        self.is_detected = False  # whether the family of a conversion is the one that is found here
        self._answers: list[Answer | None] = [None] * len(self.paths)
        self._alike: dict[Answer, Answer] = {}

    def serves(self, converter: Converter) -> bool:
        """Return whether the table would be the same with another converter."""
        own = self._converter or _default_converter(get_family(converter.family))
        return own.excluding(()) == converter.excluding(())

    def ask(
        self, ask: ParallelMap = serial_map, is_excluded: Callable[[str], bool] = lambda _: False
    ) -> None:
        """Ask about the files that were not asked about yet, but those that are excluded."""
        todo = [row for row, answer in enumerate(self._answers) if answer is None]
        todo = [row for row in todo if not is_excluded(self.paths[row])]
        if not todo:
            return
        paths = view(todo, self.paths.__getitem__)
        answers = ask(_Asker(self.roots, self._converter), paths)
        for row, answer in zip(todo, answers, strict=True):
            self._answers[row] = self._alike.setdefault(answer, answer)
            problem = answer.problem
            if problem is not None and problem.kind == UNREADABLE:
                path = Path(self.paths[row])
                if path.exists():
                    self.unreadable[row] = replace(problem, source=name_below(path, self.folders))

    def answer(self, row: int) -> Answer:
        """Return what is said of a file. Of row -1, which is in no table, and of excluded ones nothing."""
        answer = self._answers[row] if row >= 0 else None
        return answer or _NOT_ASKED

    def damage(self, row: int) -> Problem | None:
        """Return the problem of a file that is damaged for the family of its ending, None of others."""
        problem = self.answer(row).problem
        if problem is None or problem.kind not in _DAMAGE:
            return None
        name = name_below(Path(self.paths[row]), self.folders)
        skip_fix = AddOptions(("--exclude", name), "to skip it")
        return replace(problem, fix=(*problem.fixes, skip_fix), source=name)

    def __iter__(self) -> Iterator[tuple[Path, Answer]]:
        """Yield every file, and every folder that is not searched, in natural order, with its answer."""
        skipped = [(path, Answer("", why)) for path, why in self.listing.skipped]
        for row, path in enumerate(map(Path, self.paths)):
            while skipped and natural_key(skipped[0][0].as_posix()) < natural_key(path.as_posix()):
                yield skipped.pop(0)
            yield path, self.answer(row)
        yield from skipped

    def rows(self, paths: Iterable[str]) -> Rows:
        """Return the row of each path, -1 for a path that is not in the table."""
        hashes = np.fromiter(map(hash, paths), np.int64)
        if not len(self.paths):
            return np.full(len(hashes), -1)
        ordered, order = self._hashes
        places = np.minimum(ordered.searchsorted(hashes), len(ordered) - 1)
        return np.where(ordered[places] == hashes, order[places], -1)

    @cached_property
    def _hashes(self) -> tuple[Int64s, Rows]:
        """Sorted hashes of all paths, and their rows: there may be millions."""
        hashes = np.fromiter(map(hash, self.paths), np.int64)
        order = np.argsort(hashes)
        return hashes[order], order

    def rows_of_files(self, paths: Iterable[str]) -> Rows:
        """Return the row of each path, or of the file that it leads to, -1 if neither has one."""
        names = list(paths)
        rows = self.rows(names)
        is_absent = rows < 0
        rows[is_absent] = self.rows(map(os.path.realpath, compress(names, is_absent)))
        return rows

    def counts(self) -> dict[str, int]:
        """Return the number of files that each family can convert.

        Families are in the order in which they are asked. General families are left out if there is another.
        """
        counts = Counter(answer.taker for answer in self._answers if answer is not None)
        takers = [family for family in families().values() if counts[family.name]]
        particular = [family for family in takers if not family.general]
        return {family.name: counts[family.name] for family in particular or takers}

    def detected(self) -> list[Detection]:
        """Return the families of `counts`, each by its first file."""
        first: dict[str, Detection] = {}
        for path, answer in self:
            if answer.taker and answer.taker not in first:
                reason = f"{printable(path.name)} {answer.reason}"
                first[answer.taker] = Detection(answer.taker, answer.layout, reason, self)
        return [first[family] for family in self.counts()]

    def unread(self) -> list[str]:
        """Return files of known formats without support: ``"a.e57 is E57, which is not supported"``."""
        return [
            f"{printable(path.name)} is {answer.reason}"
            for path, answer in self
            if not answer.family and unread_format(path) and not is_about(path)
        ]

    def verdicts(self, problems: Iterable[Problem] = ()) -> tuple[Count, ...]:
        """Count files by result and reason, with a few of their names.

        Files of general families count as skipped if another family was detected. Files that `problems`
        name, from the scan of the detected family, count as rejected.
        """
        detected = self.counts()
        wrong = {problem.source: problem.message for problem in problems if problem.source}
        depth = 0
        if wrong:
            paths = [path for path, _ in self] or self.roots
            depth = len(common_root(paths).parts)

        def verdict(path: Path, answer: Answer) -> tuple[str, str]:
            name = _name_of(path, wrong, depth)
            if name is not None:
                return REFUSED, wrong[name]
            if answer.problem is not None:
                return REFUSED, answer.problem.message
            if not answer.family:
                return LEFT_OUT, answer.reason
            if answer.family in detected:
                return TAKEN, f"{answer.family.replace('_', ' ')} ({answer.layout})"
            return LEFT_OUT, other_family_reason(answer.family)

        return counted((*verdict(path, answer), path) for path, answer in self)

    def general_only(self, family: str) -> list[str]:
        """Return the names of files with a suffix of the family that only a general family accepts.

        They are an error if the user names the family. A folder without files of the family, and without
        unreadable ones, is returned instead of its files.
        """
        suffixes = _default_converter(get_family(family)).suffixes
        own_folders: set[str] = set()
        left_out: list[str] = []
        for path, answer in self:
            name = name_below(path, self.folders)
            if answer.family == family or answer.problem is not None:
                own_folders.update(folders_of(name))
            elif answer.family and get_family(answer.family).general and may_have_ending(path, suffixes):
                left_out.append(name)
        free = (
            next((folder for folder in folders_of(name) if folder not in own_folders), name)
            for name in left_out
        )
        return list(dict.fromkeys(free))

    @property
    def problems(self) -> list[Problem]:
        """Problems of folders and links. Absent paths are told elsewhere."""
        problems = [*self.listing.problems, *(problem for _, problem in self.listing.file_problems)]
        return [problem for problem in problems if problem.kind != "missing"]

    def refused(self) -> list[Problem]:
        """Return `problems`, and those of refused files."""
        return self.problems + [answer.problem for _, answer in self if answer.problem is not None]


@dataclass(frozen=True)
class Detection:
    """Family and layout that paths were recognised as."""

    family: str
    layout: str  # name of the layout inside the family: "pointsuite_indices", "robomimic", …
    reason: str  # one sentence for the user: "thin-1.h5 holds segments/segment_0000/indices"
    # The table that it was read from, so that a conversion that follows at once asks no file again.
    claims: Claims = field(repr=False, compare=False)


def survey(roots: Sequence[Path], ask: ParallelMap = serial_map) -> Claims:
    """Ask every family about every file."""
    claims = Claims(roots)
    claims.is_detected = True
    claims.ask(ask)
    return claims


class _Asker:
    """Asks the families about a file."""

    def __init__(self, roots: Sequence[Path], converter: Converter | None) -> None:
        self._roots = roots
        self._converter = converter
        self._near = Folders(roots)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Asker, (self._roots, self._converter)

    @cached_property
    def _converters(self) -> dict[str, tuple[type[Family], Converter]]:
        """Families in the order in which they are asked. Imported on first use."""
        converters: dict[str, tuple[type[Family], Converter]] = {}
        for family in families().values():
            is_named = self._converter is not None and self._converter.family == family.name
            converter = self._converter if is_named else _converter(family)
            if converter is not None:
                converters[family.name] = family, converter
        return converters

    def _order(self, path: Path) -> list[tuple[type[Family], Converter]]:
        """Return the families. Of the particular ones, those last that do not name the format of a file."""
        ending = path.name.lower()

        def place(asked: tuple[type[Family], Converter]) -> tuple[bool, bool]:
            family, converter = asked
            return family.general, ending.endswith(converter.further_suffixes)

        return sorted(self._converters.values(), key=place)

    def __call__(self, name: str) -> Answer:
        path = Path(name)
        file = Candidate(path, self._roots, folders=self._near)
        try:
            answer = self._answer(path, file)
        finally:
            problem = _problem_of_closing(file)
        if problem is None or answer.problem is not None:
            return answer
        problem = _named_as(problem, path, _folders_among(self._roots))
        return Answer(answer.family, problem.message, problem=problem, refuser=answer.family)

    def _answer(self, path: Path, file: Candidate) -> Answer:
        refuser = ""
        problem = None
        for family, converter in self._order(path):
            # A general family could read what another one finds ambiguous.
            if family.general and problem is not None and problem.kind == TWO_FAMILIES:
                continue
            claim = _claim_of(file, family, converter)
            if claim is None:
                del self._converters[family.name]
            elif isinstance(claim, Problem):
                if problem is None:
                    refuser = family.name
                    problem = _named_as(claim, path, _folders_among(self._roots))
                    # A general family could take what a particular one would have taken.
                    if problem.kind == UNREADABLE:
                        break
            elif claim.certainty == "sure":
                return Answer(family.name, claim.reason, claim.layout or family.name, refuser=refuser)
        if problem is not None:
            return Answer(refuser, problem.message, problem=problem, refuser=refuser)
        without_family = unoffered_format(path)
        if without_family:
            return Answer("", f"{without_family}, which no installed family reads")
        return Answer("", why_left_out(path))


def _problem_of_closing(file: Candidate) -> Problem | None:
    """Close the formats that opened a file, and return what they raise."""
    try:
        file.close()
    except NO_FAULTS:
        raise
    except BaseException as failure:  # noqa: BLE001  of the code of a package
        raised = failure
    else:
        return None
    try:
        with as_problem(file.name):
            raise raised
    except InputError as error:
        return error.problems_at(file.name)[0]


def _claim_of(file: Candidate, family: type[Family], converter: Converter) -> Claim | Problem | None:
    """Return what a family says of a file, or why it refuses it. None: the family of a package fails."""
    try:
        return converter.look(file)
    except NO_FAULTS:
        raise
    except BaseException as failure:  # noqa: BLE001  named below; a context around each question takes as long
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
            return min(problems, key=lambda problem: problem.kind != UNREADABLE)
        leave_out(
            family.command(),
            f"{family.__module__}:{family.__qualname__} failed: {type(raised).__name__}: {raised}",
        )
        return None


def _default_converter(family: type[Family]) -> Converter:
    return converter_of(family)


def _converter(family: type[Family]) -> Converter | None:
    """Return the default converter. None, with a line on stderr, if that of a package fails."""
    try:
        return _default_converter(family)
    except Exception as error:
        if is_own(family.name):
            raise
        leave_out(family.command(), reason_of(error, family.command()))
        return None


def _named_as(problem: Problem, path: Path, folders: Sequence[Path]) -> Problem:
    """Return the problem with a file name relative to the given folder."""
    name = name_below(path, folders)
    for start in (printable(str(path)), printable(path.name)):
        if problem.file.startswith(start):
            return replace(problem, file=name + problem.file.removeprefix(start))
    return problem


def _folders_among(roots: Sequence[Path]) -> list[Path]:
    return [root.resolve() for root in roots if root.is_dir()]


def name_below(path: Path, folders: Sequence[Path]) -> str:
    """Return the name of a file relative to the first of the folders that holds it."""
    folder = next((folder for folder in folders if path.is_relative_to(folder)), path.parent)
    return printable(path.relative_to(folder).as_posix())


def other_family_reason(family: str) -> str:
    """Return the reason for leaving out a file that another family takes."""
    return f"of another family ({convert_command(family)})"


def convert_command(family: str) -> str:
    """Return the command that converts files of a family."""
    return f"unistore convert {get_family(family).command()}"


def files_of_families(counts: Mapping[str, int]) -> str:
    """Return numbers of files by family as text: ``"2 point-cloud files and 1 ct file"``."""
    texts = [count_of(count, f"{get_family(family).command()} file") for family, count in counts.items()]
    return " and ".join(texts)


def nothing_found(claims: Claims, family: str = "") -> Problem:
    """Return the problem of paths without sources of a family (empty: any): what is there, and what to do."""
    paths = claims.roots
    where = ", ".join(map(str, paths))
    name = get_family(family).command() if family else ""
    for folder in filter(Path.is_dir, paths):
        if (folder / "zarr.json").exists():
            files = folder.with_name(f"{folder.resolve().stem}-files")
            export = RunCommand(("export", str(folder), str(files)), "to get the files of a store back")
            fixes = export, "save the arrays of another Zarr hierarchy as .npy"
            message = "is already a store, or another Zarr hierarchy, which cannot be converted"
            return Problem(str(folder), message, fixes, "zarr")
        if is_store(folder):
            message = "is a Zarr hierarchy, which cannot be converted"
            return Problem(str(folder), message, "save its arrays as .npy", "zarr")
        if not any(folder.iterdir()):
            return Problem(str(folder), "the folder is empty", "check the path", "missing")
    others = {other: count for other, count in claims.counts().items() if other != family}
    if others:
        message = f"contains no {name} file, but {files_of_families(others)}"
        conversions = [conversion_of(other, paths, is_alone=len(others) == 1) for other in others]
        return Problem(where, message, tuple(conversions), "family")
    if unread := claims.unread():
        message = f"contains no file that unistore reads: {first_few(unread, _SHOWN, '; ')}"
        fix = "load the files with their own library, and save the values as .npy or HDF5"
        return Problem(where, message, fix, "format")
    for link in chain.from_iterable(path.rglob("*") for path in paths):
        if not is_inside(link, paths):
            message = "is a link to a place outside the given paths"
            return Problem(str(link), message, "give the file or folder that it leads to", "link")
    commands = ", ".join(sorted(family.command() for family in families().values()))
    message = f"contains no file that the family '{name}' recognises"
    if not family:
        message = f"contains no file that one of the families recognises: {commands}"
    inspection = RunCommand(("inspect", str(paths[0])), "to see why")
    naming = () if family else ("give the name of the family before the sources",)
    return Problem(where, message, (inspection, *naming), "unknown")
