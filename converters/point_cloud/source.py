"""What is known of a file of points without its values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import SourceColumn
from unistore.converters.files.hdf5.attributes import NO_ATTRIBUTES, Attributes
from unistore.converters.plugin import Facts
from unistore.converters.scan import Scanned

AXES = ("x", "y", "z")
LABEL = "label"  # column of segments with the class of each, if classes are folders

Ints = NDArray[np.int64]


class Match(IntEnum):
    """How sure a layout is that a file has it."""

    NO = 0
    POSSIBLE = 1  # it fits if the file is a point cloud at all
    EITHER = 2  # names and shapes fit, but also fit plain rows
    DAMAGED = 3  # the file cannot be read, which its scan tells
    CERTAIN = 4


class ColumnPlace(NamedTuple):
    """Where a column is in a file: its array, and the form of its rows."""

    array: str
    dtype: str  # byte order included
    row_shape: tuple[int, ...] = ()

    @property
    def form(self) -> SourceColumn:
        """Dtype and row shape."""
        return SourceColumn(self.dtype, self.row_shape)


class FileLayout(NamedTuple):
    """All that is needed to read a file."""

    name: str  # as stores record it
    xyz: tuple[str, ...]  # arrays of x, y, z, or one array of coordinates (N, 3)
    xyz_stored: tuple[str, ...]  # their dtypes, byte order included
    columns: Mapping[str, ColumnPlace]  # of the points, by stored name
    segment_columns: Mapping[str, ColumnPlace] = {}  # of whole segments
    quantum: tuple[tuple[float, ...], tuple[float, ...]] | None = None  # scale and offset of x, y, z
    unit: str | None = None  # of the coordinates; None: the layout does not define it
    header: Facts = {}  # noqa: RUF012  nobody changes it

    @property
    def xyz_dtype(self) -> str:
        """``"float32"`` if all axes are floats of at most 32 bits, else ``"float64"``."""
        dtypes = [np.dtype(dtype) for dtype in self.xyz_stored]
        return "float32" if all(dtype.kind == "f" and dtype.itemsize <= 4 for dtype in dtypes) else "float64"

    @property
    def coordinates(self) -> dict[str, str]:
        """Array of each coordinate: of x, y and z, or of xyz with rows (3,)."""
        names = AXES if len(self.xyz) == 3 else ("xyz",)
        return dict(zip(names, self.xyz, strict=True))

    @property
    def arrays(self) -> dict[str, str]:
        """Array of each column of the points, coordinates included."""
        return self.coordinates | {key: place.array for key, place in self.columns.items()}

    @property
    def paths(self) -> list[str]:
        """Every array that is read, once."""
        return list(dict.fromkeys([*self.xyz, *[place.array for place in self.places.values()]]))

    @property
    def places(self) -> dict[str, ColumnPlace]:
        """Place of every column, of points and of segments."""
        return {**self.columns, **self.segment_columns}


@dataclass(frozen=True, kw_only=True)
class Described(Scanned):
    """What a file holds, found without reading values."""

    layout: FileLayout
    points: int
    segments: int = 1  # one if the file has none of its own
    segmented: Literal["indices", "ranges"] | None = None  # rows of its own segments; None: it has none
    segments_are_rooms: bool = False  # lists of rooms have one line for each segment
    attributes: Attributes = field(default_factory=Attributes)  # of its HDF5 groups and columns
    memory: int = 0  # bytes while rows are read, besides the rows: decoded chunks, names of segments
    notes: tuple[str, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()  # arrays that are no columns, each with the reason
    formats: tuple[str, ...] = ()  # of each file
    further: tuple[str, ...] = ()  # paths of other files that are read
    label: tuple[int, str] | None = None  # number and name of its folder's class, if that is its label


class PointOrigin(NamedTuple):
    """Where the points of a source come from: its ``detail``."""

    files: tuple[str, ...]  # names of its files, as messages call them
    formats: tuple[str, ...]  # of these
    arrays: tuple[str, ...]  # as in `Group`
    layout: FileLayout
    attributes: str = NO_ATTRIBUTES  # of its HDF5 file, JSON
    rooms: tuple[str, ...] = ()  # name of each segment
    label: tuple[int, str] | None = None  # number and name of its folder's class, if that is its label


class Segmented(NamedTuple):
    """Number and points of each segment of a file, (S,)."""

    numbers: Ints
    lengths: Ints
    rows: Iterable[Ints] | None = None  # of one segment behind the other, in parts; None: all, in their order
