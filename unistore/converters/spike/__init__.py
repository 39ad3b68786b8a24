"""Recognise spike cameras: headerless ``.dat`` streams or arrays of spikes, with blur and sharp frames."""

# Sources are folders `<root>/{train,test}/<sequence>/{blur,sharp,spike,spike_vox}/NNN.*`, or spike files
# alone. One spike file is one frame and one sample; the frames of a folder are a sequence.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unistore.converters.spike.options import (
    IMAGE_FORMATS,
    IMAGE_ROLES,
    RAW_FORMAT,
    ROLE_FILES,
    ROLES,
    STREAM_ENDING,
    SpikeOptions,
    may_be,
)
from unistore.errors import printable
from unistore.plugin import Family, Grouping, Problem, Schema, no, sure

if TYPE_CHECKING:
    from unistore.plugin import (
        ArraySpecs,
        Claim,
        Exporter,
        Field,
        FileSummary,
        Finalized,
        Group,
        Openable,
        OwnForm,
        Parts,
        Preview,
        Restore,
        Scan,
        Scanned,
        SourceArrays,
        SourceFile,
        StoreView,
    )
    from unistore.system.types import AnyArray

_SPIKES = "spk"
# Of the voxels that are offered
_BINS = 5
_PIXELS_A_BYTE = 8
_ITEM_BYTES = {"uint8": 1, "uint16": 2, "uint32": 4}


@dataclass(frozen=True, kw_only=True)
class Spike(SpikeOptions, Family):
    """The family of spike-camera recordings. `SpikeOptions` has its options."""

    name = "spike"
    summary = "Spike cameras: sequences, .dat streams, .npy, .npz."
    description = (
        "Spike cameras: <root>/{train,test}/<sequence>/{blur,sharp,spike}, .dat streams, .npy and .npz."
    )
    examples = (
        "unistore convert spike recordings/ spikes.zarr --voxel-bins 5",
        "unistore convert spike a.dat b.dat spikes.zarr --height 250 --width 400",
        "unistore convert spike recordings/ spikes.zarr --frames keep",
    )
    formats = ("raw", "npy", "npz", "png", "jpeg")
    schema = Schema(table="frames")
    kind = "Clips"
    other_kinds = ("unistore.Clips(length=5, crop=256)", "unistore.Steps(length=200)")
    batch_size = 4
    thread_safe = True
    reads_in_place = True
    follows_links = True

    @classmethod
    def specs(cls) -> ArraySpecs:
        """See `unistore.schemas.spike.fields`."""
        from unistore.schemas.spike.fields import SPECS

        return SPECS

    @classmethod
    def exporter(cls, to: str) -> Exporter:  # noqa: ARG003  its only format
        """Yield streams in their own layout, arrays and images, see `export`."""
        from unistore.converters.spike.export import files

        return files

    @classmethod
    def restorer(cls, store: StoreView, scan: Scan) -> Restore:
        """Restore spikes, voxels and images of each frame."""
        from unistore.converters.spike.export import restore

        return restore(store, scan)

    @classmethod
    def preview(cls) -> Preview:
        """Show spikes or voxels over time, and images beside."""
        from unistore.converters.spike.preview import PREVIEW

        return PREVIEW

    def offers(
        self, arrays: Mapping[str, tuple[Sequence[int], str]], samples: int
    ) -> Sequence[tuple[str, str, int]]:
        """Offer voxels of 5 bins where frames have none."""
        from unistore.schemas.spike.fields import BITS, count_dtype, voxel_bins

        has_voxels = any(voxel_bins(path) is not None for path in arrays)
        if self.voxel_bins or has_voxels or BITS not in arrays or not samples:
            return ()
        (steps, height, row_bytes), _ = arrays[BITS]
        dtype = count_dtype(-(-steps // samples), _BINS)
        width = _PIXELS_A_BYTE * row_bytes
        most_bytes = samples * _BINS * height * width * _ITEM_BYTES[dtype]
        return [(f"--voxel-bins {_BINS}", f"voxels of {_BINS} time bins a frame", most_bytes)]

    @property
    def folders(self) -> Mapping[str, str]:
        """Name of the folder of each role."""
        return dict(zip(ROLES, (self.spike_dir, self.voxel_dir, self.blur_dir, self.sharp_dir), strict=True))

    def _role(self, file: SourceFile) -> str:
        """Role of a file by its folder (empty: it has none)."""
        folder = file.path.parent.name
        return next((role for role, name in self.folders.items() if name == folder), "")

    def claim(self, file: SourceFile) -> Claim | None:
        """Open only those images that lie beside spikes or voxels."""
        if file.format not in IMAGE_FORMATS:
            return None
        role = self._role(file)
        if role not in IMAGE_ROLES:
            return no(f"is not in a folder {self.blur_dir}/ or {self.sharp_dir}/")
        if not self._beside(file):
            missing = f"{self.spike_dir}/ or {self.voxel_dir}/"
            return no(f"is in {self.folders[role]}/, but there is no {missing} next to that folder")
        return None

    def _beside(self, file: SourceFile) -> str:
        """Return the folder of spikes, or else of voxels, beside that of an image."""
        above = file.path.parent.parent
        return next((name for name in (self.spike_dir, self.voxel_dir) if (above / name).is_dir()), "")

    def match(self, head: FileSummary) -> Claim:
        """Take streams, arrays called ``spk``, and what lies in the folders of a sequence."""
        role = self._role(head.file)
        if head.format in IMAGE_FORMATS:
            return sure(f"is in {self.folders[role]}/ next to {self._beside(head.file)}/", "sequences")
        if role in ("spike", "voxel") and may_be(head.format, role):
            return sure(f"is in a folder {self.folders[role]}/", "sequences")
        if head.format == RAW_FORMAT:
            if not head.file.path.name.lower().endswith(STREAM_ENDING):
                return no("is a stream outside of the folders of a sequence")
            return sure(f"is a headerless {STREAM_ENDING} stream", "stream")
        if head.format == "npy":
            return no("is an array outside of the folders of a sequence")
        if _SPIKES not in head.arrays:
            return no(f"does not contain {_SPIKES}")
        return sure(f"contains {_SPIKES} {head.arrays[_SPIKES][0]}", "array")

    def group(self, files: Sequence[SourceFile]) -> Grouping:
        """Make a group of each frame."""
        # Asking about files of other families loads none of it.
        from unistore.converters.spike.recordings import RecordingFinder, common_roles

        finder = RecordingFinder(files, self.folders, self.exclude)
        roles, problems = common_roles(finder.recordings, self.folders, self.columns)
        grouping = Grouping(problems=[*finder.problems, *problems], notes=[*finder.notes])
        if not finder.recordings and not finder.problems and files:
            message = f"contains no folder {self.spike_dir}/ and no file of {ROLE_FILES['spike']}"
            where = ", ".join(printable(str(root)) for root in files[0].roots)
            fix = "name the folder with --spike-dir"
            grouping.problems.append(Problem(where, message, fix, "missing"))
        common = set(ROLES).intersection(*[recording.roles for recording in finder.recordings])
        if {"spike", "voxel"} & common:
            for recording in finder.recordings:
                grouping.sources += recording.groups(roles)
        grouping.left_out += [(file, self._why_unused(file, roles)) for file in files]
        return grouping

    def _why_unused(self, file: SourceFile, roles: Sequence[str]) -> str:
        role = self._role(file)
        if role and role not in roles:
            return f"is in {printable(self.folders[role])}/, which not every sequence has"
        if role and not may_be(file.format, role):
            return f"is not a file of {ROLE_FILES[role]}"
        folders = ", ".join([f"{name}/" for name in self.folders.values()])
        return f"does not belong to a frame; the files of frames are in {folders}"

    def scan(self, group: Group, files: Sequence[Openable]) -> Scanned:
        """Read the headers of a frame's files, and check arrays."""
        from unistore.converters.spike.reading import scan_frame

        return scan_frame(self, group, files)

    def reconcile(self, parts: Parts, scanned: Sequence[Any]) -> Scan:
        """Find the layout and extents of streams, and what becomes of voxels."""
        from unistore.converters.spike.gather import gather_frames

        return gather_frames(scanned, self)

    def finish(self, scan: Scan, prepared: Sequence[SourceArrays]) -> Finalized:
        """Make extents, sequences, and offsets of kept images. One sample for each frame."""
        from unistore.converters.spike.gather import finish_frames

        return finish_frames(self, scan)

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
        """Read time steps, the voxels and images of a frame, or bytes of one of its kept images."""
        from unistore.converters.spike.reading import read_rows

        read_rows(self, scan, source, files, table, lo, hi, out)

    def own(self, scan: Scan, table: str, source: int, fields: Mapping[str, Field]) -> Mapping[str, OwnForm]:
        """Return how files have rows of a table, without voxels that are counted."""
        from unistore.converters.spike.reading import own_forms

        return own_forms(scan, table, source, fields)
