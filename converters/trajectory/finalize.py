"""Completing a trajectory store when all sources are read: index arrays, tables of next observations."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import Column, Merged, reconcile
from unistore.converters.files.hdf5.attributes import attribute_arrays
from unistore.converters.options import Columns
from unistore.converters.protocol import Facts, Finalized, Scan
from unistore.converters.trajectory.columns import ENCODED, Feature
from unistore.converters.trajectory.episode_index import EpisodeIndex
from unistore.converters.trajectory.merged_clocks import MergedClocks
from unistore.converters.trajectory.read import Spilled, cut_episodes, keys_apart, sizes_of_rows
from unistore.errors import Problem
from unistore.schemas.tables import Field, IndexValues, Table, offsets_of, text_arrays
from unistore.schemas.trajectory.clocks import offsets_path, table_of
from unistore.schemas.trajectory.fields import (
    CLOCKS,
    EPISODES,
    FINAL,
    JPEG_SUFFIX,
    NEXT,
    OBSERVATION,
    RAGGED_SUFFIX,
    STEPS,
    bounds_of,
    column_field,
    column_group,
    frame_field,
    image_axes,
    is_image,
    moved,
    ragged_field,
)
from unistore.system.packed import view

# Merging the columns of all episodes, and dividing them into tables.
#
# Low-dimensional columns share the table ``steps``. Observations of 4 KiB and more per step (images, depth,
# clouds) have a table of their own: with rows of such different sizes in one table, shards would take
# gigabytes, or there would be thousands of tiny ones.

LARGE = 4096
"""Bytes per step from which an observation is in the table of large ones."""
_FLAGS = ("terminated", "truncated", "next_valid")


@dataclass(frozen=True, slots=True)
class MergedColumns:
    """Columns of a store."""

    merged: Mapping[str, Merged]
    """Dtype and shape of every column, ``next_observation/*`` included."""
    kept: tuple[str, ...]
    """Columns whose compressed frames are stored as they are."""
    ragged: tuple[str, ...]
    """Columns with any number of values in a row."""
    image_size: int | None
    """Side of resized images, or None."""
    alone: bool
    """Whether images are stored as resized sets alone."""
    datasets: Mapping[str, tuple[str, ...]]
    """Source datasets of each column."""
    forms: Mapping[str, tuple[str, ...]]
    """Kinds of those datasets, see `Feature`."""
    empty: Mapping[str, str]
    """Dtype of each dataset of shape (T, 0, …)."""
    clocks: Mapping[str, str]
    """Clock of each column that is on another one than the steps."""
    streams: Mapping[str, Mapping[str, Any]]
    """What tells the times of each clock, see `schemas.trajectory.clocks.clocks_of`."""
    offsets: Mapping[str, tuple[str, ...]]
    """Source datasets that divide those of a ragged column."""

    @property
    def next_keys(self) -> list[str]:
        """Keys of the next observations: ``"images/cam"``."""
        prefix = "next_observation/"
        return [column.removeprefix(prefix) for column in self.merged if column.startswith(prefix)]

    def tables(self, colour: str) -> tuple[Table, ...]:
        """Tables that are known from the scan: ``steps``, large observations, kept frames."""
        small: list[Field] = []
        large: list[Field] = []
        of_clocks: dict[str, list[Field]] = {clock: [] for clock in self.clocks.values()}
        for column in self.merged:
            if column in _FLAGS or column.startswith("next_observation/"):
                continue
            full = self._full_field(column)
            resized = self._resized_field(column)
            fields = [field for field in (full, resized) if field is not None]
            if column in self.clocks:
                of_clocks[self.clocks[column]] += fields
                continue
            for field in fields:
                is_observation = field.path.startswith(f"{OBSERVATION}/")
                is_large = is_observation and (field is resized or field.row_bytes >= LARGE)
                (large if is_large else small).append(field)
        small += [self.field(flag) for flag in _FLAGS]
        tables = [Table(name=STEPS, fields=tuple(small))]
        if large:
            tables.append(Table(name=OBSERVATION, fields=tuple(large)))
        tables += [Table(name=table_of(clock), fields=tuple(own)) for clock, own in of_clocks.items() if own]
        for spilled in self.spilled:
            data = self._data_field(spilled, colour)
            tables.append(Table(name=spilled.table, fields=(data,), spilled=True))
        return tuple(tables)

    @property
    def spilled(self) -> list[Spilled]:
        """Columns with any number of bytes, or values, in a row."""
        found = []
        for column in (*self.kept, *self.ragged):
            clock = self.clocks.get(column, STEPS)
            merged = self.merged[column]
            is_kept = column in self.kept
            form = Column("uint8") if is_kept else Column(merged.dtype, merged.row_shape)
            suffix = JPEG_SUFFIX if is_kept else RAGGED_SUFFIX
            found.append(Spilled(f"{table_of(clock)}/{column}{suffix}", column, clock, form))
        return found

    def _data_field(self, spilled: Spilled, colour: str) -> Field:
        column = spilled.column
        form = self.merged[column]
        table = table_of(spilled.clock)
        origin = self._origin(column)
        if column in self.kept:
            shape = list(form.row_shape)
            return frame_field(column, table, colour=colour, shape=shape, dtype=form.dtype, **origin)
        if self.offsets.get(column):
            origin["source_offsets"] = list(self.offsets[column])
        return ragged_field(column, table, form.dtype, form.row_shape, **origin, **_dtypes(form))

    def _full_field(self, column: str) -> Field | None:
        """Field of a column as it is; None: it has any number of values in a row, or is resized alone."""
        if column in self.ragged or column in self.kept or (self.alone and self._is_resized(column)):
            return None
        return self.field(column)

    def _resized_field(self, column: str) -> Field | None:
        """Field of the resized images of a column; None: it has none."""
        if self.image_size is None or not self._is_resized(column):
            return None
        return _resized(self.field(column), self.image_size, alone=self.alone)

    def _is_resized(self, column: str) -> bool:
        if self.image_size is None or column in self.ragged:
            return False
        is_observed = column.startswith("observation/") or column in self.clocks
        return is_observed and is_image(self.field(column))

    def field(self, column: str) -> Field:
        """Field of a column of ``steps``."""
        form = self.merged.get(column)
        attributes = self._origin(column)
        if form is None or column in _FLAGS:
            return column_field(column, "bool", (), **attributes)
        table = table_of(self.clocks.get(column, STEPS))
        return column_field(column, form.dtype, form.row_shape, table, **attributes, **_dtypes(form))

    def _origin(self, column: str) -> dict[str, Any]:
        """Attributes: the source datasets of a column, and how their rows were converted."""
        if not self.datasets.get(column):
            return {}
        return {"source_dataset": list(self.datasets[column]), "source_form": list(self.forms[column])}

    def next_fields(self, key: str, group: str) -> list[Field]:
        """Fields of one next observation in `group`, with its resized images."""
        form = self.merged[f"next_observation/{key}"]
        own = column_field(f"observation/{key}", form.dtype, form.row_shape, **_dtypes(form))
        attributes = {**own.attributes, **self._origin(f"next_observation/{key}")}
        field = replace(moved(own, group), attributes=attributes)
        if self.image_size is None or not is_image(field):
            return [field]
        small = _resized(field, self.image_size, alone=self.alone)
        return [small] if self.alone else [field, small]

    def resized_columns(self, table: str) -> dict[str, str]:
        """Original column by resized column of a table of observations, without the table's name."""
        group = {OBSERVATION: "observation", NEXT: "next_observation", FINAL: "next_observation"}.get(table)
        if self.image_size is None or (group is None and not table.startswith(f"{CLOCKS}/")):
            return {}
        if group is None:
            names = [column for column in self._images if table_of(self.clocks.get(column, STEPS)) == table]
        else:
            own = [column for column in self._images if column not in self.clocks]
            names = [column.removeprefix(f"{group}/") for column in own if column.startswith(f"{group}/")]
        return {_resized_name(name, self.image_size, alone=self.alone): name for name in names}

    @property
    def resized_alone(self) -> Sequence[str]:
        """Columns of images that are stored in another size than the sources have them, and in no other."""
        return self._images if self.alone else ()

    @property
    def _images(self) -> list[str]:
        observed = ("observation/", "next_observation/")
        dense = [name for name in self.merged if name not in self.ragged]
        images = [name for name in dense if is_image(self.field(name))]
        return [name for name in images if name.startswith(observed) or name in self.clocks]


def _dtypes(form: Merged) -> dict[str, Any]:
    dtypes = form.attributes.get("source_dtype")
    return {"source_dtype": dtypes if isinstance(dtypes, str) else sorted(dtypes or [])}


def _resized_name(name: str, size: int, *, alone: bool) -> str:
    """Name of a resized image set: its own where the store has no other copy of it."""
    return name if alone else f"{name}_{size}"


def _resized(field: Field, size: int, *, alone: bool) -> Field:
    path = _resized_name(field.path, size, alone=alone)
    attributes: dict[str, Any] = {"channels": field.attributes["channels"], "resized_from": field.path}
    if alone:
        attributes = {**field.attributes, "source_shape": list(field.row_shape)}
    return Field(
        path=path,
        dtype=field.dtype,
        row_shape=(size, size, 3),
        axes=(field.axes[0], *image_axes(path)),
        description=f"{field.description}, resized to {size} × {size} (OpenCV, INTER_LINEAR)",
        attributes=attributes,
    )


def merge_columns(
    found: Iterable[tuple[str, EpisodeIndex]], columns: Columns, *, images: str, image_size: int | None
) -> tuple[MergedColumns, list[Problem]]:
    """Merge the columns of all episodes, given with the name of each source; options as they are named."""
    datasets: dict[str, dict[str, None]] = {}
    kinds: dict[str, dict[str, None]] = {}
    offsets: dict[str, dict[str, None]] = {}
    empty: dict[str, str] = {}
    clocks = MergedClocks()

    def forms() -> Iterator[tuple[str, dict[str, Column]]]:
        for name, index in found:
            clocks.add(name, index)
            for variant in index.variants:
                empty.update(variant.empty)
            for label, features in _variants(name, index):
                for column, feature in features.items():
                    datasets.setdefault(column, {})[feature.dataset] = None
                    kinds.setdefault(column, {})[feature.kind] = None
                    if feature.offsets:
                        offsets.setdefault(column, {})[feature.offsets] = None
                yield label, {column: feature.form for column, feature in features.items()}

    merged, problems = reconcile(forms(), columns)
    observed = [column for column in merged if column.startswith("observation/") and images == "keep"]
    encoded = [column for column in observed if not ENCODED.isdisjoint(kinds[column])]
    on_clocks = {column: clock for column, clock in clocks.of_columns.items() if column in merged}
    ragged = [column for column in merged if "ragged" in kinds[column]]
    problems += [
        Problem(column, "is compressed in some sources and plain in others", "use --images raw", "columns")
        for column in encoded
        if not ENCODED.issuperset(kinds[column])
    ]
    problems += [
        Problem(column, "has rows of any length in some sources alone", "convert them apart", "columns")
        for column in ragged
        if len(kinds[column]) > 1
    ]
    layout = MergedColumns(
        merged=merged,
        kept=tuple(encoded),
        ragged=tuple(ragged),
        image_size=image_size,
        alone=images == "resized",
        datasets={column: tuple(names) for column, names in datasets.items()},
        forms={column: tuple(kinds_of_column) for column, kinds_of_column in kinds.items()},
        empty=empty,
        clocks=on_clocks,
        streams=clocks.told,
        offsets={column: tuple(names) for column, names in offsets.items()},
    )
    problems += clocks.problems
    return layout, problems + _name_problems(layout)


def _variants(name: str, index: EpisodeIndex) -> list[tuple[str, Mapping[str, Feature]]]:
    """Label for messages, and features, of each variant of a source."""
    if len(index.variants) == 1:
        return [(name, index.variants[0].features)]
    counts = np.bincount(index.variant)
    described = []
    for number, variant in enumerate(index.variants):
        more = f" (+{counts[number] - 1})" if counts[number] > 1 else ""
        described.append((f"{name}: {index.names[index.variant.index(number)]}{more}", variant.features))
    return described


def _name_problems(layout: MergedColumns) -> list[Problem]:
    """Problems of arrays whose path lies inside another array's, or is the same."""
    paths = [field.path for field in chain.from_iterable(table.fields for table in layout.tables(""))]
    paths += [
        field.path for field in chain.from_iterable(layout.next_fields(key, NEXT) for key in layout.next_keys)
    ]
    outer_paths = {column_group(path) for path in paths}
    inner = sorted(
        (path, outer) for path in outer_paths for outer in outer_paths if path.startswith(f"{outer}/")
    )
    double = sorted({path for path in paths if paths.count(path) > 1})
    wrong = [(path, f"would lie inside the array {outer!r}") for path, outer in inner]
    wrong += [(path, "stands for two columns") for path in double]
    return [Problem(path, message, "rename one with --map NAME=DATASET", "name") for path, message in wrong]


MAX_SHARED_BYTES = 64 << 10
"""Bytes of JSON up to which an attribute that all sources share is also an attribute of ``episodes``."""
_NAME = "name of the episode in its source"
_SPLIT_NAMES = ("train", "valid", "val", "validation", "test")

Arrays = list[tuple[Field, IndexValues]]


def finalize_episodes(scan: Scan, layout: MergedColumns, facts: Sequence[Facts]) -> Finalized:
    """Index arrays, tables and attributes of all sources; see `Converter.finalize`."""
    episodes = _Episodes(view(scan.sources.details, lambda origin: origin.episodes))
    owner = np.repeat(np.arange(len(scan.sources), dtype=np.int64), episodes.counts)
    said = view(scan.sources.details, lambda origin: json.loads(origin.said))
    masks = episodes.masks
    codes, names = _splits(masks, int(owner.size))
    spilled, bounds = _spilled(scan, facts)
    direct = _next_tables(layout, facts)
    return Finalized(
        arrays=[
            *_episode_arrays(episodes, owner, facts),
            *_success(said),
            *(
                (_field(f"mask/{name}", "bool", "episode", f"listed by mask {name} of its source"), is_listed)
                for name, is_listed in masks.items()
            ),
            *_attribute_texts(said),
            *attribute_arrays(view(scan.sources.details, lambda origin: origin.attributes)),
            *bounds,
        ],
        spilled=spilled,
        direct=direct,
        rows={
            table.name: tuple((episodes.counts if table.name == FINAL else episodes.steps).tolist())
            for table in direct
        },
        samples=int(owner.size),
        splits=codes,
        split_names=names,
        sample_source=owner,
        sample_names=tuple(episodes.names),
        groups=_groups(layout, episodes.layout, said, masks),
    )


class _Episodes:
    """Layout and counts (episodes, steps) of all sources; names, lengths and masks of their episodes.

    `of_clocks` has the rows of each episode, by the names of the other clocks.
    """

    def __init__(self, indexes: Iterable[EpisodeIndex]) -> None:
        self.layout = ""
        self.names: list[str] = []
        counts = array("q")
        steps = array("q")
        lengths = array("q")
        self.of_clocks: dict[str, array[int]] = {}
        listed_episodes: dict[str, list[int]] = {}
        for index in indexes:
            for clock, rows in index.clock_lengths.items():
                self.of_clocks.setdefault(clock, array("q")).extend(rows)
            self.layout = self.layout or index.layout
            for name, numbers in index.masks.items():
                listed_episodes.setdefault(name, []).extend(len(self.names) + number for number in numbers)
            counts.append(len(index.names))
            steps.append(sum(index.lengths))
            lengths.extend(index.lengths)
            self.names += index.names
        self.counts, self.steps, self.lengths = (
            np.array(numbers, np.int64) for numbers in (counts, steps, lengths)
        )
        self.masks = {name: np.zeros(len(self.names), bool) for name in listed_episodes}
        for name, numbers in listed_episodes.items():
            self.masks[name][numbers] = True


def _episode_arrays(episodes: _Episodes, owner: NDArray[np.int64], facts: Sequence[Facts]) -> Arrays:
    described = "steps of episode e are offsets[e]:offsets[e + 1]"
    arrays: Arrays = [
        (_field("offsets", "int64", "episode_bound", described), offsets_of(episodes.lengths)),
        *(_clock_offsets(clock, rows) for clock, rows in episodes.of_clocks.items()),
        (_field("source", "int32", "episode", "index of the source file"), owner.astype(np.int32)),
        *text_arrays(f"{EPISODES}/name", episodes.names, axis="episode", description=_NAME),
    ]
    cut = np.zeros(len(owner), bool)
    for first, of_source in zip(offsets_of(episodes.counts).tolist(), facts, strict=False):
        cut[first + cut_episodes(of_source)] = True
    if cut.any():
        arrays.append((_field("cut", "bool", "episode", "the recording ends here, no flag marks it"), cut))
    return arrays


def _clock_offsets(clock: str, rows: Sequence[int]) -> tuple[Field, IndexValues]:
    described = f"rows of episode e in the table of the clock {clock} are offsets[e]:offsets[e + 1]"
    path = offsets_path(clock).removeprefix(f"{EPISODES}/")
    return _field(path, "int64", "episode_bound", described), offsets_of(np.array(rows, np.int64))


def _field(name: str, dtype: str, axis: str, description: str) -> Field:
    return Field(path=f"{EPISODES}/{name}", dtype=dtype, axes=(axis,), description=description)


def _success(said: Sequence[Mapping[str, Any]]) -> Arrays:
    """Whether each episode succeeded, if a source says so of one."""
    values = array("b")
    for of_source in said:
        for attributes in of_source["episodes"]:
            value = attributes.get("success", attributes.get("is_success"))
            values.append(int(value) if value in (0, 1) else -1)
    if all(value < 0 for value in values):
        return []
    described = "1: the source says the episode succeeded, 0: failed, -1: it does not say"
    field = _field("success", "int8", "episode", described)
    flags = {"flag_values": [-1, 0, 1], "flag_meanings": "unknown failed succeeded"}
    return [(replace(field, attributes=flags), np.array(values, np.int8))]


def _attribute_texts(said: Sequence[Mapping[str, Any]]) -> Arrays:
    """Attributes of the sources and episodes, one JSON object each."""
    of_episodes = chain.from_iterable(of_source["episodes"] for of_source in said)
    return [
        *_texts((of_source["source"] for of_source in said), "sources/attributes", "source"),
        *_texts(of_episodes, f"{EPISODES}/attributes", "episode"),
    ]


def _texts(values: Iterable[Mapping[str, Any]], path: str, axis: str) -> Arrays:
    """JSON texts; nothing if all are empty."""
    texts = (json.dumps(value, ensure_ascii=False, sort_keys=True) for value in values)
    arrays = text_arrays(path, texts, axis=axis, description=f"attributes of the {axis}, as JSON")
    data = arrays[0][1]
    offsets = arrays[1][1]
    return list(arrays) if data.size > len("{}") * (len(offsets) - 1) else []


def _groups(
    layout: MergedColumns,
    source_layout: str,
    said: Sequence[Mapping[str, Any]],
    masks: Mapping[str, NDArray[np.bool_]],
) -> dict[str, dict[str, Any]]:
    every = (
        {**of_source["source"], **attributes} for of_source in said for attributes in of_source["episodes"]
    )
    shared = {key: value for key, value in next(every).items() if len(json.dumps(value)) <= MAX_SHARED_BYTES}
    for other in every:
        differing = [key for key, value in shared.items() if key not in other or other[key] != value]
        for key in differing:
            del shared[key]
    groups = {EPISODES: {"attributes": shared, "source_layout": source_layout}, STEPS: dict[str, Any]()}
    if masks:
        groups[f"{EPISODES}/mask"] = {"description": "whether a mask of the source lists the episode"}
    if layout.streams:
        groups[EPISODES]["clocks"] = dict(layout.streams)
    if layout.empty:
        groups[STEPS]["empty_datasets"] = dict(layout.empty)
    return groups


def _splits(
    masks: Mapping[str, NDArray[np.bool_]], episodes: int
) -> tuple[NDArray[np.uint8] | None, tuple[str, ...]]:
    """Splits from disjoint masks: all masks, or those with the usual names; None if they overlap."""
    for names in (tuple(masks), tuple(name for name in masks if name in _SPLIT_NAMES)):
        split_masks = [masks[name] for name in names]
        if split_masks and len(names) < 255 and np.sum(split_masks, axis=0).max(initial=0) <= 1:
            codes = np.full(episodes, len(names), np.uint8)
            for code, mask in enumerate(split_masks):
                codes[mask] = code
            has_unlisted = bool((codes == len(names)).any())
            return codes, (*names, "other") if has_unlisted else names
    return None, ()


def _spilled(scan: Scan, facts: Sequence[Facts]) -> tuple[tuple[Table, ...], Arrays]:
    """Tables of rows of any length, with chunks for their median, and the offsets of the rows."""
    tables: list[Table] = []
    arrays: Arrays = []
    for number, table in enumerate(table for table in scan.tables if table.spilled):
        sizes = np.concatenate([sizes_of_rows(of_source, number) for of_source in facts])
        median = int(np.median(sizes)) if len(sizes) else 0
        data = replace(table.fields[0], run=max(1, median))
        tables.append(Table(name=table.name, fields=(data,), spilled=True))
        arrays.append((bounds_of(table.name), offsets_of(sizes)))
    return tuple(tables), arrays


def possible_tables(layout: MergedColumns, episodes: int, steps: int) -> tuple[tuple[Table, int], ...]:
    """Possible tables of next observations, before values are compared, and their largest numbers of rows."""
    rows = {FINAL: episodes, NEXT: steps}
    tables = _tables_of(layout, dict.fromkeys(rows, layout.next_keys))
    return tuple((table, rows[table.name]) for table in tables)


def _next_tables(layout: MergedColumns, facts: Sequence[Facts]) -> tuple[Table, ...]:
    """Tables of final observations (keys whose next observations follow everywhere) and of next ones."""
    apart = set[str]().union(*map(keys_apart, facts)) if layout.next_keys else set()
    final = [key for key in layout.next_keys if key not in apart]
    following = [key for key in layout.next_keys if key in apart]
    return _tables_of(layout, {FINAL: final, NEXT: following})


def _tables_of(layout: MergedColumns, keys: Mapping[str, Sequence[str]]) -> tuple[Table, ...]:
    """Tables of next observations by name, of those that have keys."""
    return tuple(
        Table(
            name=group,
            fields=tuple(chain.from_iterable(layout.next_fields(key, group) for key in group_keys)),
        )
        for group, group_keys in keys.items()
        if group_keys
    )
