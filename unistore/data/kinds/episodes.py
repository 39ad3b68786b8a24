"""The `Episodes` and `Transitions` sample kinds: whole episodes, and steps with the next observation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from unistore.data.kinds.clocks import Clocks
from unistore.data.kinds.columns import UnevenColumn, count_key, is_ragged
from unistore.data.kinds.protocol import (
    MASK_SUFFIX,
    PRESENT_SUFFIX,
    Reach,
    SampleIndices,
    SampleKind,
    SampleReader,
    require_arrays,
    select_keys,
)
from unistore.data.kinds.steps import (
    EPISODE_OFFSETS,
    EpisodeRows,
    StepColumns,
    keys_on_request,
    step_column,
    step_paths,
    validity_keys,
)
from unistore.data.packed import Allocate, Batch, Packed, offsets_from_lengths, packed_copy, rows_of_ranges
from unistore.schemas.indices import IndexColumn, contradiction, whole
from unistore.schemas.trajectory.fields import FINAL, JPEG_SUFFIX, NEXT, OBSERVATION, STEPS, VIDEO_SUFFIX
from unistore.store.reader import Store
from unistore.system.arguments import Arguments
from unistore.system.types import AnyArray, Int64s

_NEXT = "next."


class EpisodeKind(SampleKind):
    """Base class of the sample kinds of trajectory stores."""

    __slots__ = ()

    @property
    def whole(self) -> SampleKind | None:
        return Episodes()

    def validity(self, store: Store, key: str) -> tuple[str, ...]:
        column = key.removeprefix(_NEXT)
        known = validity_keys(store)
        names = (f"{column}{PRESENT_SUFFIX}", f"{column}{MASK_SUFFIX}")
        return tuple(name for name in names if name in known)


class EpisodeReader(SampleReader):
    """Reads batches of `Episodes`."""

    def __init__(self, store: Store, _: Episodes, fields: Sequence[str], units: Int64s) -> None:
        clocks = Clocks(store)
        self._fields = fields
        self._episodes = EpisodeRows(store, fields, units)
        self._bounds = {name: clocks.offsets(name) for name in clocks.columns}
        self._columns = {name: StepColumns(store, paths, fields) for name, paths in clocks.columns.items()}

    def __len__(self) -> int:
        return len(self._episodes.used)

    def axis_names(self, key: str) -> Sequence[str]:
        for columns in self._columns.values():
            if names := columns.axis_names(key):
                return names
        return ()

    def read(self, picks: SampleIndices, allocate: Allocate) -> Batch:
        episodes = self._episodes.used[picks.index]
        batch: Batch = {}
        for name, columns in self._columns.items():
            lo = self._bounds[name][episodes]
            hi = self._bounds[name][episodes + 1]
            rows = rows_of_ranges(lo, hi)
            offsets = offsets_from_lengths(hi - lo)
            group = "" if name == STEPS else name
            for key, column in columns.dense.items():
                values = column.values(rows, allocate)
                batch[key] = Packed(column.as_samples(values), offsets, group)
            for key, uneven in columns.uneven.items():
                by_row, counts = uneven.read(key, rows, allocate)
                if by_row.offsets is None or counts is None:
                    batch[key] = Packed(by_row.values, offsets, group)
                    continue
                batch[key] = Packed(by_row.values, by_row.offsets[offsets], key)
                count = packed_copy(counts, allocate).values
                batch[count_key(key)] = Packed(count, offsets, group)
        batch = {key: batch[key] for key in self._fields if key in batch}
        return batch | self._episodes.labels(episodes, self._episodes.offsets[episodes], allocate)


@dataclass(frozen=True, slots=True)
class Episodes(EpisodeKind):
    """Samples of a trajectory store: whole episodes.

    An episode has T steps, and T differs, so batches are packed: ``action`` of a batch has shape
    (sum of T, …), and episode i is ``action[offsets[i]:offsets[i + 1]]``.

    Keys of a sample:

    - every column of the steps by its dotted name, such as ``observation.joint``, ``action`` or ``reward``:
      (T, …), in the stored dtype. Images are (T, 3, H, W), uint8 RGB. Texts are lists of T str.
    - every column of another clock, such as a force sensor: (R, …) with its own number of rows R, and offsets
      of its own, ``<clock>_offsets`` in a batch.
    - ``<key>_counts`` (T,), for a column with any number of values in a row. Its key then has the values of
      all rows, one row after another, and offsets of its own.
    - ``<key>_present`` (T,), bool, for a column that only some episodes have (``--columns union``).
    - ``<key>_mask`` (T, …), bool with the shape of the column, for one whose rows differ in shape and are
      padded with zeros (``--columns union``): True for values of the source, False for padding.

    Optional keys, read with ``fields=[…]``: ``source``, ``episode`` (number), ``episode_name``, and values of
    the episode, such as ``episode.task``.

    Examples
    --------
    >>> dataset = unistore.Dataset("demos.zarr", unistore.Episodes(), fields=["action"])  # doctest: +SKIP
    """

    reader: ClassVar = EpisodeReader

    @property
    def repeats(self) -> bool:
        return True

    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        require_arrays(store, self, EPISODE_OFFSETS)
        keys: list[str] = []
        for columns in Clocks(store).columns.values():
            keys += columns
            keys += [count_key(key) for key, path in columns.items() if is_ragged(path)]
        keys += validity_keys(store)
        return select_keys(keys, fields, [key for key in keys_on_request(store, fields) if key != "step"])


class TransitionReader(SampleReader):
    """Reads batches of `Transitions`."""

    def __init__(self, store: Store, kind: Transitions, fields: Sequence[str], units: Int64s) -> None:
        self._kind = kind
        self._episodes = EpisodeRows(store, fields, units)
        is_every = len(units) == store.sample_count and not kind.only_valid
        self._rows = None if is_every else self._episodes.rows()
        if kind.only_valid and self._rows is not None:
            useful = whole(store, f"{STEPS}/next_valid") | whole(store, f"{STEPS}/terminated")
            self._rows = self._rows[useful[self._rows]]
        self._length = int(self._episodes.offsets[-1]) if self._rows is None else len(self._rows)
        self._valid = IndexColumn(store, f"{STEPS}/next_valid")
        paths = step_paths(store)
        self._own = frozenset(key for key in fields if key in paths)
        self._nexts = {
            key.removeprefix(_NEXT): _NextObservation(store, paths[key.removeprefix(_NEXT)])
            for key in fields
            if key not in paths and key.startswith(_NEXT)
        }
        self._columns = StepColumns(store, paths, {*self._own, *self._nexts})
        groups = {
            key: paths[key].replace(OBSERVATION, NEXT, 1)
            for key in self._columns.uneven
            if key in self._nexts and not is_ragged(paths[key])
        }
        self._next_uneven = {
            key: UnevenColumn(store, group) for key, group in groups.items() if store.has(f"{group}/data")
        }

    def __len__(self) -> int:
        return self._length

    def axis_names(self, key: str) -> Sequence[str]:
        return self._columns.axis_names(key if key in self._own else key.removeprefix(_NEXT))

    def reach(self) -> Reach:
        steps = 0 if len(self) else len(self._episodes.rows())
        if not steps:
            return Reach(len(self))
        problem = f"only_valid=True leaves no samples: none of {steps:,} steps has a next observation, "
        problem += "and none is terminal"
        return Reach(0, problem=problem, fitting=replace(self._kind, only_valid=False))

    def read(self, picks: SampleIndices, allocate: Allocate) -> Batch:
        rows = picks.index if self._rows is None else self._rows[picks.index]
        episodes = self._episodes.of(rows)
        is_last = rows + 1 == self._episodes.offsets[episodes + 1]
        after = np.where(is_last, rows, rows + 1)
        has_final = np.flatnonzero(is_last & self._valid.take(rows)) if self._nexts else rows[:0]
        batch: Batch = {}
        for key, column in self._columns.dense.items():
            following = self._nexts.get(key)
            is_shifted = following is not None and following.stored is None
            # an observation and the next one are read together, so that shared chunks are decoded once
            read_rows = [rows] * (key in self._own) + [after] * is_shifted
            if read_rows:
                values = column.values(np.concatenate(read_rows), allocate)
            if key in self._own:
                batch[key] = Packed(column.as_samples(values[: len(rows)]))
            if following is None:
                continue
            if following.stored is None:
                next_column = column
                values = values[len(values) - len(rows) :]
                following.put_final(episodes, has_final, values)
            else:
                next_column = following.stored
                values = next_column.values(rows, allocate)
            batch[f"{_NEXT}{key}"] = Packed(next_column.as_samples(values))
        for key, uneven in self._columns.uneven.items():
            if key in self._own:
                batch[key], _ = uneven.read(key, rows, allocate)
            name = f"{_NEXT}{key}"
            if key in self._next_uneven:
                batch[name], _ = self._next_uneven[key].read(name, rows, allocate)
            elif key in self._nexts:
                batch[name], _ = uneven.read(name, after, allocate)
        return batch | self._episodes.labels(episodes, rows, allocate)


@dataclass(frozen=True, slots=True)
class Transitions(EpisodeKind):
    """Samples of a trajectory store: a step, and the next observation of the same episode.

    Keys of a sample:

    - every column of the steps by its dotted name: ``observation.<name>``, ``action``, ``reward``,
      ``terminated``, ``truncated``, …, in the stored dtype. Images are (3, H, W), uint8 RGB. Columns with any
      number of values in a row, such as scans of a lidar, have variable length.
    - ``next.observation.<name>``, for every observation.
    - ``next_valid``, a bool: False at the last step of an episode if its next observation was not
      recorded. The next observation is then a copy of the step's own, and must not be used.
    - ``<key>_present``, a bool, for a column that only some episodes have (``--columns union``).
    - ``<key>_mask``, bool with the shape of the row, for a column whose rows differ in shape and are padded
      with zeros (``--columns union``): True for values of the source, False for padding.

    Optional keys, read with ``fields=[…]``: ``source``, ``episode`` (number), ``episode_name``, ``step``
    (number of the step in its episode), and values of the episode, such as ``episode.task``.

    Parameters
    ----------
    only_valid : bool, default False
        True: leave out steps without a recorded next observation, except terminal steps, which do not
        need one. If no step is left, reading raises InputError.

    Raises
    ------
    InputError
        If `only_valid` is not a bool.

    Examples
    --------
    >>> dataset = unistore.Dataset("demos.zarr", unistore.Transitions(only_valid=True))  # doctest: +SKIP
    """

    reader: ClassVar = TransitionReader

    only_valid: bool = False

    def __post_init__(self) -> None:
        check = Arguments()
        check.flag("only_valid", self.only_valid)
        check.raise_problems()

    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        require_arrays(store, self, EPISODE_OFFSETS)
        keys = list(step_paths(store))
        following = [f"{_NEXT}{key}" for key in keys if key.startswith("observation.")]
        return select_keys([*keys, *following, *validity_keys(store)], fields, keys_on_request(store, fields))


class _NextObservation:
    def __init__(self, store: Store, path: str) -> None:
        name = path.removeprefix(f"{OBSERVATION}/").removesuffix(JPEG_SUFFIX).removesuffix(VIDEO_SUFFIX)
        following = f"{NEXT}/{name}"
        final = f"{FINAL}/{name}"
        self.stored = step_column(store, following) if store.has(following) else None
        self._final = store.array(final) if store.has(final) else None
        if self._final is not None:
            row_shape = (self.stored or step_column(store, path)).row_shape
            if self._final.shape[1:] != row_shape:
                message = f"has rows of shape {self._final.shape[1:]}, but the observations have {row_shape}"
                raise contradiction(store, final, message)

    def put_final(self, episodes: Int64s, has_final: Int64s, out: AnyArray) -> None:
        if self._final is not None and len(has_final):
            out[has_final] = self._final.read_rows(episodes[has_final])
