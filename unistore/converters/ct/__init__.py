"""CT volumes: what users say of them, and where the steps of a conversion are."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from unistore.converters.ct.options import COMPANIONS, FORMATS, CtOptions
from unistore.plugin import Family, Schema

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
        Progress,
        Restore,
        Rule,
        Scan,
        Scanned,
        SourceArrays,
        SourceFile,
        StoreView,
    )
    from unistore.system.types import AnyArray


# Images of these dtypes are masks, labels or gray values
_NO_HU = ("uint8", "int8", "bool")


@dataclass(frozen=True, kw_only=True)
class Ct(CtOptions, Family):
    """The family of CT volumes. `CtOptions` has its options, `unistore.converters.ct.group` its file sets."""

    name = "ct"
    summary = "CT volumes: NIfTI, DICOM, MetaImage, NRRD, TIFF, .npy, HDF5."
    description = (
        "CT volumes: NIfTI, DICOM, MetaImage, NRRD, TIFF, .npy, HDF5; case folders with windows and points."
    )
    examples = (
        "unistore convert ct volumes/ ct.zarr",
        "unistore convert ct volumes/ ct.zarr --window lung --window mine:400:50",
        "unistore convert ct processed/ ct.zarr --resolution 512 --sparse mask",
    )
    formats = (*FORMATS, "npz")
    any_format = True
    schema = Schema(table="volumes")
    kind = "Volumes"
    other_kinds = ("unistore.Patches(96)", "unistore.SparsePoints()")
    batch_size = 2
    exports = ("ome-zarr", "nifti")
    derives = ("window",)
    derive_options = ("values",)
    reads_in_place = True
    reads_planes = True
    companions = COMPANIONS
    groups_excluded = True

    @classmethod
    def specs(cls) -> ArraySpecs:
        """See `unistore.schemas.ct.fields`."""
        from unistore.schemas.ct.fields import SPECS

        return SPECS

    @classmethod
    def kinds(cls, paths: Collection[str]) -> Sequence[str]:
        """Begin with volumes, or in a store without images with the points of its windows."""
        groups = ("windows/", "sdf/")
        has_points = any(path.startswith(groups) and path.endswith("/offsets") for path in paths)
        kinds = ("unistore.Volumes()", *cls.other_kinds)
        return kinds if "volumes/image" in paths or not has_points else kinds[::-1]

    @classmethod
    def rules(cls) -> Sequence[Rule]:
        """Check points, masks and presence."""
        from unistore.schemas.ct.rules import RULES

        return RULES

    @classmethod
    def exporter(cls, to: str) -> Exporter:
        """Yield the files of the sources, OME-Zarr images, or NIfTI files."""
        from unistore.converters.ct.export import files, nifti_files, ome_files

        return {"": files, "ome-zarr": ome_files, "nifti": nifti_files}[to]

    @classmethod
    def restorer(cls, store: StoreView, scan: Scan) -> Restore:
        """Restore the arrays of each volume."""
        from unistore.converters.ct.restore import restore

        return restore(store, scan)

    @classmethod
    def preview(cls) -> Preview:
        """Show planes, masks and points of a volume."""
        from unistore.converters.ct.preview import PREVIEW

        return PREVIEW

    def offers(
        self,
        arrays: Mapping[str, tuple[Sequence[int], str]],
        samples: int,
    ) -> Sequence[tuple[str, str, int]]:
        """Offer the sparse voxels of a window, if images may hold HU, which take two bytes a voxel.

        Values are not read here, so the offer also names the option that a volume without air and bone needs.
        """
        from unistore.schemas.ct.fields import IMAGE, WINDOWS
        from unistore.schemas.ct.voxels import ValueRange

        shape, dtype = arrays.get(IMAGE, ((0,), ""))
        has_windows = any(path.startswith(f"{WINDOWS}/") for path in arrays)
        if self.window or has_windows or not prod(shape) or dtype in _NO_HU:
            return ()
        *planes, width = shape
        mask_bytes = prod(planes) * -(-width // 8)
        without_air = f"add --values hu if all HU are in {ValueRange.LOW}…{ValueRange.HIGH}"
        return [("--window lung", f"sparse voxels of a HU window ({without_air})", mask_bytes)]

    def derive_from(
        self, option: str, value: Any, store: StoreView, emit: Emit, folder: Path, progress: Progress
    ) -> Finalized:
        """Cut a window of the images of a store."""
        from unistore.converters.ct.restore import window

        return window(store, value, self, emit, progress)

    def claim(self, file: SourceFile) -> Claim | None:
        """Take ``info.json`` of case folders, which must be JSON, and DICOM, of which no header is read."""
        from unistore.converters.ct.claims import claim

        return claim(file)

    def match(self, head: FileSummary) -> Claim:
        """Take volumes, and windows, masks, labels and points of them."""
        from unistore.converters.ct.claims import match

        return match(head)

    def group(self, files: Sequence[SourceFile]) -> Grouping:
        """Collect case folders, files with their windows, masks and labels, series, and stacks of pages."""
        from unistore.converters.ct.group import group

        return group(files, self.window_names, keep_names=self.keep_names)

    def scan(self, group: Group, files: Sequence[Openable]) -> Scanned:
        """Read every header of a volume, and the texts about it."""
        from unistore.converters.ct.scan import VolumeScan

        return VolumeScan(self).run(group, files)

    def reconcile(self, parts: Parts, scanned: Sequence[Any]) -> Scan:
        """Find what all volumes have in common."""
        from unistore.converters.ct.gather import gather_volumes

        return gather_volumes(scanned, self)

    def prepare(
        self, scan: Scan, source: int, files: Sequence[Openable], emit: Emit, folder: Path | None
    ) -> SourceArrays:
        """Count the points of every window, check masks, window files and point files, and find locations."""
        from unistore.converters.ct.reading import VolumeReader

        reader = VolumeReader(scan, source, files)
        prepared = reader.prepared()
        most = scan.options.get("foreground_locations")
        return prepared if most is None else {**prepared, **reader.locations(most, emit)}

    def finish(self, scan: Scan, prepared: Sequence[SourceArrays]) -> Finalized:
        """Choose points or bits for each window, and make the index arrays."""
        from unistore.converters.ct.finish import finish_volumes

        return finish_volumes(scan, prepared)

    def read(
        self,
        scan: Scan,
        source: int,
        files: Sequence[Openable],
        table: str,
        lo: int,
        hi: int,
        out: Mapping[str, AnyArray],
    ) -> None:
        """Read rows of volumes, masks, labels, windows (one per volume), or points of a window or field."""
        from unistore.converters.ct.reading import VolumeReader

        VolumeReader(scan, source, files).read_rows(table, lo, hi, out)

    def read_planes(
        self,
        scan: Scan,
        source: int,
        files: Sequence[Openable],
        table: str,
        lo: int,
        hi: int,
        out: Mapping[str, AnyArray],
    ) -> None:
        """Read planes of the row of volumes, masks, labels or windows."""
        from unistore.converters.ct.reading import VolumeReader

        VolumeReader(scan, source, files).read_planes(table, lo, hi, out)

    def own(self, scan: Scan, table: str, source: int, fields: Mapping[str, Field]) -> Mapping[str, OwnForm]:
        """Return the forms of voxels and distances, without windows that are cut of an image, and locations.

        Their form follows from all volumes.
        """
        from unistore.converters.ct.reading import own_forms

        return own_forms(scan.sources.details[source], table, fields)
