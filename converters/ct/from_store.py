"""Windows made from a store's own volumes, as a conversion with ``--window`` makes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.ct.finalize import smaller_encoding, window_attributes
from unistore.converters.ct.slabs import SLAB
from unistore.converters.ct.voxels import point_coords
from unistore.converters.protocol import Emit, Finalized
from unistore.errors import InputError, Problem
from unistore.schemas.ct import fields as schema
from unistore.schemas.ct.voxels import inside
from unistore.schemas.ct.windows import VALUE_SENTENCES, parse_window
from unistore.schemas.indices import StoreView, whole
from unistore.schemas.tables import Table, offsets_of

_IMAGE = f"{schema.VOLUMES}/image"


def window(store: StoreView, text: str, emit: Emit, folder: Path) -> Finalized:  # noqa: ARG001  as others
    """Emit the points or bits of a window of all volumes, and return its table, offsets and attributes."""
    chosen = parse_window(text)
    if not store.has(_IMAGE):
        message = f"has no images to cut window {chosen} of"
        raise InputError(Problem(store.path, message, "convert the sources with images", "missing"))
    group = f"{schema.WINDOWS}/{chosen.name}"
    extents = whole(store, f"{schema.VOLUMES}/extent")
    options = store.attributes["options"]
    image = store.array(_IMAGE)
    test = inside(chosen, image.dtype)
    counts = np.zeros(len(extents), np.int64)
    for volume, extent in enumerate(extents.tolist()):
        for _, voxels in _slabs(store, volume, extent):
            counts[volume] += np.count_nonzero(test(voxels))
    run = int(np.median(counts[counts > 0])) if counts.any() else 1
    description = f"value of each point: {VALUE_SENTENCES['volume']}"
    points = schema.points_table(group, int(extents.max(initial=0)), image.dtype.name, run, description)
    encoding = options.get("sparse", "auto")
    if encoding == "auto":
        encoding = smaller_encoding(int(counts.sum()), points, extents)
    depth, height, width = image.shape[1:]
    mask = schema.mask_field(group, (depth, height, width), tuple(options["tile"]))
    table = points if encoding == "coords" else Table(name=schema.WINDOWS, fields=(mask,))
    coords_dtype = points.fields[0].dtype
    for volume, extent in enumerate(extents.tolist()):
        bits = np.zeros((1, *mask.row_shape), np.uint8)
        for first, voxels in _slabs(store, volume, extent):
            is_inside = test(voxels)
            if encoding == "mask":
                packed = np.packbits(is_inside, axis=-1, bitorder="little")
                bits[0, first : first + len(packed), : packed.shape[1], : packed.shape[2]] = packed
                continue
            flat = np.flatnonzero(is_inside)
            coords = np.empty((len(flat), 3), coords_dtype)
            point_coords(flat, first, extent, coords)
            emit(group, "coords", coords)
            emit(group, "values", voxels.reshape(-1).take(flat))
        if encoding == "mask":
            emit(schema.WINDOWS, f"{chosen.name}/mask", bits)
    return Finalized(
        arrays=[(schema.offsets_field(group), offsets_of(counts))],
        spilled=(table,),
        samples=store.sample_count,
        sample_source=np.empty(0, np.int64),
        groups={group: window_attributes(chosen, encoding, "volume")},
    )


def _slabs(store: StoreView, volume: int, extent: list[int]) -> Iterator[tuple[int, NDArray[Any]]]:
    image = store.array(_IMAGE)
    depth, height, width = extent
    step = max(1, SLAB // max(1, height * width * image.dtype.itemsize))
    step = -(-step // image.chunk_shape[1]) * image.chunk_shape[1]
    for first in range(0, depth, step):
        stop = min(first + step, depth)
        yield first, image.read_box([volume, first, 0, 0], [volume + 1, stop, height, width])[0]
