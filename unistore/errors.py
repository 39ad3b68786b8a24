"""The errors that unistore raises.

::

    UnistoreError                  exit code 1
    ├── InputError                 exit code 2: source files or arguments are wrong; lists every Problem
    ├── StoreError                 a store is unfinished, or lacks something
    │   ├── NoStoreError           exit code 2: there is no store at the path
    │   └── CorruptionError        stored bytes do not match their checksum, index or frame
    ├── UnsupportedError           a Zarr array that is not stored as unistore stores arrays
    ├── ConversionError            writing failed (disk full, permissions, changed source); can be resumed
    │   └── StoppedError           exit code 75: a signal ended the conversion; can be resumed
    ├── MissingLibraryError        a library is not installed; contains the ``pip install`` command
    └── LoaderError                the loader cannot continue, or was used wrongly
        ├── SampleError            a sample could not be read; names it and its source
        └── WorkerDiedError        a worker process was killed or crashed
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

_MAX_LINES = 11  # of the message of a problem, as commands print it
_LIBRARIES = {"torch": "PyTorch", "cv2": "OpenCV", "av": "PyAV"}  # whose modules have other names


class Location(NamedTuple):
    """A place in a file. As text, for example ``"scans/a.h5: data/x row 5"``.

    Attributes
    ----------
    file : str
        Name of the file.
    dataset : str, default ""
        Dataset, attribute, key or line in the file. Empty: the whole file.
    row : int, optional
        Row of the dataset. None: all rows.
    """

    file: str
    dataset: str = ""
    row: int | None = None

    def __str__(self) -> str:
        dataset = f": {self.dataset}" if self.dataset else ""
        row = "" if self.row is None else f" row {self.row}"
        return f"{self.file}{dataset}{row}"


# Where a problem is: a location, or the name of a file
Where: TypeAlias = Location | str


@dataclass(frozen=True, slots=True)
class AddOptions:
    """A fix: run the command that failed again, with more options.

    Attributes
    ----------
    arguments : tuple of str
        Words to add at the end of the command: ``("--map", "xyz=points")``.
    purpose : str, default ""
        Rest of the sentence: ``"if it is a mask"``.
    """

    arguments: tuple[str, ...]
    purpose: str = ""

    def __str__(self) -> str:
        return printable(f"add {shlex.join(self.arguments)} {self.purpose}".rstrip())


@dataclass(frozen=True, slots=True)
class RunCommand:
    """A fix: run another unistore command, instead of the one that failed or before it.

    Attributes
    ----------
    arguments : tuple of str
        Words after ``unistore``: ``("statistics", "a.zarr")``.
    purpose : str, default ""
        Rest of the sentence.
    """

    arguments: tuple[str, ...]
    purpose: str = ""

    def __str__(self) -> str:
        return printable(f"unistore {shlex.join(self.arguments)} {self.purpose}".rstrip())


@dataclass(frozen=True, slots=True)
class GiveOptions:
    """A fix: run the command that failed again, with options whose values only the user knows.

    Attributes
    ----------
    names : tuple of str
        Options: ``("--height", "--width")``.
    purpose : str, default ""
        Rest of the sentence: ``"of the camera"``.
    """

    names: tuple[str, ...]
    purpose: str = ""

    @property
    def arguments(self) -> tuple[str, ...]:
        """The options with a placeholder for each value: ``("--height", "HEIGHT", "--width", "WIDTH")``."""
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
    """One thing that is wrong, and what to do about it.

    Attributes
    ----------
    file : str
        Name of the file, option, argument, or array of a store.
    message : str
        What was found, and what was expected.
    fix : str, AddOptions, GiveOptions, RunCommand, or tuple of them, default ""
        What to do: a sentence, options or a command. A tuple lists several ways, the usual one first. Empty:
        nothing helps.
    kind : str, default "invalid"
        A stable word for programs, such as ``"truncated"``, ``"dtype"`` or ``"missing"``. ``unistore explain
        KIND`` describes it.
    source : str, default ""
        Name of the source, or of a part of it such as an episode, that would have to be skipped. Empty:
        several sources contradict each other, or no source is at fault. It does not count when problems
        are compared.
    dataset : str, default ""
        Dataset, attribute, key or line in the file. Empty: the whole file.
    row : int, optional
        Row of the dataset. None: all rows.
    trace : str, default ""
        Traceback of an exception that a library raised, for ``--debug``. Empty: a check found the problem.

    Examples
    --------
    >>> from unistore.errors import Location, Problem
    >>> problem = Problem.at(Location("a.h5", "data/x", 5), "is not a number", "mend the file")
    >>> problem.location
    'a.h5: data/x row 5'
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
        """Create the problem of a place in a file, or of a whole file.

        Parameters
        ----------
        location : Location or str
            The place, or the name of the file.
        message, fix, kind, source
            As the attributes.
        """
        file, dataset, row = Location(location) if isinstance(location, str) else location
        return cls(file, message, fix, kind, source, dataset, row)

    @property
    def location(self) -> str:
        """File, dataset and row, as messages name them: ``"scans/a.h5: data/x row 5"``."""
        return str(Location(self.file, self.dataset, self.row))

    @property
    def fixes(self) -> tuple[Fix, ...]:
        """The fixes, the usual one first. Empty: nothing helps."""
        fixes = self.fix if isinstance(self.fix, tuple) else (self.fix,)
        return tuple(fix for fix in fixes if fix)

    @property
    def advice(self) -> str:
        """The fixes as text: ``"add --map xyz=points, or add --exclude a.npy if it is a mask"``."""
        return printable(", or ".join(map(str, self.fixes)), line_feeds=True)

    @property
    def paragraph(self) -> str:
        """The problem as commands print it: ``PLACE: PROBLEM.``, and ``fix: …`` on a line of its own.

        Of a long list, such as the lengths of all arrays of a file, it has the first lines.
        """
        lines = self._sentence.split("\n")
        if len(lines) > _MAX_LINES:
            lines[_MAX_LINES:] = [f"    and {len(lines) - _MAX_LINES:,} more (--json prints all)"]
        if self.fix:
            lines.append(f"  fix: {self.advice}")
        return "\n".join(lines)

    @property
    def _sentence(self) -> str:
        message = self.message.rstrip()
        is_open = "\n" not in message and not message.endswith((".", "?", "!", "…"))
        return f"{self.location}: {message}{'.' if is_open else ''}"

    def __str__(self) -> str:
        if not self.fix:
            return f"{self.location}: {self.message}"
        # after a list of several lines, which has no full stop, on a line of its own
        separator = "\n" if "\n" in self.message else " "
        return f"{self._sentence}{separator}Fix: {self.advice}"

    def to_json(self) -> dict[str, Any]:
        """Return the problem as JSON values, without the traceback.

        Returns
        -------
        dict
            The attributes by name; ``"fix"`` as text, and ``"fixes"``, a list with the words of each fix.
        """
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
        """Create the problem from a result of `to_json`."""
        fields = dict(document)
        # journals of earlier versions have the text alone
        fixes = [_fix_from_json(fix) for fix in fields.pop("fixes", [])] or [fields["fix"]]
        return cls(**{**fields, "fix": fixes[0] if len(fixes) == 1 else tuple(fixes)})


def merged(problems: Iterable[Problem]) -> list[Problem]:
    """Return problems without repetitions.

    Problems that differ only in their place become one, whose `file` lists the first few places.
    """
    places: dict[tuple[str, Fixes, str], list[str]] = {}
    for problem in problems:
        places.setdefault((problem.message, problem.fix, problem.kind), []).append(problem.location)
    merged_problems = []
    for (message, fix, kind), locations in places.items():
        distinct = list(dict.fromkeys(locations))
        times = f" ({len(locations):,} times)" if len(distinct) < len(locations) else ""
        merged_problems.append(Problem(first_few(distinct) + times, message, fix, kind))
    return merged_problems


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
    """Base class of all errors that unistore raises on purpose. Its text is written for the user.

    Attributes
    ----------
    exit_code : int
        Exit code of a unistore command that ends with this error.
    """

    exit_code = 1


class InputError(UnistoreError):
    """Source files or arguments are wrong.

    Parameters
    ----------
    problems : Problem, sequence of Problem, or str
        The problems, or the text of an error without any.
    can_skip : bool, default True
        Whether other sources are left if a conversion skips those that have the problems.

    Attributes
    ----------
    problems : tuple of Problem
        All problems, which were found together. Empty if the error was made from a text.
    can_skip : bool
        Whether every problem names a source to skip, and other sources are left.

    Examples
    --------
    Name the files that could not be read:

    >>> try:  # doctest: +SKIP
    ...     unistore.convert("recordings/", "train.zarr")
    ... except unistore.InputError as error:
    ...     print({problem.file for problem in error.problems})
    """

    exit_code = 2

    def __init__(self, problems: Sequence[Problem] | Problem | str, *, can_skip: bool = True) -> None:
        self.can_skip = False
        if isinstance(problems, str):
            super().__init__(problems)
            self.problems: tuple[Problem, ...] = ()
            return
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        self.can_skip = can_skip and bool(self.problems) and all(one.source for one in self.problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    @classmethod
    def at(
        cls, location: Where, message: str, fix: Fixes = "", kind: str = "invalid", source: str = ""
    ) -> InputError:
        """Create the error of one problem; see `Problem.at`."""
        return cls(Problem.at(location, message, fix, kind, source))

    def problems_at(self, location: Where) -> tuple[Problem, ...]:
        """Return the problems. An error that was made from a text becomes one problem at `location`."""
        return self.problems or (Problem.at(location, str(self)),)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems or str(self),), {"can_skip": self.can_skip}


def without_fix(error: Exception) -> str:
    """Return the text of an error without its fix, for a problem that has a fix of its own."""
    return str(error).partition(". Fix: ")[0]


class StoreError(UnistoreError):
    """A store is unfinished, lacks something, or is not a store."""


class NoStoreError(StoreError):
    """There is no store at the given path."""

    exit_code = 2


class CorruptionError(StoreError):
    """Stored bytes do not match their checksum, shard index or codec frame."""


class UnsupportedError(UnistoreError):
    """A Zarr array that is not stored as unistore stores arrays. `unistore.open_zarr` reads it."""


class ConversionError(UnistoreError):
    """Writing a store failed. After the cause is removed, the same command resumes."""


class StoppedError(ConversionError):
    """A signal ended a conversion, after the tasks that were running. The same command continues."""

    exit_code = 75  # EX_TEMPFAIL: schedulers run the job again


class MissingLibraryError(UnistoreError, ImportError):
    """An optional library is not installed. The message contains the ``pip install`` command."""


class LoaderError(UnistoreError):
    """The loader cannot continue, or was used wrongly.

    Raised by `unistore.Loader`: by iterating it, if shared memory is exhausted, a dataset cannot be sent to a
    worker, or another iteration of the same loader was started; by ``load_state_dict``, if the state is of
    other samples or another order. The text names the cause and what to change.
    """


class SampleError(LoaderError):
    """A sample, or its batch, could not be made.

    The text is one line. ``__cause__`` is the exception that the dataset raised, with its traceback. If a
    worker cannot send that exception, ``__cause__`` contains its traceback as text.

    Attributes
    ----------
    sample : int or None
        Index of the sample in the dataset. None: only the batch as a whole fails.
    source : str
        Source of the sample, as the dataset names it. Empty: the dataset does not know it.
    message : str
        The text.
    """

    def __init__(self, message: str, sample: int | None = None, source: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.sample = sample
        self.source = source

    def __reduce__(self) -> tuple[type[SampleError], tuple[str, int | None, str]]:
        return type(self), (self.message, self.sample, self.source)


class WorkerDiedError(LoaderError):
    """A worker process was killed, ran out of memory, or crashed in native code.

    Raised by iterating a `unistore.Loader`. The text names the worker, its exit code or signal, and the
    samples that it was reading. If the system ran out of memory (often signal SIGKILL), lower `num_workers`,
    `prefetch_factor` or `batch_size`. If it crashed, read these samples with ``num_workers=0`` to find the
    cause.

    To continue, make a new Loader, for example with fewer workers, and load the last ``state_dict()`` that
    you saved. The attribute ``exit_code`` is the exit code of a unistore command that ends with this error,
    not the exit code of the worker.
    """


def location_of(name: Where, item: str = "") -> Location:
    """Return the place of a dataset in a file.

    Parameters
    ----------
    name : Location or str
        The file, or a group in it.
    item : str, default ""
        Path of the dataset in that file or group. Empty: the file or group itself.
    """
    file, group, _ = Location(name) if isinstance(name, str) else name
    return Location(printable(file), printable(f"{group}/{item}".strip("/")))


def printable(text: str, *, line_feeds: bool = False) -> str:
    r"""Return text that is safe to print: control characters and stray bytes become escapes such as ``\x1b``.

    Parameters
    ----------
    text : str
        Any text, for example a file name.
    line_feeds : bool, default False
        Whether to keep line feeds.
    """
    if text.isprintable():
        return text
    kept = "\n" if line_feeds else ""
    return "".join(char if char.isprintable() or char in kept else _escape(char) for char in text)


def _escape(char: str) -> str:
    is_stray_byte = "\udc80" <= char <= "\udcff"
    raw = char.encode("utf-8", "surrogateescape" if is_stray_byte else "surrogatepass")
    return "".join(f"\\x{byte:02x}" for byte in raw)


def with_source(source: str, problems: Iterable[Problem]) -> list[Problem]:
    """Return problems with `Problem.source` set. A problem that has a source (a part of it) keeps its own."""
    return [replace(problem, source=problem.source or source) for problem in problems]


def first_few(names: Sequence[str], most: int = 4, separator: str = ", ") -> str:
    """Return the first names, and the number of the others: ``"a, b and 3 more"``.

    Parameters
    ----------
    names : sequence of str
        The names.
    most : int, default 4
        Number of names to show.
    separator : str, default ", "
        Text between two names.
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return separator.join(map(printable, names[:most])) + more


OF_ROWS = "rows "  # begins the names of rows, which their numbers tell apart
_NUMBER = re.compile(r"[0-9]+")


def names_without_numbers(names: Iterable[str]) -> list[str]:
    """Return names with ``N`` instead of each number, without duplicates.

    For example, ``segments/segment_12/unique_labels`` becomes ``segments/segment_N/unique_labels``. Names
    of rows keep their numbers.
    """
    return list(dict.fromkeys(name if name.startswith(OF_ROWS) else _NUMBER.sub("N", name) for name in names))


def length_table(lengths: Mapping[str, object]) -> str:
    """Return a table with a line for each array: its path, and its length."""
    width = max(map(len, lengths))
    return "\n".join(f"    {path.ljust(width)}  {length}" for path, length in lengths.items())


# What the system says while files are written, with what to do about it.

_FIXES = {
    errno.ENOSPC: "free space there",
    errno.EDQUOT: "free some of the quota",
    errno.EFBIG: "raise the limit for the size of a file (ulimit -f)",
    errno.EIO: "choose another disk, because this one fails (see dmesg)",
    errno.EROFS: "choose a destination that can be written",
    errno.ENOENT: "choose a destination that can be written",
    errno.EACCES: "change the permissions or choose another destination",
    errno.EPERM: "change the permissions or choose another destination",
    errno.EMFILE: "raise the limit for open files (ulimit -n)",
}


class WritingError(ConversionError):
    """Writing a file failed.

    Parameters
    ----------
    error : OSError
        The error of the system, with the name of the file.
    """

    def __init__(self, error: OSError) -> None:
        self.error = error
        super().__init__(error)

    def __str__(self) -> str:
        return refusal(self.error, "then run the same command, which continues")


def refusal(error: OSError, then: str) -> str:
    """Return one line about a failed write.

    Parameters
    ----------
    error : OSError
        The error of the system, with the name of the file.
    then : str
        What to do after the fix.

    Returns
    -------
    str
        The file, the reason, the fix, and `then`.
    """
    return (
        f"{error.filename}: cannot be written: {error.strerror or error}. Fix: {writing_fix(error)}, {then}"
    )


def writing_fix(error: OSError) -> str:
    """Return what to do about an error of the system while writing a file."""
    return _FIXES.get(error.errno or 0, "repair the destination or choose another")


def named(error: OSError, where: Path) -> OSError:
    """Return an error with a file name: its own, or `where` if it has none."""
    return OSError(error.errno or 0, error.strerror or str(error), os.fspath(error.filename or where))


def writing_failed(error: OSError, where: Path) -> WritingError:
    """Return a `WritingError`. If `error` has no file name, it gets the name `where`."""
    return WritingError(named(error, where))


def missing_library(module: str, extra: str) -> tuple[str, str]:
    """Return that a library is not installed, as the end of a sentence, and the fix.

    Parameters
    ----------
    module : str
        The module that is imported: ``"cv2"``, ``"pyarrow.parquet"``.
    extra : str
        The extra of unistore that installs it.

    Examples
    --------
    >>> from unistore.errors import missing_library
    >>> missing_library("cv2", "images")
    ('OpenCV, which is not installed', "pip install 'unistore[images]'")
    """
    package = module.partition(".")[0]
    return f"{_LIBRARIES.get(package, package)}, which is not installed", f"pip install 'unistore[{extra}]'"


def import_fault(module: str, extra: str, error: ImportError) -> tuple[str, str]:
    """Return why a library cannot be imported, as the end of a sentence, and the fix.

    A library that is not installed has the fix ``pip install``. One that is there, but needs another library
    that is missing or damaged, has the reason that its import gave.

    Examples
    --------
    >>> from unistore.errors import import_fault
    >>> import_fault("laspy", "lidar", ModuleNotFoundError(name="laspy"))
    ('laspy, which is not installed', "pip install 'unistore[lidar]'")
    >>> import_fault("av", "robots", ImportError("libz.so.1: cannot open shared object file"))[0]
    'av, which cannot be imported: libz.so.1: cannot open shared object file'
    """
    is_missing = isinstance(error, ModuleNotFoundError) and error.name is not None
    if is_missing and f"{module}.".startswith(f"{error.name}."):
        return missing_library(module, extra)
    reason = " ".join(str(error).split())
    fix = f"install it again, and check it with: python -c 'import {module}'"
    return f"{module}, which cannot be imported: {reason}", fix
