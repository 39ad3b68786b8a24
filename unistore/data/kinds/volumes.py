"""Samples of one whole CT volume at its own extent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.boxes import (
    EXTENT,
    BoxSource,
    WindowedBox,
    box_source,
    box_sources,
    volume_columns,
    window_limits,
)
from unistore.data.kinds.columns import SourceNames
from unistore.data.kinds.protocol import SOURCE, Picks, require_family, select_keys
from unistore.data.packed import Allocate, Batch, Packed, offsets_from_lengths, packed_copy
from unistore.schemas.indices import Column
from unistore.store.reader import Store
from unistore.system.arguments import Arguments

__all__ = ["VolumeMetadata", "Volumes"]

_TEXTS = ("name", "info")


def on_request(store: Store) -> tuple[str, ...]:
    """Keys of whole volumes that are read where they are named."""
    return (SOURCE, "extent", *(key for key in _TEXTS if store.has(f"volumes/{key}/data")))


@dataclass(frozen=True, slots=True)
class Volumes:
    """Samples of a CT store: whole volumes without padding.

    Keys: ``image`` (D, H, W) in the stored dtype; every window and mask by its name, (D, H, W) u1 of 0 and 1;
    ``spacing``, ``origin``, ``direction`` if stored; ``<mask>_present``. On request: ``source``, ``name``,
    ``extent`` (3,), ``info`` (the text of the case's ``info.json``).

    Batches are dense, (B, D, H, W), if all volumes have one extent. Else volumes are ragged: packed batches
    have flat values with ``offsets`` and ``shapes`` (B, 3), padded ones are padded to the largest.

    Parameters
    ----------
    window
        Limit the image to an intensity window: one of the store, a preset (``"lung"``), or
        ``"name:width:level"``. Values below and above become its ends; NaN stays. The image is float32 then.
    scale
        Scale the window to 0…1: (value - low) / (high - low).
    """

    window: str | None = None
    scale: bool = False

    def __post_init__(self) -> None:
        check = Arguments()
        check.text("window", self.window, none=True)
        check.flag("scale", self.scale)
        if self.scale is True and self.window is None:
            check.refuse("scale", "scales a window to 0…1: name the window", 'window="lung"')
        check.raise_problems()

    @property
    def repeats(self) -> bool:
        """See `SampleKind.repeats`."""
        return True

    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        """Keys of samples; see `SampleKind.select`."""
        require_family(store, "ct", self)
        if self.window is not None:
            window_limits(store, self.window)
        return select_keys([*box_sources(store), *volume_columns(store)], fields, on_request(store))

    def bind(self, store: Store, fields: Sequence[str], units: NDArray[np.int64] | None) -> VolumeReader:
        """Reader of the volumes `units`."""
        limits = None if self.window is None else window_limits(store, self.window)
        return VolumeReader(store, fields, units, limits, scale=self.scale)


class VolumeReader:
    """Reads volumes; see `SampleReader`."""

    def __init__(
        self,
        store: Store,
        fields: Sequence[str],
        units: NDArray[np.int64] | None,
        limits: tuple[float, float] | None = None,
        *,
        scale: bool = False,
    ) -> None:
        self._extents = Column(store, EXTENT)
        self._units = np.arange(len(self._extents)) if units is None else units
        self._labels = VolumeMetadata(store, fields)
        groups = box_sources(store)
        self._boxes: dict[str, BoxSource] = {
            key: box_source(store, groups[key]) for key in fields if key in groups
        }
        if limits is not None and "image" in self._boxes:
            self._boxes["image"] = WindowedBox(self._boxes["image"], limits, scale=scale)
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
        texts = [key for key in _TEXTS if key in fields]
        self._texts = {key: store.text(f"volumes/{key}") for key in texts}
        self._sources = SourceNames(store) if SOURCE in fields else None

    def read(self, volumes: NDArray[np.int64], allocate: Allocate) -> Batch:
        """Values for a batch of volumes."""
        batch = {key: packed_copy(column.take(volumes), allocate) for key, column in self._columns.items()}
        for key, texts in self._texts.items():
            values = np.array([texts[volume] for volume in volumes.tolist()], np.str_)
            batch[key] = packed_copy(values, allocate)
        if self._sources is not None:
            batch[SOURCE] = packed_copy(self._sources.take(volumes), allocate)
        return batch
