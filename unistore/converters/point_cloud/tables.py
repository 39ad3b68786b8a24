"""Tables and index arrays of a point cloud store, and what folders and lists say of its sources."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path

import numpy as np

from unistore.converters.common.columns import Merged, promotion_notes, reconcile
from unistore.converters.common.faults import as_problem
from unistore.converters.common.left_out import NOT_EVERYWHERE, left_out_notes
from unistore.converters.files.hdf5.attributes import AttributeCollector
from unistore.converters.files.paths import split_of
from unistore.converters.point_cloud.derive import decimal_of, derive_memory
from unistore.converters.point_cloud.names import (
    LABEL,
    ColumnPlace,
    Described,
    FileLayout,
    PointOrigin,
    is_label,
)
from unistore.converters.point_cloud.options import PointCloudOptions
from unistore.converters.protocol import Facts, Finalized, Scan, Sources
from unistore.converters.scan import Parts
from unistore.errors import InputError, Problem, first_few
from unistore.schemas.point_cloud.fields import (
    FAMILY_NAME,
    NO_SEGMENT,
    POINTS,
    SEGMENTS,
    Decimal,
    column_field,
    scale_fields,
    segment_fields,
    source_row_field,
    voxel_fields,
    voxel_group,
    voxel_offsets_field,
    xyz_field,
)
from unistore.schemas.tables import Field, IndexValues, Table, lazy_text_arrays, offsets_of, text_arrays
from unistore.system.hints import AnyArray, Int64s
from unistore.system.packed import view
from unistore.system.sizes import count_of

# Read what folders and lists say of point clouds: splits, classes, and the rooms of S3DIS.
#
# A folder may name a split or, if there are several, a class: ``chair/train/0001.npy``. ``train_files.txt``
# and ``test_files.txt`` list the files of a split. The paths in them are often of another machine, so files
# are matched by name, among those in the folder of the list and below.

_LIST = re.compile(r"(train|val|valid|validation|test)(_hdf5)?_file(s|_list)\.txt", re.IGNORECASE)
_NAMES = {"valid": "val", "validation": "val"}
_MAX_BYTES = 16 << 20


@dataclass(slots=True)
class ListFiles:
    """Content of list files."""

    splits: dict[Path, str] = field(default_factory=dict)  # of each file that a list names
    rooms: dict[Path, list[str]] = field(default_factory=dict)  # name of each segment of a file
    files: list[Path] = field(default_factory=list)  # the lists
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)  # files in two splits, names of several files


def read_splits(files: Sequence[Path], roots: Sequence[Path]) -> ListFiles:
    """Read the lists of splits in the folders of `files`, up to the given roots."""
    lists = ListFiles()
    for folder in _folders(files, roots):
        for path in sorted(folder.glob("*.txt")):
            match = _LIST.fullmatch(path.name)
            if match is None or not path.is_file():
                continue
            split = _NAMES.get(match[1].lower(), match[1].lower())
            lists.files.append(path)
            for file in _matched(path, files, lists):
                before = lists.splits.setdefault(file, split)
                if before != split:
                    message = f"is in the lists of {before} and of {split}"
                    lists.problems.append(Problem(str(file), message, f"fix {path}", "split"))
    if lists.splits:
        counts = Counter(lists.splits.values())
        counted = ", ".join(f"{count} {split}" for split, count in counts.items())
        lists.notes.append(f"splits taken from {', '.join(path.name for path in lists.files)}: {counted}")
    return lists


def read_rooms(segments: Mapping[Path, int], roots: Sequence[Path]) -> ListFiles:
    """Read ``room_filelist.txt`` beside ``all_files.txt`` if it names all segments of these files."""
    lists = ListFiles()
    files = list(segments)
    for folder in _folders(files, roots):
        order = folder / "all_files.txt"
        names = folder / "room_filelist.txt"
        if not (order.is_file() and names.is_file()):
            continue
        listed_files = _matched(order, files, lists)
        rooms = _lines(names)
        count = sum(segments[file] for file in listed_files)
        if len(rooms) != count:
            differing = f"{names.name} names {len(rooms)} rows, the files of {order.name} hold {count}"
            lists.notes.append(f"{differing}: rooms are left out")
            continue
        lists.files += [order, names]
        left = iter(rooms)
        lists.rooms |= {file: list(islice(left, segments[file])) for file in listed_files}
    return lists


def _folders(files: Sequence[Path], roots: Sequence[Path]) -> list[Path]:
    # Folders of the files, and those above them inside a root
    folders = {file.parent for file in files}
    above = set(chain.from_iterable(folder.parents for folder in folders))
    inside = [root.resolve() for root in roots if root.is_dir()]
    folders |= {folder for folder in above if any(map(folder.is_relative_to, inside))}
    return sorted(folders)


def _lines(path: Path) -> list[str]:
    # Lines of a list, without empty ones
    with as_problem(str(path)):
        if path.stat().st_size > _MAX_BYTES:
            raise InputError.at(str(path), "is too long for a list of files", kind="format")
        text = path.read_text(encoding="utf-8", errors="replace")
    return [line.strip() for line in text.splitlines() if line.strip()]


def _matched(path: Path, files: Sequence[Path], lists: ListFiles) -> list[Path]:
    # Files that a list names, in its order. A name may be that of a file that is no source
    sources = set(files)
    by_name: dict[str, list[Path]] = {}
    for file in path.parent.rglob("*"):
        by_name.setdefault(file.name, []).append(file)
    matched: list[Path] = []
    absent: list[str] = []
    for line in _lines(path):
        name = line.replace("\\", "/").rpartition("/")[2]
        alike = by_name.get(name, [])
        if len(alike) > 1:
            # Of files with one name, the list means the one at its place.
            exact = path.parent / line.lstrip("./")
            alike = [exact] if exact in alike else alike
        if len(alike) > 1 and not sources.isdisjoint(alike):
            message = f"{line!r} may be {' or '.join(map(str, sorted(alike)))}"
            lists.problems.append(Problem(str(path), message, "write paths relative to the list", "split"))
        elif sources.isdisjoint(alike):
            absent.append(name)
        else:
            matched += alike
    if absent:
        lists.notes.append(f"{path.name} names {first_few(absent, 1)}, not among the sources")
    return matched


# Names with numbers are scenes, areas or parts, not classes, except for the synset numbers of ShapeNet.
_CLASS = re.compile(r"[^\d]+|\d{8}")


def folder_classes(sources: Sequence[str]) -> list[tuple[int, str] | None]:
    """Return number and name of the class of each source by its name, in the order of class names."""
    # None unless there are at least two class folders, one of them with several files. Folders named after a
    # split are skipped.
    named = [_class_of(source.rpartition("/")[0]) for source in sources]
    names = sorted({name for name in named if name is not None})
    if None in named or len(names) < 2 or max(Counter(named).values()) < 2:
        return [None] * len(sources)
    return [(names.index(name), name) for name in named if name is not None]


@lru_cache(1024)
def _class_of(folder: str) -> str | None:
    folders = folder.split("/") if folder else ()
    name = next((name for name in folders if split_of(f"{name}/a") is None), None)
    return name if name is not None and _CLASS.fullmatch(name) else None


def have_labels(described: Iterable[Described]) -> bool:
    """Return whether any file has labels or segments of its own, so that no folder is a label."""
    return any(file.segmented is not None or any(map(is_label, file.layout.places)) for file in described)


def with_label_dtype(layout: FileLayout, dtype: str) -> FileLayout:
    """Return the same layout whose labels are stored in a dtype."""
    columns, segment_columns = (
        {key: place._replace(dtype=dtype) if is_label(key) else place for key, place in places.items()}
        for places in (layout.columns, layout.segment_columns)
    )
    return layout._replace(columns=columns, segment_columns=segment_columns)


def with_folder_label(file: Described, of_class: tuple[int, str] | None) -> Described:
    """Return what is known of a file with the class of its folder as the label of its segment."""
    if of_class is None:
        return file
    columns = {**file.layout.segment_columns, LABEL: ColumnPlace(of_class[1], "<i4")}
    return replace(file, layout=file.layout._replace(segment_columns=columns), label=of_class)


_SHOWN = 8
_AT_ONCE = 256  # sources whose facts are joined at a time

Arrays = list[tuple[Field, IndexValues]]


def gather_clouds(parts: Parts, described: Sequence[Described], options: PointCloudOptions) -> Scan:
    """Reconcile the columns of all files, and add what folders and lists say."""
    files = described
    # A file that is cut into windows has no segment that its folder could name.
    if options.segment is None and LABEL not in options.map and not have_labels(described):
        classes = folder_classes(parts.names)
        files = list(map(with_folder_label, described, classes))
    forms = [{key: place.form for key, place in file.layout.columns.items()} for file in files]
    of_points, problems = reconcile(zip(parts.names, forms, strict=True), options.columns)
    forms = [{key: place.form for key, place in file.layout.segment_columns.items()} for file in files]
    of_segments, unlike = reconcile(zip(parts.names, forms, strict=True), options.columns)
    of_rooms = zip(parts.files(), files, strict=True)
    segments = {Path(paths[0]): file.segments for paths, file in of_rooms if file.segments_are_rooms}
    rooms = read_rooms(segments, parts.roots)
    problems += unlike + rooms.problems
    if problems:
        raise InputError(problems)
    texts = AttributeCollector()
    sources = Sources()
    for name, paths, group, file in zip(parts.names, parts.files(), parts.details, files, strict=True):
        memory = derive_memory(file, options)
        sources.add(
            name=name,
            files=[*paths, *file.further, *group.detail.files, *map(str, rooms.files)],
            split=group.detail.split,
            detail=PointOrigin(
                group.names,
                file.formats,
                group.arrays,
                file.layout,
                texts.text(name, file.attributes),
                tuple(rooms.rooms.get(Path(paths[0]), ())),
                file.label,
            ),
            memory=memory.on_disk,
            memory_in_core=memory.in_core,
        )
    points = sum(file.points for file in files)
    run = max(1, points // max(1, sum(file.segments for file in files)))
    class_names = dict(sorted({file.label for file in files if file.label is not None}))
    named = {str(number): name for number, name in class_names.items()}
    point_classes = options.labels.classes if options.labels else {}
    is_single = all(file.layout.xyz_dtype == "float32" for file in files)
    return Scan(
        family=FAMILY_NAME,
        sources=sources,
        tables=_tables(
            [_column_field(POINTS, key, form, point_classes, run) for key, form in of_points.items()],
            dict.fromkeys(options.voxel_size, run),
            "float32" if is_single else "float64",
            _unit_of(sources),
            run,
        ),
        sample_table=SEGMENTS,
        main_table=POINTS,
        options=options.recorded(),
        notes=(
            *_notes(parts, files, options),
            *_left_out(files, {*of_points, *of_segments}),
            *_folder_notes(sources, sorted(named.values())),
            *texts.notes(),
            *rooms.notes,
            *promotion_notes({**of_points, **of_segments}),
        ),
        estimated_rows=dict.fromkeys([POINTS, *map(voxel_group, options.voxel_size)], points),
        shared={
            "segment_columns": {
                key: _column_field(SEGMENTS, key, form, named) for key, form in of_segments.items()
            }
        },
    )


def _column_field(table: str, key: str, form: Merged, classes: Mapping[str, str], run: int = 1) -> Field:
    # The field of a column. `classes` are the names of labels by number
    named = {"classes": dict(classes)} if classes and is_label(key) else {}
    return column_field(table, key, form.dtype, form.row_shape, {**form.attributes, **named}, run)


def _unit_of(sources: Sources) -> str | None:
    # Unit of the coordinates, if it is the same for all files
    units = {origin.layout.unit for origin in sources.details}
    return units.pop() if len(units) == 1 else None


def _notes(parts: Parts, files: Sequence[Described], options: PointCloudOptions) -> list[str]:
    # Remarks on what the files hold
    counted = Counter(file.layout.name for file in files)
    names = ", ".join(f"{count} of layout {layout}" for layout, count in counted.items())
    own = sum(file.segments for file in files if file.segmented)
    notes = [f"point cloud: {count_of(len(parts), 'file')}, {names}; {own} segments of their own"]
    uncut = [name for name, file in zip(parts.names, files, strict=True) if not file.segmented]
    cut = f"cut by {options.segment}" if options.segment else "each file is one (--segment window:50 cuts it)"
    if uncut:
        notes.append(f"{first_few(uncut, 1)}: no segments, so {cut}")
    elif options.segment is not None:
        notes.append(f"every file has segments of its own, so nothing is {cut}")
    sources_of_note: dict[str, list[str]] = {}
    for name, file in zip(parts.names, files, strict=True):
        for note in file.notes:
            sources_of_note.setdefault(note, []).append(name)
    remarks = [f"{first_few(names, 1)}: {note}" for note, names in sources_of_note.items()]
    notes += remarks[:_SHOWN]
    if len(remarks) > _SHOWN:
        notes.append(f"and {len(remarks) - _SHOWN} further remarks of this kind")
    return notes


def _left_out(files: Sequence[Described], merged: Collection[str]) -> list[str]:
    # Remarks on arrays that are not stored. `merged` are the columns of the store
    left_out: dict[tuple[str, str], None] = {}
    for file in files:
        left_out |= dict.fromkeys(file.left_out)
        lacking = [place.array for key, place in file.layout.places.items() if key not in merged]
        left_out |= dict.fromkeys((array, NOT_EVERYWHERE) for array in lacking)
    return left_out_notes(left_out)


def _folder_notes(sources: Sources, classes: Sequence[str]) -> list[str]:
    # Remarks on what folders and lists say
    notes = []
    splits = sorted({split for split in sources.splits if split is not None})
    if splits:
        notes.append(f"splits: {', '.join(splits)}")
    if classes:
        remark = f"labels of segments are their folders, one a class: {first_few(classes, _SHOWN)}"
        notes.append(f"{remark}; --map label= leaves them out")
    return notes


def _tables(
    columns: Sequence[Field],
    voxel_runs: Mapping[float, int],
    xyz_dtype: str,
    unit: str | None,
    run: int,
    decimal: Decimal | None = None,
) -> tuple[Table, ...]:
    # ``points`` and one table per voxel grid, all spilled
    grids = {size: voxel_fields(size, voxel_run, run, unit) for size, voxel_run in voxel_runs.items()}
    points = (
        xyz_field(xyz_dtype, run, unit, decimal),
        *(replace(field, run=run) for field in columns),
        source_row_field(run),
        *(point_voxel for _, _, point_voxel in grids.values()),
    )
    tables = [Table(name=POINTS, fields=points, spilled=True)]
    for size, (coords, counts, _) in grids.items():
        tables.append(Table(name=voxel_group(size), fields=(coords, counts), spilled=True))
    return tuple(tables)


def point_columns(scan: Scan) -> dict[str, Field]:
    """Return fields of the points' own columns, by name."""
    points = next(table for table in scan.tables if table.name == POINTS)
    return {
        key: field
        for key, field in points.columns().items()
        if key not in ("xyz", "source_row") and not key.startswith("voxels/")
    }


def finalize_clouds(scan: Scan, facts: Sequence[Facts], sizes: Sequence[float]) -> Finalized:
    """Return index arrays and the final tables of all sources, which have at least one segment."""
    joined = _joined(facts, scan)
    lengths = joined["lengths"]
    of_source = np.repeat(np.arange(len(facts)), joined["counts"])
    real = joined["numbers"] != NO_SEGMENT
    if not real.any():
        message = "no point belongs to a segment, so there would be no sample"
        raise InputError.at(count_of(len(facts), "file"), message, "lower min_points", "empty")
    dtypes = {
        "int32" if quantised else origin.layout.xyz_dtype
        for origin, quantised in zip(scan.sources.details, joined["quantised"], strict=True)
    }
    dtype = dtypes.pop() if len(dtypes) == 1 else "float64"
    decimal = None
    if dtype == "float64":
        bounds = joined["bounds"][lengths > 0]
        least = bounds[:, 0].min(axis=0)
        most = bounds[:, 1].max(axis=0)
        decimal = decimal_of(joined["places"].tolist(), least, most)
        dtype = dtype if decimal is None else "int32"
    columns = []
    for key, own in point_columns(scan).items():
        unlabelled = {}
        if is_label(key) and not joined[f"labelled/{key}"].any():
            unlabelled = {"unlabelled": "every value is 0"}
        columns.append(replace(own, attributes={**own.attributes, **unlabelled}))
    unit = _unit_of(scan.sources)
    arrays = _segment_arrays(scan, joined, of_source, unit)
    arrays += [(voxel_offsets_field(size), offsets_of(joined[voxel_group(size)])) for size in sizes]
    arrays += _source_arrays(scan.sources)
    if dtype == "int32":
        arrays += _quantum_arrays(scan.sources, decimal)
    voxel_runs = {size: typical_length(joined[voxel_group(size)][real]) for size in sizes}
    return Finalized(
        arrays=arrays,
        spilled=_tables(columns, voxel_runs, dtype, unit, typical_length(lengths[real]), decimal),
        samples=int(np.count_nonzero(real)),
        sample_source=of_source[real].astype(np.int64),
    )


def _joined(facts: Sequence[Facts], scan: Scan) -> Facts:
    # Each fact of all sources, one after the other, and their ``counts`` of segments, (sources,)
    dtypes = {f"{SEGMENTS}/{key}": field.dtype for key, field in scan.shared["segment_columns"].items()}
    blocks: dict[str, list[AnyArray]] = {}
    for lo in range(0, len(facts), _AT_ONCE):
        some = facts[lo : lo + _AT_ONCE]
        for name, first in some[0].items():
            dtype = dtypes.get(name, first.dtype)
            values = [fact[name].astype(dtype, copy=False) for fact in some]
            block = np.concatenate(values) if first.ndim else np.array(values)
            blocks.setdefault(name, []).append(block)
        counts = np.array([len(fact["numbers"]) for fact in some])
        blocks.setdefault("counts", []).append(counts)
    return {name: np.concatenate(parts) for name, parts in blocks.items()}


def _segment_arrays(scan: Scan, joined: Facts, of_source: Int64s, unit: str | None) -> Arrays:
    values = {
        "offsets": offsets_of(joined["lengths"]),
        "origin": joined["bounds"][:, 0],
        "bounds": joined["bounds"],
        "source": of_source.astype(np.int32),
        "number": joined["numbers"],
    }
    arrays: Arrays = [(field, values[name]) for name, field in segment_fields(unit).items()]
    arrays += [(field, joined[f"{SEGMENTS}/{key}"]) for key, field in scan.shared["segment_columns"].items()]
    origins: Sequence[PointOrigin] = scan.sources.details
    if any(origin.rooms for origin in origins):
        names: list[str] = []
        for origin, count in zip(origins, joined["counts"].tolist(), strict=True):
            names += origin.rooms or [""] * count
        arrays += text_arrays(f"{SEGMENTS}/name", names, axis="segment", description="room of the segment")
    return arrays


def _quantum_arrays(sources: Sources, decimal: Decimal | None) -> Arrays:
    # Scale and offset of each file's quantised coordinates
    quanta = [origin.layout.quantum for origin in sources.details]
    if decimal is not None:
        quanta = [([decimal.scale] * 3, decimal.offset)] * len(sources)
    return [
        (field, np.array([quantum[number] for quantum in quanta], np.float64))
        for number, field in enumerate(scale_fields())
    ]


def _source_arrays(sources: Sources) -> Arrays:
    # Layout, header and attributes of each file
    origins: Sequence[PointOrigin] = sources.details
    layouts = view(origins, _layout_text)
    arrays = lazy_text_arrays(
        "sources/layout", layouts, axis="source", description="layout of the file, JSON"
    )
    if any(origin.layout.header for origin in origins):
        headers = view(origins, lambda origin: json.dumps(origin.layout.header, sort_keys=True))
        arrays += lazy_text_arrays(
            "sources/header", headers, axis="source", description="header of the file, JSON"
        )
    return [*arrays, *AttributeCollector.arrays(origins)]


def _layout_text(origin: PointOrigin) -> str:
    layout = origin.layout
    return json.dumps(
        {
            "layout": layout.name,
            "xyz": [place.array for place in layout.coordinates.values()],
            "xyz_stored": [place.dtype for place in layout.coordinates.values()],
            "columns": layout.columns,
            "segment_columns": layout.segment_columns,
        }
    )


def typical_length(lengths: Int64s) -> int:
    """Return the median length, at least 1: the rows that one sample reads."""
    return max(1, int(np.median(lengths)))
