"""What stores of episodes have together: columns that some episodes lack, and the next observations."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from unistore.converters.trajectory.restored_steps import next_recorded
from unistore.converters.trajectory.store_columns import FLAGS
from unistore.errors import InputError, Problem
from unistore.plugin import Field, Merged, StoreView, missing_value, offsets_of, whole
from unistore.schemas.trajectory.clocks import offsets_path
from unistore.schemas.trajectory.fields import (
    CLOCKS,
    EPISODES,
    FINAL,
    JPEG_SUFFIX,
    NEXT,
    OBSERVATION,
    PRESENT,
    STEPS,
    SUFFIXES,
    IndexArray,
    bounds_of,
    column_field,
    column_group,
    extent_field,
    moved,
    next_recorded_field,
    present_field,
    rules_of,
    sample_key,
    values_field,
)
from unistore.system.types import AnyArray, Dtype, Int64s, Shape

_OF_FIELD = ("units", "long_name", "ragged")  # attributes that follow from a field
_TEXT_SUFFIX = SUFFIXES["text"]
_TEXT_DATA = f"{_TEXT_SUFFIX}/data"
# Arrays by path, of each store. None: it has one too many
ArraysOfStores = list[dict[str, IndexArray | None]]


@dataclass(frozen=True, slots=True)
class _NextRows:
    """Next observations of all steps: the following observation, and the final one of each episode."""

    store: StoreView
    observations: str  # their path
    final: str  # path of the final ones (empty: none are recorded)

    @property
    def dtype(self) -> Dtype:
        return self.store.array(self.observations).dtype

    @property
    def shape(self) -> Shape:
        return self.store.array(self.observations).shape

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> AnyArray:
        lo, hi, _ = rows.indices(len(self))
        values = self.store.array(self.observations).read_rows(_following_rows(self.store, lo, max(lo, hi)))
        if self.final:
            offsets = whole(self.store, f"{EPISODES}/offsets")
            last = offsets[1:] - 1
            is_here = (last >= lo) & (last < hi) & (offsets[:-1] <= last)
            recorded = next_recorded(self.store, self.final)
            ended = np.flatnonzero(is_here if recorded is None else is_here & recorded)
            values[last[ended] - lo] = self.store.array(self.final).read_rows(ended)
        return values


def _following_rows(store: StoreView, lo: int, hi: int) -> Int64s:
    """Return the step that follows each of the steps ``lo:hi``. The last one of an episode is its own."""
    steps = np.arange(lo, hi)
    last = whole(store, f"{EPISODES}/offsets")[1:] - 1
    return np.where(np.isin(steps, last), steps, steps + 1)


def _add_next(of_stores: ArraysOfStores, stores: Sequence[StoreView]) -> None:
    """Add next observations that others have of all steps, or at ends of episodes, and who recorded them."""
    paths = set(chain.from_iterable(store.paths() for store in stores))
    for path in sorted(
        path for path in paths if path.startswith(f"{NEXT}/") and not path.endswith(("/data", "/offsets"))
    ):
        final = path.replace(NEXT, FINAL, 1)
        for store, own_arrays in zip(stores, of_stores, strict=True):
            now = path.replace(NEXT, OBSERVATION, 1)
            if store.has(path) or not store.has(now):
                _check_not_kept(store, path, now)
            elif store.has(final):
                _check_known(store, final)
                own_arrays[path] = _next_field(store, path, final), _NextRows(store, now, final)
                own_arrays[final] = None
            else:
                own_arrays[path] = _next_field(store, path, now), _NextRows(store, now, "")
    for path in sorted(path for path in paths if path.startswith(f"{NEXT}/") and path.endswith(_TEXT_DATA)):
        for store, own_arrays in zip(stores, of_stores, strict=True):
            if not store.has(path) and store.has(path.replace(NEXT, OBSERVATION, 1)):
                own_arrays.update(_next_texts(store, path.removesuffix("/data")))
    for path in sorted(path for path in paths if path.startswith(f"{FINAL}/")):
        now = path.replace(FINAL, OBSERVATION, 1)
        for store, own_arrays in zip(stores, of_stores, strict=True):
            if path.replace(FINAL, NEXT, 1) not in paths and not store.has(path) and store.has(now):
                form = store.array(now)
                row = np.full(form.shape[1:], missing_value(form.dtype.name), form.dtype)
                rows = np.broadcast_to(row, (store.sample_count, *row.shape))
                own_arrays[path] = _next_field(store, path, now), rows
    _add_recorded(of_stores, stores, paths)


def _add_recorded(of_stores: ArraysOfStores, stores: Sequence[StoreView], paths: Collection[str]) -> None:
    """Say which episodes have next observations in their source, if some have none."""
    columns: dict[str, str] = {}
    for path in sorted(path for path in paths if path.startswith((f"{NEXT}/", f"{FINAL}/"))):
        arrays = [store.array(path) for store in stores if store.has(path)]
        if not any("resized_from" in array.attributes for array in arrays):
            name = column_group(path).removeprefix(f"{NEXT}/").removeprefix(f"{FINAL}/")
            columns[sample_key(path)] = f"observation/{name.removesuffix(_TEXT_SUFFIX)}"
    for key, column in columns.items():
        field = next_recorded_field(key.removeprefix("next."), column)
        with_next = [key in map(sample_key, store.paths()) for store in stores]
        if all(with_next) and not any(store.has(field.path) for store in stores):
            continue
        for store, own_arrays, has_next in zip(stores, of_stores, with_next, strict=True):
            if not store.has(field.path):
                own_arrays[field.path] = field, np.full(store.sample_count, has_next)


@dataclass(frozen=True, slots=True)
class _NextTexts:
    """The bytes of the texts of an observation, in other rows."""

    store: StoreView
    group: str
    rows: Int64s  # of the texts, one after the other
    bounds: Int64s  # (rows + 1,): first byte of each

    @property
    def dtype(self) -> Dtype:
        return np.dtype(np.uint8)

    @property
    def shape(self) -> Shape:
        return (int(self.bounds[-1]),)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, part: slice) -> AnyArray:
        lo, hi, _ = part.indices(len(self))
        if hi <= lo:
            return np.empty(0, np.uint8)
        first = int(np.searchsorted(self.bounds, lo, "right")) - 1
        stop = int(np.searchsorted(self.bounds, hi, "left"))
        offsets = whole(self.store, f"{self.group}/offsets")
        data = self.store.array(f"{self.group}/data")
        own = self.rows[first:stop].tolist()
        texts = np.concatenate([data.read(int(offsets[row]), int(offsets[row + 1])) for row in own])
        start = int(self.bounds[first])
        return texts[lo - start : hi - start]


def _next_texts(store: StoreView, group: str) -> dict[str, IndexArray]:
    """Return texts of next observations, those of the following steps, as arrays by path."""
    now = group.replace(NEXT, OBSERVATION, 1)
    data = store.array(f"{now}/data")
    rows = _following_rows(store, 0, len(store.array(f"{STEPS}/next_valid")))
    bounds = offsets_of(np.diff(whole(store, f"{now}/offsets"))[rows])
    column = group.removeprefix(f"{STEPS}/").removesuffix(_TEXT_SUFFIX)
    ragged = {"ragged": {"offsets": f"{group}/offsets"}}
    attributes = {**_without_datasets(data.attributes), **ragged}
    field = values_field(column, STEPS, "text", "uint8", (), attributes)
    return {
        field.path: (field, _NextTexts(store, now, rows, bounds)),
        f"{group}/offsets": (bounds_of(group), bounds),
    }


def _check_known(store: StoreView, path: str) -> None:
    """Refuse a column of next observations that some episodes seem to lack, of which nothing says which."""
    offsets = whole(store, f"{EPISODES}/offsets")
    episodes = np.flatnonzero(np.diff(offsets))
    last = offsets[1:][episodes] - 1
    unknown = ~store.array(f"{STEPS}/next_valid").read_rows(last)
    rows = store.array(path).read_rows((episodes if path.startswith(f"{FINAL}/") else last)[unknown])
    filled = np.full(rows.shape, missing_value(rows.dtype.name), rows.dtype)
    is_filled = (rows == filled) | ((rows != rows) & (filled != filled))
    lacking = is_filled.reshape(len(rows), -1).all(axis=1)
    if lacking.any():
        episode = int(episodes[unknown][np.argmax(lacking)])
        message = f"does not state whether episode {episode} has values of {path}, which would change"
        raise InputError(Problem(store.path, message, "convert all sources together", "compact"))


def _columns(store: StoreView) -> dict[str, str]:
    """Return the path of each column by its key in samples, without flags and next observations."""
    columns = {}
    flags = {f"{STEPS}/{flag}" for flag in FLAGS}
    for path in store.paths():
        is_column = path.startswith((f"{STEPS}/", f"{CLOCKS}/")) and not path.startswith(f"{NEXT}/")
        attributes = store.array(path).attributes if is_column else {}
        is_resized = attributes.get("resized_from", path) != path
        if "source_dataset" in attributes and path not in flags and not is_resized:
            columns[sample_key(path)] = path
    return columns


def _add_present(of_stores: ArraysOfStores, stores: Sequence[StoreView], key: str, path: str) -> None:
    """Say which episodes have a column, if some lack it."""
    field = present_field(key, path.removesuffix("/data").removeprefix(f"{STEPS}/"))
    if all(store.has(path) for store in stores) and not any(store.has(field.path) for store in stores):
        return
    for store, own_arrays in zip(stores, of_stores, strict=True):
        if not store.has(field.path):
            own_arrays[field.path] = field, np.full(store.sample_count, store.has(path))


def _add_extents(of_stores: ArraysOfStores, stores: Sequence[StoreView], key: str, path: str) -> None:
    """Say how far the rows of a column reach in each episode, if some are smaller."""
    shapes = {store.array(path).shape[1:] for store in stores if store.has(path)}
    axes = max(map(len, shapes))
    field = extent_field(key, path.removeprefix(f"{STEPS}/"), path, axes)
    if len(shapes) == 1 and not any(store.has(field.path) for store in stores):
        return
    for store, own_arrays in zip(stores, of_stores, strict=True):
        if store.has(field.path):
            continue
        extents = np.zeros((store.sample_count, axes), np.int32)
        if store.has(path):
            extents[:, : len(store.array(path).shape) - 1] = store.array(path).shape[1:]
        if store.has(f"{PRESENT}/{key}"):
            extents[~whole(store, f"{PRESENT}/{key}")] = 0
        own_arrays[field.path] = field, extents


def _next_field(store: StoreView, path: str, other: str) -> Field:
    """Return the field of next observations that have the form of another array."""
    group = FINAL if path.startswith(f"{FINAL}/") else NEXT
    array = store.array(other)
    key = path.removeprefix(f"{group}/")
    field = column_field(f"observation/{key}", array.dtype.name, array.shape[1:])
    attributes = array.attributes if other.startswith(f"{FINAL}/") else _without_datasets(array.attributes)
    return replace(moved(field, group), attributes=attributes)


def _without_datasets(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes of an array as those of one that no source has."""
    none: dict[str, list[str]] = {"source_dataset": [], "source_form": []}
    return {name: none.get(name, value) for name, value in attributes.items() if name not in _OF_FIELD}


def _check_not_kept(store: StoreView, path: str, now: str) -> None:
    """Refuse compressed frames whose next ones would be decoded, as those of another store are."""
    if not store.has(path) and store.has(f"{now}{JPEG_SUFFIX}/data"):
        message = f"contains compressed frames, but other stores contain {path}"
        raise InputError(Problem(store.path, message, "convert all sources together", "compact"))


class AlikeEpisodes:
    """Joins stores of episodes: columns that some episodes lack, and next observations. See `Alike`."""

    def arrays(self, stores: Sequence[StoreView]) -> ArraysOfStores:
        """Return the arrays that each store would have, were all converted together, and None for others."""
        of_stores: ArraysOfStores = [{} for _ in stores]
        columns: dict[str, str] = {}
        for store in stores:
            columns |= _columns(store)
        for key, path in columns.items():
            _add_present(of_stores, stores, key, path)
            if not path.endswith("/data"):
                _add_extents(of_stores, stores, key, path)
        _add_next(of_stores, stores)
        paths = {*chain.from_iterable(store.paths() for store in stores), *chain.from_iterable(of_stores)}
        rules = rules_of(paths)
        for own_arrays in of_stores:
            for path, made in own_arrays.items():
                if made is not None:
                    field, values = made
                    own_arrays[path] = replace(field, rule=rules[path]), values
        return of_stores

    def column(self, field: Field, form: Merged) -> Field:
        """Return the field of a column with what its sources say of its forms."""
        attributes = {**field.attributes, **form.source_forms}
        return replace(field, attributes=attributes, statistics=field.statistics and not form.is_filled)

    def missing(self, store: StoreView, path: str) -> Int64s:
        """Return ranges of rows of a column of episodes that lack it, (ranges, 2)."""
        present = f"{PRESENT}/{sample_key(path).removeprefix('next.')}"
        is_present = whole(store, present) if store.has(present) else np.ones(store.sample_count, bool)
        clock = path.split("/")[1] if path.startswith(f"{CLOCKS}/") else STEPS
        bounds = whole(store, offsets_path(clock))
        if path.startswith((f"{FINAL}/", f"{NEXT}/")) and store.has(path):
            recorded = next_recorded(store, path)
            if recorded is None:
                _check_known(store, path)
                recorded = np.ones(store.sample_count, bool)
            if path.startswith(f"{FINAL}/"):
                is_present = recorded
                bounds = np.arange(store.sample_count + 1)
            elif store.has(path.replace(NEXT, OBSERVATION, 1)):
                is_present = recorded | is_present  # the observation of the following step stands for it
            else:
                is_present = recorded
        ranges: Int64s = np.stack([bounds[:-1], bounds[1:]], axis=1)
        lacking: Int64s = ranges[~is_present]
        return lacking
