"""Point clouds."""

from __future__ import annotations

from unistore.converters.registry import FamilyRecord

FAMILY = FamilyRecord(
    name="point_cloud",
    summary="Point clouds: LAS, LAZ, PLY, PCD, KITTI, HDF5, arrays, text.",
    description="Point clouds: LAS, LAZ, PLY, PCD, KITTI, nuScenes, HDF5 of many layouts, arrays, text.",
    examples=(
        "unistore convert point-cloud clouds/ clouds.zarr",
        "unistore convert point-cloud clouds/ clouds.zarr --voxel-size 0.5",
        "unistore convert point-cloud scan.h5 scan.zarr --segment window:50",
        "unistore convert point-cloud scan.h5 scan.zarr --map x=East --map y=North",
    ),
    options="unistore.converters.point_cloud.options:PointCloudOptions",
    converter="unistore.converters.point_cloud.converter:converter",
    specs="unistore.schemas.point_cloud.specs:SPECS",
    rules="unistore.schemas.point_cloud.specs:RULES",
    export="unistore.converters.point_cloud.restore:files",
    from_store={"voxel_size": "unistore.converters.point_cloud.restore:voxels"},
    restore="unistore.converters.point_cloud.restore:restore",
    kind="unistore.data.kinds.named:segments",
    preview="unistore.converters.point_cloud.preview:PREVIEW",
    other_kinds=("unistore.Segments(max_points=4096)",),
)
