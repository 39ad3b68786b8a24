"""One scan of all files: the columns of all episodes merged, sources, tables and remarks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from unistore.converters.common.columns import padding_notes
from unistore.converters.common.left_out import NOT_EVERYWHERE, left_out_notes, names_without_numbers
from unistore.converters.files.hdf5.attributes import NO_ATTRIBUTES, AttributeCollector
from unistore.converters.files.paths import size_of, split_of
from unistore.converters.protocol import Scan, Sources
from unistore.converters.scan import Parts
from unistore.converters.trajectory.columns import VIDEO
from unistore.converters.trajectory.episode_index import EpisodeIndex, EpisodeOrigin
from unistore.converters.trajectory.options import TrajectoryOptions
from unistore.converters.trajectory.read import ROWS_READ, derive_memory
from unistore.converters.trajectory.scan import ScannedFile
from unistore.converters.trajectory.store_columns import StoredColumns, merge_columns
from unistore.errors import InputError, Problem, first_few
from unistore.schemas.trajectory.fields import EPISODES, FAMILY_NAME, FINAL, NEXT, STEPS
from unistore.system.sizes import count_of

_LISTED = 20


def gather_files(parts: Parts, scanned: Sequence[ScannedFile], options: TrajectoryOptions) -> Scan:
    """Merge the columns of all episodes, and use only the notes of files without episodes."""
    used = [one for one in scanned if one.index.episodes]
    named = [(name, one) for name, one in zip(parts.names, scanned, strict=True) if one.index.episodes]
    layouts: dict[str, str] = {}
    for name, one in named:
        layouts.setdefault(one.index.layout, name)
    stored, problems = merge_columns(((name, one.index) for name, one in named), options)
    if len(layouts) > 1:
        listed = ", ".join(f"{name} is {layout}" for layout, name in layouts.items())
        message = f"hold different layouts: {listed}"
        problems.insert(0, Problem(f"{len(parts)} files", message, "convert them apart", "layout"))
    if not problems:
        problems = _unused(stored, options) + ([] if used else _no_episodes(scanned))
    if problems:
        raise InputError(problems)
    tables = stored.tables()
    spilled = {table.name: table.fields[0].row_bytes for table in tables if table.spilled}
    texts, sources = AttributeCollector(), Sources()
    for name, files, one in zip(parts.names, parts.files(), scanned, strict=True):
        if one.index.episodes:
            index = one.index.stored_with(stored.clocks)
            attributes = NO_ATTRIBUTES
            if one.attributes is not None:
                attributes = texts.text(name, one.attributes, _is_stored(index))
            reading = one.reading + ROWS_READ * max(index.row_sizes(), default=0)
            sources.add(
                name=name,
                files=(*files, *one.files),
                rows={table.name: sum(index.lengths(table.name)) for table in tables if not table.spilled},
                split=split_of(name),
                detail=EpisodeOrigin(
                    files=(name,),
                    formats=(one.format,),
                    episodes=index,
                    facts=one.facts,
                    attributes=attributes,
                ),
                memory=derive_memory(index, keep=options.images == "keep") + reading,
                reading=reading,
            )
    nbytes = sum(map(size_of, sources.files())) if spilled else 0
    episodes = sum(len(one.index.episodes) for one in used)
    steps = sum(one.index.steps for one in used)
    # Tables of next observations are possible until values are compared.
    possible = {FINAL: episodes, NEXT: steps}
    counted = f"{count_of(episodes, 'episode')}, {count_of(steps, 'step')} from {count_of(len(used), 'file')}"
    return Scan(
        family=FAMILY_NAME,
        sources=sources,
        tables=tables,
        sample_table=EPISODES,
        main_table=STEPS,
        options=options.recorded(),
        notes=(
            f"{next(iter(layouts))}: {counted}",
            *_notes(used, stored, options),
            *texts.notes(),
            *(note for one in scanned for note in one.notes),
        ),
        estimated_rows={name: nbytes // len(spilled) // size for name, size in spilled.items()},
        possible=tuple(
            (table, possible[table.name])
            for table in stored.next_tables(dict.fromkeys(possible, stored.following))
        ),
        needs_facts=any(one.index.must_be_compared for one in used),
        shared={"columns": stored},
    )


def _notes(used: Sequence[ScannedFile], stored: StoredColumns, options: TrajectoryOptions) -> Iterator[str]:
    left_out: dict[str, str] = {}
    values: dict[str, None] = {}
    encoded: dict[str, None] = {}
    for one in used:
        left_out |= dict(one.left_out)
        for variant in one.index.variants:
            values |= dict.fromkeys(variant.values)
            encoded |= dict.fromkeys(name for name, own in variant.features.items() if own.is_encoded)
    for role in ("action", "reward"):
        if role not in stored.columns:
            yield f"no {role}: no column of the store is one; --map {role}=DATASET names it"
    for clock in dict.fromkeys(stored.clocks.values()):
        if clock != STEPS:
            columns = ", ".join(column for column, own in stored.clocks.items() if own == clock)
            told = stored.streams[clock]
            times = f"times in {told['unit']}" if "unit" in told else f"{told['rate']:g} rows a second"
            yield f"clock {clock}: {columns}; {times}"
    if stored.empty:
        listed = ", ".join(stored.empty)
        yield f"(T, 0) datasets hold no values and are only named in attributes: {listed}"
    if values:
        listed = first_few(names_without_numbers(values), _LISTED)
        yield f"not per step, so kept as attributes and not as columns: {listed}"
    yield from left_out_notes([*left_out.items(), *_datasets_left_out(stored)])
    yield from padding_notes({name: column.form for name, column in stored.columns.items() if column.extents})
    if listed := ", ".join(name for name, own in stored.columns.items() if own.keeps and VIDEO in own.kinds):
        yield f"packets of video ({listed}) kept bit for bit: whoever reads them needs PyAV"
    elif options.video == "keep":
        yield "--video keep: no source has video"
    if listed := ", ".join(column for column in encoded if column in stored.columns):
        taken = f"compressed frames ({listed}) taken as {options.colour}; if red and blue are exchanged, "
        yield f"{taken}choose the other --colour (standard, swapped)"
    elif options.images == "keep":
        yield "--images keep: no image is compressed in the sources, all are stored as arrays"


def _datasets_left_out(stored: StoredColumns) -> Iterator[tuple[str, str]]:
    """Yield datasets of columns that are not stored, or in another size alone, with the reason."""
    for name, datasets in stored.datasets.items():
        column = stored.columns.get(name)
        if column is None:
            yield from ((dataset, NOT_EVERYWHERE) for dataset in datasets)
        elif column.alone and column.is_resized:
            reason = f"being stored as {column.size} × {column.size} alone"
            yield from ((dataset, reason) for dataset in datasets)


def _unused(stored: StoredColumns, options: TrajectoryOptions) -> list[Problem]:
    """Return problems of datasets that options name and no episode has."""
    used = set[str]().union(*stored.datasets.values())
    groups = {dataset.rpartition("/")[0] for dataset in used}
    known = {*used, *groups, *stored.columns, *stored.clocks.values(), STEPS}
    rates = [f"--rate {name}={rate}" for name, rate in options.rate.items() if name.strip("/") not in known]
    maps = [f"--map {name}={path}" for name, path in options.map.items() if path.strip("/") not in used]
    message = "no dataset, group or clock has this name"
    problems = [Problem(rate, message, kind="missing") for rate in rates]
    message = "no episode has a per-step dataset of this name"
    return problems + [Problem(own, message, kind="missing") for own in maps]


def _is_stored(index: EpisodeIndex) -> Callable[[str], bool]:
    """Function that tells whether the store has a dataset, or any dataset in a group. True for the root."""
    datasets = index.datasets()
    groups = {path.rsplit("/", depth)[0] for path in datasets for depth in range(1, path.count("/") + 1)}
    return {"", *groups, *datasets}.__contains__


def _no_episodes(scanned: Sequence[ScannedFile]) -> list[Problem]:
    notes = [note for one in scanned for note in one.notes][:_LISTED]
    name = count_of(len(scanned), "file")
    return [Problem(name, "; ".join(["no episode is left", *notes]), kind="empty")]
