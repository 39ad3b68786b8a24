"""One sample = one whole episode, ragged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from unistore.data.kinds.clocks import Clocks
from unistore.data.kinds.protocol import Picks, require_arrays, select_keys
from unistore.data.kinds.steps import (
    EPISODE_OFFSETS,
    ON_REQUEST,
    EpisodeRows,
    RaggedColumn,
    StepColumn,
    attribute_place,
    channels_first,
    is_ragged,
    step_column,
)
from unistore.data.kinds.windows import count_key
from unistore.data.packed import Allocate, Batch, Packed, offsets_from_lengths, packed_copy
from unistore.schemas.trajectory.fields import STEPS
from unistore.store.reader import Store
from unistore.system.hints import Int64s

_ON_REQUEST = tuple(key for key in ON_REQUEST if key != "step")


@dataclass(frozen=True, slots=True)
class Episodes:
    """Samples of a trajectory store: whole episodes.

    Keys: every column of the steps, (T, …) with the T steps of the episode, ragged; images are (T, 3, H, W)
    u1 RGB. Columns of other clocks have rows of their own number and are ragged in the group of the clock's
    name. A column with any number of values in a row has those of all rows, ragged in a group of its own, and
    ``<key>_counts`` (T,). On request: ``source``, ``episode`` (number), ``episode_name``.
    """

    @property
    def repeats(self) -> bool:
        """See `SampleKind.repeats`."""
        return True

    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        """Keys of samples; see `SampleKind.select`."""
        require_arrays(store, self, EPISODE_OFFSETS)
        keys: list[str] = []
        for columns in Clocks(store).columns.values():
            keys += columns
            keys += [count_key(key) for key, path in columns.items() if is_ragged(path)]
        return select_keys(keys, fields, _ON_REQUEST, partial(attribute_place, store))

    def bind(self, store: Store, fields: Sequence[str], units: Int64s | None) -> EpisodeReader:
        """Reader of the episodes `units`."""
        return EpisodeReader(store, fields, units)


class EpisodeReader:
    """Reads episodes; see `SampleReader`."""

    def __init__(self, store: Store, fields: Sequence[str], units: Int64s | None) -> None:
        clocks = Clocks(store)
        episodes = EpisodeRows(store, units)
        self._episodes = episodes.used
        self._labels = episodes.labels(set(fields))
        self._offsets = {name: clocks.offsets(name) for name in clocks.columns}
        self._fields = frozenset(fields)
        self._columns: dict[str, dict[str, StepColumn]] = {}
        self._ragged: dict[str, dict[str, RaggedColumn]] = {}
        for name, paths in clocks.columns.items():
            wanted = [key for key in paths if {key, count_key(key)} & set(fields)]
            ragged = [key for key in wanted if is_ragged(paths[key])]
            self._ragged[name] = {key: RaggedColumn(store, paths[key]) for key in ragged}
            dense = [key for key in wanted if key not in ragged]
            self._columns[name] = {key: step_column(store, paths[key]) for key in dense}

    def __len__(self) -> int:
        return len(self._episodes)

    def read(self, picks: Picks, allocate: Allocate) -> Batch:
        """Read a batch of episodes."""
        episodes = self._episodes[picks.index]
        batch: Batch = {}
        for name, columns in self._columns.items():
            first = self._offsets[name][episodes]
            lengths = self._offsets[name][episodes + 1] - first
            offsets = offsets_from_lengths(lengths)
            rows = np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], lengths)
            group = "" if name == STEPS else name
            for key, column in columns.items():
                out = allocate((len(rows), *column.row_shape), column.dtype)
                column.read(rows, out)
                values = channels_first(out, column).values
                batch[key] = Packed(values, offsets, group)
            for key, ragged in self._ragged[name].items():
                by_row, counts = ragged.read(key, rows[:, None], np.ones((len(rows), 1), bool), allocate)
                assert by_row.offsets is not None
                batch[key] = Packed(by_row.values, by_row.offsets[offsets], key)
                batch[count_key(key)] = Packed(counts[:, 0], offsets, group)
        batch = {key: packed for key, packed in batch.items() if key in self._fields}
        labels = self._labels.of_episodes(episodes)
        return batch | {key: packed_copy(values, allocate) for key, values in labels.items()}
