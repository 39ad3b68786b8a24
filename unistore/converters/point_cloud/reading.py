"""Read point clouds: the headers of a source's files, and its points, once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from unistore.converters.point_cloud.derive import DerivedCloud, id_column
from unistore.converters.point_cloud.labels import with_label_dtype
from unistore.converters.point_cloud.names import Described, Match, PointOrigin
from unistore.converters.point_cloud.options import PointCloudOptions, parse_segment
from unistore.converters.point_cloud.pointsuite import check_names
from unistore.converters.point_cloud.sources import LAYOUTS, recognise
from unistore.converters.point_cloud.tables import point_columns
from unistore.plugin import Emit, Group, InputError, Openable, OpenFile, Scan, SourceArrays


def scan_cloud(options: PointCloudOptions, group: Group, files: Sequence[Openable]) -> Described:
    """Recognise the layout and the columns of a source.

    Raises
    ------
    InputError
        If a file is of no format, has no known layout, or has one in which something is wrong.
    """
    for file in files:
        claim = file.recognised()
        if claim.certainty == "no":
            raise InputError.at(group.name, claim.reason, "remove it from the command", "missing")
    with _opened(files, group.arrays) as opened:
        layout, match = recognise(opened, files[0].format.name, options.map)
        if layout is None:
            message = "is not a point cloud of a known layout"
            raise InputError.at(group.name, message, "check the program that wrote it", "format")
        check_names(opened)
        described = layout.describe(opened, options.map)
        further = opened.further_paths(group.files)
    if options.segment is not None and described.segmented is None:
        column = parse_segment(options.segment).column
        if column:
            id_column(described.layout, column, group.name)
    if options.labels is not None:
        numbering = options.labels.numbering(group.files[0].path, group.name)
        described = replace(described, layout=with_label_dtype(described.layout, numbering.dtype.str))
    return replace(
        described,
        certain=match is Match.CERTAIN,
        notes=(*described.notes, *_notes_on_column_files(group, described)),
        formats=tuple([file.format.name for file in files]),
        further=further,
    )


@contextmanager
def _opened(files: Sequence[Openable], names: Sequence[str]) -> Iterator[OpenFile]:
    """Open the files of a source as one. Of several, each has one array, which `names` names."""
    with ExitStack() as stack:
        opened = [stack.enter_context(file.open()) for file in files]
        if not names:
            yield opened[0]
            return
        arrays = [array for one in opened for array in one.arrays.values()]
        memory = max(one.memory for one in opened)
        yield replace(opened[0], arrays=dict(zip(names, arrays, strict=True)), memory=memory)


def _notes_on_column_files(group: Group, described: Described) -> list[str]:
    """Return a note that names the files of columns that are stored."""
    stored_arrays = {place.array for place in described.layout.columns.values()}
    column_files = zip(group.files[1:], group.arrays[1:], strict=True)
    names = [file.path.name for file, array in column_files if array in stored_arrays]
    return [f"columns are read from other files: {', '.join(names)}"] if names else []


def prepare_cloud(
    options: PointCloudOptions,
    scan: Scan,
    source: int,
    files: Sequence[Openable],
    emit: Emit,
    folder: Path | None,
) -> SourceArrays:
    """Read a file of any size, and emit its points and voxels. See `DerivedCloud.derive`."""
    origin: PointOrigin = scan.sources.details[source]
    renumber = None
    if options.labels is not None:
        path = Path(scan.sources.paths(source)[0])
        renumber = options.labels.numbering(path, origin.files[0]).stored
    with _opened(files, origin.arrays) as opened:
        points = LAYOUTS[origin.layout.name](opened, origin.layout)
        cloud = DerivedCloud(points, scan.sources[source], options, emit, folder, renumber)
        return cloud.derive(point_columns(scan), scan.shared["segment_columns"])
