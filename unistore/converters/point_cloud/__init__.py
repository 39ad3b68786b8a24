"""Point clouds: what users say of them, and where the steps of a conversion are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unistore.converters.point_cloud.options import PointCloudOptions
from unistore.plugin import Family, Schema, no

if TYPE_CHECKING:
    from pathlib import Path

    from unistore.plugin import (
        ArraySpecs,
        Claim,
        Emit,
        Exporter,
        Field,
        FileSummary,
        Finalized,
        Group,
        Grouping,
        Openable,
        OwnForm,
        Parts,
        Preview,
        Restore,
        Rule,
        Scan,
        Scanned,
        SourceArrays,
        SourceFile,
        StoreView,
        Table,
    )
    from unistore.system.types import AnyArray


# Of a voxel (three int32 and a count) and of the number that its point has of it
_VOXEL_BYTES = 16 + 4


@dataclass(frozen=True, kw_only=True)
class PointCloud(PointCloudOptions, Family):
    """The family of point clouds. `PointCloudOptions` has its options."""

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
    scan_identifies = True
    unlisted_groups = ("segments",)

    @classmethod
    def specs(cls) -> ArraySpecs:
        """See `unistore.schemas.point_cloud.fields`."""
        from unistore.schemas.point_cloud.fields import SPECS

        return SPECS

    @classmethod
    def rules(cls) -> Sequence[Rule]:
        """Check coordinates, segments, bounds and voxels."""
        from unistore.schemas.point_cloud.rules import RULES

        return RULES

    @classmethod
    def exporter(cls, to: str) -> Exporter:  # noqa: ARG003  its only format
        """Yield the files of the sources."""
        from unistore.converters.point_cloud.restore import files

        return files

    @classmethod
    def restorer(cls, store: StoreView, scan: Scan) -> Restore:
        """Restore coordinates, columns and segments of each file."""
        from unistore.converters.point_cloud.restore import restore

        return restore(store, scan)

    @classmethod
    def preview(cls) -> Preview:
        """Show the points of a segment."""
        from unistore.converters.point_cloud.preview import PREVIEW

        return PREVIEW

    def offers(
        self,
        arrays: Mapping[str, tuple[Sequence[int], str]],
        samples: int,
    ) -> Sequence[tuple[str, str, int]]:
        """Offer voxels, of which there are at most as many as points."""
        (points, *_), _ = arrays.get("points/xyz", ((0,), ""))
        if self.voxel_size or not points or any(path.startswith("voxels/") for path in arrays):
            return ()
        return [("--voxel-size SIZE", "voxels of each segment (of any size)", points * _VOXEL_BYTES)]

    def derive_from(
        self, option: str, value: Any, store: StoreView, emit: Emit, folder: Path, progress: Any
    ) -> Finalized:
        """Make the voxels of all segments of a store."""
        from unistore.converters.point_cloud.voxels import voxels

        return voxels(store, value, emit, folder, progress)

    def claim(self, file: SourceFile) -> Claim | None:
        """Decline an array that is called neither like a point cloud nor like a column of one beside it."""
        from unistore.converters.point_cloud.sources import not_called_so

        reason = not_called_so(file)
        return no(reason) if reason else None

    def match(self, head: FileSummary) -> Claim:
        """Take a file that certainly has one of the layouts. It may still have problems."""
        from unistore.converters.point_cloud.sources import match

        return match(head, self.map)

    def group(self, files: Sequence[SourceFile]) -> Grouping:
        """Group files with the columns beside them, and leave out arrays that are not clouds."""
        from unistore.converters.point_cloud.sources import group

        return group(files)

    def scan(self, group: Group, files: Sequence[Openable]) -> Scanned:
        """Recognise the layout and the columns of a source."""
        from unistore.converters.point_cloud.reading import scan_cloud

        return scan_cloud(self, group, files)

    def reconcile(self, parts: Parts, scanned: Sequence[Any]) -> Scan:
        """Reconcile the columns of all files, and add what folders and lists say."""
        from unistore.converters.point_cloud.gather import gather_clouds

        return gather_clouds(parts, scanned, self)

    def prepare(
        self, scan: Scan, source: int, files: Sequence[Openable], emit: Emit, folder: Path | None
    ) -> SourceArrays:
        """Read a file of any size, and emit its points and voxels."""
        from unistore.converters.point_cloud.reading import prepare_cloud

        return prepare_cloud(self, scan, source, files, emit, folder)

    def finish(self, scan: Scan, prepared: Sequence[SourceArrays]) -> Finalized:
        """Make index arrays of segments and voxels, and choose the dtype of the coordinates."""
        from unistore.converters.point_cloud.finish import finish_clouds

        return finish_clouds(scan, prepared, self.voxel_size)

    def pack(self, scan: Scan, table: Table, column: str, source: int, rows: AnyArray, out: AnyArray) -> None:
        """Copy rows. Coordinates become floats or decimals if not all sources were quantised."""
        from unistore.converters.point_cloud.coordinates import pack_rows

        pack_rows(scan.sources.details[source].layout, table.columns()[column], column, rows, out)

    def own(self, scan: Scan, table: str, source: int, fields: Mapping[str, Field]) -> Mapping[str, OwnForm]:
        """Return how files have points, without voxels."""
        from unistore.converters.point_cloud.coordinates import own_forms

        return own_forms(scan.sources.details[source].layout, table, source, fields)
