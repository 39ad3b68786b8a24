"""Merge the scans of all files into one: tables, sources, problems and notes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import TypeAlias

from unistore.converters.trajectory.columns import VIDEO
from unistore.converters.trajectory.episodes import EpisodeIndex, EpisodeOrigin
from unistore.converters.trajectory.merging import merge_columns
from unistore.converters.trajectory.names import is_of_episodes
from unistore.converters.trajectory.options import TrajectoryOptions
from unistore.converters.trajectory.read import PREPARING, ROWS_READ
from unistore.converters.trajectory.scan import ScannedFile
from unistore.converters.trajectory.store_columns import StoredColumns, next_table
from unistore.errors import InputError, Problem, first_few, names_without_numbers
from unistore.plugin import (
    AttributeCollector,
    Merged,
    Parts,
    Scan,
    Sources,
    Table,
    count_of,
    left_out_notes,
    promotion_note,
    split_of,
)
from unistore.schemas.trajectory.fields import EPISODES, FAMILY_NAME, FINAL, NEXT, STEPS

# Files with episodes, and their names
_Named: TypeAlias = Sequence[tuple[str, ScannedFile]]

_LISTED = 20


def gather_files(parts: Parts, scanned: Sequence[ScannedFile], options: TrajectoryOptions) -> Scan:
    """Return all files together. Of files without episodes only the notes count."""
    named = [(name, file) for name, file in zip(parts.names, scanned, strict=True) if file.index.episodes]
    files = [file for _, file in named]
    stored, problems = merge_columns([(name, file.index) for name, file in named], options)
    problems = [*_different_layouts(named, len(parts)), *problems]
    if stored.streams:
        problems += chain.from_iterable(file.clock_problems for file in files)
    if not problems:
        problems = _unused_options(files, stored, options)
        if not files:
            problems.append(_no_episodes(scanned))
    if problems:
        raise InputError(problems)
    tables = stored.tables()
    attributes = AttributeCollector()
    sources = _sources(parts, scanned, stored, tables, attributes)
    episodes = sum(len(file.index.episodes) for file in files)
    steps = sum(file.index.steps for file in files)
    counted = (
        f"{count_of(episodes, 'episode')}, {count_of(steps, 'step')} from {count_of(len(files), 'file')}"
    )
    return Scan(
        family=FAMILY_NAME,
        sources=sources,
        tables=tables,
        sample_table=EPISODES,
        main_table=STEPS,
        options=options.recorded(),
        notes=(
            f"{files[0].index.layout}: {counted}",
            *_notes(files, stored, options),
            *attributes.notes(),
            *chain.from_iterable(file.notes for file in scanned),
        ),
        estimated_rows=_estimated_rows(tables, sources),
        possible=_possible_tables(stored, episodes, steps),
        needs_prepare=any(file.index.must_be_compared for file in files),
        shared={"columns": stored},
    )


def _sources(
    parts: Parts,
    scanned: Sequence[ScannedFile],
    stored: StoredColumns,
    tables: Sequence[Table],
    attributes: AttributeCollector,
) -> Sources:
    """Return the files with episodes as sources, and collect their attributes."""
    direct = [table.name for table in tables if not table.spilled]
    sources = Sources()
    for name, files, file in zip(parts.names, parts.files(), scanned, strict=True):
        if not file.index.episodes:
            continue
        index = file.index.stored_with(stored.clocks)
        reading = file.reading + ROWS_READ * max(index.row_sizes(), default=0)
        origin = EpisodeOrigin(
            files=(name,),
            formats=(file.format,),
            episodes=index,
            metadata=file.metadata,
            attributes=attributes.text(name, file.attributes, _has_stored(index)),
        )
        sources.add(
            name=name,
            files=(*files, *file.files),
            rows={table: sum(index.lengths(table)) for table in direct},
            split=split_of(name),
            detail=origin,
            memory=PREPARING + reading,
            reading=reading,
        )
    return sources


def _has_stored(index: EpisodeIndex) -> Callable[[str], bool]:
    """Return what says whether a path is a stored dataset, or a group above one. True of the root."""
    stored = {""}
    for dataset in index.datasets():
        path = dataset
        while path:
            stored.add(path)
            path = path.rpartition("/")[0]
    return stored.__contains__


def _estimated_rows(tables: Sequence[Table], sources: Sources) -> dict[str, int]:
    """Return how many rows spilled tables have at most, if each has its share of the bytes of all files."""
    spilled = {table.name: table.fields[0].row_bytes for table in tables if table.spilled}
    if not spilled:
        return {}
    share = sources.nbytes // len(spilled)
    return {name: share // row_bytes for name, row_bytes in spilled.items()}


def _possible_tables(stored: StoredColumns, episodes: int, steps: int) -> tuple[tuple[Table, int], ...]:
    """Return the tables that next observations may need, with their rows: values say so later."""
    if not stored.following:
        return ()
    rows = {FINAL: episodes, NEXT: steps}
    return tuple([(next_table(group, stored.following), count) for group, count in rows.items()])


# Problems


def _different_layouts(named: _Named, count: int) -> Iterator[Problem]:
    layouts: dict[str, str] = {}
    for name, file in named:
        layouts.setdefault(file.index.layout, name)
    if len(layouts) > 1:
        listed = ", ".join(f"{name} is {layout}" for layout, name in layouts.items())
        message = f"have different layouts: {listed}"
        yield Problem(f"{count:,} files", message, "convert them separately", "layout")


def _unused_options(
    files: Sequence[ScannedFile], stored: StoredColumns, options: TrajectoryOptions
) -> list[Problem]:
    """Return the problems of datasets that options name and no episode has."""
    used = set[str]().union(*stored.datasets.values())
    groups = {dataset.rpartition("/")[0] for dataset in used}
    named = {*used, *groups, *stored.columns, *stored.clocks.values(), STEPS}
    values: set[str] = set()
    for file in files:
        values.update(*(variant.values for variant in file.index.variants))
    problems = []
    for name, rate in options.rate.items():
        if name.strip("/") not in named:
            message = "no dataset, group or clock has this name"
            fix = "copy the name from 'unistore inspect', or remove the option"
            problems.append(Problem(f"--rate {name}={rate}", message, fix, "missing"))
    for name, path in options.map.items():
        dataset = path.strip("/")
        is_value = is_of_episodes(name) and dataset in values
        if dataset not in used and not is_value:
            message = "no episode has a per-step dataset of this name"
            fix = "copy the name from 'unistore inspect', or remove the option"
            problems.append(Problem(f"--map {name}={path}", message, fix, "missing"))
    return problems


def _no_episodes(scanned: Sequence[ScannedFile]) -> Problem:
    notes = islice(chain.from_iterable(file.notes for file in scanned), _LISTED)
    return Problem(count_of(len(scanned), "file"), "; ".join(["there are no episodes", *notes]), kind="empty")


# Notes


def _notes(files: Sequence[ScannedFile], stored: StoredColumns, options: TrajectoryOptions) -> Iterator[str]:
    """Yield what was decided of all files together, and what is left out."""
    left_out: dict[str, str] = {}
    values: dict[str, None] = {}
    for file in files:
        left_out |= dict(file.left_out)
        for variant in file.index.variants:
            values |= dict.fromkeys(variant.values)
    for role in ("action", "reward"):
        if role not in stored.columns:
            yield f"no column is the {role}; --map {role}=DATASET names one"
    yield from _clock_notes(stored)
    if stored.empty:
        listed = ", ".join(stored.empty)
        yield f"datasets of shape (T, 0) have no values, so only their names are stored: {listed}"
    if values:
        listed = first_few(names_without_numbers(values), _LISTED)
        yield f"not per step, so stored as attributes: {listed}"
    yield from left_out_notes([*left_out.items(), *_unstored_datasets(stored)])
    columns = stored.columns.items()
    yield from Merged.padding_notes({name: column.form for name, column in columns if column.has_extents})
    for name, column in columns:
        if note := promotion_note(name, column.form.dtype, column.form.origins):
            yield note
    yield from _image_notes(files, stored, options)


def _clock_notes(stored: StoredColumns) -> Iterator[str]:
    for clock in dict.fromkeys(stored.clocks.values()):
        if clock == STEPS:
            continue
        columns = ", ".join(column for column, other in stored.clocks.items() if other == clock)
        told = stored.streams[clock]
        times = f"times in {told.unit}" if told.rate is None else f"{told.rate:g} rows per second"
        yield f"clock {clock}: {columns}; {times}"


def _unstored_datasets(stored: StoredColumns) -> Iterator[tuple[str, str]]:
    """Yield datasets of columns that are not stored, or in another size only, with the reason."""
    for name, datasets in stored.datasets.items():
        column = stored.columns.get(name)
        if column is None:
            yield from ((dataset, "") for dataset in datasets)  # not in every source
        elif column.only_resized and column.is_resized:
            reason = f"because it is stored only as {column.size} × {column.size}"
            yield from ((dataset, reason) for dataset in datasets)


def _image_notes(
    files: Sequence[ScannedFile], stored: StoredColumns, options: TrajectoryOptions
) -> Iterator[str]:
    videos = [name for name, column in stored.columns.items() if column.is_kept and VIDEO in column.kinds]
    if videos:
        yield f"packets of video ({', '.join(videos)}) are stored bit for bit; PyAV is needed to read them"
    elif options.video == "keep":
        yield "--video keep: has no effect, because no source has video"
    encoded: dict[str, None] = {}
    for file in files:
        for variant in file.index.variants:
            names = [name for name, feature in variant.features.items() if feature.is_encoded]
            encoded |= dict.fromkeys(names)
    if listed := ", ".join(name for name in encoded if name in stored.columns):
        other = "swapped" if options.colour == "standard" else "standard"
        read = f"compressed frames ({listed}) are read with --colour {options.colour}"
        yield f"{read}; if red and blue are exchanged, add --colour {other}"
    elif options.images == "keep":
        yield "--images keep: has no effect, because no image is compressed in the sources"
