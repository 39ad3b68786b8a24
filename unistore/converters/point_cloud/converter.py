"""Convert point clouds of any format: segments, exact coordinates, voxel grids."""

# Steps import what they need: looking at a file of another family needs none of it.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from unistore.converters.common.label_map import Numbering
from unistore.converters.point_cloud import PointCloud
from unistore.converters.point_cloud.names import (
    Described,
    Match,
    PointOrigin,
)
from unistore.converters.point_cloud.pointsuite import check_names, outside_segments
from unistore.converters.point_cloud.sources import LAYOUTS, recognise
from unistore.converters.protocol import Emit, Facts, Finalized, Parts, Scan, Scanned, SourcePart
from unistore.converters.seam.converter import SeamConverter
from unistore.converters.seam.formats import joined
from unistore.converters.seam.sources import further_files
from unistore.plugin import (
    Claim,
    Format,
    Group,
    InputError,
    Opened,
)
from unistore.schemas.point_cloud.fields import DECIMAL, POINTS, Quantum
from unistore.schemas.tables import Field, OwnForm, Table, little_endian
from unistore.system.hints import AnyArray


class PointCloudConverter(SeamConverter):
    """Converts point clouds, see `PointCloudOptions`."""

    plugin: PointCloud

    def describe(
        self, part: SourcePart, group: Group, openings: Sequence[Format], opened: Sequence[Opened]
    ) -> Described:
        """Recognise a source's layout and columns."""
        whole = outside_segments(joined(group, opened))
        layout, match = recognise(whole, openings[0].name, self.plugin.map)
        if layout is None:
            message = "is no point cloud of a known layout"
            raise InputError.at(part.name, message, "check what wrote it", "format")
        check_names(whole)
        described = layout.describe(whole, self.plugin.map)
        numbering = self._numbering(group.files[0].path, part.name)
        if numbering is not None:
            from unistore.converters.point_cloud.tables import with_label_dtype

            described = replace(described, layout=with_label_dtype(described.layout, numbering.dtype.str))
        notes = described.notes
        used = {place.array for place in described.layout.columns.values()}
        beside = zip(group.files[1:], group.arrays[1:], strict=True)
        names = [file.path.name for file, word in beside if word in used]
        if names:
            notes = (*notes, f"columns are in files beside it: {', '.join(names)}")
        return replace(
            described,
            certain=match is Match.CERTAIN,
            notes=notes,
            formats=tuple([opening.name for opening in openings]),
            further=further_files(whole, part),
        )

    def with_origins(self, scanned: Scanned, opened: Sequence[Opened]) -> Scanned:
        """See `SeamConverter`. Segments, of which there may be millions, are not looked at."""
        return super().with_origins(scanned, list(map(outside_segments, opened)))

    def stored_arrays(self, scanned: Scanned) -> None:
        """See `SeamConverter`: all."""

    def _numbering(self, path: str | Path, name: str) -> Numbering | None:
        labels = self.plugin.labels
        return None if labels is None else labels.numbering(Path(path), name)

    def not_ours(self, part: SourcePart, claim: Claim) -> Scanned:
        """Refuse a file that no format takes. If another family does, it is left to that."""
        raise InputError.at(part.name, claim.reason, "leave it out", "missing")

    def gather(self, parts: Parts, scanned: Sequence[Any]) -> Scan:
        """Reconcile the columns of all files, see `gather_clouds`."""
        from unistore.converters.point_cloud.tables import gather_clouds, have_labels

        if self.plugin.labels is not None:
            labelled = zip(parts.files(), scanned, strict=True)
            self.plugin.labels.check_used([Path(files[0]) for files, file in labelled if have_labels([file])])
        return gather_clouds(parts, scanned, self.plugin)

    def derive(self, scan: Scan, source: int, emit: Emit, folder: Path | None) -> Facts:
        """Read one file of any size, see `DerivedCloud`."""
        from unistore.converters.point_cloud.derive import DerivedCloud
        from unistore.converters.point_cloud.tables import point_columns

        origin: PointOrigin = scan.sources.details[source]
        with self.reopened(scan, source) as opened:
            points = LAYOUTS[origin.layout.name](opened, origin.layout)
            numbering = self._numbering(scan.sources.paths(source)[0], origin.files[0])
            cloud = DerivedCloud(points, scan.sources[source], self.plugin, emit, folder, numbering)
            return cloud.derive(point_columns(scan), scan.shared["segment_columns"])

    def finalize(self, scan: Scan, facts: Sequence[Facts]) -> Finalized:
        """Index arrays of segments and voxels, and the dtype of the coordinates."""
        from unistore.converters.point_cloud.tables import finalize_clouds

        return finalize_clouds(scan, facts, self.plugin.voxel_size)

    def own(self, scan: Scan, table: str, source: int, fields: Mapping[str, Field]) -> dict[str, OwnForm]:
        """See `SourceReader.own`: without voxels. Coordinates are floats, however the store has them."""
        if table != POINTS:
            return {}
        forms = super().own(scan, table, source, fields)
        forms = {column: form for column, form in forms.items() if not column.startswith("voxels/")}
        layout = scan.sources.details[source].layout
        restore = None
        if fields["xyz"].dtype == "int32":
            decimal: Any = fields["xyz"].attributes.get(DECIMAL)
            scale, offset = layout.quantum if decimal is None else ([decimal["scale"]] * 3, decimal["offset"])
            quantum = Quantum(np.array([scale]), np.array([offset]), decimal is not None)
            restore = partial(quantum.restored, source=0)
        forms["xyz"] = OwnForm(little_endian(layout.xyz_dtype), (3,), restore)
        return forms

    def pack(self, scan: Scan, table: Table, column: str, source: int, rows: AnyArray, out: AnyArray) -> None:
        """Copy spilled rows. Coordinates become floats or decimals if not all sources were quantised."""
        from unistore.converters.point_cloud.derive import dequantise, quantise_decimals

        decimal = table.columns()[column].attributes.get(DECIMAL) if column == "xyz" else None
        if column == "xyz" and rows.dtype.kind == "i" and (decimal is not None or out.dtype.kind == "f"):
            scale, offset = scan.sources.details[source].layout.quantum
            rows = dequantise(rows, np.array(scale), np.array(offset))
        if isinstance(decimal, Mapping):
            quantise_decimals(rows, decimal, out)
            return
        np.copyto(out, rows, casting="same_kind")
