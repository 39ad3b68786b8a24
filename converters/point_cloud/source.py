"""The interface of source formats: recognise a file, describe it, open it for reading.

A format is a module of `layouts` with the members of `Format`. It describes a file by a `Layout`, without
reading values. The layout is stored as JSON in `Source.detail`, so that any process can open the file again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import Column
from unistore.converters.files.hdf5.attributes import Attributes
from unistore.converters.files.libraries import Opened
from unistore.converters.scan import Candidate, Source

if TYPE_CHECKING:
    pass


AXES = ("x", "y", "z")
LABEL = "label"
"""Column of segments with the class of each, if classes are folders."""

Ints = NDArray[np.int64]


class Match(IntEnum):
    """How sure a format is that a file has this format."""

    NO = 0
    POSSIBLE = 1
    """It fits if the file is a point cloud at all."""
    EITHER = 2
    """Names and shapes fit, but also fit plain rows."""
    CERTAIN = 3


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What a file holds, found without reading values, and all that is needed to read it.

    Attributes
    ----------
    points, segments
        Number of points and segments; one segment if the file has none of its own.
    segmented
        Segments are ``"indices"`` of rows, or consecutive ``"ranges"`` of rows; None: no segments.
    xyz
        Paths of x, y, z in the file, or of one array of coordinates (N, 3).
    xyz_stored
        Their dtypes, byte order included.
    columns
        Path in the file and `Column` (dtype and row shape) of each column of the points, by stored name.
    segment_columns
        The same for columns of whole segments.
    scale, offset
        Scale and offset of x, y, z in the file's header; None if it has none.
    unit
        Unit of the coordinates; None if the format does not define it.
    attributes
        Attributes of the HDF5 file, its groups and the datasets of columns.
    segments_are_rooms
        Whether lists of rooms have one line for each of its segments.
    files
        Further files that are read.
    memory
        Bytes in memory while rows are read, besides the rows: decoded chunks, names of segments.
    notes
        Remarks for the user.
    left_out
        Paths of what is no column, each with the reason.
    """

    format: str
    points: int
    segments: int = 1
    segmented: Literal["indices", "ranges"] | None = None
    xyz: tuple[str, ...]
    xyz_stored: tuple[str, ...]
    columns: Mapping[str, tuple[str, Column]]
    segment_columns: Mapping[str, tuple[str, Column]] = field(default_factory=dict)
    scale: tuple[float, ...] | None = None
    offset: tuple[float, ...] | None = None
    unit: str | None = None
    header: Mapping[str, Any] = field(default_factory=dict)
    attributes: Attributes = field(default_factory=Attributes)
    segments_are_rooms: bool = False
    files: tuple[Path, ...] = ()
    memory: int = 0
    notes: tuple[str, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()

    @property
    def xyz_dtype(self) -> str:
        """``"float32"`` if all axes are floats of at most 32 bits, else ``"float64"``."""
        dtypes = [np.dtype(dtype) for dtype in self.xyz_stored]
        return "float32" if all(dtype.kind == "f" and dtype.itemsize <= 4 for dtype in dtypes) else "float64"


def to_json(layout: Layout) -> dict[str, Any]:
    """The part of a layout that is needed to read the file, as JSON."""
    return {
        "layout": layout.format,
        "xyz": list(layout.xyz),
        "xyz_stored": list(layout.xyz_stored),
        "xyz_dtype": layout.xyz_dtype,
        "columns": _forms(layout.columns),
        "segment_columns": _forms(layout.segment_columns),
        "scale": None if layout.scale is None else list(layout.scale),
        "offset": None if layout.offset is None else list(layout.offset),
        "unit": layout.unit,
        "header": dict(layout.header),
    }


def _forms(columns: Mapping[str, tuple[str, Column]]) -> dict[str, Any]:
    return {key: [path, form.dtype, list(form.row_shape)] for key, (path, form) in columns.items()}


def coordinate_names(detail: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the coordinates for `PointSource.block`: x, y and z, or xyz with rows (3,)."""
    return AXES if len(detail["xyz"]) == 3 else ("xyz",)


def column_paths(detail: Mapping[str, Any]) -> dict[str, str]:
    """Path in the file of each column of the points, coordinates included."""
    return {
        **dict(zip(coordinate_names(detail), detail["xyz"], strict=True)),
        **{key: path for key, (path, _, _) in detail["columns"].items()},
    }


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

    def block(self, columns: Sequence[str], lo: int, hi: int) -> Sequence[NDArray[Any]]:
        """Rows ``lo:hi`` of columns of the points, (hi - lo, …) each, in native byte order.

        Columns have their stored names, coordinates those of `coordinate_names`.
        """

    def segments(self) -> Ranges | Indices | None:
        """Segments of the file, or None."""
        return None

    def segment_column(self, key: str) -> NDArray[Any]:
        """One column of the segments, (S, …), by stored name."""
        raise KeyError(key)

    def check(self) -> None:
        """Raise `InputError` if rows read so far are invalid."""
        return


def segment_values(detail: Mapping[str, Any], key: str, read: Callable[[str], NDArray[Any]]) -> NDArray[Any]:
    """A column of a source's segments, (S, …): the class of its folder, or ``read(key)``."""
    if key == LABEL and "class" in detail:
        return np.array([detail["class"][0]], np.int32)
    return read(key)


class Format(Protocol):
    """A module of `layouts`."""

    @property
    def NAME(self) -> str:  # noqa: N802  a constant of a module
        """Name in ``sources/layout`` of a store."""

    @property
    def SUFFIXES(self) -> tuple[str, ...]:  # noqa: N802
        """Lower-case endings of the names of its files."""

    def match(self, file: Candidate, mapping: Mapping[str, str]) -> Match:
        """How sure it is that a file has this format, by its content. Damaged files match, to be reported.

        Parameters
        ----------
        mapping
            Stored names of columns, as `choose` takes them.

        Raises
        ------
        InputError
            If the file cannot be read.
        """

    def describe(self, file: Candidate, mapping: Mapping[str, str]) -> Layout:
        """Describe what a file holds, without reading values; `file` and `mapping` as in `match`.

        Raises
        ------
        InputError
            With every problem that can be found without reading values.
        """

    def open_points(self, source: Source) -> AbstractContextManager[PointSource]:
        """Open a file; ``source.detail`` has the JSON of its layout.

        Raises
        ------
        InputError
            If the file cannot be opened.
        """


@runtime_checkable
class Opens(Protocol):
    """A format of files that neither NumPy nor h5py reads."""

    def open_library(self, path: Path) -> AbstractContextManager[Opened]:
        """Open a file for ``verify --against``."""
