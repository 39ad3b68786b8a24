"""Event cameras."""

from __future__ import annotations

from unistore.converters.registry import FamilyRecord

__all__ = ["FAMILY"]

FAMILY = FamilyRecord(
    name="events",
    summary="Event cameras: HDF5, Prophesee .dat and .raw, .aedat4, .npy, .npz.",
    description="Event cameras: HDF5 with events/{x,y,t,p} (DSEC), Prophesee .dat and .raw, .aedat4, .npy "
    "and .npz.",
    examples=(
        "unistore convert events recordings/ events.zarr",
        "unistore convert events dsec/ events.zarr --sensor 640 480",
        "unistore convert events ros/ events.zarr --sensor 346 260 --unit ns",
    ),
    options="unistore.converters.events.options:EventsOptions",
    converter="unistore.converters.events.family:converter",
    specs="unistore.converters.events.family:SPECS",
    rules="unistore.schemas.events.rules:RULES",
    export="unistore.converters.events.stored:export",
    restore="unistore.converters.events.stored:restore",
    kind="unistore.data.kinds.named:events",
    other_kinds=('unistore.Events("50ms", voxel=5)',),
    preview="unistore.converters.events.stored:PREVIEW",
)
