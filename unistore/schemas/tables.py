"""Define fields (arrays of a store), tables (arrays that share axis 0), and columns of text."""

# A sample is a few row ranges plus, for images and volumes, a box.

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from unistore.system.types import AnyArray, Dtype, Int64s, Shape, UInt8s

if TYPE_CHECKING:
    from unistore.schemas.array_specs import ArraySpec

# Bytes of rows that are taken out of stored ones at a time
_OWN_BYTES = 1 << 20


class OwnForm(NamedTuple):
    """Dtype and shape of a column's rows as one source has them, and how they are made of stored rows."""

    dtype: str  # little-endian: "<f4", "|u1"
    row_shape: Shape = ()
    # where stored rows are more than padded and promoted
    restore: Callable[[AnyArray], AnyArray] | None = None
    path: str = ""  # of the column, where other sources decide which array has it; else that of the array

    def __str__(self) -> str:
        return f"{self.dtype} {'x'.join(map(str, self.row_shape)) or '-'}"

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return prod(self.row_shape) * np.dtype(self.dtype).itemsize

    def bytes_of(self, stored: AnyArray, plane: int = 0) -> Iterator[memoryview]:
        """Yield the bytes of rows, of which `stored` has all planes, or those from one on."""
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
    """Return the dtype of the same values in little-endian order."""
    return np.dtype(dtype).newbyteorder("<").str


def is_among(number: int, numbers: Sequence[int]) -> bool:
    """Return whether a number is one of ascending ones."""
    place = bisect_left(numbers, number)
    return place < len(numbers) and numbers[place] == number


def stated_of(stated: Any, source: int) -> Any:
    """Return what an attribute states of a source: one value of all, or the numbers of sources by value."""
    if isinstance(stated, Mapping):
        return next((value for value, sources in stated.items() if is_among(source, sources)), None)
    return stated


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One array of a store."""

    # Path in the store: "points/xyz". All but the last part is the table's name.
    path: str
    dtype: str  # numpy dtype name in native form: "int32", "float64", "bool"
    # Shape after axis 0: `()` for a column, `(3,)` for coordinates, `(D, H, W)` for volumes.
    row_shape: Shape = ()
    # One name per axis, axis 0 included: `("point", "coordinate")`. Arrays of a group and of the groups above
    # it use the same name for the same axis; `own_axes` names axes that only one array has.
    axes: tuple[str, ...]
    unit: str | None = None  # unit of the values ("m", "HU", "s"), or None
    description: str = ""
    fill: int | float | bool = 0  # value of padding and of unwritten chunks
    # Chunk shape inside a row where samples read boxes (`(32, 32, 32)`); None: whole rows.
    tile: tuple[int, ...] | None = None
    # Consecutive rows that one sample typically reads (1, or the median segment length); of rows with a
    # `tile`, the rows of a chunk.
    run: int = 1
    # What the codec "auto" takes, as "lz4 bitshuffle 2". Empty: it is chosen by trial.
    codec: str = ""
    # Whether count, mean, std, min and max are accumulated while converting (float64, ddof 0).
    statistics: bool = False
    attributes: Mapping[str, object] = field(default_factory=dict)
    # What dtype, axes and values must be, beside what the family declares of the path; None: nothing
    rule: ArraySpec | None = None

    @property
    def name(self) -> str:
        """Last part of the path: the column's name in its table."""
        return self.path.rsplit("/", 1)[-1]

    @property
    def described(self) -> dict[str, object]:
        """`attributes`, and ``units`` and ``long_name`` of the CF conventions."""
        names = {"units": self.unit, "long_name": self.description or None}
        return {name: value for name, value in names.items() if value is not None} | dict(self.attributes)

    @property
    def row_bytes(self) -> int:
        """Uncompressed bytes of one row."""
        return prod(self.row_shape) * np.dtype(self.dtype).itemsize

    def own_form(self, source: int) -> OwnForm | None:
        """Return the form that rows have in a source, as the attributes say. None: it lacks the column."""
        about: Mapping[str, Any] = self.attributes
        if is_among(source, about.get("missing_in", ())):
            return None
        dtype = stated_of(about.get("source_dtype"), source)
        if not isinstance(dtype, str) or np.dtype(dtype).kind not in "biuf":  # texts are stored as bytes
            dtype = self.dtype
        row_shape = self.row_shape
        sizes = about.get("source_row_shape")
        if isinstance(sizes, Mapping):
            stated = stated_of(sizes, source) or ""
            row_shape = tuple(map(int, filter(None, stated.split("x"))))
        return OwnForm(little_endian(dtype), row_shape)


def own_axes(column: str, axis: str, count: int) -> tuple[str, ...]:
    """Names of axes that only one column has: ``("rgb_component",)``. Numbered from 1 if several."""
    name = f"{column.rpartition('/')[2]}_{axis}"
    if count == 1:
        return (name,)
    return tuple(f"{name}_{number}" for number in range(1, count + 1))


def bounds_field(path: str, axis: str, description: str) -> Field:
    """Offsets (n + 1,) i8 that divide rows into n ranges, one per `axis`: ``"segment"``, ``"volume"``."""
    return Field(path=path, dtype="int64", axes=(f"{axis}_bound",), description=description)


def offsets_of(lengths: Sequence[int] | Int64s) -> Int64s:
    """Offsets (n + 1,) i8 of n ranges that follow each other, from their lengths (n,)."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Arrays that share axis 0 and are cut into shards at the same rows."""

    name: str  # path of the group: "points", "voxels/0.5"
    # The columns; `field.path` is `f"{name}/{field.name}"`. Column names may themselves hold slashes:
    # `steps/observation/joint` is column `observation/joint` of `steps`.
    fields: tuple[Field, ...]
    # False: row counts are known from the scan and rows are read straight into shards. True: rows depend on
    # the data; they are derived once per source, spilled, and packed afterwards.
    spilled: bool = False

    def column(self, field: Field) -> str:
        """Name of a field's column in this table: its path without the table's name."""
        return field.path.removeprefix(f"{self.name}/")

    def columns(self) -> dict[str, Field]:
        """Return fields by column name."""
        return {self.column(field): field for field in self.fields}


class IndexValues(Protocol):
    """Values of an index array, rows on axis 0: an array, or what makes the rows of a slice when asked."""

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
    """UTF-8 bytes of strings, one after the other, (bytes,) uint8, encoded when slices are asked for."""

    strings: Sequence[str]  # the strings, the same whenever they are asked for
    offsets: Int64s  # where each begins, and the last ends, (n + 1,) int64

    @classmethod
    def of(cls, strings: Sequence[str]) -> TextBytes:
        """The bytes of strings."""
        lengths = np.fromiter((len(_encoded(string)) for string in strings), np.int64, len(strings))
        return cls(strings, offsets_of(lengths))

    def __len__(self) -> int:
        return int(self.offsets[-1])

    @property
    def dtype(self) -> Dtype:
        """uint8."""
        return np.dtype(np.uint8)

    @property
    def shape(self) -> Shape:
        """(bytes,)."""
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
            msg = f"strings {first}:{last} have {len(data)} bytes, expected {end - start}"
            raise ValueError(msg)
        return np.frombuffer(data, np.uint8)[lo - start : hi - start : step]


def _encoded(string: str) -> bytes:
    return string.encode("utf-8", "backslashreplace")


def text_arrays(
    path: str, strings: Iterable[str], *, axis: str = "row", description: str = ""
) -> list[tuple[Field, AnyArray]]:
    """Return strings as ``path/data`` and ``path/offsets``, as Zarr v3 has no standard string dtype."""
    # `data` u1, `offsets` i8 (n + 1): string i is data[offsets[i]:offsets[i + 1]]. Undecodable bytes of file
    # names (surrogates) are written as backslash escapes.
    arrays = lazy_text_arrays(path, list(strings), axis=axis, description=description)
    return [(field, values[:]) for field, values in arrays]


# Ends the description of the bytes of a text column
TEXT_NOTE = ": UTF-8 text of all rows"


def lazy_text_arrays(
    path: str, strings: Sequence[str], *, axis: str = "row", description: str = ""
) -> list[tuple[Field, IndexValues]]:
    """As `text_arrays`, of strings that are made when asked for: their bytes are never together in memory."""
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
    """Return the strings of UTF-8 bytes between offsets (n + 1,)."""
    raw = data.tobytes()
    return [raw[lo:hi].decode() for lo, hi in pairwise(offsets.tolist())]


# Text column with one row per source: names of its files as JSON, in families that have several a source
SOURCE_FILES = "sources/files"

# Text column with one row per source: attributes of its HDF5 file, as JSON
HDF5_ATTRIBUTES = "sources/hdf5_attributes"


def name_problem(path: str) -> str | None:
    """Return why a path cannot name an array of a Zarr v3 store, or None."""
    # Zarr v3 core, "Node names": no empty name, none made of dots alone, none that begins with `__`. Beyond
    # that, `zarr.json` is a node's own file, and not every file system has names with control characters or
    # backslashes, or of more than 255 bytes.
    for part in path.split("/"):
        if part.strip(".") == "":
            return f"part {part!r} is empty or made of dots"
        if part.startswith("__"):
            return f"part {part!r} begins with '__', which Zarr reserves"
        if part == "zarr.json":
            return "part 'zarr.json' is the name of a file of every Zarr node"
        if not part.isprintable() or "\\" in part:
            return f"part {part!r} holds a control character or a backslash"
        if len(part.encode("utf-8", "surrogateescape")) > 255:
            return f"part {part[:20]!r}… is longer than 255 bytes"
    return None


# Pixels of 0 and 1 that are packed along the last axis, least significant bit first.


def unpack(packed: UInt8s, width: int, left: int = 0) -> UInt8s:
    """Unpack bits (…, bytes) into pixels of 0 and 1, (…, width), without the first `left` of every row."""
    # For a crop that begins inside a byte, at pixel x: the bytes from x // 8 on, and left = x % 8.
    check_width(packed, width, left)
    if packed.shape[-1] * 8 == width:
        flat = np.unpackbits(np.ascontiguousarray(packed).reshape(-1), bitorder="little")
        return flat.reshape(*packed.shape[:-1], width)
    return np.unpackbits(packed, axis=-1, bitorder="little")[..., left : left + width]


def check_width(packed: UInt8s, width: int, left: int) -> None:
    """Raise a ValueError if rows of bytes hold fewer pixels than `width` from bit `left` on."""
    if left < 0 or width < 0 or left + width > packed.shape[-1] * 8:
        msg = f"{packed.shape[-1]} bytes a row hold no {width} pixels from bit {left} on"
        raise ValueError(msg)
