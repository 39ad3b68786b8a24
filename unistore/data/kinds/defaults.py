"""Default kind of samples of each family, as a function of a store."""

from __future__ import annotations

from unistore.data.kinds.boxes import IMAGE
from unistore.data.kinds.clips import Clips
from unistore.data.kinds.rows import Rows
from unistore.data.kinds.segments import Segments
from unistore.data.kinds.sparse_points import SparsePoints, point_groups
from unistore.data.kinds.transitions import Transitions
from unistore.data.kinds.volumes import Volumes
from unistore.store.reader import Store


def rows(_: Store) -> Rows:
    """One row of every array."""
    return Rows()


def segments(_: Store) -> Segments:
    """One segment of points."""
    return Segments()


def volumes(store: Store) -> Volumes | SparsePoints:
    """One volume; of a store without images, the points of its windows."""
    return SparsePoints() if point_groups(store) and not store.has(IMAGE) else Volumes()


def clips(_: Store) -> Clips:
    """Consecutive frames."""
    return Clips()


def transitions(_: Store) -> Transitions:
    """One step and the observation after it."""
    return Transitions()
