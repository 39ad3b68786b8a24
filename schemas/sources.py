"""Arrays that say what sources were, the same in several families."""

from __future__ import annotations

__all__ = ["HDF5_ATTRIBUTES"]

HDF5_ATTRIBUTES = "sources/hdf5_attributes"
"""Text, one a source: attributes of its HDF5 file, JSON."""
