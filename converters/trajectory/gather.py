"""One scan of all files: the columns of all episodes merged, sources, tables and remarks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from unistore.converters.common.left_out import NOT_EVERYWHERE, left_out_notes, names_without_numbers
from unistore.converters.files.hdf5.attributes import NO_ATTRIBUTES, AttributeCollector
from unistore.converters.files.paths import split_of
from unistore.converters.protocol import Scan, Sources
from unistore.converters.scan import Parts
from unistore.converters.trajectory.columns import IGNORED
from unistore.converters.trajectory.episode_index import EpisodeIndex, Origin
from unistore.converters.trajectory.finalize import MergedColumns, merge_columns, possible_tables
from unistore.converters.trajectory.naming import Naming, column_of
from unistore.converters.trajectory.options import TrajectoryOptions
from unistore.converters.trajectory.read import derive_memory
from unistore.converters.trajectory.scan import ScannedFile
from unistore.errors import InputError, Problem, first_few
from unistore.schemas.trajectory.fields import EPISODES, FAMILY_NAME, STEPS
from unistore.system.sizes import count_of

_LISTED = 20


def gather_files(parts: Parts, scanned: Sequence[ScannedFile], options: TrajectoryOptions) -> Scan:
    """Merge the columns of all episodes; of files without episodes, only notes are used.

    Raises
    ------
    InputError
        If files have different layouts, columns differ, a mapped dataset is missing, or no episode is
        left.
    """
    formats: dict[str, str] = {}

    def indexes() -> Iterator[tuple[str, EpisodeIndex]]:
        for name, each in zip(parts.names, scanned, strict=True):
            if each.index.names:
                formats.setdefault(each.index.layout, name)
                yield name, each.index

    layout, differences = merge_columns(
        indexes(), options.columns, images=options.images, image_size=options.image_size
    )
    problems = _mixed_layouts(formats, len(parts)) + differences
    if not problems:
        problems += _unused(layout, options) + ([] if formats else _no_episodes(scanned))
    if problems:
        raise InputError(problems)
    tables = layout.tables(options.colour)
    spilled = {table.name: table.fields[0].row_bytes for table in tables if table.spilled}
    texts, sources, seen = AttributeCollector(), Sources(), _Seen(next(iter(formats)))
    for name, files, each in zip(parts.names, parts.files(), scanned, strict=True):
        if each.index.names:
            index = each.index.restricted(layout.merged).on_clocks(layout.clocks)
            attributes = NO_ATTRIBUTES
            if each.attributes is not None:
                attributes = texts.text(name, each.attributes, _is_stored(index))
            sources.add(
                name=name,
                files=(*files, *each.files),
                rows={table.name: index.rows_in(table.name) for table in tables if not table.spilled},
                split=split_of(name),
                detail=Origin(
                    files=(name,),
                    formats=(each.format,),
                    episodes=index,
                    said=each.said,
                    attributes=attributes,
                ),
                memory=derive_memory(index, keep=options.images == "keep"),
                reading=each.reading,
            )
            seen.add(each)
    nbytes = sum(_size_of(files) for files in sources.files()) if spilled else 0
    return Scan(
        family=FAMILY_NAME,
        sources=sources,
        tables=tables,
        sample_table=EPISODES,
        main_table=STEPS,
        options=options.recorded(),
        notes=(
            *_notes(seen, len(sources), layout, options),
            *texts.notes(),
            *(note for each in scanned for note in each.notes),
        ),
        estimated_rows={name: nbytes // len(spilled) // size for name, size in spilled.items()},
        possible=possible_tables(layout, seen.episodes, seen.steps),
        needs_facts=seen.needs_facts,
        shared={"columns": layout},
    )


def _size_of(files: Sequence[str]) -> int:
    return sum(Path(file).stat().st_size for file in files)


def _notes(seen: _Seen, files: int, layout: MergedColumns, options: TrajectoryOptions) -> list[str]:
    counted = f"{count_of(seen.episodes, 'episode')}, {count_of(seen.steps, 'step')}"
    notes = [f"{seen.format}: {counted} from {count_of(files, 'file')}"]
    notes += [_no_role(role, seen, layout) for role in ("action", "reward") if role not in layout.merged]
    notes += [_clock_note(clock, layout) for clock in dict.fromkeys(layout.clocks.values())]
    if layout.empty:
        listed = ", ".join(layout.empty)
        notes.append(f"(T, 0) datasets hold no values and are only named in attributes: {listed}")
    if seen.values:
        listed = first_few(names_without_numbers(seen.values), _LISTED)
        notes.append(f"not per step, so kept as attributes and not as columns: {listed}")
    notes += left_out_notes([*seen.left_out.items(), *_columns_left_out(layout)])
    if listed := ", ".join(column for column in seen.encoded if column in layout.merged):
        notes.append(
            f"compressed frames ({listed}) taken as {options.colour}; if red and blue are exchanged, "
            "choose the other --colour (standard, swapped)"
        )
    elif options.images == "keep":
        notes.append("--images keep: no image is compressed in the sources, all are stored as arrays")
    return notes


def _clock_note(clock: str, layout: MergedColumns) -> str:
    """Remark on what a clock is, and in which unit its timestamps were taken."""
    columns = ", ".join(column for column, own in layout.clocks.items() if own == clock)
    told = layout.streams[clock]
    times = f"times in {told['unit']}" if "unit" in told else f"{told['rate']:g} rows a second"
    return f"clock {clock}: {columns}; {times}"


def _columns_left_out(layout: MergedColumns) -> Iterator[tuple[str, str]]:
    """Yield datasets of columns that are not stored, or in another size alone, with the reason."""
    size = layout.image_size
    for column, datasets in layout.datasets.items():
        if column not in layout.merged:
            yield from ((dataset, NOT_EVERYWHERE) for dataset in datasets)
        elif column in layout.resized_alone:
            yield from ((dataset, f"being stored as {size} × {size} alone") for dataset in datasets)


def _no_role(role: str, seen: _Seen, layout: MergedColumns) -> str:
    """Remark on a role that no column has."""
    ignored = [name for name, reason in seen.left_out.items() if reason == IGNORED]
    named = [name for name in ignored if column_of(name, Naming()) == role]
    if named:
        return f"no {role}: --ignore leaves out {', '.join(named)}"
    if role in layout.datasets:
        return f"no {role}: not every source has one, see --columns"
    return f"no {role}: the sources name none; --map {role}=DATASET names it"


def _unused(layout: MergedColumns, options: TrajectoryOptions) -> list[Problem]:
    """Problems of datasets that options name and no episode has."""
    used = {dataset for datasets in layout.datasets.values() for dataset in datasets}
    groups = {dataset.rpartition("/")[0] for dataset in used}
    known = {*used, *groups, *layout.merged, *layout.clocks.values(), STEPS}
    rates = [(name, rate) for name, rate in options.rate.items() if name.strip("/") not in known]
    message = "no dataset, group or clock has this name"
    problems = [Problem(f"--rate {name}={rate}", message, kind="missing") for name, rate in rates]
    message = "no episode has a per-step dataset of this name"
    return problems + [
        Problem(f"--map {column}={dataset}", message, kind="missing")
        for column, dataset in options.map.items()
        if dataset.strip("/") not in used
    ]


@dataclass(slots=True)
class _Seen:
    """What a scan counts and remarks on, over all sources."""

    format: str
    episodes: int = 0
    steps: int = 0
    needs_facts: bool = False
    left_out: dict[str, str] = field(default_factory=dict)
    values: dict[str, None] = field(default_factory=dict)
    encoded: dict[str, None] = field(default_factory=dict)

    def add(self, each: ScannedFile) -> None:
        """Add a source."""
        self.episodes += len(each.index.names)
        self.steps += sum(each.index.lengths)
        self.needs_facts = self.needs_facts or each.index.must_be_compared
        self.left_out |= dict(each.left_out)
        for variant in each.index.variants:
            self.values |= dict.fromkeys(variant.values)
            self.encoded |= dict.fromkeys(name for name, one in variant.features.items() if one.is_encoded)


def _is_stored(index: EpisodeIndex) -> Callable[[str], bool]:
    """Function that tells whether the store has a dataset, or any dataset in a group; true for the root."""
    datasets = index.datasets()
    groups = {path.rsplit("/", depth)[0] for path in datasets for depth in range(1, path.count("/") + 1)}
    return lambda path: not path or path in datasets or path in groups


def _mixed_layouts(first: Mapping[str, str], files: int) -> list[Problem]:
    """One Problem if files of different layouts were given together; `first` names a file of each."""
    if len(first) < 2:
        return []
    listed = ", ".join(f"{name} is {layout}" for layout, name in first.items())
    message = f"hold different layouts: {listed}"
    return [Problem(f"{files} files", message, "convert them apart", "layout")]


def _no_episodes(scanned: Sequence[ScannedFile]) -> list[Problem]:
    notes = [note for each in scanned for note in each.notes][:20]
    return [
        Problem(f"{count_of(len(scanned), 'file')}", "; ".join(["no episode is left", *notes]), kind="empty")
    ]
