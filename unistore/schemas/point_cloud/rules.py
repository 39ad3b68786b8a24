"""What must hold of the values of a point cloud store."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from unistore.errors import Problem
from unistore.schemas.point_cloud.fields import DECIMAL, NO_SEGMENT, POINTS, SEGMENTS, quantum_errors
from unistore.schemas.rules import Rule, RuleView, broken, first_row, parts_hold_all
from unistore.schemas.table_rows import source_offsets


def segments(view: RuleView) -> Iterator[Problem]:
    """The segments of a source hold all its points. The one for points of no segment is the last."""
    yield from parts_hold_all(view, SEGMENTS, "points")
    source = view.whole("segments/source")
    number = view.whole("segments/number")
    unnumbered = number == NO_SEGMENT
    inside = unnumbered[:-1] & (source[1:] == source[:-1])
    if inside.any():
        message = f"segment {first_row(inside):,} is {NO_SEGMENT}, but is not the last segment of its source"
        yield broken("segments/number", message)
    pairs, counts = np.unique(np.stack([source, number], axis=1), axis=0, return_counts=True)
    if len(pairs) < len(number):
        repeated = first_row(counts > 1)
        of, value = pairs[repeated].tolist()
        yield broken("segments/number", f"is {value} for {counts[repeated]:,} segments of source {of:,}")
    samples = int(np.count_nonzero(~unnumbered))
    if samples != view.store.sample_count:
        message = (
            f"has numbers of {samples:,} segments, but the store has {view.store.sample_count:,} samples"
        )
        yield broken("segments/number", message)


def bounds(view: RuleView) -> Iterator[Problem]:
    """Origins are the minima of the bounds, and minima are not above maxima."""
    origin = view.whole("segments/origin")
    box = view.whole("segments/bounds")
    least = box[:, 0]
    is_sound = (origin == least) & (least <= box[:, 1])
    wrong = ~is_sound.all(axis=1)
    if wrong.any():
        segment = first_row(wrong)
        found = (
            f"is {box[segment].tolist()} for segment {segment:,} with the origin {origin[segment].tolist()}"
        )
        expected = "the origin as minimum, and no minimum above its maximum"
        yield broken("segments/bounds", f"{found}, expected {expected}")


def source_rows(view: RuleView) -> Iterator[Problem]:
    """Every row of a source occurs at least once."""
    edges = view.whole(source_offsets(POINTS))
    for source, order in enumerate(view.parts("points/source_row", edges)):
        rows = len(order)
        most = int(order.max(initial=-1)) + 1
        if order.min(initial=0) < 0 or most > rows:
            found = f"the rows of source {source:,} are from {order.min():,} to {most - 1:,}"
            yield broken("points/source_row", f"{found}, expected 0 to {rows - 1:,}")
            continue
        missing = np.ones(most, bool)
        missing[order] = False
        if missing.any():
            yield broken("points/source_row", f"row {first_row(missing):,} of source {source:,} is missing")


def voxels(view: RuleView) -> Iterator[Problem]:
    """Every point of a segment has a voxel of that segment, and ``counts`` are right."""
    points = view.whole("segments/offsets")
    real = view.whole("segments/number") != NO_SEGMENT
    for path in view.under("voxels/"):
        grid = path.removesuffix("/coords")
        if grid == path:
            continue
        offsets = view.whole(f"{grid}/offsets")
        cells = np.diff(offsets)
        if cells[~real].any():
            yield broken(f"{grid}/offsets", "has voxels for points outside all segments")
        yield from _point_voxels(view, grid, points, np.where(real, cells, 0), offsets)


def _point_voxels(
    view: RuleView, grid: str, points: np.ndarray, cells: np.ndarray, offsets: np.ndarray
) -> Iterator[Problem]:
    """Check ``point_voxel`` of a grid. `cells` are the voxels of each segment."""
    counted = np.zeros(int(offsets[-1]), np.int64)
    for lo, voxel in view.blocks(f"{grid}/point_voxel"):
        segment = np.searchsorted(points, np.arange(lo, lo + len(voxel)), "right") - 1
        most = cells[segment]
        inside = most > 0
        wrong = np.where(inside, (voxel < 0) | (voxel >= most), voxel != -1)
        if wrong.any():
            row = first_row(wrong)
            found = f"row {lo + row:,} is {voxel[row]:,}"
            message = f"{found}, but its segment {segment[row]:,} has {most[row]:,} voxels"
            outside = f"{found}, expected -1, because its point is outside all segments"
            yield broken(f"{grid}/point_voxel", message if inside[row] else outside)
            return
        counted += np.bincount(offsets[segment[inside]] + voxel[inside], minlength=len(counted))
    stored = view.whole(f"{grid}/counts")
    differing = counted != stored
    if differing.any():
        row = first_row(differing)
        yield broken(
            f"{grid}/counts", f"row {row:,} is {stored[row]:,}, but the voxel has {counted[row]:,} points"
        )


def coordinates(view: RuleView) -> Iterator[Problem]:
    """Scale and offset restore finite coordinates. The scale of decimals is a power of ten."""
    xyz = view.array(f"{POINTS}/xyz")
    if xyz.dtype.kind == "i":
        filled = np.diff(view.whole(source_offsets(POINTS))) > 0
        scale, offset = (view.whole(f"sources/{name}")[filled] for name in ("scale", "offset"))
        for path, message in quantum_errors(scale, offset, xyz.attributes.get(DECIMAL)):
            yield broken(path, message)


RULES: tuple[Rule, ...] = (coordinates, segments, bounds, source_rows, voxels)
