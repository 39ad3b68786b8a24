"""Samples of one step of an episode and the next observation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.protocol import Picks, require_arrays, select_keys
from unistore.data.kinds.reach import Reach
from unistore.data.kinds.steps import (
    EPISODE_OFFSETS,
    NEXT_PREFIX,
    ON_REQUEST,
    Episodes,
    StepColumn,
    attribute_place,
    channels_first,
    next_observation_paths,
    step_column,
    step_paths,
)
from unistore.data.packed import Allocate, Batch, packed_copy
from unistore.schemas.indices import Column, contradiction, whole
from unistore.store.reader import Store
from unistore.system.arguments import Arguments

_VALID = "steps/next_valid"


@dataclass(frozen=True, slots=True)
class Transitions:
    """Samples of a trajectory store: step t, and the next observation of the same episode.

    Keys: every column of the steps by its dotted name, ``observation.<name>``, ``action``, ``reward``,
    ``terminated``, ``truncated``, ``next_valid``, …; ``next.observation.<name>`` for every observation.
    Images are (3, H, W) u1 RGB. On request: ``source``, ``episode`` (number), ``episode_name``, ``step``
    (inside the episode).

    ``next_valid`` is False at the last step of an episode whose next observation was not recorded; the next
    observation is then a copy of the step's own, and must not be used.

    Parameters
    ----------
    only_valid
        True: leave out steps without a recorded next observation, except terminal ones, where it is not
        needed. An error if none are left.
    """

    only_valid: bool = False

    def __post_init__(self) -> None:
        check = Arguments()
        check.flag("only_valid", self.only_valid)
        check.raise_problems()

    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        """Keys of samples; see `SampleKind.select`."""
        require_arrays(store, self, EPISODE_OFFSETS)
        keys = list(step_paths(store))
        following = [f"{NEXT_PREFIX}{key}" for key in keys if key.startswith("observation.")]
        return select_keys([*keys, *following], fields, ON_REQUEST, partial(attribute_place, store))

    def bind(self, store: Store, fields: Sequence[str], units: NDArray[np.int64] | None) -> TransitionReader:
        """Reader of the steps of the episodes `units`."""
        return TransitionReader(store, self, fields, units)


class TransitionReader:
    """Reads transitions; see `SampleReader`."""

    def __init__(
        self, store: Store, kind: Transitions, fields: Sequence[str], units: NDArray[np.int64] | None
    ) -> None:
        self._kind = kind
        self._episodes = Episodes(store, units)
        self._rows = None if units is None and not kind.only_valid else self._episodes.rows()
        if kind.only_valid and self._rows is not None:
            useful = whole(store, _VALID) | whole(store, "steps/terminated")
            self._rows = self._rows[useful[self._rows]]
        self._valid = Column(store, _VALID)
        self._labels = self._episodes.labels(set(fields))
        paths = step_paths(store)
        self._columns = {key: step_column(store, paths[key]) for key in fields if key in paths}
        self._next = {
            key: _NextObservation(store, key.removeprefix(NEXT_PREFIX))
            for key in fields
            if key.startswith(NEXT_PREFIX) and key not in paths
        }
        self._length = int(self._episodes.offsets[-1]) if self._rows is None else len(self._rows)

    def __len__(self) -> int:
        return self._length

    def reach(self) -> Reach:
        """See `CuttingReader.reach`."""
        steps = 0 if len(self) else len(self._episodes.rows())
        if not steps:
            return Reach(samples=len(self))
        what = f"only_valid=True: none of {steps:,} steps has a next observation or is a terminal one"
        return Reach(samples=0, problem=what, fitting=replace(self._kind, only_valid=False))

    def read(self, picks: Picks, allocate: Allocate) -> Batch:
        """Read a batch of transitions."""
        rows = picks.index if self._rows is None else self._rows[picks.index]
        episode = self._episodes.of(rows)
        last = rows + 1 == self._episodes.offsets[episode + 1]
        after = np.where(last, rows, rows + 1)
        final = np.flatnonzero(last & self._valid.take(rows)) if self._next else rows[:0]
        batch: Batch = {}
        for key, column in self._columns.items():
            following = self._next.get(f"{NEXT_PREFIX}{key}")
            # an observation and the next one are read together, so that shared chunks are decoded once
            both = following is not None and following.stored is None
            wanted = np.concatenate((rows, after)) if both else rows
            out = allocate((len(wanted), *column.row_shape), column.dtype)
            column.read(wanted, out)
            batch[key] = channels_first(out[: len(rows)], column)
            if following is not None and both:
                following.put_final(episode, final, out[len(rows) :])
                batch[f"{NEXT_PREFIX}{key}"] = channels_first(out[len(rows) :], column)
        for key, following in self._next.items():
            if key not in batch:
                batch[key] = following.read(rows, after, episode, final, allocate)
        return batch | {key: packed_copy(found, allocate) for key, found in self._labels.read(rows).items()}


class _NextObservation:
    """Reader of the next observations of one key."""

    def __init__(self, store: Store, key: str) -> None:
        stored, final = next_observation_paths(store, key)
        self._own = step_column(store, step_paths(store)[key])
        self.stored: StepColumn | None = None if stored is None else step_column(store, stored)
        self._final = None if final is None else store.array(final)
        column = self._own if self.stored is None else self.stored
        if self._final is not None and self._final.shape[1:] != column.row_shape:
            message = f"has rows of {self._final.shape[1:]}, the observation rows of {column.row_shape}"
            raise contradiction(store, self._final.path, message)

    def read(
        self,
        rows: NDArray[np.int64],
        after: NDArray[np.int64],
        episode: NDArray[np.int64],
        final: NDArray[np.int64],
        allocate: Allocate,
    ) -> Any:
        """Next observations of `rows`; `after` are the next rows in their episodes."""
        column = self._own if self.stored is None else self.stored
        out = allocate((len(rows), *column.row_shape), column.dtype)
        if self.stored is None:
            column.read(after, out)
            self.put_final(episode, final, out)
        else:
            column.read(rows, out)
        return channels_first(out, column)

    def put_final(self, episode: NDArray[np.int64], final: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Overwrite `out` at the positions `final` with the final observations of their episodes."""
        if self._final is not None and len(final):
            out[final] = self._final.read_rows(episode[final])
