"""What one sample is: one module a kind, each a frozen dataclass of its options."""

from __future__ import annotations

from collections.abc import Callable

from unistore.data.kinds.boxes import IMAGE
from unistore.data.kinds.clips import Clips
from unistore.data.kinds.patches import Patches
from unistore.data.kinds.protocol import SampleKind
from unistore.data.kinds.rows import Rows
from unistore.data.kinds.segments import Segments
from unistore.data.kinds.sparse_points import SparsePoints, point_groups
from unistore.data.kinds.transitions import Transitions
from unistore.data.kinds.volumes import Volumes
from unistore.data.kinds.windows import Windows
from unistore.errors import InputError
from unistore.store.reader import Store

__all__ = [
    "Clips",
    "Patches",
    "Rows",
    "SampleKind",
    "Segments",
    "SparsePoints",
    "Transitions",
    "Volumes",
    "Windows",
    "natural_kind",
]


def natural_kind(store: Store) -> SampleKind:
    """What a sample of a store is unless something else is asked for.

    Raises
    ------
    InputError
        If the store's modality has no kind here.
    """
    found = _NATURAL.get(store.modality)
    if found is None:
        msg = f"{store.path}: no kind of sample for a {store.modality} store; known: {', '.join(_NATURAL)}"
        raise InputError(msg)
    return found(store)


def _ct_kind(store: Store) -> SampleKind:
    return SparsePoints() if point_groups(store) and not store.has(IMAGE) else Volumes()


_NATURAL: dict[str, Callable[[Store], SampleKind]] = {
    "rows": lambda _: Rows(),
    "point_cloud": lambda _: Segments(),
    "ct": _ct_kind,
    "spike": lambda _: Clips(),
    "trajectory": lambda _: Transitions(),
}
