"""Samples of one whole CT volume at its own extent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.boxes import EXTENT, box_source, box_sources, volume_columns
from unistore.data.kinds.columns import SourceNames
from unistore.data.kinds.protocol import SOURCE, Picks, require_family, select_keys
from unistore.data.packed import Allocate, Batch, Packed, offsets_from_lengths, packed_copy
from unistore.schemas.indices import Column
from unistore.store.reader import Store

__all__ = ["VolumeMetadata", "Volumes"]

ON_REQUEST = (SOURCE, "name", "extent")


@dataclass(frozen=True, slots=True)
class Volumes:
    """Samples of a CT store: whole volumes without padding.

    Keys: ``image`` (D, H, W) in the stored dtype; every window and mask by its name, (D, H, W) u1 of 0 and 1;
    ``spacing``, ``origin``, ``direction`` if stored; ``<mask>_present``. On request: ``source``, ``name``,
    ``extent`` (3,).

    Batches are dense, (B, D, H, W), if all volumes have one extent. Else volumes are ragged: packed batches
    have flat values with ``offsets`` and ``shapes`` (B, 3), padded ones are padded to the largest.
    """

    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        """Keys of samples; see `SampleKind.select`."""
        require_family(store, "ct", self)
        return select_keys([*box_sources(store), *volume_columns(store)], fields, ON_REQUEST)

    def bind(self, store: Store, fields: Sequence[str], units: NDArray[np.int64] | None) -> VolumeReader:
        """Reader of the volumes `units`."""
        return VolumeReader(store, fields, units)


class VolumeReader:
    """Reads volumes; see `SampleReader`."""

    def __init__(self, store: Store, fields: Sequence[str], units: NDArray[np.int64] | None) -> None:
        self._extents = Column(store, EXTENT)
        self._units = np.arange(len(self._extents)) if units is None else units
        self._labels = VolumeMetadata(store, fields)
        groups = box_sources(store)
        self._boxes = {key: box_source(store, groups[key]) for key in fields if key in groups}
        extents = self._extents.take(self._units)
        self._dense = bool((extents == extents[:1]).all())
        self._extent = tuple(extents[0].tolist()) if self._dense and len(extents) else None

    def box_shape(self, key: str) -> tuple[int, ...] | None:
        """See `BoxReader.box_shape`."""
        return self._extent if key in self._boxes else None

    def __len__(self) -> int:
        return len(self._units)

    def read(self, picks: Picks, allocate: Allocate) -> Batch:
        """Read a batch of volumes."""
        volumes = self._units[picks.index]
        extents = self._extents.take(volumes).astype(np.int64)
        offsets = offsets_from_lengths(extents.prod(axis=1))
        batch: Batch = {}
        for key, box in self._boxes.items():
            values = allocate((int(offsets[-1]),), box.dtype)
            for i, volume in enumerate(volumes.tolist()):
                extent = extents[i].tolist()
                box.read(volume, (0, 0, 0), extent, values[offsets[i] : offsets[i + 1]].reshape(extent))
            if self._dense and len(volumes):
                batch[key] = Packed(values.reshape(-1, *extents[0].tolist()))
            else:
                batch[key] = Packed(values, offsets, shapes=extents)
        return batch | self._labels.read(volumes, allocate)


class VolumeMetadata:
    """Reads values per volume: spacing, origin, names, ….

    Parameters
    ----------
    store
        The store.
    fields
        Keys of samples; others than values per volume are ignored.
    """

    def __init__(self, store: Store, fields: Sequence[str]) -> None:
        paths = volume_columns(store) | {"extent": EXTENT}
        self._columns = {key: Column(store, paths[key]) for key in fields if key in paths}
        self._names = np.array(store.text("volumes/name"), np.str_) if "name" in fields else None
        self._sources = SourceNames(store) if SOURCE in fields else None

    def read(self, volumes: NDArray[np.int64], allocate: Allocate) -> Batch:
        """Values for a batch of volumes."""
        batch = {key: packed_copy(column.take(volumes), allocate) for key, column in self._columns.items()}
        if self._names is not None:
            batch["name"] = packed_copy(self._names[volumes], allocate)
        if self._sources is not None:
            batch[SOURCE] = packed_copy(self._sources.take(volumes), allocate)
        return batch
