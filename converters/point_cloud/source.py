"""What a source format is: a module that recognises its files, describes them, and opens them for reading.

A format is one module of `layouts` that has what `Format` names. It tells in a `Layout` what a file holds,
without reading values; the layout's JSON is in `Source.detail`, so that any process can open the file again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import Column
from unistore.converters.common.exported import File
from unistore.converters.files.hdf5.attributes import Attributes
from unistore.converters.parts import Candidate
from unistore.converters.point_cloud.cloud import Cloud
from unistore.converters.scan import Source

__all__ = [
    "LABEL",
    "ROLES",
    "Exported",
    "Format",
    "Indices",
    "Layout",
    "Match",
    "Original",
    "PointSource",
    "Ranges",
    "column_paths",
    "coordinate_names",
    "segment_values",
    "to_json",
]

ROLES = ("x", "y", "z")
LABEL = "label"
"""Column of segments that holds the class of each, where folders tell it."""

Ints = NDArray[np.int64]


class Match(IntEnum):
    """How sure a format is that a file is one of its own."""

    NO = 0
    POSSIBLE = 1
    """If the file is a point cloud at all."""
    EITHER = 2
    """By its names and shapes, but plain rows could be so, too."""
    CERTAIN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What a file holds, known without reading values, and all that reading it takes.

    Attributes
    ----------
    format
        Name of the format.
    points, segments
        How many there are; one segment where the file has none of its own.
    segmented
        How the file gives its segments: ``"indices"`` of rows, ``"ranges"`` one after the other, or None.
    xyz
        Columns of x, y, z in the file, or the one column of coordinates (N, 3), as messages name them.
    xyz_stored
        Their dtypes, byte order included.
    columns
        Column in the file and form of each column of the points, by stored name.
    segment_columns
        The same for columns of whole segments.
    scale, offset
        From the file's header: x, y, z; None if it has none.
    unit
        Of the coordinates; None if the format does not say.
    header
        All attributes of the header (JSON).
    attributes
        Of the HDF5 file, its groups and the datasets of columns.
    listed
        Whether lists of rooms name its segments, a line each.
    files
        Further files that are read.
    memory
        Bytes held while rows are read, besides the rows themselves: decoded chunks, names of segments.
    notes
        Remarks about this file.
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
    listed: bool = False
    files: tuple[Path, ...] = ()
    memory: int = 0
    notes: tuple[str, ...] = ()

    @property
    def xyz_dtype(self) -> str:
        """``"float32"`` where all three axes are floats of at most that size, else ``"float64"``."""
        dtypes = [np.dtype(dtype) for dtype in self.xyz_stored]
        return "float32" if all(dtype.kind == "f" and dtype.itemsize <= 4 for dtype in dtypes) else "float64"


def to_json(layout: Layout) -> dict[str, Any]:
    """What reading a file takes, as JSON."""
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
    """Names under which `PointSource.block` gives coordinates: x, y and z, or xyz, of rows (3,)."""
    return ROLES if len(detail["xyz"]) == 3 else ("xyz",)


def column_paths(detail: Mapping[str, Any]) -> dict[str, str]:
    """Column in the file of each column of the points, coordinates included."""
    return {
        **dict(zip(coordinate_names(detail), detail["xyz"], strict=True)),
        **{key: path for key, (path, _, _) in detail["columns"].items()},
    }


@dataclass(frozen=True, slots=True)
class Ranges:
    """Segments that stand one after the other: number and points of each, (S,)."""

    numbers: Ints
    lengths: Ints


@dataclass(frozen=True, slots=True)
class Indices:
    """Segments given by their rows: number of each (S,), and its rows, strictly ascending, in parts."""

    numbers: Ints
    rows: Iterable[Iterable[Ints]]


class PointSource(Protocol):
    """One open file. Every method raises `InputError` where values cannot be read or are contradictory.

    Attributes
    ----------
    rows
        Points of the source.
    """

    rows: int

    def block(self, columns: Sequence[str], lo: int, hi: int) -> Sequence[NDArray[Any]]:
        """Rows ``lo:hi`` of columns of the points, (hi - lo, …) each, in native byte order.

        Columns are called by their stored names, coordinates as `coordinate_names` does.
        """
        ...

    def segments(self) -> Ranges | Indices | None:
        """Segments as the file has them; None if it has none."""
        return None

    def segment_column(self, key: str) -> NDArray[Any]:
        """One column of the segments, (S, …), by stored name."""
        raise KeyError(key)

    def check(self) -> None:
        """Raise what was found wrong with the rows read so far."""
        return


def segment_values(detail: Mapping[str, Any], key: str, read: Callable[[str], NDArray[Any]]) -> NDArray[Any]:
    """A column of a source's segments, (S, …): the class that its folder is, or what ``read(key)`` gives."""
    if key == LABEL and "class" in detail:
        return np.array([detail["class"][0]], np.int32)
    return read(key)


def _no_column(key: str) -> NDArray[Any]:
    raise KeyError(key)


@dataclass(frozen=True, slots=True)
class Original:
    """A file's own values, read without the converter, for comparison with a store.

    Attributes
    ----------
    column
        Reads a whole column of the points, (N, …), by the name that `PointSource.block` has for it.
    segment_column
        Reads a column of the segments, (S, …), by stored name.
    indices
        Where the rows of each segment stand and what reads them, by its number; None where there are none.
    left_out
        What the file holds besides its columns.
    """

    column: Callable[[str], NDArray[Any]]
    segment_column: Callable[[str], NDArray[Any]] = _no_column
    indices: Mapping[int, tuple[str, Callable[[], NDArray[Any]]]] | None = None
    left_out: Sequence[str] = ()


class Format(Protocol):
    """A module of `layouts`."""

    @property
    def NAME(self) -> str:  # noqa: N802  a constant of a module
        """As ``sources/layout`` of a store has it."""
        ...

    @property
    def SUFFIXES(self) -> tuple[str, ...]:  # noqa: N802
        """Lower-case file name endings that are taken from folders."""
        ...

    def match(self, file: Candidate, mapping: Mapping[str, str]) -> Match:
        """Whether a file is of this format, by its content; loose, so that what is wrong can be reported.

        Parameters
        ----------
        file
            The file, and how messages call it.
        mapping
            Stored names of columns, as `choose` takes them.

        Raises
        ------
        InputError
            If the file cannot be looked at.
        """
        ...

    def describe(self, file: Candidate, mapping: Mapping[str, str]) -> Layout:
        """What a file holds, without reading values; `file` and `mapping` as in `match`.

        Raises
        ------
        InputError
            With every problem that can be seen without reading values.
        """
        ...

    def open_points(self, source: Source) -> AbstractContextManager[PointSource]:
        """Open a file that was described; ``source.detail`` holds the layout's `to_json`.

        Raises
        ------
        InputError
            Where the file cannot be opened.
        """
        ...

    def open_original(self, source: Source) -> AbstractContextManager[Original]:
        """Open a file to read its values without the converter: with h5py or numpy alone."""
        ...


@runtime_checkable
class Exported(Protocol):
    """A format whose files are written again as they were; sources of others become PointSuite files."""

    def exported(self, cloud: Cloud) -> File:
        """The file that a source of this format was, made of what the store has of it.

        Raises
        ------
        StoreError
            If the store contradicts itself.
        """
        ...
