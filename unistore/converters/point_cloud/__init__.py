"""Point clouds: what users say of them, and where the steps of a conversion are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from unistore.converters.point_cloud.options import PointCloudOptions
from unistore.plugin import Family, Schema, no

if TYPE_CHECKING:
    from pathlib import Path

    from unistore.converters.family import Exporter
    from unistore.converters.files.comparison import Restore
    from unistore.converters.preview import Preview
    from unistore.converters.protocol import Emit, Finalized, Scan
    from unistore.plugin import (
        Claim,
        Grouping,
        Head,
        SourceFile,
    )
    from unistore.schemas.array_specs import ArraySpecs
    from unistore.schemas.indices import StoreView
    from unistore.schemas.rules import Rule
    from unistore.system.progress import Progress


@dataclass(frozen=True, kw_only=True)
class PointCloud(PointCloudOptions, Family):
    """Point clouds; see `PointCloudOptions`."""

    name = "point_cloud"
    summary = "Point clouds: LAS, LAZ, PLY, PCD, KITTI, HDF5, arrays, text."
    description = "Point clouds: LAS, LAZ, PLY, PCD, KITTI, nuScenes, HDF5 of many layouts, arrays, text."
    examples = (
        "unistore convert point-cloud clouds/ clouds.zarr",
        "unistore convert point-cloud clouds/ clouds.zarr --voxel-size 0.5",
        "unistore convert point-cloud scan.h5 scan.zarr --segment window:50",
        "unistore convert point-cloud scan.h5 scan.zarr --map x=East --map y=North",
    )
    formats = ("hdf5", "npy", "npz", "las", "laz", "parquet", "ply", "pcd", "sweep", "text_points")
    any_format = True
    schema = Schema(table="points")
    kind = "Segments"
    other_kinds = ("unistore.Segments(max_points=4096)",)
    derives = ("voxel_size",)
    converter = "unistore.converters.point_cloud.converter:PointCloudConverter"
    scan_identifies = True

    @classmethod
    def specs(cls) -> ArraySpecs:
        """See `unistore.schemas.point_cloud.specs`."""
        from unistore.schemas.point_cloud.specs import SPECS

        return SPECS

    @classmethod
    def rules(cls) -> Sequence[Rule]:
        """Check coordinates, segments, bounds and voxels."""
        from unistore.schemas.point_cloud.specs import RULES

        return RULES

    @classmethod
    def exporter(cls, to: str) -> Exporter:  # noqa: ARG003  its only format
        """Yield the files of the sources."""
        from unistore.converters.point_cloud.restore import files

        return partial(files, cls.formats)

    @classmethod
    def restorer(cls, store: StoreView, scan: Scan) -> Restore:
        """Restore coordinates, columns and segments of each file."""
        from unistore.converters.point_cloud.restore import restore

        return restore(cls, store, scan)

    @classmethod
    def preview(cls) -> Preview:
        """Show the points of a segment."""
        from unistore.converters.point_cloud.preview import PREVIEW

        return PREVIEW

    def derive_from(
        self, option: str, value: Any, store: StoreView, emit: Emit, folder: Path, progress: Progress
    ) -> Finalized:
        """Make the voxels of all segments of a store."""
        from unistore.converters.point_cloud.restore import voxels

        return voxels(store, value, emit, folder, progress)

    def claim(self, file: SourceFile) -> Claim | None:
        """Decline an array that is called neither like a point cloud nor like a column of one beside it."""
        from unistore.converters.point_cloud.sources import not_called_so

        reason = not_called_so(file)
        return no(reason) if reason else None

    def match(self, head: Head) -> Claim:
        """Take a file that certainly has one of the layouts. It may still have problems."""
        from unistore.converters.point_cloud.sources import match

        return match(head, self.map)

    def group(self, files: Sequence[SourceFile]) -> Grouping:
        """Group files with the columns beside them, and leave out arrays that are not clouds."""
        from unistore.converters.point_cloud.sources import group

        return group(files)
