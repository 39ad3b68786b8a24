"""CT volumes: what users say of them, and where the steps of a conversion are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unistore.converters.ct.options import FORMATS, CtOptions
from unistore.plugin import Family, Schema

if TYPE_CHECKING:
    from pathlib import Path

    from unistore.converters.family import Exporter
    from unistore.converters.files.comparison import Restore
    from unistore.converters.preview import Preview
    from unistore.converters.protocol import Emit, Finalized, Scan
    from unistore.plugin import Claim, Group, Head, Problem, SourceFile
    from unistore.schemas.array_specs import ArraySpecs
    from unistore.schemas.indices import StoreView
    from unistore.schemas.rules import Rule
    from unistore.system.progress import Progress


@dataclass(frozen=True, kw_only=True)
class Ct(CtOptions, Family):
    """CT volumes; see `CtOptions`, and `unistore.converters.ct.group` for a volume's files."""

    name = "ct"
    summary = "CT volumes: NIfTI, DICOM, MetaImage, .npy, HDF5, case folders."
    description = "CT volumes: NIfTI, DICOM, MetaImage, .npy, HDF5; case folders with windows and points."
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
    converter = "unistore.converters.ct.converter:CtConverter"

    @classmethod
    def specs(cls) -> ArraySpecs:
        """See `unistore.schemas.ct.specs`."""
        from unistore.schemas.ct.specs import SPECS

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
        from unistore.schemas.ct.specs import RULES

        return RULES

    @classmethod
    def exporter(cls, to: str) -> Exporter:
        """Yield the files of the sources, OME-Zarr images, or NIfTI files."""
        from unistore.converters.ct.export import files, nifti_files, ome_files

        return {"": files, "ome-zarr": ome_files, "nifti": nifti_files}[to]

    @classmethod
    def restorer(cls, store: StoreView, scan: Scan) -> Restore:
        """Restore the arrays of each volume."""
        from unistore.converters.ct.stored import restore

        return restore(store, scan)

    @classmethod
    def preview(cls) -> Preview:
        """Show planes, masks and points of a volume."""
        from unistore.converters.ct.preview import PREVIEW

        return PREVIEW

    def derive_from(
        self, option: str, value: Any, store: StoreView, emit: Emit, folder: Path, progress: Progress
    ) -> Finalized:
        """Cut a window of the images of a store."""
        from unistore.converters.ct.stored import window

        return window(store, value, self, emit, progress)

    def match(self, head: Head) -> Claim:
        """See `unistore.converters.ct.names`."""
        from unistore.converters.ct.names import match

        return match(head)

    def group(self, files: Sequence[SourceFile]) -> Iterable[Group | tuple[SourceFile, str] | Problem | str]:
        """See `unistore.converters.ct.group`."""
        from unistore.converters.ct.group import group

        return group(files, self.window_names, keep_names=self.keep_names)
