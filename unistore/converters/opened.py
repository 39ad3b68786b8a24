"""The interface between files and families: `SourceFile`, `OpenFile`, `Format`, `FileSummary`.

A `Format` opens a `SourceFile` and returns an `OpenFile`: named `Array` objects and metadata. A family
decides with a `Claim` whether a file belongs to it, from its `FileSummary`, without reading values.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from itertools import chain
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias

from unistore.converters.array import Array, NamedArrays
from unistore.converters.claims import Claim, sure
from unistore.converters.common.exclusion import folders_of
from unistore.converters.common.faults import COPY_AGAIN, WRITE_AGAIN
from unistore.converters.files.formats import lfs_pointer_problem, why_left_out
from unistore.converters.files.npy import bytes_of
from unistore.converters.files.paths import is_inside, natural_key, relative_names
from unistore.errors import Fixes, InputError, Problem, import_fault, printable
from unistore.system.types import Dtype, Shape

if TYPE_CHECKING:
    from unistore.converters.files.hdf5.attributes import Attributes

# What a file says beside its arrays, as JSON values: a sample rate, a unit, a header
Metadata: TypeAlias = Mapping[str, Any]

# What a group of a file holds under a name
Member: TypeAlias = Literal["array", "group"]

HEAD_BYTES = 4096

_BY_SUFFIX = sure("")


class Neighbours(Protocol):
    """The other files among the paths that the user gave."""

    def has(self, path: str) -> bool:
        """Return whether this file exists."""
        ...

    def holds(self, folder: str | Path, fits: Callable[[Path], bool]) -> bool:
        """Return whether `fits` is true for any file in a folder.

        Each folder is listed once. A folder given as text is faster than a `Path`.
        """
        ...

    def head(self, path: Path) -> FileSummary | None:
        """Return the `FileSummary` of another file. None if it is damaged, which is reported there."""
        ...


@dataclass(frozen=True)
class SourceFile:
    """A file to convert.

    Attributes
    ----------
    path : Path
        Path of the file.
    name : str
        Path below the folder that the user gave, as messages show it.
    roots : tuple of Path
        The paths that the user gave. No file outside them is read.
    near : Neighbours, optional
        The other files. Set in `Family.match` and `Family.group`, None elsewhere.
    format : str
        Name of the first format of the family that has the ending of the file. Empty: no format has it.
    parts : tuple of Path
        Files that continue this one, such as the slices of a volume. The family decides which they are.
    known
        Result of an earlier look at the file and its parts, in a form that its format chooses, so that it
        need not read them again. None: no earlier look.
    """

    path: Path
    name: str
    roots: tuple[Path, ...] = ()
    near: Neighbours | None = field(default=None, compare=False, repr=False)
    format: str = ""
    parts: tuple[Path, ...] = ()
    known: Any = field(default=None, compare=False, repr=False)

    @property
    def surroundings(self) -> Neighbours:
        """The other files, for `Family.match` and `Family.group`. AssertionError if `near` is None."""
        assert self.near is not None, f"nothing is known of what lies near {self.name}"
        return self.near

    @property
    def is_given(self) -> bool:
        """Whether the user gave this file itself, not a folder that contains it."""
        alike = [root for root in self.roots if root.name == self.path.name]
        return any(root.parent.resolve() == self.path.parent for root in alike)

    @staticmethod
    def names_of(paths: Sequence[Path]) -> list[str]:
        """Return the names of files or folders, as messages and stores show them, in the given order.

        Names are relative to the common folder of all paths. They are unique, printable, and contain
        ``/`` on every system.
        """
        return relative_names(paths)

    @property
    def why_unread(self) -> str:
        """Why no format reads a file with this name: ``"a picture, which is not read"``."""
        return why_left_out(self.path)

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return self.path.stat().st_size

    def head(self, count: int = HEAD_BYTES) -> bytes:
        """Return the first `count` bytes, or the whole file if it is shorter."""
        with self.path.open("rb") as file:
            return file.read(count)

    def bytes(self) -> Array:
        """Return the bytes of the file as an array (n,) uint8. They are read when you slice it."""
        return Array(bytes_of(self.path, self.name))

    def check_whole(self) -> None:
        """Raise InputError if the file is empty or a Git LFS pointer.

        Call it in formats whose files have no header that would reveal this.
        """
        if self.size == 0:
            raise self.problem("the file is empty (0 bytes)", COPY_AGAIN, "empty")
        pointer = lfs_pointer_problem(self.head(64), self.name)
        if pointer is not None:
            raise InputError(pointer)

    def check_size(self, end: int) -> None:
        """Raise InputError if the file has fewer than `end` bytes, the size that its header states."""
        if self.size < end:
            message = f"the file is truncated: it has {self.size:,} bytes, but its header states {end:,}"
            raise self.problem(message, COPY_AGAIN, "truncated")

    def check_packed(self, size: int, packed: int, most: int) -> None:
        """Raise InputError if a header states more bytes than the compressed bytes can contain.

        Parameters
        ----------
        size : int
            Number of bytes that the header states.
        packed : int
            Number of compressed bytes, at most.
        most : int
            Number of bytes that one compressed byte can become: 1032 for deflate (RFC 1951).
        """
        if size > most * packed:
            raise self.problem(
                f"its header states {size:,} bytes, but its {packed:,} compressed bytes give at most "
                f"{most * packed:,}",
                WRITE_AGAIN,
                "damaged",
            )

    def library(self, module: str, extra: str) -> Any:
        """Import the library that reads the file.

        Parameters
        ----------
        module : str
            Module to import: ``"laspy"``.
        extra : str
            Extra of unistore that installs it: ``"lidar"``.

        Returns
        -------
        module
            The imported module.

        Raises
        ------
        InputError
            If it is not installed; the fix is the ``pip install`` command. If its import fails for another
            reason, such as a missing shared library; the message contains the reason.
        """
        try:
            return import_module(module)
        except ImportError as error:
            fault, fix = import_fault(module, extra, error)
            raise self.problem(f"needs {fault}", fix, "library") from error

    def beside(self, name: str) -> SourceFile:
        """Return another file by its path relative to the folder of this one.

        Raises
        ------
        InputError
            If the file does not exist, or lies outside the paths that the user gave.

        Examples
        --------
        >>> labels = file.beside(f"../labels/{file.path.stem}.label")  # doctest: +SKIP
        """
        path = self.path.parent / name
        if not path.is_file():
            message = f"needs the file {printable(name)}, which does not exist"
            raise self.problem(message, "copy that file, too", "missing")
        if self.roots and not is_inside(path, self.roots):
            message = f"needs the file {printable(name)}, which is outside the given paths"
            raise self.problem(message, "give the folder that contains both files", "link")
        return SourceFile(path, str(Path(self.name).parent / name), self.roots)

    def wrong_beginning(self, expected: str) -> InputError:
        """Return an InputError about a file with wrong first bytes, for you to raise.

        Use it if no other format has this ending, so that the file must be damaged.

        Parameters
        ----------
        expected : str
            The right beginning, as it follows "does not begin": ``"with LASF"``.

        Raises
        ------
        InputError
            If the file is empty or a Git LFS pointer, which explains it better.

        Examples
        --------
        >>> if file.head(4) != b"LASF":  # doctest: +SKIP
        ...     raise file.wrong_beginning("with LASF")
        """
        self.check_whole()
        message = f"does not begin {expected}; its first bytes are {self.head(8)!r}"
        return self.problem(message, WRITE_AGAIN)

    def problem(self, message: str, fix: Fixes = "", kind: str = "format") -> InputError:
        """Return an InputError about this file, for you to raise.

        Parameters
        ----------
        message : str
            What is wrong, as it follows the name of the file:
            ``"has 812 bytes, but its header states 4,096"``.
        fix : str, AddOptions, GiveOptions, RunCommand, or tuple of them, default ""
            What the user can do: ``"copy or download it again"``. Empty: no advice.
        kind : str, default "format"
            One of the words that ``unistore explain`` knows: ``"truncated"``.

        Examples
        --------
        >>> raise file.problem("the file is truncated", "copy it again", "truncated")  # doctest: +SKIP
        """
        return InputError(Problem(printable(self.name), message, fix, kind))


class Origin(NamedTuple):
    """A place where values of an array are stored.

    Attributes
    ----------
    file : str
        Absolute path of the file, with links resolved.
    place : str
        Array of the file, as its format identifies arrays. Empty: bytes of the file.
    start, stop : int
        Range of rows of that array, or of bytes.
    size : int
        Size of the values in bytes.
    is_whole : bool, default True
        Whether the values are all values of these rows.
    """

    file: str
    place: str
    start: int
    stop: int
    size: int
    is_whole: bool = True


@dataclass(frozen=True, eq=False)
class OpenFile:
    """An open file, as `Format.open` returns it.

    Attributes
    ----------
    arrays : mapping of str to Array
        Arrays by name. Names of arrays in groups contain slashes: ``"data/x"``.
    metadata : mapping
        Metadata of the file, as JSON values.
    further : sequence of SourceFile
        Other files that are read for this one.
    forward_only : bool, default False
        Whether rows can only be read in order, each once. unistore then keeps them in scratch space until
        they are written.
    memory : int, default 0
        Bytes of memory that reading needs in addition to the rows.
    problems : sequence of Problem
        Problems of arrays that cannot be read and are therefore not in `arrays`. They matter only to a family
        that wants these arrays.
    left_out : mapping of str to str
        Other content that no family uses: name to reason, as it follows "not stored, ":
        ``"because it is text"``.
    notes : mapping of str to str
        Notes by name of an array. They are printed, once each, for arrays that a family uses.
    file : SourceFile, optional
        The file itself. unistore sets it; a format leaves it None.
    of_groups : mapping of str to mapping
        Metadata of each group that has any, by its path.
    shows : mapping of str to sequence of Origin
        Places of arrays whose values are in other files, for example behind links. Sources with the same
        values are converted once.

    Examples
    --------
    A format that reads one array and a sample rate:

    >>> yield OpenFile({"samples": Array(values, unit="V")}, {"rate": 48_000})  # doctest: +SKIP
    """

    arrays: NamedArrays
    metadata: Metadata = field(default_factory=dict)
    further: Sequence[SourceFile] = ()
    forward_only: bool = False
    memory: int = 0
    problems: Sequence[Problem] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    file: SourceFile | None = None
    of_groups: Mapping[str, Metadata] = field(default_factory=dict)
    shows: Mapping[str, Sequence[Origin]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the file, as messages show it."""
        assert self.file is not None
        return self.file.name

    def further_paths(self, own: Sequence[SourceFile]) -> tuple[str, ...]:
        """Return the paths of `further` without duplicates, and without the files `own` of the source."""
        paths = {file.path for file in own}
        return tuple(dict.fromkeys([str(file.path) for file in self.further if file.path not in paths]))

    def bytes(self) -> Array:
        """Return the bytes of the file, (n,) uint8, for families that store them; read when you slice it."""
        assert self.file is not None
        return self.file.bytes()

    def origins(self, name: str) -> Sequence[Origin]:
        """Return the places of the values of an array: those in `shows`, or the array itself."""
        assert self.file is not None
        if name in self.shows:
            return self.shows[name]
        array = self.all_arrays[name]
        rows = array.shape[0] if array.shape else 1
        size = prod(array.shape) * array.dtype.itemsize
        return (Origin(os.path.realpath(self.file.path), name, 0, rows, size),)

    @property
    def unlisted(self) -> Sequence[Origin]:
        """Places of the groups that `without` treats as empty."""
        return ()

    # A file of groups (HDF5) says more; of others, names with slashes are taken for groups.

    @property
    def all_arrays(self) -> NamedArrays:
        """All arrays, with texts, single values and arrays that cannot be read (see `Array.problems`)."""
        return self.arrays

    @property
    def of_any_length(self) -> NamedArrays:
        """Arrays of `objects` for families that store everything in a file."""
        return self.objects

    @property
    def objects(self) -> NamedArrays:
        """Readable arrays of `all_arrays` whose rows are texts, or objects of any length."""
        return {
            name: array
            for name, array in self.all_arrays.items()
            if len(array.shape) == 1 and array.dtype.kind in "OSU" and not array.problems(as_objects=True)
        }

    @property
    def groups(self) -> Sequence[str]:
        """Paths of all groups, in natural order (``demo_2`` before ``demo_10``)."""
        return sorted(set(chain.from_iterable(map(folders_of, self.arrays))), key=natural_key)

    @property
    def unreachable(self) -> Sequence[Problem]:
        """Problems of items that cannot be opened, such as a link out of the folder; part of `problems`."""
        return ()

    def members(self, group: str = "") -> Mapping[str, Member]:
        """Return the items of a group, in natural order. Targets of links are not included.

        This reads nothing more from the file.

        Parameters
        ----------
        group : str, default ""
            Path of the group. Empty: the root.

        Returns
        -------
        mapping of str to {"array", "group"}
            Empty if there is no such group.
        """
        start = f"{group}/" if group else ""
        inside = [name.removeprefix(start) for name in self.arrays if name.startswith(start)]
        members: dict[str, Member] = {}
        for name in sorted(inside, key=natural_key):
            head, below, _ = name.partition("/")
            members[head] = "group" if below else "array"
        return members

    def without(self, groups: Collection[str]) -> OpenFile:
        """Return the same open file with these groups empty. There may be many of them."""
        return self

    def group_metadata(self, group: str = "") -> Metadata:
        """Return the metadata of a group as JSON values. Empty if it has none."""
        return self.of_groups.get(group, {})

    def attributes(
        self, is_wanted: Callable[[str], bool], is_told: Callable[[str, str, bool], bool] | None = None
    ) -> Attributes | None:
        """Read the attributes of the file, its groups and its arrays, exactly.

        Parameters
        ----------
        is_wanted : callable
            Called with the name of an array; returns whether to read its attributes. Attributes of single
            values are always read.
        is_told : callable, optional
            Called with ``(path, name, is_plain)``; returns whether the family already stores this attribute
            in another form. `is_plain` says whether its JSON value is enough to write it again. None: it
            stores no attribute in another form.

        Returns
        -------
        Attributes or None
            None if the format has no attributes.
        """
        return None


class Format(ABC):
    """Base class of file formats: how to recognise, open and write one type of file.

    A subclass sets the class attributes and implements `open`. Every family that can use the arrays may use
    the format. Instances must not keep state.

    Attributes
    ----------
    name : str
        Name that stores record: ``"wav"``.
    suffixes : tuple of str
        File endings in lower case, with the dot: ``(".wav",)``.
    library : str, default ""
        Native library that reads the files: ``"LibRaw"``. unistore then calls it only in worker processes, so
        that a file that crashes or hangs it becomes an error that names the file. Empty: the files are read
        by Python and NumPy.
    offered : bool, default True
        Whether to offer the files to every family with `Family.any_format`. False: only to families that name
        this format. Use False if the arrays do not reveal what the file means, as for bytes without a header,
        or pictures. Such a family is as sure of the file as its own claim.
    twins : tuple of str, default ()
        Endings of files with the same content if their names are otherwise equal, such as ``(".nii",
        ".nii.gz")``, in the order of preference. Two such files in one folder are an error.

    Examples
    --------
    >>> class Wav(Format):  # doctest: +SKIP
    ...     name = "wav"
    ...     suffixes = (".wav",)
    ...
    ...     def recognise(self, file):
    ...         if file.head(4) == b"RIFF":
    ...             return sure("begins with RIFF")
    ...         raise file.wrong_beginning("with RIFF")
    ...
    ...     @contextmanager
    ...     def open(self, file):
    ...         rate, values = scipy.io.wavfile.read(file.path, mmap=True)
    ...         yield OpenFile({"samples": Array(values)}, {"rate": rate})

    The guide "Write a format" has the whole package and its test.
    """

    name: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]
    library: ClassVar[str] = ""
    offered: ClassVar[bool] = True
    twins: ClassVar[tuple[str, ...]] = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Format) and (type(self), self.name) == (type(other), other.name)

    def __hash__(self) -> int:
        return hash((type(self), self.name))

    def recognise(self, file: SourceFile) -> Claim:
        """Decide from the first bytes whether a file with one of `suffixes` is of this format.

        By default every such file is, and `open` reports damaged or foreign ones.

        Parameters
        ----------
        file : SourceFile
            The file, which has one of `suffixes`.

        Returns
        -------
        Claim
            ``sure``: the file is converted. ``maybe``: it is converted if the user names a family. ``no``: it
            is left to other formats, and skipped without an error if none claims it.

        Raises
        ------
        InputError
            If no other format has the ending, so that a file with a wrong beginning is damaged. Make the
            error with `SourceFile.wrong_beginning`.
        """
        return _BY_SUFFIX

    @abstractmethod
    def open(self, file: SourceFile) -> AbstractContextManager[OpenFile]:
        """Open a file as a context manager. Read the header now, and values when arrays are sliced.

        Parameters
        ----------
        file : SourceFile
            The file to open.

        Returns
        -------
        context manager of OpenFile
            The open file. Leaving the context closes it.

        Raises
        ------
        InputError
            If the file is truncated, damaged, or of a variant that this format does not read. Make the error
            with `SourceFile.problem`.
        """

    def write(self, path: Path, arrays: NamedArrays, metadata: Metadata) -> None:
        """Write a file that opens with these arrays and metadata.

        Optional: without it, ``unistore export`` does not write files of this format.
        """
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class FileSummary:
    """The content of a file, or of a file set, without values: names, shapes, dtypes and metadata.

    Attributes
    ----------
    file : SourceFile
        The file. For a file set, its first file with the name of the set.
    format : str
        Name of the format.
    opened : OpenFile
        The open file, for families that need more than arrays. Do not read values from it.
    """

    file: SourceFile
    format: str
    opened: OpenFile

    @cached_property
    def arrays(self) -> Mapping[str, tuple[Shape, Dtype]]:
        """Shape and dtype of each array, by name."""
        return {name: (array.shape, array.dtype) for name, array in self.opened.arrays.items()}

    @property
    def metadata(self) -> Metadata:
        """As `OpenFile.metadata`."""
        return self.opened.metadata

    @property
    def problems(self) -> Sequence[Problem]:
        """As `OpenFile.problems`."""
        return self.opened.problems

    @property
    def left_out(self) -> Mapping[str, str]:
        """As `OpenFile.left_out`."""
        return self.opened.left_out

    def members(self, group: str = "") -> Mapping[str, Member]:
        """As `OpenFile.members`. Must be fast: some families call it for millions of files."""
        return self.opened.members(group)
