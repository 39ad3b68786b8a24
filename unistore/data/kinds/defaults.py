"""Default kind of samples of each family, as a function of a store that imports no other kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unistore.data.kinds.clips import Clips
    from unistore.data.kinds.episodes import Transitions
    from unistore.data.kinds.events import Events
    from unistore.data.kinds.rows import Ragged, Rows
    from unistore.data.kinds.segments import Segments
    from unistore.data.kinds.sparse_points import SparsePoints
    from unistore.data.kinds.volumes import Volumes
    from unistore.store.reader import Store


def rows(_: Store) -> Rows:
    """Make samples of one row of every array."""
    from unistore.data.kinds.rows import Rows

    return Rows()


def ragged(_: Store) -> Ragged:
    """Make samples of a range of rows of the main table."""
    from unistore.data.kinds.rows import Ragged

    return Ragged()


def segments(_: Store) -> Segments:
    """Make samples of one segment of points."""
    from unistore.data.kinds.segments import Segments

    return Segments()


def volumes(store: Store) -> Volumes | SparsePoints:
    """Make samples of one volume, or of the points of its windows in a store without images."""
    from unistore.data.kinds.boxes import IMAGE
    from unistore.data.kinds.sparse_points import SparsePoints, point_groups
    from unistore.data.kinds.volumes import Volumes

    return SparsePoints() if point_groups(store) and not store.has(IMAGE) else Volumes()


def clips(_: Store) -> Clips:
    """Make samples of consecutive frames."""
    from unistore.data.kinds.clips import Clips

    return Clips()


def transitions(_: Store) -> Transitions:
    """Make samples of one step and the observation after it."""
    from unistore.data.kinds.episodes import Transitions

    return Transitions()


def events(_: Store) -> Events:
    """Make samples of a window of time of a recording."""
    from unistore.data.kinds.events import Events

    return Events()
