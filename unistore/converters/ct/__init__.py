"""CT volumes."""

from __future__ import annotations

from unistore.converters.registry import FamilyRecord

FAMILY = FamilyRecord(
    name="ct",
    summary="CT volumes: NIfTI, DICOM, MetaImage, .npy, HDF5, case folders.",
    description="CT volumes: NIfTI, DICOM, MetaImage, .npy, HDF5; case folders with windows and points.",
    examples=(
        "unistore convert ct volumes/ ct.zarr",
        "unistore convert ct volumes/ ct.zarr --window lung --window mine:400:50",
        "unistore convert ct processed/ ct.zarr --resolution 512 --sparse mask",
    ),
    options="unistore.converters.ct.options:CtOptions",
    converter="unistore.converters.ct.converter:converter",
    specs="unistore.schemas.ct.specs:SPECS",
    rules="unistore.schemas.ct.specs:RULES",
    export="unistore.converters.ct.export:files",
    export_to={
        "ome-zarr": "unistore.converters.ct.export:ome_files",
        "nifti": "unistore.converters.ct.export:nifti_files",
    },
    from_store={"window": "unistore.converters.ct.stored:window"},
    from_store_options=("values",),
    restore="unistore.converters.ct.stored:restore",
    kind="unistore.data.kinds.named:volumes",
    preview="unistore.converters.ct.preview:PREVIEW",
    other_kinds=("unistore.Patches(96)", "unistore.SparsePoints()"),
    batch_size=2,
)
