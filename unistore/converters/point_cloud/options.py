"""Options of point clouds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from unistore.errors import AddOptions, InputError
from unistore.plugin import Columns, LabelOptions, option


@dataclass(frozen=True, kw_only=True)
class PointCloudOptions(LabelOptions):
    """Options of point clouds, for `unistore.convert` and for the command line.

    ``unistore convert point-cloud --help`` describes each of them.

    Examples
    --------
    >>> unistore.convert("clouds/", "clouds.zarr", voxel_size=0.5, segment="window:50")  # doctest: +SKIP
    """

    voxel_size: tuple[float, ...] = option((), "Store a voxel grid of this size.", metavar="SIZE")
    map: Mapping[str, str] = option({}, metavar="NAME=DATASET")
    segment: str | None = option(
        None,
        "Cut clouds without segments: window:SIZE into square XY windows with an edge of SIZE, in "
        "the units of "
        "the coordinates; column:NAME by the ids of a column. Example: window:50.",
        metavar="window:SIZE|column:NAME",
    )
    min_points: int = option(1, "With --segment: windows with fewer points become no segment.", metavar="N")
    max_points: int | None = option(
        None, "With --segment: halve windows with more points until none has more.", metavar="N"
    )
    columns: Columns = option("exact")
    nan: Literal["refuse", "drop"] = option(
        "refuse",
        "What to do with points that are not finite. drop keeps them in the store, in no segment.",
        late=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        has_windows = self.segment is not None and parse_segment(self.segment).column == ""
        if not has_windows and (self.min_points != 1 or self.max_points is not None):
            given = "--min-points" if self.max_points is None else "--max-points"
            message = "has an effect only with --segment window:SIZE"
            fix = AddOptions(("--segment", "window:50"), "or another size"), f"remove {given}"
            raise InputError.at(given, message, fix, "option")
        if self.min_points < 1 or (self.max_points is not None and self.max_points < self.min_points):
            place = f"--min-points {self.min_points}"
            message = "must be at least 1"
            if self.min_points >= 1:
                message = f"must be at most --max-points, which is {self.max_points:,}"
            raise InputError.at(place, message, "give another number", "option")
        wrong = [size for size in self.voxel_size if not 0 < size < math.inf]
        if wrong or len(set(self.voxel_size)) < len(self.voxel_size):
            sizes = " ".join(f"{size:g}" for size in self.voxel_size)
            message = "the sizes must be above 0 and differ from each other"
            place = f"--voxel-size {sizes}"
            raise InputError.at(place, message, "for example --voxel-size 0.5", "option")


class SegmentRule(NamedTuple):
    """How point clouds without segments are divided into segments: into windows, or by a column of ids.

    Attributes
    ----------
    window : float, default 0.0
        Edge of the windows, in the units of the coordinates. 0: a column is given.
    column : str, default ""
        Name of the column of ids. Empty: windows are given.
    """

    window: float = 0.0
    column: str = ""


def parse_segment(text: str) -> SegmentRule:
    """Return the rule of ``"window:50"`` or ``"column:segment_id"``. InputError for any other text."""
    kind, _, value = text.partition(":")
    if kind == "column" and (column := value.strip("/")):
        return SegmentRule(column=column)
    try:
        size = float(value) if kind == "window" else 0.0
    except ValueError:
        size = 0.0
    if not 0 < size < math.inf:
        message = "is neither window:SIZE, with a size above 0, nor column:NAME"
        fix = "for example --segment window:50 or --segment column:segment_id"
        place = f"--segment {text}"
        raise InputError.at(place, message, fix, "option")
    return SegmentRule(window=size)
