"""Divide the columns and clocks of all episodes together into tables."""

# Observations of 4 KiB and more per step (images, depth, clouds) have a table of their own: with rows of such
# different sizes in one table, shards would take gigabytes, or there would be thousands of tiny ones.

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from unistore.converters.common.columns import ROW_SHAPES, Merged, SourceColumn, promote, reconcile
from unistore.converters.trajectory.columns import ENCODED, RAGGED, VIDEO, Feature, Variant, observed_now
from unistore.converters.trajectory.options import TrajectoryOptions
from unistore.converters.trajectory.scan import EpisodeIndex
from unistore.errors import Problem
from unistore.schemas.ragged import RAGGED_SUFFIX, TEXT_SUFFIX, ragged_field, text_field
from unistore.schemas.tables import Field, OwnForm, Table, little_endian
from unistore.schemas.trajectory.clocks import table_of
from unistore.schemas.trajectory.fields import (
    FINAL,
    JPEG_SUFFIX,
    NEXT,
    OBSERVATION,
    STEPS,
    VIDEO_SUFFIX,
    column_field,
    column_group,
    frame_field,
    image_axes,
    is_image,
    moved,
    video_field,
)
from unistore.system.hints import JsonObject

LARGE = 4096  # bytes per step from which an observation is in the table of large ones
FLAGS = ("terminated", "truncated", "next_valid")
_OBSERVATION = "observation/"
_NEXT = "next_observation/"
# Of the columns of tables of observations, among those of an episode
_PREFIXES = {OBSERVATION: _OBSERVATION, NEXT: _NEXT, FINAL: _NEXT}


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """A column of a store: its form, where the sources have it, and its clock."""

    name: str
    form: Merged
    datasets: tuple[str, ...]  # in the sources
    kinds: tuple[str, ...]  # of these datasets, see `Feature`
    offsets: tuple[str, ...]  # datasets that divide those of a ragged column
    clock: str
    colour: str
    keeps: bool  # whether compressed frames are stored as they are
    size: int | None  # side of resized images, or None
    alone: bool  # whether images are stored as resized sets alone
    flag_dtypes: tuple[str, ...] = ()  # of flags in the sources

    @property
    def spilled_table(self) -> str:
        """Table of a column with any number of bytes, or values, in a row (empty: it has one value)."""
        if not self.keeps and RAGGED.isdisjoint(self.kinds):
            return ""
        suffix = TEXT_SUFFIX if "text" in self.kinds else RAGGED_SUFFIX
        if self.keeps:
            suffix = VIDEO_SUFFIX if VIDEO in self.kinds else JPEG_SUFFIX
        return f"{table_of(self.clock)}/{self.name}{suffix}"

    @property
    def value_form(self) -> SourceColumn:
        """Form of a value of a spilled column."""
        return SourceColumn("uint8") if self.keeps else SourceColumn(self.form.dtype, self.form.row_shape)

    def own_form(self, variants: Iterable[Variant]) -> OwnForm | None:
        """Return the form that holds the rows of some episodes alone. None: that of the store."""
        features = [variant.features[self.name].form for variant in variants if self.name in variant.features]
        dtype = promote([np.dtype(form.dtype) for form in features])
        shapes = {form.row_shape for form in features}
        is_other = self.keeps or "text" in self.kinds or len({len(shape) for shape in shapes}) != 1
        if is_other or dtype is None:
            return None
        return OwnForm(little_endian(dtype.name), tuple(map(max, zip(*shapes, strict=True))))

    @property
    def is_next(self) -> bool:
        """Whether it is a next observation."""
        return self.name.startswith(_NEXT)

    @property
    def is_resized(self) -> bool:
        """Whether the store has resized images of it."""
        is_observed = self.name.startswith((_OBSERVATION, _NEXT)) or self.clock != STEPS
        return (
            self.size is not None and is_observed and RAGGED.isdisjoint(self.kinds) and is_image(self.field)
        )

    @property
    def has_extents(self) -> bool:
        """Whether rows reach less far in some episodes, as an array of the store says."""
        return self.form.is_padded and not self.is_next and not (self.alone and self.is_resized)

    @property
    def origin(self) -> JsonObject:
        """Attributes: the source datasets, and how their rows were converted."""
        return {"source_dataset": list(self.datasets), "source_form": list(self.kinds)}

    @property
    def field(self) -> Field:
        """Field of its rows as they are."""
        if self.name in FLAGS:
            # An export writes flags of uint8 where nothing says otherwise.
            is_other = len(self.flag_dtypes) == 1 and self.flag_dtypes[0] != "uint8"
            dtype = {"source_dtype": self.flag_dtypes[0]} if is_other else {}
            return column_field(self.name, "bool", (), **self.origin, **dtype)
        form, table = self.form, table_of(self.clock)
        field = column_field(self.name, form.dtype, form.row_shape, table, **self.origin, **dtypes_of(form))
        return replace(field, statistics=field.statistics and not is_filled(form))

    def fields(self, group: str = "") -> list[Field]:
        """Fields of the rows as they are, and of resized images. Those of a next observation in `group`."""
        field = self.field
        if group:
            form = self.form
            own = column_field(self.name.removeprefix("next_"), form.dtype, form.row_shape, **dtypes_of(form))
            field = replace(moved(own, group), attributes={**own.attributes, **self.origin})
        fields = [] if self.spilled_table or (self.alone and self.is_resized) else [field]
        return [*fields, self._resized(field)] if self.is_resized else fields

    def resized_name(self, name: str) -> str:
        """Name of a resized image set: its own where the store has no other copy of it."""
        return name if self.alone else f"{name}_{self.size}"

    def _resized(self, field: Field) -> Field:
        size = self.size or 0
        path = self.resized_name(field.path)
        attributes: JsonObject = {"channels": field.attributes["channels"], "resized_from": field.path}
        if self.alone:
            attributes = {**field.attributes, "source_shape": list(field.row_shape)}
            attributes.pop(ROW_SHAPES, None)  # all have one size
        return Field(
            path=path,
            dtype=field.dtype,
            row_shape=(size, size, 3),
            axes=(field.axes[0], *image_axes(path)),
            description=f"{field.description}, resized to {size} × {size} (OpenCV, INTER_LINEAR)",
            attributes=attributes,
        )

    @property
    def data_field(self) -> Field:
        """Field of the values of a spilled column."""
        table, form = table_of(self.clock), self.form
        attributes = self.origin
        if self.keeps:
            attributes = {"shape": list(form.row_shape), "dtype": form.dtype, **attributes}
            if VIDEO in self.kinds:
                return video_field(self.name, table, **attributes)
            return frame_field(self.name, table, **{"colour": self.colour, **attributes})
        if "text" in self.kinds:
            return text_field(self.name, table, **attributes, **dtypes_of(form))
        if self.offsets:
            attributes["source_offsets"] = list(self.offsets)
        attributes |= dtypes_of(form)
        return ragged_field(self.name, table, form.dtype, form.row_shape, **attributes)


def is_filled(form: Merged) -> bool:
    """Return whether moments of a column would count what is filled in, which is not NaN."""
    return form.is_padded or ("missing_in" in form.attributes and np.dtype(form.dtype).kind != "f")


def dtypes_of(form: Merged) -> JsonObject:
    """Return attributes: the dtypes that a column has in sources, and the row shapes of a padded one."""
    dtypes = form.attributes.get("source_dtype")
    attributes = {"source_dtype": dtypes if isinstance(dtypes, str) else sorted(dtypes or [])}
    return {**attributes, ROW_SHAPES: sorted(form.attributes[ROW_SHAPES])} if form.is_padded else attributes


class ArrayOf(NamedTuple):
    """Which column an array of a store has the rows of."""

    column: str
    is_resized: bool = False


@dataclass(frozen=True, slots=True)
class StoredColumns:
    """Columns of a store."""

    columns: Mapping[str, StoredColumn]  # `next_observation/*` included
    datasets: Mapping[str, tuple[str, ...]]  # source datasets of each column of any episode, stored or not
    empty: Mapping[str, str]  # dtype of each dataset of shape (T, 0, …)
    # What tells the times of each clock, see `schemas.trajectory.clocks.clocks_of`.
    streams: Mapping[str, Mapping[str, Any]]

    @property
    def following(self) -> list[StoredColumn]:
        """Next observations, without texts."""
        return [column for column in self.columns.values() if column.is_next and not column.spilled_table]

    @property
    def spilled(self) -> list[StoredColumn]:
        """Columns with any number of bytes, or values, in a row: first those of frames."""
        spilled = [column for column in self.columns.values() if column.spilled_table]
        return sorted(spilled, key=lambda column: not column.keeps)

    @property
    def clocks(self) -> dict[str, str]:
        """Clock of each column."""
        return {name: column.clock for name, column in self.columns.items()}

    def tables(self) -> tuple[Table, ...]:
        """Tables that are known from the scan: ``steps``, large observations, clocks, what is spilled."""
        recorded = {flag: self.columns[flag].field for flag in FLAGS if flag in self.columns}
        flags = [recorded.get(flag) or column_field(flag, "bool", ()) for flag in FLAGS]
        fields: dict[str, list[Field]] = {STEPS: [], OBSERVATION: []}
        for column in self.columns.values():
            if column.name in FLAGS or column.is_next:
                continue
            for own in column.fields():
                table = table_of(column.clock)
                is_resized = column.is_resized and own.path == column.resized_name(column.field.path)
                is_large = is_resized or own.row_bytes >= LARGE
                if table == STEPS and column.name.startswith(_OBSERVATION) and is_large:
                    table = OBSERVATION
                fields.setdefault(table, []).append(own)
        fields[STEPS] += flags
        tables = [Table(name=name, fields=tuple(own)) for name, own in fields.items() if own]
        tables += [
            Table(name=column.spilled_table, fields=(column.data_field,), spilled=True)
            for column in self.spilled
        ]
        return tuple(tables)

    def next_tables(self, groups: Mapping[str, Sequence[StoredColumn]]) -> tuple[Table, ...]:
        """Return tables of next observations by name, of those that have columns."""
        tables = []
        for group, columns in groups.items():
            fields = tuple(chain.from_iterable(column.fields(group) for column in columns))
            if columns:
                tables.append(Table(name=group, fields=fields))
        return tuple(tables)

    def arrays_of(self, table: str) -> dict[str, ArrayOf]:
        """Return what the arrays of a table are, by their names without the table's."""
        prefix = _PREFIXES.get(table, "")
        arrays = {}
        for name, column in self.columns.items():
            key = name.removeprefix(prefix)
            if not name.startswith(prefix) or (table_of(column.clock) != table and not prefix):
                continue
            if not (column.is_resized and column.alone):
                arrays[key] = ArrayOf(name)
            if column.is_resized:
                arrays[column.resized_name(key)] = ArrayOf(name, is_resized=True)
        return arrays

    def own_forms(
        self, table: str, variants: Sequence[Variant], fields: Mapping[str, Field]
    ) -> dict[str, OwnForm]:
        """Return the form that rows of a source have, by array of a table. Its episodes are of some variants.

        Without next observations, as it follows from all sources which of them have rows.
        """
        if table in (FINAL, NEXT):
            return {}
        arrays = self.arrays_of(table)
        for column in self.spilled:
            if column.spilled_table == table:
                arrays["data"] = ArrayOf(column.name)
        forms = {}
        for key, stored in fields.items():
            form = OwnForm(little_endian(stored.dtype), stored.row_shape)
            name, is_resized = arrays.get(key, ArrayOf(key))
            if key in FLAGS:
                forms[key] = form
            elif any(name in variant.features for variant in variants) and not self.columns[name].is_next:
                own = self.columns[name].own_form(variants) or form
                forms[key] = own._replace(row_shape=stored.row_shape) if is_resized else own
        return forms


@dataclass(slots=True)
class _ColumnSources:
    # Where the sources have a column: each dataset, its kind, offsets and clock once
    datasets: dict[str, None] = field(default_factory=dict)
    kinds: dict[str, None] = field(default_factory=dict)
    offsets: dict[str, None] = field(default_factory=dict)
    flag_dtypes: dict[str, None] = field(default_factory=dict)
    clock: str = STEPS

    def add(self, feature: Feature) -> None:
        # Add what an episode has of it
        self.datasets[feature.dataset] = None
        self.kinds[feature.kind] = None
        if feature.offsets:
            self.offsets[feature.offsets] = None
        if feature.flag_dtype:
            self.flag_dtypes[feature.flag_dtype] = None
        if feature.clock != STEPS:
            self.clock = feature.clock


def merge_columns(
    indexes: Sequence[tuple[str, EpisodeIndex]], options: TrajectoryOptions
) -> tuple[StoredColumns, list[Problem]]:
    """Merge the columns of all episodes, given with the name of each source."""
    seen: dict[str, _ColumnSources] = {}
    empty: dict[str, str] = {}
    apart: dict[str, str] = {}  # by observation: where next ones have another shape
    clocks = _Clocks()
    recorded = {
        column: None
        for _, index in indexes
        for variant in index.variants
        for column in variant.features
        if column.startswith(_NEXT)
    }

    def forms() -> Iterator[tuple[str, dict[str, SourceColumn]]]:
        for name, index in indexes:
            clocks.add(name, index)
            counts = np.bincount([episode.variant for episode in index.episodes])
            for number, variant in enumerate(index.variants):
                empty.update(variant.empty)
                for column, feature in variant.features.items():
                    seen.setdefault(column, _ColumnSources()).add(feature)
                    now = variant.features.get(column.removeprefix("next_"))
                    if now is None or now.row_shape != feature.row_shape:
                        apart.setdefault(column.removeprefix("next_"), name)
                label = name
                if len(index.variants) > 1:
                    first = next(one.name for one in index.episodes if one.variant == number)
                    label = f"{name}: {first}" + (f" (+{counts[number] - 1})" if counts[number] > 1 else "")
                yield label, _forms_of(variant, recorded)

    def keeps_frames(name: str) -> bool:
        kinds = seen[name].kinds
        is_kept = VIDEO in kinds or (options.images == "keep" and not ENCODED.isdisjoint(kinds))
        return is_kept and name.startswith(_OBSERVATION)

    def may_pad(name: str) -> bool:
        return RAGGED.isdisjoint(seen[name].kinds) and not keeps_frames(name)

    merged, problems = reconcile(forms(), options.columns, may_pad)
    columns = {}
    for name, form in merged.items():
        own = seen[name]
        keeps = keeps_frames(name)
        following = merged.get(f"next_{name}")
        if following is not None and (form.is_padded or following.is_padded):
            if name in apart:
                message = f"{name} has another shape than its next ones"
                problems.append(Problem(apart[name], message, "convert it apart", "columns"))
            merged[f"next_{name}"] = following._replace(row_shape=form.row_shape)
        columns[name] = StoredColumn(
            name=name,
            form=form,
            datasets=tuple(own.datasets),
            kinds=tuple(own.kinds),
            offsets=tuple(own.offsets),
            clock=own.clock if clocks.are_used else STEPS,
            colour=options.colour,
            keeps=keeps,
            size=options.image_size,
            alone=options.images == "resized",
            flag_dtypes=tuple(own.flag_dtypes),
        )
        if keeps and not (own.kinds.keys() <= ENCODED or own.kinds.keys() == {VIDEO}):
            message = "is compressed in some sources and plain in others"
            fix = "leave --images keep and --video keep out"
            problems.append(Problem(name, message, fix, "columns"))
        if not RAGGED.isdisjoint(own.kinds) and len(own.kinds) > 1:
            message = "has rows of any length in some sources alone"
            problems.append(Problem(name, message, "convert them apart", "columns"))
    stored = StoredColumns(
        columns=columns,
        datasets={name: tuple(own.datasets) for name, own in seen.items()},
        empty=empty,
        streams=clocks.told if clocks.are_used else {},
    )
    return stored, [*problems, *clocks.problems(), *_name_problems(stored)]


def _forms_of(variant: Variant, recorded: Collection[str]) -> dict[str, SourceColumn]:
    # The forms of the columns of episodes. Where they lack next observations, which others have `recorded`,
    # those of the following steps stand for them.
    forms = {column: feature.form for column, feature in variant.features.items()}
    for column in recorded:
        now = observed_now(variant.features, column)
        if now is not None:
            forms[column] = now.form
    return forms


class _Clocks:
    # The clocks of all episodes. Streams that have as many rows as there are steps everywhere are none
    def __init__(self) -> None:
        self.are_used = False
        self.told: dict[str, Mapping[str, Any]] = {}  # what tells the times of each
        self._first_sources: dict[str, str] = {}
        self._without_times: dict[str, Problem] = {}
        self._different: list[Problem] = []

    def add(self, name: str, index: EpisodeIndex) -> None:
        # Add the episodes of a source
        self.are_used = self.are_used or index.has_streams
        for variant in index.variants:
            if STEPS not in variant.streams:
                message = "nothing tells when its steps were, and others have streams of other rates"
                fix = "convert it apart, or write action_timestamps"
                self._without_times[name] = Problem(name, message, fix, "clock", name)
            # Of two columns of one dataset the first counts
            columns = {variant.features[column].dataset: column for column in reversed(variant.features)}
            for clock, stream in variant.streams.items():
                told: JsonObject = {"rate": stream.rate}
                if stream.timestamps:
                    path = f"{table_of(clock)}/{columns[stream.timestamps]}"
                    told = {"timestamps": path, "unit": stream.unit}
                first = self._first_sources.setdefault(clock, name)
                first_told = self.told.setdefault(clock, told)
                if told != first_told:
                    message = f"its clock {clock} has {_words(told)}, that of {first} {_words(first_told)}"
                    self._different.append(Problem(name, message, "convert them apart", "clock", name))

    def problems(self) -> list[Problem]:
        # Clocks whose times are told differently in several sources, or not in some
        return [*self._without_times.values(), *self._different] if self.are_used else []


def _words(told: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in told.items())


def _name_problems(stored: StoredColumns) -> list[Problem]:
    # Problems of arrays whose path lies inside another array's, or is the same
    tables = [*stored.tables(), *stored.next_tables({NEXT: stored.following})]
    paths = [field.path for field in chain.from_iterable(table.fields for table in tables)]
    groups = {column_group(path) for path in paths}
    wrong = {}
    for path in sorted(groups):
        for above in PurePosixPath(path).parents:
            if str(above) in groups:
                wrong[path] = f"would lie inside the array {str(above)!r}"
    wrong |= {path: "stands for two columns" for path in paths if paths.count(path) > 1}
    fix = "rename one with --map NAME=DATASET"
    return [Problem(path, message, fix, "name") for path, message in wrong.items()]
