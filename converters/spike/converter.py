"""Spike cameras: headerless ``.dat`` streams or arrays of spikes, with their blur and sharp frames.

Sources are folders ``<root>/{train,test}/<sequence>/{blur,sharp,spike,spike_vox}/NNN.*``, or spike files
alone. One spike file is one frame and one sample; the frames of a folder are a sequence.

What a conversion needs is imported by its steps: looking at a file of another family needs none of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exclusion import Exclusion
from unistore.converters.files.paths import Listing
from unistore.converters.protocol import Converter, Facts, Finalized, Scan
from unistore.converters.scan import Candidate, Found, Part, Verdict
from unistore.converters.spike.frames import ROLES, FrameInfo, common_roles, suffixes_of
from unistore.converters.spike.options import SpikeOptions
from unistore.converters.spike.scan import ScannedFrame, recognise, scan_frame
from unistore.schemas.spike.fields import FAMILY_NAME, FRAMES, IMAGES, file_table_name


class SpikeConverter(SpikeOptions, Converter):
    """Converts spike recordings; see `SpikeOptions`."""

    family: ClassVar[str] = FAMILY_NAME
    suffixes: ClassVar[tuple[str, ...]] = tuple(dict.fromkeys(s for role in ROLES for s in suffixes_of(role)))
    thread_safe: ClassVar[bool] = True

    def look(self, file: Candidate) -> Verdict:
        """Take streams, ``.npz`` files of ``spk``, and files in the folders of a sequence."""
        return recognise(file.path, self._folders())

    def find(self, listing: Listing, exclusion: Exclusion) -> Found:
        """One part for each frame, with a `FrameInfo` as its detail."""
        from unistore.converters.spike.recordings import find_left_out, find_recordings

        folders = self._folders()
        found = find_recordings(listing, folders, exclusion)
        roles, differing = common_roles(found.recordings, folders, self.columns)
        problems = [*found.problems, *differing]
        if not {"spike", "voxel"}.intersection(*(each.roles for each in found.recordings)):
            return Found(parts=(), notes=found.notes, problems=problems)
        frames = [
            FrameInfo(frame, each.name, each.sequence, each.split, tuple(r for r in roles if r in each.roles))
            for each in found.recordings
            for frame in each.frames
        ]
        parts = [
            Part(name=info.frame.name, files=info.files, roots=listing.roots, detail=info) for info in frames
        ]
        used = [file for part in parts for file in part.files]
        left_out = find_left_out(found, used, roles, folders, exclusion)
        return Found(parts=parts, left_out=left_out, notes=found.notes, problems=problems)

    def scan(self, part: Part) -> ScannedFrame:
        """Read headers and sizes of one frame's files, and check arrays; see `Converter.scan`."""
        return scan_frame(part.detail, convert_images=self.convert_images)

    def gather(self, parts: Sequence[Part], scanned: Sequence[ScannedFrame]) -> Scan:
        """Extents of the streams, tables and sources of all frames; see `Converter.gather`."""
        from unistore.converters.spike.gather import gather_frames

        return gather_frames(scanned, self)

    def _folders(self) -> dict[str, str]:
        return dict(zip(ROLES, (self.spike_dir, self.voxel_dir, self.blur_dir, self.sharp_dir), strict=True))

    def read(
        self, scan: Scan, table: str, source: int, lo: int, hi: int, out: Mapping[str, NDArray[Any]]
    ) -> None:
        """Read a frame, or bytes ``lo:hi`` of one of its kept images; see `Converter.read`."""
        if lo == hi:
            return
        from unistore.converters.spike.tables import read_file_bytes, read_frame

        if table == FRAMES:
            read_frame(scan.sources[source], self.voxel_bins, self.flip, out)
            return
        image = next(image for image in IMAGES if file_table_name(image) == table)
        read_file_bytes(scan.sources[source], image, lo, hi, out["data"])

    def finalize(self, scan: Scan, facts: Sequence[Facts]) -> Finalized:
        """Extents, sequences, and offsets of kept images; one sample for each frame."""
        from unistore.converters.spike.tables import index_arrays

        return Finalized(
            arrays=index_arrays(scan.sources),
            samples=len(scan.sources),
            sample_source=np.arange(len(scan.sources)),
            groups={FRAMES: self._attributes(scan)},
        )

    def _attributes(self, scan: Scan) -> dict[str, Any]:
        """How the frames were made from their sources."""
        layout = scan.options["found"]["layout"]
        flipped = layout != "arrays" and self.flip
        upside_down = any(each.detail.get("voxel", {}).get("upside_down", False) for each in scan.sources)
        return {
            "source_layout": layout,
            "source_rows": "bottom first" if flipped else "top first",
            "flip_undone": flipped,
            "voxel_rule": "bin = (t * B) // T, T = spike_length of the frame",
            "images": self.frames,
            "existing_voxels": "bottom first" if upside_down else "top first",
        }
