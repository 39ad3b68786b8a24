"""What stores of episodes have together: columns that some episodes lack, and the next observations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from unistore.converters.common.columns import Merged, missing_value
from unistore.converters.trajectory.store_columns import FLAGS, dtypes_of, is_filled
from unistore.errors import InputError, Problem
from unistore.schemas.indices import StoreView, whole
from unistore.schemas.tables import Field, IndexValues
from unistore.schemas.trajectory.clocks import offsets_path
from unistore.schemas.trajectory.fields import (
    CLOCKS,
    EPISODES,
    FINAL,
    NEXT,
    OBSERVATION,
    PRESENT,
    STEPS,
    column_field,
    extent_field,
    moved,
    present_field,
    sample_key,
)
from unistore.system.hints import AnyArray, Dtype, Int64s, Shape

# Arrays by path, of each store. None: it has one too many
ArraysOfStores = list[dict[str, tuple[Field, IndexValues] | None]]


@dataclass(frozen=True, slots=True)
class _NextRows:
    """Next observations of all steps: the following observation, and the final one of each episode."""

    store: StoreView
    observations: str  # their path
    final: str

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
        values = np.zeros((max(0, hi - lo), *self.shape[1:]), self.dtype)
        following = self.store.array(self.observations).read(min(lo + 1, len(self)), min(hi + 1, len(self)))
        values[: len(following)] = following
        offsets = whole(self.store, f"{EPISODES}/offsets")
        last = offsets[1:] - 1
        ended = np.flatnonzero((last >= lo) & (last < hi) & (offsets[:-1] <= last))
        values[last[ended] - lo] = self.store.array(self.final).read_rows(ended)
        return values


def arrays(stores: Sequence[StoreView]) -> ArraysOfStores:
    """Return the arrays that each store would have, were all converted together, and None for others."""
    of_stores: ArraysOfStores = [{} for _ in stores]
    columns: dict[str, str] = {}
    for store in stores:
        columns |= _columns(store)
    for key, path in columns.items():
        _add_present(of_stores, stores, key, path)
        if not path.endswith("/data"):
            _add_extents(of_stores, stores, key, path)
    paths = set(chain.from_iterable(store.paths() for store in stores))
    for path in sorted(path for path in paths if path.startswith(f"{NEXT}/")):
        final = path.replace(NEXT, FINAL, 1)
        now = path.replace(NEXT, OBSERVATION, 1)
        for store, own_arrays in zip(stores, of_stores, strict=True):
            if store.has(final) and store.has(now) and not store.has(path):
                _check_known(store, final)
                own_arrays[path] = _next_field(store, path, final), _NextRows(store, now, final)
                own_arrays[final] = None
    return of_stores


def column(field: Field, form: Merged) -> Field:
    """Return the field of a column with what its sources say of its forms."""
    attributes = {**field.attributes, **dtypes_of(form)}
    return replace(field, attributes=attributes, statistics=field.statistics and not is_filled(form))


def missing(store: StoreView, path: str) -> Int64s:
    """Return ranges of rows of a column of episodes that lack it, (ranges, 2)."""
    present = f"{PRESENT}/{sample_key(path)}"
    if path.startswith((f"{FINAL}/", f"{NEXT}/")) and store.has(path):
        _check_known(store, path)
    if not store.has(present):
        return np.empty((0, 2), np.int64)
    clock = path.split("/")[1] if path.startswith(f"{CLOCKS}/") else STEPS
    bounds = whole(store, offsets_path(clock))
    ranges: Int64s = np.stack([bounds[:-1], bounds[1:]], axis=1)
    lacking: Int64s = ranges[~whole(store, present)]
    return lacking


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
        message = f"does not say whether episode {episode} has values of {path}, which become others"
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


def _next_field(store: StoreView, path: str, final: str) -> Field:
    array = store.array(final)
    key = path.removeprefix(f"{NEXT}/")
    field = column_field(f"observation/{key}", array.dtype.name, array.shape[1:])
    from_field = ("units", "long_name")
    attributes = {name: value for name, value in array.attributes.items() if name not in from_field}
    return replace(moved(field, NEXT), attributes=attributes)
