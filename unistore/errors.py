"""The errors that unistore raises.

::

    UnistoreError                  exit code 1
    ├── InputError                 exit code 2: source files or arguments are wrong, lists every Problem
    ├── StoreError                 a store is unfinished, or lacks something
    │   ├── NoStoreError           exit code 2: there is no store where one was named
    │   └── CorruptionError        bytes on disk contradict their checksum, index or frame
    ├── UnsupportedError           a Zarr array that is not as unistore writes arrays, names how
    ├── ConversionError            writing failed (disk full, rights, source changed), resumable
    ├── MissingLibraryError        a library is not installed, says which command installs it
    └── LoaderError                the loader cannot go on, or was used wrongly
        ├── SampleError            a sample could not be read, names it and its source
        └── WorkerDiedError        a worker process ended on its own
"""

from __future__ import annotations

import errno
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias


class Location(NamedTuple):
    """A place in a file, which messages call ``"scans/a.h5: data/x row 5"``."""

    file: str
    dataset: str = ""  # or an attribute, a key, a line
    row: int | None = None

    def __str__(self) -> str:
        dataset = f": {self.dataset}" if self.dataset else ""
        row = "" if self.row is None else f" row {self.row}"
        return f"{self.file}{dataset}{row}"


# Where a problem is: a location, or the name of a file
Where: TypeAlias = Location | str


@dataclass(frozen=True, slots=True)
class AddOptions:
    """A fix: the command that failed, with options added.

    Attributes
    ----------
    arguments
        Words to add at its end: ``("--map", "xyz=points")``.
    purpose
        Words that go on after them: ``"if it is a mask"``. May be empty.
    """

    arguments: tuple[str, ...]
    purpose: str = ""

    def __str__(self) -> str:
        return printable(f"{shlex.join(self.arguments)} {self.purpose}".rstrip())


@dataclass(frozen=True, slots=True)
class RunCommand:
    """A fix: a command of unistore to run in place of the one that failed, or before it.

    Attributes
    ----------
    arguments
        Words after ``unistore``: ``("statistics", "a.zarr")``.
    purpose
        Words that go on after them. May be empty.
    """

    arguments: tuple[str, ...]
    purpose: str = ""

    def __str__(self) -> str:
        return printable(f"unistore {shlex.join(self.arguments)} {self.purpose}".rstrip())


@dataclass(frozen=True, slots=True)
class GiveOptions:
    """A fix: the command that failed, with options whose values only the user knows.

    Attributes
    ----------
    names
        Options: ``("--height", "--width")``.
    purpose
        Words that go on after them: ``"of the camera"``. May be empty.
    """

    names: tuple[str, ...]
    purpose: str = ""

    @property
    def arguments(self) -> tuple[str, ...]:
        """Return words with a name in the place of each value: ``("--height", "HEIGHT")``."""
        words: list[str] = []
        for name in self.names:
            words += [name, name.strip("-").upper()]
        return tuple(words)

    def __str__(self) -> str:
        return printable(f"give {' and '.join(self.names)} {self.purpose}".rstrip())


# A sentence, where neither options nor a command of known words help
Fix: TypeAlias = str | AddOptions | GiveOptions | RunCommand
# One, or several of which each helps, the usual one first
Fixes: TypeAlias = Fix | tuple[Fix, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    Attributes
    ----------
    file
        Name of the file, or of an option, an argument, an array of a store.
    message
        What was found and what was expected.
    fix
        What to do about it: options, a command or a sentence, or several of these. ``""`` if nothing helps.
    kind
        A stable, machine-readable word: ``"truncated"``, ``"dtype"``, ``"missing"``, …
    source
        Name of the one source (or part of one: an episode) that would have to be left out, empty where
        several contradict each other, or none is at fault. Two problems are equal whatever it says.
    dataset
        Dataset, attribute, key or line in the file, empty where the whole file is meant.
    row
        Row of the dataset, None where all of it is meant.
    trace
        Traceback of what a library raised, for ``--debug``, empty where the problem was found by a check.
    """

    file: str
    message: str
    fix: Fixes = ""
    kind: str = "invalid"
    source: str = field(default="", compare=False)
    dataset: str = ""
    row: int | None = None
    trace: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        # they quote files of others
        for name in ("file", "dataset"):
            object.__setattr__(self, name, printable(getattr(self, name)))
        object.__setattr__(self, "message", printable(self.message, line_feeds=True))

    @classmethod
    def at(
        cls, location: Where, message: str, fix: Fixes = "", kind: str = "invalid", source: str = ""
    ) -> Problem:
        """Make the problem of a place in a file, or of a whole file."""
        file, dataset, row = Location(location) if isinstance(location, str) else location
        return cls(file, message, fix, kind, source, dataset, row)

    @property
    def location(self) -> str:
        """Return the file, dataset and row as messages name them: ``"scans/a.h5: data/x row 5"``."""
        return str(Location(self.file, self.dataset, self.row))

    @property
    def fixes(self) -> tuple[Fix, ...]:
        """Return each fix, none if nothing helps."""
        fixes = self.fix if isinstance(self.fix, tuple) else (self.fix,)
        return tuple(fix for fix in fixes if fix)

    @property
    def advice(self) -> str:
        """Return the fixes as text: ``"--map xyz=points, or --exclude a.npy if it is a mask"``."""
        return printable(", or ".join(map(str, self.fixes)), line_feeds=True)

    def __str__(self) -> str:
        advice = f" ({self.advice})" if self.fix else ""
        return f"{self.location}: {self.message}{advice}"

    def to_json(self) -> dict[str, Any]:
        """Return all but the traceback: the fix as text, and each fix with its words apart."""
        return {
            "file": self.file,
            "dataset": self.dataset,
            "row": self.row,
            "message": self.message,
            "fix": self.advice,
            "fixes": [_fix_to_json(fix) for fix in self.fixes],
            "kind": self.kind,
            "source": self.source,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Problem:
        """Return the problem that `to_json` made a document of."""
        fields = dict(document)
        # journals of earlier versions have the text alone
        fixes = [_fix_from_json(fix) for fix in fields.pop("fixes", [])] or [fields["fix"]]
        return cls(**{**fields, "fix": fixes[0] if len(fixes) == 1 else tuple(fixes)})


def shown_once(problems: Iterable[Problem]) -> list[str]:
    """Return a line for each problem. Those alike but for their place are one, with the first few places."""
    return [str(problem) for problem in merged(problems)]


def merged(problems: Iterable[Problem]) -> list[Problem]:
    """Return problems, those alike but for their place as one, whose `file` is the first few places."""
    places: dict[tuple[str, Fixes, str], list[str]] = {}
    for problem in problems:
        places.setdefault((problem.message, problem.fix, problem.kind), []).append(problem.location)
    found = []
    for (message, fix, kind), locations in places.items():
        distinct = list(dict.fromkeys(locations))
        times = f" ({len(locations):,} times)" if len(distinct) < len(locations) else ""
        found.append(Problem(first_few(distinct) + times, message, fix, kind))
    return found


def _fix_to_json(fix: Fix) -> dict[str, Any]:
    if isinstance(fix, str):
        return {"sentence": fix}
    if isinstance(fix, GiveOptions):
        return {"give": list(fix.names), "purpose": fix.purpose}
    words = "options" if isinstance(fix, AddOptions) else "command"
    return {words: list(fix.arguments), "purpose": fix.purpose}


def _fix_from_json(document: Mapping[str, Any]) -> Fix:
    if "sentence" in document:
        return str(document["sentence"])
    if "give" in document:
        return GiveOptions(tuple(document["give"]), document["purpose"])
    if "options" in document:
        return AddOptions(tuple(document["options"]), document["purpose"])
    return RunCommand(tuple(document["command"]), document["purpose"])


class UnistoreError(Exception):
    """Base of every error raised on purpose. ``str(error)`` is written for the user."""

    exit_code = 1


class InputError(UnistoreError):
    """Source files or arguments are wrong. ``problems`` holds all that were found at once."""

    exit_code = 2

    def __init__(self, problems: Sequence[Problem] | Problem | str) -> None:
        if isinstance(problems, str):
            super().__init__(problems)
            self.problems: tuple[Problem, ...] = ()
            return
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    @classmethod
    def at(
        cls, location: Where, message: str, fix: Fixes = "", kind: str = "invalid", source: str = ""
    ) -> InputError:
        """Make the error of one problem at a place in a file, or of a whole file."""
        return cls(Problem.at(location, message, fix, kind, source))

    def problems_at(self, location: Where) -> tuple[Problem, ...]:
        """Return its problems. The text of an error without any becomes one at `location`."""
        return self.problems or (Problem.at(location, str(self)),)

    def __reduce__(self) -> tuple[type[InputError], tuple[Sequence[Problem] | str]]:
        return type(self), (self.problems or str(self),)


class StoreError(UnistoreError):
    """A store is unfinished, lacks something, or is not a store."""


class NoStoreError(StoreError):
    """There is no store at the path that was named."""

    exit_code = 2


class CorruptionError(StoreError):
    """Bytes contradict their checksum, shard index or codec frame."""


class UnsupportedError(UnistoreError):
    """A Zarr array that is not as unistore writes arrays. `unistore.open_zarr` reads it."""


class ConversionError(UnistoreError):
    """Writing a store failed. The same command resumes once the cause is gone."""


class StoppedError(ConversionError):
    """A signal ended a conversion after the steps at work. The same command continues."""

    exit_code = 75  # EX_TEMPFAIL: schedulers run the job again


class MissingLibraryError(UnistoreError, ImportError):
    """A library that an extra installs is not there. The message has the ``pip install`` command."""


class LoaderError(UnistoreError):
    """The loader cannot go on, or was used wrongly."""


class SampleError(LoaderError):
    """A sample, or the batch it belongs to, could not be made.

    Its text is one line. ``__cause__`` is what the dataset raised, with the traceback. An exception that
    cannot be sent from a worker is replaced by its traceback.

    Attributes
    ----------
    sample
        Index of the sample in the dataset, or None where only the whole batch fails.
    source
        Where the sample comes from, in the dataset's own words, empty where the dataset cannot tell.
    """

    def __init__(self, message: str, sample: int | None = None, source: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.sample = sample
        self.source = source

    def __reduce__(self) -> tuple[type[SampleError], tuple[str, int | None, str]]:
        return type(self), (self.message, self.sample, self.source)


class WorkerDiedError(LoaderError):
    """A worker process ended on its own: killed, out of memory, or crashed in native code."""


def location_of(name: Where, item: str = "") -> Location:
    """Return the place of something by its path in a file, or below a group of it."""
    file, group, _ = Location(name) if isinstance(name, str) else name
    return Location(printable(file), printable(f"{group}/{item}".strip("/")))


def printable(text: str, *, line_feeds: bool = False) -> str:
    """Return text safe in a message and encodable as UTF-8, with control characters escaped."""
    if text.isprintable():
        return text
    kept = "\n" if line_feeds else ""
    return "".join(char if char.isprintable() or char in kept else _escape(char) for char in text)


def _escape(char: str) -> str:
    is_stray_byte = "\udc80" <= char <= "\udcff"
    raw = char.encode("utf-8", "surrogateescape" if is_stray_byte else "surrogatepass")
    return "".join(f"\\x{byte:02x}" for byte in raw)


def with_source(source: str, problems: Iterable[Problem]) -> list[Problem]:
    """Return problems with `Problem.source` set, unless it is already set (to a part of the source)."""
    return [replace(problem, source=problem.source or source) for problem in problems]


def first_few(names: Sequence[str], most: int = 4, separator: str = ", ") -> str:
    """Return the first `most` names, printable, and how many more there are: ``"a, b and 3 more"``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return separator.join(map(printable, names[:most])) + more


OF_ROWS = "rows "  # begins the names of rows, which their numbers tell apart
_NUMBER = re.compile(r"[0-9]+")


def names_without_numbers(names: Iterable[str]) -> list[str]:
    """Return names with ``N`` for each number, without duplicates: ``segments/segment_N/unique_labels``."""
    return list(dict.fromkeys(name if name.startswith(OF_ROWS) else _NUMBER.sub("N", name) for name in names))


def length_table(lengths: Mapping[str, object]) -> str:
    """Return a line for each array: its path, and its length or what stands for it."""
    width = max(map(len, lengths))
    return "\n".join(f"    {path.ljust(width)}  {length}" for path, length in lengths.items())


# What the system says while files are written, with what to do about it.

_FIXES = {
    errno.ENOSPC: "free space there",
    errno.EDQUOT: "free some of the quota",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f)",
    errno.EIO: "the disk fails: see the system's log (dmesg), replace it or choose another",
    errno.EROFS: "choose a destination that can be written",
    errno.ENOENT: "choose a destination that can be written",
    errno.EACCES: "change the rights or choose another destination",
    errno.EPERM: "change the rights or choose another destination",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


class WritingError(ConversionError):
    """Writing failed with the OSError `error`, which has the name of the file."""

    def __init__(self, error: OSError) -> None:
        self.error = error
        super().__init__(error)

    def __str__(self) -> str:
        return refusal(self.error, "then run the same command: it continues")


def refusal(error: OSError, then: str) -> str:
    """Return one line: the file, the reason, the fix, and what to do `then`."""
    return f"{error.filename}: {error.strerror or error}; {writing_fix(error)}, {then}"


def writing_fix(error: OSError) -> str:
    """Return what to do about an error of the system while a file was written."""
    return _FIXES.get(error.errno or 0, "fix the destination or choose another")


def named(error: OSError, where: Path) -> OSError:
    """Return the error with a file name: its own, else `where`."""
    return OSError(error.errno or 0, error.strerror or str(error), os.fspath(error.filename or where))


def writing_failed(error: OSError, where: Path) -> WritingError:
    """Return `WritingError` of an OSError. `where` is used if that has no file name."""
    return WritingError(named(error, where))
