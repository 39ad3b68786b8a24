"""Merge the columns and clocks of all episodes into those of a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import PurePosixPath

import numpy as np

from unistore.converters.trajectory.columns import ENCODED, RAGGED, VIDEO, Feature, Variant, observed_now
from unistore.converters.trajectory.episodes import EpisodeIndex
from unistore.converters.trajectory.options import TrajectoryOptions
from unistore.converters.trajectory.store_columns import (
    FOLLOWING,
    OBSERVED,
    StoredColumn,
    StoredColumns,
    next_table,
)
from unistore.errors import Problem
from unistore.plugin import Merged, SourceColumn, reconcile
from unistore.schemas.trajectory.clocks import RecordedClock, table_of
from unistore.schemas.trajectory.fields import NEXT, STEPS, column_group

# The index of each source with episodes, and its name
Indexes = Sequence[tuple[str, EpisodeIndex]]


def merge_columns(indexes: Indexes, options: TrajectoryOptions) -> tuple[StoredColumns, list[Problem]]:
    """Return the columns that hold those of all episodes, and what keeps them from being one store.

    Parameters
    ----------
    indexes
        Name and episodes of each source.
    options
        Whether columns may differ, what is kept, and the size of images.
    """
    merger = _ColumnMerger(indexes, options)
    merged, problems = reconcile(merger.forms(), options.columns, merger.may_be_padded)
    problems += merger.pad_next(merged)
    problems += merger.reordered.values()
    columns = {name: merger.column(name, form) for name, form in merged.items()}
    for column in columns.values():
        problems += _mixed_kinds(column)
    clocks = merger.clocks
    stored = StoredColumns(
        columns=columns,
        datasets={name: tuple(origins.datasets) for name, origins in merger.origins.items()},
        empty=merger.empty,
        streams=clocks.streams if clocks.are_used else {},
    )
    return stored, [*problems, *clocks.problems(), *_name_problems(stored)]


@dataclass(slots=True)
class _Origins:
    """Where the sources have a column: each dataset, kind, dtype of flags and dataset of offsets once."""

    datasets: dict[str, None] = field(default_factory=dict)
    kinds: dict[str, None] = field(default_factory=dict)
    offsets: dict[str, None] = field(default_factory=dict)
    flag_dtypes: dict[str, None] = field(default_factory=dict)
    components: dict[tuple[str, ...], None] = field(default_factory=dict)
    clock: str = STEPS

    def add(self, feature: Feature) -> None:
        """Add the column of an episode."""
        self.datasets[feature.dataset] = None
        self.kinds[feature.kind] = None
        if feature.offsets:
            self.offsets[feature.offsets] = None
        if feature.flag_dtype:
            self.flag_dtypes[feature.flag_dtype] = None
        self.components[feature.components] = None
        if feature.clock != STEPS:
            self.clock = feature.clock


class _ColumnMerger:
    """Collects where sources have each column, while their forms are taken one by one."""

    def __init__(self, indexes: Indexes, options: TrajectoryOptions) -> None:
        self._indexes = indexes
        self._options = options
        self.origins: dict[str, _Origins] = {}  # by column
        self.empty: dict[str, str] = {}
        self.clocks = _Clocks()
        self._shaped_apart: dict[str, str] = {}  # a source whose next observations have another shape
        self._recorded_next: dict[str, None] = {}
        self._named_by: dict[str, tuple[tuple[str, ...], str]] = {}  # components of a column, and a source
        self.reordered: dict[tuple[str, str], Problem] = {}  # by source and column
        for _, index in indexes:
            for variant in index.variants:
                names = [name for name in variant.features if name.startswith(FOLLOWING)]
                self._recorded_next |= dict.fromkeys(names)

    def forms(self) -> Iterator[tuple[str, dict[str, SourceColumn]]]:
        """Yield what messages call a source, or its episodes with the same columns, and their forms."""
        for source, index in self._indexes:
            self.clocks.add(source, index)
            for label, variant in zip(_labels(source, index), index.variants, strict=True):
                self._collect(source, variant)
                yield label, self._forms_of(variant)

    def _collect(self, source: str, variant: Variant) -> None:
        self.empty.update(variant.empty)
        for column, feature in variant.features.items():
            self.origins.setdefault(column, _Origins()).add(feature)
            if feature.components:
                self._compare_components(source, column, feature.components)
            observation = column.removeprefix("next_")
            now = variant.features.get(observation)
            if now is None or now.row_shape != feature.row_shape:
                self._shaped_apart.setdefault(observation, source)

    def _compare_components(self, source: str, column: str, components: tuple[str, ...]) -> None:
        """Keep the problem of a column whose numbers have another order than in the first source."""
        first, first_source = self._named_by.setdefault(column, (components, source))
        if components != first and sorted(components) == sorted(first):
            place = next(place for place, name in enumerate(first) if components[place] != name)
            other = f"number {place} is {components[place]!r}, but {first[place]!r} in {first_source}"
            message = f"has the numbers of {column} in another order: {other}"
            fix = "write them in one order", "convert it separately"
            self.reordered[source, column] = Problem(source, message, fix, "columns")

    def _forms_of(self, variant: Variant) -> dict[str, SourceColumn]:
        """Return the forms of columns. Observations stand for next ones that only other sources recorded."""
        forms = {column: feature.form for column, feature in variant.features.items()}
        for column in self._recorded_next:
            now = observed_now(variant.features, column)
            if now is not None:
                forms[column] = now.form
        return forms

    def may_be_padded(self, column: str) -> bool:
        """Return whether smaller rows of a column can be padded."""
        return RAGGED.isdisjoint(self.origins[column].kinds) and not self._is_kept(column)

    def _is_kept(self, column: str) -> bool:
        """Return whether compressed frames, or packets of video, are stored as they are."""
        kinds = self.origins[column].kinds
        has_frames = self._options.images == "keep" and not ENCODED.isdisjoint(kinds)
        return (VIDEO in kinds or has_frames) and column.startswith(OBSERVED)

    def pad_next(self, merged: dict[str, Merged]) -> Iterator[Problem]:
        """Give next observations the row shape of the observations, where either are padded."""
        for name, form in merged.items():
            following = merged.get(f"next_{name}")
            if following is None or not (form.is_padded or following.is_padded):
                continue
            if name in self._shaped_apart:
                source = self._shaped_apart[name]
                message = f"{name} and next_{name} differ in shape"
                yield Problem(source, message, "convert it separately", "columns")
            merged[f"next_{name}"] = following._replace(row_shape=form.row_shape)

    def column(self, name: str, form: Merged) -> StoredColumn:
        """Return a column of the store."""
        origins = self.origins[name]
        options = self._options
        return StoredColumn(
            name=name,
            form=form,
            datasets=tuple(origins.datasets),
            kinds=tuple(origins.kinds),
            offsets=tuple(origins.offsets),
            flag_dtypes=tuple(origins.flag_dtypes),
            components=next(iter(origins.components)) if len(origins.components) == 1 else (),
            clock=origins.clock if self.clocks.are_used else STEPS,
            colour=options.colour,
            is_kept=self._is_kept(name),
            size=options.image_size,
            only_resized=options.images == "resized",
        )


def _labels(source: str, index: EpisodeIndex) -> list[str]:
    """Return what messages call the episodes of each variant: the source, or its first such episode."""
    if len(index.variants) == 1:
        return [source]
    counts = np.bincount([episode.variant for episode in index.episodes])
    labels = []
    for number, count in enumerate(counts.tolist()):
        first = next(episode.name for episode in index.episodes if episode.variant == number)
        others = f" (+{count - 1})" if count > 1 else ""
        labels.append(f"{source}: {first}{others}")
    return labels


def _mixed_kinds(column: StoredColumn) -> Iterator[Problem]:
    """Yield the problem of a column whose rows are of one kind in some sources and of another in others."""
    kinds = set(column.kinds)
    if column.is_kept and not (kinds <= ENCODED or kinds == {VIDEO}):
        message = "is compressed in some sources, but not in others"
        yield Problem(column.name, message, "remove --images keep and --video keep", "columns")
    if len(kinds) > 1 and not RAGGED.isdisjoint(kinds):
        message = "has rows of variable length in some sources, but not in others"
        yield Problem(column.name, message, "convert these sources separately", "columns")


class _Clocks:
    """The clocks of all episodes. Streams with as many rows as steps everywhere need none."""

    def __init__(self) -> None:
        self.are_used = False
        self.streams: dict[str, RecordedClock] = {}  # what tells the times of each clock
        self._first_sources: dict[str, str] = {}
        self._without_times: dict[str, Problem] = {}
        self._different: list[Problem] = []

    def add(self, source: str, index: EpisodeIndex) -> None:
        """Add the episodes of a source."""
        self.are_used = self.are_used or index.has_streams
        for variant in index.variants:
            if STEPS not in variant.streams:
                message = "has no times of its steps, but other sources have streams of other rates"
                fix = "write action_timestamps", "convert it separately"
                self._without_times[source] = Problem(source, message, fix, "clock", source)
            self._add_streams(source, variant)

    def _add_streams(self, source: str, variant: Variant) -> None:
        # Of two columns of one dataset the first counts
        columns = {variant.features[column].dataset: column for column in reversed(variant.features)}
        for clock, stream in variant.streams.items():
            told = RecordedClock(None, "", stream.rate)
            if stream.timestamps:
                path = f"{table_of(clock)}/{columns[stream.timestamps]}"
                told = RecordedClock(path, stream.unit, None)
            first = self._first_sources.setdefault(clock, source)
            first_told = self.streams.setdefault(clock, told)
            if told != first_told:
                message = f"the clock {clock} has {_words(told)}, but {_words(first_told)} in {first}"
                self._different.append(Problem(source, message, "convert them separately", "clock", source))

    def problems(self) -> list[Problem]:
        """Return the problems of clocks whose times are told in several ways, or not in some sources."""
        return [*self._without_times.values(), *self._different] if self.are_used else []


def _words(told: RecordedClock) -> str:
    return ", ".join(f"{name} {value}" for name, value in told.to_json().items())


def _name_problems(stored: StoredColumns) -> list[Problem]:
    """Return the problems of arrays whose path lies inside another array's, or is the same."""
    tables = [*stored.tables(), next_table(NEXT, stored.following)]
    paths = [field.path for field in chain.from_iterable(table.fields for table in tables)]
    groups = {column_group(path) for path in paths}
    wrong = {}
    for path in sorted(groups):
        for above in PurePosixPath(path).parents:
            if str(above) in groups:
                wrong[path] = f"would be inside of the array {str(above)!r}"
    wrong |= {path: "is the name of two columns" for path in paths if paths.count(path) > 1}
    fix = "rename one of them with --map NAME=DATASET"
    return [Problem(path, message, fix, "name") for path, message in wrong.items()]
