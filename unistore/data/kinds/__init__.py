"""Kinds of samples, one module each: frozen dataclasses of options."""

from __future__ import annotations

from unistore.data.kinds.clips import Clips
from unistore.data.kinds.patches import Patches
from unistore.data.kinds.rows import Rows
from unistore.data.kinds.segments import Segments
from unistore.data.kinds.sparse_points import SparsePoints
from unistore.data.kinds.transitions import Transitions
from unistore.data.kinds.volumes import Volumes
from unistore.data.kinds.windows import Windows

__all__ = [
    "Clips",
    "Patches",
    "Rows",
    "Segments",
    "SparsePoints",
    "Transitions",
    "Volumes",
    "Windows",
]
