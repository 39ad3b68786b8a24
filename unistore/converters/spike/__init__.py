"""Spike cameras."""

from __future__ import annotations

from unistore.converters.registry import FamilyRecord

__all__ = ["FAMILY"]

FAMILY = FamilyRecord(
    name="spike",
    summary="Spike cameras: sequences, .dat streams, .npy, .npz.",
    description="Spike cameras: <root>/{train,test}/<sequence>/{blur,sharp,spike}, .dat streams, .npy "
    "and .npz.",
    examples=(
        "unistore convert spike recordings/ spikes.zarr --voxel-bins 5",
        "unistore convert spike a.dat b.dat spikes.zarr --height 250 --width 400",
        "unistore convert spike recordings/ spikes.zarr --frames keep",
    ),
    options="unistore.converters.spike.options:SpikeOptions",
    converter="unistore.converters.spike.family:converter",
    specs="unistore.schemas.spike.specs:SPECS",
    export="unistore.converters.spike.export:files",
    restore="unistore.converters.spike.export:restore",
    kind="unistore.data.kinds.named:clips",
    preview="unistore.converters.spike.preview:PREVIEW",
    other_kinds=("unistore.Clips(length=5, crop=256)", "unistore.Steps(length=200)"),
    batch_size=4,
    follows_links=True,
)
