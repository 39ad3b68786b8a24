"""Fields (arrays of a store), tables (arrays that share axis 0), columns of text, and forms in sources."""

# A sample is a few row ranges plus, for images and volumes, a box.

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from unistore.system.types import AnyArray, Dtype, Int64s, Shape, UInt8s

if TYPE_CHECKING:
    from unistore.schemas.array_specs import ArraySpec

# Attributes of an array that state how sources had its column, by numbers of sources
MISSING = "missing_in"
DTYPES = "source_dtype"
ROW_SHAPES = "source_row_shape"
# Those that only arrays have which some sources lack, or have with smaller rows
OF_SOME = frozenset({MISSING, ROW_SHAPES})

# A value for all sources, the numbers of the sources by value, or values without numbers
Stated: TypeAlias = str | Mapping[str, Sequence[int]] | Sequence[str] | None


@dataclass(frozen=True, slots=True)
class SourceForms:
    """The forms in which sources had a column. None: not stated.

    Attributes
    ----------
    missing : sequence of int or None
        Numbers of the sources without the column, ascending.
    dtypes : str, mapping, sequence of str, or None
        The dtype in all sources, the numbers of the sources by dtype, or only the dtypes.
    row_shapes : mapping, sequence of str, or None
        Of padded rows, the numbers of the sources by row shape (``"4x3"``), or only the shapes.
    """

    missing: Sequence[int] | None
    dtypes: Stated
    row_shapes: Stated

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> SourceForms:
        """Return what the attributes of an array state."""
        return cls(attributes.get(MISSING), attributes.get(DTYPES), attributes.get(ROW_SHAPES))

    def has(self, source: int) -> bool:
        """Return whether a source has the column."""
        return self.missing is None or not is_among(source, self.missing)

    def dtype(self, source: int, otherwise: Dtype) -> Dtype:
        """Return the dtype in a source, or `otherwise` if it is not stated."""
        dtype = stated_of(self.dtypes, source)
        return np.dtype(dtype) if isinstance(dtype, str) else otherwise

    def row_shape(self, source: int, otherwise: Shape) -> Shape:
        """Return the shape of a row in a source, or `otherwise` if it is not stated."""
        if not isinstance(self.row_shapes, Mapping):
            return otherwise
        sizes = stated_of(self.row_shapes, source)
        return otherwise if sizes is None else parse_row_shape(sizes)

    def sources_by_row_shape(self) -> Iterator[tuple[Shape, Sequence[int]]]:
        """Iterate over the row shapes of a padded column, with the numbers of the sources."""
        if isinstance(self.row_shapes, Mapping):
            for sizes, sources in self.row_shapes.items():
                yield parse_row_shape(sizes), sources


def parse_row_shape(sizes: str) -> Shape:
    """Return the row shape of a text: (4, 3) for ``"4x3"``, () for an empty one."""
    return tuple(map(int, filter(None, sizes.split("x"))))


def is_among(number: int, numbers: Sequence[int]) -> bool:
    """Return whether a number is in an ascending sequence."""
    place = bisect_left(numbers, number)
    return place < len(numbers) and numbers[place] == number


def stated_of(stated: Any, source: int) -> Any:
    """Return what an attribute states about a source: a value for all, or the numbers of sources by value."""
    if isinstance(stated, Mapping):
        return next((value for value, sources in stated.items() if is_among(source, sources)), None)
    return stated


# Bytes of rows that are taken out of stored ones at a time
_OWN_BYTES = 1 << 20


class OwnForm(NamedTuple):
    """The form in which one source has the rows of a column.

    Attributes
    ----------
    dtype : str
        Little-endian dtype: ``"<f4"``, ``"|u1"``.
    row_shape : tuple of int, default ()
        Shape of a row.
    restore : callable, optional
        Converts stored rows to rows of the source, if they are more than padded and promoted. None: they
        are not.
    path : str, default ""
        Path of the column, if other sources determine which array has it. Empty: the path of the array.
    """

    dtype: str
    row_shape: Shape = ()
    restore: Callable[[AnyArray], AnyArray] | None = None
    path: str = ""

    def __str__(self) -> str:
        return f"{self.dtype} {'x'.join(map(str, self.row_shape)) or '-'}"

    @property
    def row_bytes(self) -> int:
        """Size of a row in bytes."""
        return prod(self.row_shape) * np.dtype(self.dtype).itemsize

    def bytes_of(self, stored: AnyArray, plane: int = 0) -> Iterator[memoryview]:
        """Iterate over the bytes of rows, in the form of the source.

        Parameters
        ----------
        stored : array of shape (rows, …)
            Rows of the store. Their first axis, if they have one, may begin at `plane` instead of 0: a large
            volume is read a few planes at a time.
        plane : int, default 0
            Index on the first axis of a row at which `stored` begins.
        """
        dtype = np.dtype(self.dtype)
        is_stored = stored.dtype == dtype and stored.shape[1:] == self.row_shape and self.restore is None
        step = len(stored) if is_stored else max(1, _OWN_BYTES // max(1, self.row_bytes))
        for lo in range(0, len(stored), max(1, step)):
            rows = stored[lo : lo + step]
            if not is_stored:
                rows = self._taken_out(rows, plane)
            yield np.ascontiguousarray(rows, dtype).reshape(-1).view(np.uint8).data

    def _taken_out(self, rows: AnyArray, plane: int) -> AnyArray:
        if self.restore is not None:
            rows = self.restore(rows)
        if self.row_shape:
            depth, *others = self.row_shape
            rows = rows[(slice(None), slice(max(0, depth - plane)), *map(slice, others))]
        if rows.dtype.kind == "f" and np.dtype(self.dtype).kind != "f":  # NaN stands for what is missing
            rows = np.where(np.isnan(rows), 0, rows)
        return rows.astype(self.dtype)


@cache
def little_endian(dtype: str) -> str:
    """Return the little-endian dtype of the same values: ``"<f4"`` for ``"float32"``."""
    return np.dtype(dtype).newbyteorder("<").str


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One array of a store.

    Attributes
    ----------
    path : str
        Path in the store: ``"points/xyz"``. Everything before the last part is the name of its table.
    dtype : str
        NumPy's native dtype name: ``"int32"``, ``"float64"``, ``"bool"``.
    row_shape : tuple of int, default ()
        Shape after axis 0: ``(3,)`` for coordinates, ``(D, H, W)`` for volumes.
    axes : tuple of str
        Name of each axis, with axis 0: ``("point", "coordinate")``. Arrays of a group, and of the groups
        above it, use the same name for the same axis; `own_axes` returns names for axes that only one
        array has.
    unit : str, optional
        Unit of the values (``"m"``, ``"HU"``, ``"s"``). None: unknown, or none.
    description : str, default ""
        One sentence.
    fill : number, default 0
        Value of padding and of chunks that are not written.
    tile : tuple of int, optional
        Shape of a chunk inside a row, if samples read patches: ``(32, 32, 32)``. None: whole rows.
    run : int, default 1
        Number of consecutive rows that one sample typically reads, such as the median length of segments.
        With `tile`, the rows of a chunk.
    codec : str, default ""
        Codec for ``--codec auto``, such as ``"lz4 bitshuffle 2"``. Empty: it is chosen by a trial.
    statistics : bool, default False
        Whether to compute count, mean, standard deviation (ddof 0), minimum and maximum while converting,
        in float64.
    attributes : mapping
        Further attributes of the array.
    """

    path: str
    dtype: str
    row_shape: Shape = ()
    axes: tuple[str, ...]
    unit: str | None = None
    description: str = ""
    fill: int | float | bool = 0
    tile: tuple[int, ...] | None = None
    run: int = 1
    codec: str = ""
    statistics: bool = False
    attributes: Mapping[str, object] = field(default_factory=dict)
    # What dtype, axes and values must be, beside what the family declares of the path; None: nothing
    rule: ArraySpec | None = None

    @property
    def name(self) -> str:
        """Last part of the path: name of the column in its table."""
        return self.path.rsplit("/", 1)[-1]

    @property
    def described(self) -> dict[str, object]:
        """`attributes`, with ``units`` and ``long_name`` of the CF conventions."""
        names = {"units": self.unit, "long_name": self.description or None}
        return {name: value for name, value in names.items() if value is not None} | dict(self.attributes)

    @property
    def row_bytes(self) -> int:
        """Uncompressed size of one row in bytes."""
        return prod(self.row_shape) * np.dtype(self.dtype).itemsize

    def own_form(self, source: int) -> OwnForm | None:
        """Return the form in which a source has the rows, as the attributes state.

        None: the source does not have the column.
        """
        forms = SourceForms.of(self.attributes)
        if not forms.has(source):
            return None
        dtype = forms.dtype(source, np.dtype(self.dtype))
        name = dtype.str if dtype.kind in "biuf" else self.dtype  # texts are stored as bytes
        return OwnForm(little_endian(name), forms.row_shape(source, self.row_shape))


def own_axes(column: str, axis: str, count: int) -> tuple[str, ...]:
    """Return names for axes that only one column has: ``("rgb_component",)``.

    Several axes are numbered from 1.
    """
    name = f"{column.rpartition('/')[2]}_{axis}"
    if count == 1:
        return (name,)
    return tuple(f"{name}_{number}" for number in range(1, count + 1))


def bounds_field(path: str, axis: str, description: str) -> Field:
    """Return the field of offsets (n + 1,) int64 that divide rows into n ranges.

    Parameters
    ----------
    path : str
        Path of the array.
    axis : str
        What a range is: ``"segment"``, ``"volume"``.
    description : str
        One sentence.
    """
    return Field(path=path, dtype="int64", axes=(f"{axis}_bound",), description=description)


def offsets_of(lengths: Sequence[int] | Int64s) -> Int64s:
    """Return the offsets (n + 1,) int64 of consecutive ranges with the given lengths (n,)."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Arrays that share axis 0 and are divided into shards at the same rows.

    Attributes
    ----------
    name : str
        Path of the group: ``"points"``, ``"voxels/0.5"``.
    fields : tuple of Field
        The columns. The path of a column is ``f"{table.name}/{column}"``. Names of columns may contain
        slashes: ``steps/observation/joint`` is the column ``observation/joint`` of ``steps``.
    spilled : bool, default False
        False: the scan knows the number of rows, and rows are read directly into shards. True: it depends
        on the values; rows are computed once per source, kept on disk, and packed afterwards.
    """

    name: str
    fields: tuple[Field, ...]
    spilled: bool = False

    def column(self, field: Field) -> str:
        """Return the name of a field in this table: its path without the name of the table."""
        return field.path.removeprefix(f"{self.name}/")

    def columns(self) -> dict[str, Field]:
        """Return the fields by name of the column."""
        return {self.column(field): field for field in self.fields}


class IndexValues(Protocol):
    """Values of an index array, rows on axis 0: an array, or an object that computes slices of rows."""

    @property
    def dtype(self) -> Dtype:
        """Dtype of the values."""
        ...

    @property
    def shape(self) -> Shape:
        """Shape of the whole array."""
        ...

    def __len__(self) -> int: ...
    def __getitem__(self, rows: slice, /) -> AnyArray: ...


@dataclass(frozen=True, slots=True, eq=False)
class TextBytes:
    """UTF-8 bytes of texts, one after another, (bytes,) uint8. They are encoded when you slice them.

    Attributes
    ----------
    strings : sequence of str
        The texts.
    offsets : int64 array of shape (n + 1,)
        First byte of each text, and the number of bytes.
    """

    strings: Sequence[str]
    offsets: Int64s

    @classmethod
    def of(cls, strings: Sequence[str]) -> TextBytes:
        """Return the bytes of texts."""
        lengths = np.fromiter((len(_encoded(string)) for string in strings), np.int64, len(strings))
        return cls(strings, offsets_of(lengths))

    def __len__(self) -> int:
        return int(self.offsets[-1])

    @property
    def dtype(self) -> Dtype:
        """Dtype uint8."""
        return np.dtype(np.uint8)

    @property
    def shape(self) -> Shape:
        """Shape (bytes,)."""
        return (len(self),)

    def __getitem__(self, rows: slice) -> UInt8s:
        lo, hi, step = rows.indices(len(self))
        if lo >= hi:
            return np.empty(0, np.uint8)
        first = int(np.searchsorted(self.offsets, lo, "right")) - 1
        last = int(np.searchsorted(self.offsets, hi, "left"))
        data = bytearray()
        for number in range(first, last):
            data += _encoded(self.strings[number])
        start, end = self.offsets[[first, last]].tolist()
        if len(data) != end - start:
            msg = f"the texts {first:,} to {last - 1:,} have {len(data):,} bytes, expected {end - start:,}"
            raise ValueError(msg)
        return np.frombuffer(data, np.uint8)[lo - start : hi - start : step]


def _encoded(string: str) -> bytes:
    return string.encode("utf-8", "backslashreplace")


def text_arrays(
    path: str, strings: Iterable[str], *, axis: str = "row", description: str = ""
) -> list[tuple[Field, AnyArray]]:
    """Return the arrays of a column of texts: UTF-8 bytes, and offsets.

    Zarr v3 does not have a standard dtype for strings. Bytes of file names that are not UTF-8 are written
    as backslash escapes.

    Parameters
    ----------
    path : str
        Path of the column.
    strings : iterable of str
        The texts.
    axis : str, default "row"
        What a text belongs to, as the name of an axis.
    description : str, default ""
        One sentence. Empty: the name of the column.

    Returns
    -------
    list of (Field, array)
        ``path/data`` (bytes,) uint8, and ``path/offsets`` (n + 1,) int64: text i is
        ``data[offsets[i]:offsets[i + 1]]``.
    """
    arrays = lazy_text_arrays(path, list(strings), axis=axis, description=description)
    return [(field, values[:]) for field, values in arrays]


# Ends the description of the bytes of a text column
TEXT_NOTE = ": UTF-8 text of all rows"


def lazy_text_arrays(
    path: str, strings: Sequence[str], *, axis: str = "row", description: str = ""
) -> list[tuple[Field, IndexValues]]:
    """As `text_arrays`, for texts that are computed when needed. Their bytes are never in memory together."""
    column = path.rpartition("/")[2]
    of_data = Field(
        path=f"{path}/data",
        dtype="uint8",
        axes=own_axes(column, "byte", 1),
        description=f"{description or column}{TEXT_NOTE}",
    )
    bounds = f"string i is data[offsets[i]:offsets[i + 1]], one a {axis}"
    data = TextBytes.of(strings)
    return [(of_data, data), (bounds_field(f"{path}/offsets", axis, bounds), data.offsets)]


def text_values(data: UInt8s, offsets: Int64s) -> list[str]:
    """Return the texts of UTF-8 bytes, given offsets (n + 1,)."""
    raw = data.tobytes()
    return [raw[lo:hi].decode() for lo, hi in pairwise(offsets.tolist())]


# Text column with one row per source: names of its files as JSON, in families that have several a source
SOURCE_FILES = "sources/files"

# Text column with one row per source: attributes of its HDF5 file, as JSON
HDF5_ATTRIBUTES = "sources/hdf5_attributes"


def name_problem(path: str) -> str | None:
    """Return why a path cannot name an array of a Zarr v3 store, or None if it can."""
    # Zarr v3 core, "Node names": no empty name, none made of dots alone, none that begins with `__`. Beyond
    # that, `zarr.json` is a node's own file, and not every file system has names with control characters or
    # backslashes, or of more than 255 bytes.
    for part in path.split("/"):
        if part.strip(".") == "":
            return f"the part {part!r} is empty or has only dots"
        if part.startswith("__"):
            return f"the part {part!r} begins with '__', which Zarr reserves"
        if part == "zarr.json":
            return "the part 'zarr.json' is the name of Zarr's own files"
        if not part.isprintable() or "\\" in part:
            return f"the part {part!r} contains a control character or a backslash"
        if len(part.encode("utf-8", "surrogateescape")) > 255:
            return f"the part {part[:20]!r}… is longer than 255 bytes"
    return None


# Pixels of 0 and 1 that are packed along the last axis, least significant bit first.


def unpack(packed: UInt8s, width: int, left: int = 0) -> UInt8s:
    """Unpack bits into pixels of 0 and 1.

    Parameters
    ----------
    packed : uint8 array of shape (…, bytes)
        Bits along the last axis, lowest bit first.
    width : int
        Number of pixels of a row.
    left : int, default 0
        Number of bits to skip at the beginning of each row. For a crop that begins at pixel x, give the
        bytes from ``x // 8`` on and ``left = x % 8``.

    Returns
    -------
    uint8 array of shape (…, width)
        0 or 1.

    Raises
    ------
    ValueError
        If rows have fewer pixels.
    """
    check_width(packed, width, left)
    if packed.shape[-1] * 8 == width:
        flat = np.unpackbits(np.ascontiguousarray(packed).reshape(-1), bitorder="little")
        return flat.reshape(*packed.shape[:-1], width)
    return np.unpackbits(packed, axis=-1, bitorder="little")[..., left : left + width]


def check_width(packed: UInt8s, width: int, left: int) -> None:
    """Raise ValueError if rows of bytes have fewer than `width` pixels from bit `left` on."""
    if left < 0 or width < 0 or left + width > packed.shape[-1] * 8:
        msg = (
            f"cannot read {width:,} pixels from bit {left:,} on: a row has only {packed.shape[-1] * 8:,} bits"
        )
        raise ValueError(msg)
