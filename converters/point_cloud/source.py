"""What is known of a file of points without its values, and how these are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import Column
from unistore.converters.files.hdf5.attributes import NO_ATTRIBUTES, Attributes
from unistore.converters.plugin import Facts, Opened
from unistore.converters.scan import Scanned

AXES = ("x", "y", "z")
LABEL = "label"
"""Column of segments with the class of each, if classes are folders."""

Ints = NDArray[np.int64]


class Match(IntEnum):
    """How sure a layout is that a file has it."""

    NO = 0
    POSSIBLE = 1
    """It fits if the file is a point cloud at all."""
    EITHER = 2
    """Names and shapes fit, but also fit plain rows."""
    DAMAGED = 3
    """The file cannot be read, which its scan tells."""
    CERTAIN = 4


class Place(NamedTuple):
    """Where a column is in a file: its array, and the form of its rows."""

    array: str
    dtype: str  # byte order included
    row_shape: tuple[int, ...] = ()

    @property
    def form(self) -> Column:
        """Dtype and row shape."""
        return Column(self.dtype, self.row_shape)


class Layout(NamedTuple):
    """All that is needed to read a file."""

    name: str  # as stores record it
    xyz: tuple[str, ...]  # arrays of x, y, z, or one array of coordinates (N, 3)
    xyz_stored: tuple[str, ...]  # their dtypes, byte order included
    columns: Mapping[str, Place]  # of the points, by stored name
    segment_columns: Mapping[str, Place] = {}  # of whole segments
    scale: tuple[float, ...] | None = None  # of x, y, z in the header
    offset: tuple[float, ...] | None = None
    unit: str | None = None  # of the coordinates; None: the layout does not define it
    header: Facts = {}  # noqa: RUF012  nobody changes it

    @property
    def xyz_dtype(self) -> str:
        """``"float32"`` if all axes are floats of at most 32 bits, else ``"float64"``."""
        dtypes = [np.dtype(dtype) for dtype in self.xyz_stored]
        return "float32" if all(dtype.kind == "f" and dtype.itemsize <= 4 for dtype in dtypes) else "float64"

    @property
    def quantum(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Scale and offset, if the file says both."""
        if self.scale is None or self.offset is None:
            return None
        return self.scale, self.offset

    @property
    def coordinates(self) -> dict[str, str]:
        """Array of each coordinate: of x, y and z, or of xyz with rows (3,)."""
        names = AXES if len(self.xyz) == 3 else ("xyz",)
        return dict(zip(names, self.xyz, strict=True))

    @property
    def arrays(self) -> dict[str, str]:
        """Array of each column of the points, coordinates included."""
        return self.coordinates | {key: place.array for key, place in self.columns.items()}


@dataclass(frozen=True, kw_only=True)
class Described(Scanned):
    """What a file holds, found without reading values.

    Attributes
    ----------
    points, segments
        Number of points and segments; one segment if the file has none of its own.
    segmented
        Segments are ``"indices"`` of rows, or consecutive ``"ranges"`` of rows; None: no segments.
    segments_are_rooms
        Whether lists of rooms have one line for each of its segments.
    attributes
        Attributes of the HDF5 file, its groups and the datasets of columns.
    memory
        Bytes in memory while rows are read, besides the rows: decoded chunks, names of segments.
    notes
        Remarks for the user.
    left_out
        Arrays that are no columns, each with the reason.
    files, formats, arrays
        Names of the files, their formats and arrays, as in `Group`.
    further
        Paths of further files that are read.
    """

    layout: Layout
    points: int
    segments: int = 1
    segmented: Literal["indices", "ranges"] | None = None
    segments_are_rooms: bool = False
    attributes: Attributes = field(default_factory=Attributes)
    memory: int = 0
    notes: tuple[str, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    files: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    arrays: tuple[str, ...] = ()
    further: tuple[str, ...] = ()


class CloudPart(NamedTuple):
    """What is known of a source by names: the ``detail`` of its part."""

    names: tuple[str, ...]  # of its files, as messages call them
    arrays: tuple[str, ...]  # as in `Group`
    split: str | None
    lists: tuple[str, ...]  # paths of all lists that were read


class Origin(NamedTuple):
    """Where the points of a source come from: its ``detail``."""

    files: tuple[str, ...]  # names of its files, as messages call them
    formats: tuple[str, ...]  # of these
    arrays: tuple[str, ...]  # as in `Group`
    layout: Layout
    attributes: str = NO_ATTRIBUTES  # of its HDF5 file, JSON
    rooms: tuple[str, ...] = ()  # name of each segment
    label: tuple[int, str] | None = None  # number and name of its folder's class, if that is its label


class Ranges(NamedTuple):
    """Segments whose rows follow each other: number and points of each, (S,)."""

    numbers: Ints
    lengths: Ints


class Indices(NamedTuple):
    """Segments given by their rows: number of each (S,), and its rows, strictly ascending, in parts."""

    numbers: Ints
    rows: Iterable[Iterable[Ints]]


class PointSource(Protocol):
    """One open file. Every method raises `InputError` if values cannot be read or are contradictory.

    Attributes
    ----------
    rows
        Points of the source.
    """

    rows: int

    def read(self, column: str, lo: int, hi: int) -> NDArray[Any]:
        """Rows ``lo:hi`` of a column of the points, by stored name, (hi - lo, …) in native byte order."""

    def segments(self) -> Ranges | Indices | None:
        """Segments of the file, or None."""
        return None

    def segment_column(self, key: str) -> NDArray[Any]:
        """One column of the segments, (S, …), by stored name."""
        raise KeyError(key)

    def check(self) -> None:
        """Raise `InputError` if rows read so far are invalid."""
        return


class LayoutModule(Protocol):
    """A module of `layouts`."""

    @property
    def NAME(self) -> str:  # noqa: N802  a constant of a module
        """Name in ``sources/layout`` of a store."""

    def match(self, opened: Opened, mapping: Mapping[str, str]) -> Match:
        """How sure it is that a file has this layout, by names, shapes and dtypes.

        Parameters
        ----------
        mapping
            Stored names of columns, see `choose`.
        """

    def describe(self, opened: Opened, mapping: Mapping[str, str]) -> Described:
        """Describe what a file holds, without reading values; the groups of segments as if they held nothing.

        Raises
        ------
        InputError
            With every problem that can be found without reading values.
        """

    def points(self, opened: Opened, layout: Layout) -> PointSource:
        """What reads an open file."""
