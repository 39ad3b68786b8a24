"""Arrays about sources that several families have."""

from __future__ import annotations

HDF5_ATTRIBUTES = "sources/hdf5_attributes"
"""Text column with one row per source: attributes of its HDF5 file, as JSON."""
