"""Files as formats open them: what is said of a file, its named arrays, and the formats themselves."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from itertools import chain
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from unistore.converters.claims import Claim, sure
from unistore.converters.common.columns import SourceColumn, is_text, values_of
from unistore.converters.common.exclusion import folders_of
from unistore.converters.files.formats import lfs_pointer_problem, why_left_out
from unistore.converters.files.npy import bytes_of
from unistore.converters.files.paths import is_inside, natural_key, relative_names
from unistore.errors import Fixes, InputError, Problem, printable
from unistore.system.types import AnyArray, Dtype, Shape

if TYPE_CHECKING:
    from unistore.converters.files.hdf5.attributes import Attributes

# What a file says beside its arrays, as JSON values: a sample rate, a unit, a header
Facts: TypeAlias = Mapping[str, Any]

# What a group of a file holds under a name
Member: TypeAlias = Literal["array", "group"]

HEAD_BYTES = 4096
# Bytes of an array that are read at a time where all of it is read
BLOCK_BYTES = 16 << 20


def as_json(value: Any) -> Any:
    """Return a value, or an array, of a file as JSON: what JSON lacks becomes text."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        return [as_json(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value if isinstance(value, (bool, int, float, str)) else str(value)


_BY_SUFFIX = sure("")


class Neighbours(Protocol):
    """What lies near a file, among the paths that the user gave."""

    def has(self, path: str) -> bool:
        """Whether there is a file."""
        ...

    def holds(self, folder: str | Path, fits: Callable[[Path], bool]) -> bool:
        """Whether a file of a folder fits. Each folder is searched once. Text is faster than a path."""
        ...

    def head(self, path: Path) -> FileSummary | None:
        """What another file holds, or None if it is damaged, which is told of that file."""
        ...


@dataclass(frozen=True)
class SourceFile:
    """A file of the user's.

    Attributes
    ----------
    path
        Where it is.
    name
        What messages call it: its path below the folder that the user gave.
    roots
        The paths that the user gave; no file outside them is read.
    near
        In `Family.match` and `Family.group`: what lies near it.
    format
        Name of the first of the family's formats that has its ending; empty: none has.
    parts
        Files that continue it, as the slices of a volume do; their family knows them.
    known
        What its format has read of it and of its parts before, so that it need not be read again.
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
        """What lies near a file that is claimed or grouped. Files that are read have none."""
        assert self.near is not None, f"nothing is known of what lies near {self.name}"
        return self.near

    @property
    def is_given(self) -> bool:
        """Whether the user named the file itself, not its folder."""
        alike = [root for root in self.roots if root.name == self.path.name]
        return any(root.parent.resolve() == self.path.parent for root in alike)

    @staticmethod
    def names_of(paths: Sequence[Path]) -> list[str]:
        """Return what messages and stores call files or folders, in the order given.

        Names are relative to the folder that all of them lie in, with ``/``, printable, and unique.
        """
        return relative_names(paths)

    @property
    def why_unread(self) -> str:
        """What a file is that nothing reads, by its name: ``"a picture, which is not read"``."""
        return why_left_out(self.path)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.path.stat().st_size

    def head(self, count: int = HEAD_BYTES) -> bytes:
        """Return its first `count` bytes, or all if it has fewer."""
        with self.path.open("rb") as file:
            return file.read(count)

    def bytes(self) -> Array:
        """Return the file as it stands, (n,) uint8, which is read where it is sliced."""
        return Array(bytes_of(self.path, self.name))

    def check_whole(self) -> None:
        """Refuse an empty file and a Git LFS pointer, as formats do that nothing in a file tells."""
        if self.size == 0:
            raise self.problem("is empty (0 bytes)", "copy or write it again", "empty")
        pointer = lfs_pointer_problem(self.head(64), self.name)
        if pointer is not None:
            raise InputError(pointer)

    def check_size(self, end: int) -> None:
        """Refuse a file that ends before a byte, where its header tells of more."""
        if self.size < end:
            raise self.problem(
                f"has {self.size} bytes, its header tells of {end}", "copy it again", "truncated"
            )

    def check_packed(self, size: int, packed: int, most: int) -> None:
        """Refuse a header that tells of more bytes than compressed ones can hold.

        Parameters
        ----------
        size, packed
            Bytes that the header tells of, and compressed bytes that there are at most.
        most
            Bytes that one compressed byte decodes to at most. Of deflate (RFC 1951) these are 1032.
        """
        if size > most * packed:
            raise self.problem(
                f"has {packed} compressed bytes, which hold {most * packed} at most, and its header tells of "
                f"{size}",
                "get or write it again",
                "damaged",
            )

    def library(self, module: str, extra: str) -> Any:
        """Import a library that reads the file, or say which extra of unistore installs it."""
        try:
            return import_module(module)
        except ImportError as error:
            raise self.problem(
                f"is read by {module}, which is not installed", f"pip install 'unistore[{extra}]'", "library"
            ) from error

    def beside(self, name: str) -> SourceFile:
        """Return another file, by its path relative to this file's folder.

        Raises
        ------
        InputError
            If it does not exist, or lies outside the paths that the user gave.
        """
        path = self.path.parent / name
        if not path.is_file():
            raise self.problem(f"needs {printable(name)}, which is not there", "copy it beside", "missing")
        if self.roots and not is_inside(path, self.roots):
            raise self.problem(
                f"needs {printable(name)}, outside the given paths", "give its folder too", "link"
            )
        return SourceFile(path, str(Path(self.name).parent / name), self.roots)

    def wrong_beginning(self, expected: str) -> InputError:
        """Return the error of a file whose ending only one format has, and whose first bytes it has not.

        Such a file is damaged, and of no other format: ``raise file.wrong_beginning("with LASF")``.

        Raises
        ------
        InputError
            If it is empty, or a Git LFS pointer.
        """
        self.check_whole()
        return self.problem(f"does not begin {expected}", "copy it again, or write it again")

    def problem(self, message: str, fix: Fixes = "", kind: str = "format") -> InputError:
        """Return an error about this file, to be raised: ``raise file.problem("is truncated")``."""
        return InputError(Problem(printable(self.name), message, fix, kind))


@dataclass(slots=True, eq=False)
class Array:
    """An array of an open file; values are read when it is sliced.

    Attributes
    ----------
    values
        Anything with ``shape``, ``dtype`` and slices of axis 0: a NumPy array, a memory map, an HDF5 dataset.
        If they have a method ``read_into(lo, hi, out)``, rows are read into the shard itself where they fit.
    unit
        Unit of the values, or None.
    description
        One sentence.
    source, field, position
        Of a column of a store: the array of the file that it was, the field of its records, and the place of
        that among the fields. Empty: as the schema says.
    components
        Names of the numbers in a row, if the file states them: ``("shoulder", "elbow")``.
    """

    values: Any
    unit: str | None = None
    description: str = ""
    source: str = ""
    field: str = ""
    position: int = 0
    components: tuple[str, ...] = ()

    @property
    def shape(self) -> Shape:
        """Length of every axis."""
        return tuple(self.values.shape)

    @property
    def dtype(self) -> Dtype:
        """Dtype of the values as they are in the file."""
        dtype: Dtype = np.dtype(self.values.dtype)
        return dtype

    @property
    def is_text(self) -> bool:
        """Whether rows are texts or byte strings, of one length or any."""
        return is_text(self.dtype)

    @property
    def value_form(self) -> SourceColumn | None:
        """Dtype and shape of the values in rows of any length, texts among them. None: rows are others."""
        return values_of(self.dtype)

    @property
    def chunk_rows(self) -> int:
        """Rows that are read together at least (0: all of them)."""
        together: int = getattr(self.values, "chunk_rows", 1)
        return together

    def problems(self, *, as_objects: bool = False) -> Sequence[Problem]:
        """Say what keeps the values from being read, without reading them.

        `as_objects`: texts and bytes of any length are wanted, too, see `item`.
        """
        return ()

    def item(self, row: int | None = None) -> Any:
        """Read one row, or all of it, whatever it is: a text, bytes of any length, a number."""
        if row is not None:
            return self[row : row + 1][0]
        if type(self).read is not Array.read:
            return self.read(0, len(self))
        whole = getattr(self.values, "whole", None)
        return (self.values if whole is None else whole())[()]

    def objects(self, lo: int, hi: int) -> Iterable[Any]:
        """Read rows ``lo:hi``, whatever they are, as `item` reads one."""
        return self[lo:hi]

    @property
    def fortran_order(self) -> bool:
        """Whether the last axis varies slowest in the file, so that `T` is read faster."""
        is_reversed: bool = getattr(self.values, "fortran_order", False)
        return is_reversed

    @property
    def T(self) -> Array:  # noqa: N802  as of an array
        """The same array with reversed axes."""
        return Array(self.values.T, self.unit, self.description)

    def __getitem__(self, rows: slice) -> AnyArray:
        lo, hi, step = rows.indices(len(self))
        return self.read(lo, max(lo, hi))[::step]

    def __len__(self) -> int:
        return self.shape[0]

    def blocks(self) -> Iterator[tuple[int, AnyArray]]:
        """Read all rows some at a time, each time with the number of the first."""
        row_bytes = prod(self.shape[1:]) * self.dtype.itemsize
        step = max(1, BLOCK_BYTES // max(1, row_bytes))
        for lo in range(0, len(self), step):
            yield lo, self[lo : min(len(self), lo + step)]

    def read(self, lo: int, hi: int, out: AnyArray | None = None) -> AnyArray:
        """Read rows ``lo:hi``, in `out` if the values can and its dtype is theirs, else in another array."""
        read_into = getattr(self.values, "read_into", None)
        rows: AnyArray
        rows = np.asarray(self.values[lo:hi]) if read_into is None else read_into(lo, hi, out)
        if rows.shape[:1] != (hi - lo,):
            kind = f"{type(self.values).__module__}.{type(self.values).__qualname__}"
            message = f"{kind} gave rows of shape {rows.shape} for rows {lo}:{hi} of {self.shape}"
            raise TypeError(message)
        return rows


# Arrays of a file by name
NamedArrays: TypeAlias = Mapping[str, Array]


class Records:
    """Rows of records whose fields are arrays of their own, in the order of their positions."""

    def __init__(self, arrays: NamedArrays) -> None:
        fields = dict(sorted(arrays.items(), key=lambda item: item[1].position))
        self._fields = fields
        self.dtype = np.dtype([(name, array.dtype, array.shape[1:]) for name, array in fields.items()])
        self.shape = (len(next(iter(fields.values()))),)

    def __getitem__(self, rows: slice) -> AnyArray:
        lo, hi, _ = rows.indices(self.shape[0])
        records = np.empty(max(0, hi - lo), self.dtype)
        for name, array in self._fields.items():
            records[name] = array[lo:hi]
        return records


class FieldOf(Array):
    """A field of the rows of an array of records, whose rows are read whole."""

    __slots__ = ()

    def __init__(self, records: Array, name: str) -> None:
        super().__init__(records, field=name)

    @property
    def shape(self) -> Shape:
        return (*self.values.shape, *self._form.shape)

    @property
    def dtype(self) -> Dtype:
        return self._form.base

    @property
    def _form(self) -> Dtype:
        form: Dtype = self.values.dtype[self.field]
        return form

    @property
    def chunk_rows(self) -> int:
        rows: int = self.values.chunk_rows
        return rows

    def read(self, lo: int, hi: int, out: AnyArray | None = None) -> AnyArray:
        rows: AnyArray = self.values[lo:hi][self.field]
        return rows


class Origin(NamedTuple):
    """Where values of an array lie.

    Attributes
    ----------
    file
        Absolute path of the file, links resolved.
    place
        Which array of the file they are, as its format tells arrays apart. Empty: bytes of the file.
    start, stop
        The rows there, or the bytes.
    size
        Bytes of the values.
    is_whole
        Whether they are every value of these rows.
    """

    file: str
    place: str
    start: int
    stop: int
    size: int
    is_whole: bool = True


@dataclass(frozen=True, eq=False)
class OpenFile:
    """An open file.

    Attributes
    ----------
    arrays
        Its arrays by name.
    facts
        What else it says.
    further
        Other files that are read for it.
    forward_only
        Whether rows can only be read from the first to the last: each is then read once and kept in scratch
        space until it is written.
    memory
        Bytes of memory that reading takes beside the rows themselves.
    problems
        What is wrong with arrays that cannot be read and are not among `arrays`; no problem of a family that
        does not want them.
    left_out
        What else the file holds and nobody wants, by name, with the reason.
    notes
        Remarks on arrays, by name; those of arrays that a family takes are printed, each once.
    file
        The file itself; unistore fills it in.
    of_groups
        What each group says beside its arrays, by its path, where groups say something.
    shows
        Of arrays whose values lie in other files, where: linked ones, virtual ones, voxels without a header.
        Sources that show the same values are taken once.
    """

    arrays: NamedArrays
    facts: Facts = field(default_factory=dict)
    further: Sequence[SourceFile] = ()
    forward_only: bool = False
    memory: int = 0
    problems: Sequence[Problem] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    file: SourceFile | None = None
    of_groups: Mapping[str, Facts] = field(default_factory=dict)
    shows: Mapping[str, Sequence[Origin]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What messages call the file."""
        assert self.file is not None
        return self.file.name

    def further_paths(self, own: Sequence[SourceFile]) -> tuple[str, ...]:
        """Return the paths of `further`, each once, without those of a source's own files."""
        paths = {file.path for file in own}
        return tuple(dict.fromkeys([str(file.path) for file in self.further if file.path not in paths]))

    def bytes(self) -> Array:
        """Return the file as it stands, for families that keep it: (n,) uint8, read where it is sliced."""
        assert self.file is not None
        return self.file.bytes()

    def origins(self, name: str) -> Sequence[Origin]:
        """Return where the values of an array lie: in this file, if `shows` does not say otherwise."""
        assert self.file is not None
        if name in self.shows:
            return self.shows[name]
        array = self.all_arrays[name]
        rows = array.shape[0] if array.shape else 1
        size = prod(array.shape) * array.dtype.itemsize
        return (Origin(os.path.realpath(self.file.path), name, 0, rows, size),)

    @property
    def unlisted(self) -> Sequence[Origin]:
        """Where the groups lie of which `without` says that they hold nothing."""
        return ()

    # A file of groups (HDF5) says more; of others, names with slashes are taken for groups.

    @property
    def all_arrays(self) -> NamedArrays:
        """`arrays`, and texts, single values and what cannot be read, see `Array.problems`."""
        return self.arrays

    @property
    def of_any_length(self) -> NamedArrays:
        """Those of `objects` that are arrays for families which take all that a file has."""
        return self.objects

    @property
    def objects(self) -> NamedArrays:
        """Those of `all_arrays` whose rows are texts, or objects of any length, and can be read."""
        return {
            name: array
            for name, array in self.all_arrays.items()
            if len(array.shape) == 1 and array.dtype.kind in "OSU" and not array.problems(as_objects=True)
        }

    @property
    def groups(self) -> Sequence[str]:
        """Paths of all groups, in natural order."""
        return sorted(set(chain.from_iterable(map(folders_of, self.arrays))), key=natural_key)

    @property
    def unreachable(self) -> Sequence[Problem]:
        """Those of `problems` that say why something cannot be opened, as a link out of the folder."""
        return ()

    def members(self, group: str = "") -> Mapping[str, Member]:
        """Return what a group holds, in natural order of the names, without what links lead to.

        No more of the file is read for it. A group that is not there holds nothing.
        """
        start = f"{group}/" if group else ""
        inside = [name.removeprefix(start) for name in self.arrays if name.startswith(start)]
        members: dict[str, Member] = {}
        for name in sorted(inside, key=natural_key):
            head, below, _ = name.partition("/")
            members[head] = "group" if below else "array"
        return members

    def without(self, groups: Collection[str]) -> OpenFile:
        """Return the same open file as if these groups, which may be many, held nothing."""
        return self

    def group_facts(self, group: str = "") -> Facts:
        """Return what a group says beside its arrays, as JSON values."""
        return self.of_groups.get(group, {})

    def attributes(
        self, is_wanted: Callable[[str], bool], is_told: Callable[[str, str, bool], bool] | None = None
    ) -> Attributes | None:
        """Read the attributes of a file of groups to the last bit: its own, those of its groups and arrays.

        Parameters
        ----------
        is_wanted
            Of the name of an array: whether its attributes are wanted. Single values are always.
        is_told
            ``(path, name, is_plain)``: whether the family says an attribute in its own words. `is_plain`:
            its value alone, as JSON has it, makes it again.
        """
        return None


class Format(ABC):
    """A kind of file, for every family that can use its arrays. An instance has no state.

    Attributes
    ----------
    name
        As stores record it: ``"wav"``.
    suffixes
        Lower-case endings of its files, with the dot.
    library
        The native library that reads the files: ``"LibRaw"``. It is then called in worker processes alone,
        and a file that crashes or hangs it is refused by name. Empty where Python and NumPy read.
    offered
        Whether families that take `Family.any_format` are asked about its files. False: those alone that name
        it, as its arrays do not tell what the file means (bytes without a header, a picture). These are as
        sure of a file as they say.
    twins
        Endings of files that hold the same if nothing else of their names differs: two compressions, or two
        containers, as ``(".nii", ".nii.gz")``. The one that is to be read comes first. Two such sources in
        one folder are refused.
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
        """Say whether a file with one of the suffixes is of this format, from its first bytes.

        By default it is: what is wrong with others is said when they are opened.
        """
        return _BY_SUFFIX

    @abstractmethod
    def open(self, file: SourceFile) -> AbstractContextManager[OpenFile]:
        """Open a file: read its header now, and values when arrays are sliced.

        Raises
        ------
        InputError
            If the file is truncated, damaged, or of a form that is not read.
        """

    def write(self, path: Path, arrays: NamedArrays, facts: Facts) -> None:
        """Write a file that opens as these arrays and facts. A format without it is not exported."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class FileSummary:
    """What an open file, or a group of files, holds, without values.

    Attributes
    ----------
    file
        The file; the first of a group, with the name of the group.
    format
        Name of its format.
    opened
        The open file, for families that look at what is no array; its values are not to be read.
    """

    file: SourceFile
    format: str
    opened: OpenFile

    @cached_property
    def arrays(self) -> Mapping[str, tuple[Shape, Dtype]]:
        """Shape and dtype of each array."""
        return {name: (array.shape, array.dtype) for name, array in self.opened.arrays.items()}

    @property
    def facts(self) -> Facts:
        """See `OpenFile`."""
        return self.opened.facts

    @property
    def problems(self) -> Sequence[Problem]:
        """See `OpenFile`."""
        return self.opened.problems

    @property
    def left_out(self) -> Mapping[str, str]:
        """See `OpenFile`."""
        return self.opened.left_out

    def members(self, group: str = "") -> Mapping[str, Member]:
        """See `OpenFile.members`. Asked by families that look at millions of files."""
        return self.opened.members(group)
