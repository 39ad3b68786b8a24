"""Which kind of samples has each value of a store once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from unistore.data.kinds.clips import Clips
from unistore.data.kinds.episodes import Episodes
from unistore.data.kinds.events import Events
from unistore.data.kinds.patches import Patches
from unistore.data.kinds.protocol import SampleKind
from unistore.data.kinds.rows import Ragged, Rows
from unistore.data.kinds.segments import Segments
from unistore.data.kinds.sparse_points import SparsePoints
from unistore.data.kinds.steps import Transitions
from unistore.data.kinds.volumes import Volumes
from unistore.data.kinds.windows import Windows

_WHOLE: dict[type[Any], Callable[[Any], SampleKind]] = {
    Clips: lambda kind: Clips(length=1, crop=None, random=False, voxel_bins=kind.voxel_bins),
    Episodes: lambda kind: kind,
    Events: lambda _: Ragged(),
    Patches: lambda kind: Volumes(step=kind.step),
    Ragged: lambda _: Ragged(),
    Rows: lambda kind: kind,
    Segments: lambda kind: replace(kind, max_points=None),
    SparsePoints: lambda kind: SparsePoints(kind.window),
    Transitions: lambda _: Episodes(),
    Volumes: lambda kind: replace(kind, size=None, pad=None),
    Windows: lambda _: Episodes(),
}


def whole_kind(kind: SampleKind) -> SampleKind | None:
    """Return the kind with one sample for each row of the sample table, where keys have the same values.

    Crops, windows and random subsets of `kind` are taken from these samples. None: it is of a package, which
    does not say.
    """
    make = _WHOLE.get(type(kind))
    return None if make is None else make(kind)


def has_same_values(kind: SampleKind, key: str) -> bool:
    """Return whether values of a key are those of the whole kind, not made of them."""
    return not (isinstance(kind, Windows) and kind.makes(key))
