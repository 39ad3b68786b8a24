"""Which points belong to which segment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.point_cloud.order import StorageOrder
from unistore.converters.point_cloud.workspace import Workspace
from unistore.schemas.point_cloud.fields import NO_SEGMENT
from unistore.schemas.tables import offsets_of

Ints = NDArray[np.int64]


class Partition(NamedTuple):
    """Segments of one source in storage order; the segment of number -1 comes last.

    Attributes
    ----------
    order
        Rows of the source, segment by segment; None: all rows in the source's order.
    lengths
        (S,) points of each segment.
    numbers
        (S,) number of each segment.
    """

    order: StorageOrder | None
    lengths: Ints
    numbers: Ints

    @property
    def offsets(self) -> Ints:
        """(S + 1,) bounds of the segments in the storage order."""
        return offsets_of(self.lengths)


def consecutive(lengths: Ints, numbers: Ints) -> Partition:
    """Segments whose rows follow each other in the source."""
    return Partition(None, lengths, numbers)


def by_indices(
    indices: Iterable[Iterable[Ints]], numbers: Ints | None, rows: int, work: Workspace
) -> Partition:
    """Segments given as sorted row indices; rows of no segment come last, as one segment of number -1.

    Parameters
    ----------
    indices
        Rows of each segment, in parts.
    numbers
        Number of each segment, (S,); None: 0, 1, ….
    rows
        Rows of the source.
    """
    order = StorageOrder(rows, indices, work, rest=True)
    numbers = np.arange(len(order.lengths), dtype=np.int64) if numbers is None else numbers
    if not order.rest:
        return Partition(order, order.lengths, numbers)
    return Partition(order, np.append(order.lengths, order.rest), np.append(numbers, NO_SEGMENT))


def blocks(lengths: Ints, limit: int) -> Iterator[tuple[int, int]]:
    """Ranges of segments with at most `limit` points together, or one segment with more points."""
    first, points = 0, 0
    for segment, length in enumerate(lengths.tolist()):
        if segment > first and points + length > limit:
            yield first, segment
            first, points = segment, 0
        points += length
    if first < len(lengths):
        yield first, len(lengths)
