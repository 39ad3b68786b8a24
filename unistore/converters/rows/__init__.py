"""Plain arrays that share axis 0."""

from __future__ import annotations

from unistore.converters.registry import FamilyRecord

__all__ = ["FAMILY"]

FAMILY = FamilyRecord(
    name="rows",
    summary="Plain arrays: HDF5, .npy, .npz, Parquet.",
    description="Plain arrays: HDF5, .npy, .npz or Parquet files whose arrays share axis 0.",
    examples=(
        "unistore convert rows arrays/ train.zarr",
        "unistore convert rows a.h5 b.h5 train.zarr --split train=0.9,val=0.1",
        "unistore convert rows a.npz train.zarr --map image=x --map label=y",
    ),
    options="unistore.converters.rows.options:RowsOptions",
    converter="unistore.converters.rows.family:converter",
    specs="unistore.schemas.rows.fields:SPECS",
    export="unistore.converters.rows.export:files",
    restore="unistore.converters.rows.export:restore",
    kind="unistore.data.kinds.named:rows",
    preview="unistore.converters.rows.export:PREVIEW",
    batch_size=64,
    general=True,
)
