"""Samples of a window of steps: observations up to a step, other columns from it on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.padding import Pad, check_pad, fill_values, normalize_pad
from unistore.data.kinds.protocol import Picks, require_arrays, select_keys
from unistore.data.kinds.reach import Reach
from unistore.data.kinds.steps import (
    EPISODE_OFFSETS,
    ON_REQUEST,
    Episodes,
    attribute_place,
    channels_first,
    step_column,
    step_paths,
)
from unistore.data.packed import Allocate, Batch, packed_copy
from unistore.store.reader import Store
from unistore.system.arguments import Arguments

_VALID = ("history_valid", "horizon_valid")


@dataclass(frozen=True, slots=True)
class Windows:
    """Samples of a trajectory store: a window around step t, inside one episode.

    Keys: ``observation.<name>`` (history, …) of the steps ``t - history + 1`` to ``t``; every other column of
    the steps, ``action``, ``reward``, …, (horizon, …) of the steps ``t`` to ``t + horizon - 1``;
    ``history_valid`` (history,) and ``horizon_valid`` (horizon,) bool, False where the window leaves the
    episode. Images are (history, 3, H, W) u1 RGB. On request: ``source``, ``episode``, ``episode_name``,
    ``step`` (t inside the episode).

    Parameters
    ----------
    history
        Steps of observation, the current one included.
    horizon
        Steps of everything else, the current one included.
    stride
        Steps between successive windows.
    pad
        Padding of windows that leave their episode. None: such windows are an error. ``"edge"``: the
        episode's first or last step is repeated; ``"zero"`` and ``"valid"``: zeros; a number: that, in every
        field that is read; ``"drop"``: such windows are left out.
    """

    history: int
    horizon: int
    stride: int = 1
    pad: Pad = None

    def __post_init__(self) -> None:
        check = Arguments()
        for name in ("history", "horizon", "stride"):
            check.integer(name, getattr(self, name), 1)
        check_pad(check, self.pad)
        check.raise_problems()
        object.__setattr__(self, "pad", normalize_pad(self.pad))

    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        """Keys of samples; see `SampleKind.select`."""
        require_arrays(store, self, EPISODE_OFFSETS)
        return select_keys([*step_paths(store), *_VALID], fields, ON_REQUEST, partial(attribute_place, store))

    def bind(self, store: Store, fields: Sequence[str], units: NDArray[np.int64] | None) -> WindowReader:
        """Reader of windows in the episodes `units`."""
        return WindowReader(store, self, fields, units)


class WindowReader:
    """Reads windows; see `SampleReader`."""

    def __init__(
        self, store: Store, kind: Windows, fields: Sequence[str], units: NDArray[np.int64] | None
    ) -> None:
        self._kind = kind
        self._episodes = Episodes(store, units)
        drop = kind.pad == "drop"
        self._rows = self._episodes.rows(
            skip=kind.history - 1 if drop else 0, leave=kind.horizon - 1 if drop else 0, stride=kind.stride
        )
        self._labels = self._episodes.labels(set(fields))
        paths = step_paths(store)
        self._columns = {key: step_column(store, paths[key]) for key in fields if key in paths}
        self._valid = [key for key in fields if key in _VALID]
        self._fills = fill_values(kind.pad, {key: column.dtype for key, column in self._columns.items()})

    def __len__(self) -> int:
        return len(self._rows)

    def reach(self) -> Reach:
        """See `CuttingReader.reach`."""
        kind, lengths = self._kind, np.diff(self._episodes.offsets)[self._episodes.used]
        steps = f"{kind.history} + {kind.horizon} steps, the current one in both"
        if kind.pad == "drop":
            if len(self) or not len(lengths):
                return Reach(samples=len(self))
            what = f"windows of {steps}, leave every episode: the longest has {lengths.max()} steps"
            return Reach(samples=0, problem=what, fitting=replace(kind, pad="edge"))
        before = -(-np.minimum(kind.history - 1, lengths) // kind.stride)
        inside = -(-np.maximum(lengths - kind.horizon + 1, 0) // kind.stride) - before
        beyond = len(self) - int(np.maximum(inside, 0).sum())
        if not beyond:
            return Reach(samples=len(self))
        what = f"windows of {steps}, leave their episode in {beyond} of {len(self)} samples"
        fitting, padded = replace(kind, pad="edge"), kind.pad is not None
        return Reach(samples=len(self), beyond=beyond, padded=padded, problem=what, fitting=fitting)

    def read(self, picks: Picks, allocate: Allocate) -> Batch:
        """Read a batch of windows."""
        rows = self._rows[picks.index]
        history, history_valid = self._window(rows, np.arange(1 - self._kind.history, 1))
        horizon, horizon_valid = self._window(rows, np.arange(self._kind.horizon))
        batch: Batch = {}
        for key, column in self._columns.items():
            past = key.startswith("observation.")
            steps, valid = (history, history_valid) if past else (horizon, horizon_valid)
            out = allocate((*steps.shape, *column.row_shape), column.dtype)
            column.read(steps.reshape(-1), out.reshape(-1, *column.row_shape))
            if self._kind.pad not in (None, "edge", "drop"):
                out[~valid] = self._fills[key]
            batch[key] = channels_first(out, column)
        masks = dict(zip(_VALID, (history_valid, horizon_valid), strict=True))
        batch |= {key: packed_copy(masks[key], allocate) for key in self._valid}
        return batch | {key: packed_copy(found, allocate) for key, found in self._labels.read(rows).items()}

    def _window(
        self, rows: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Steps (B, k) at `positions` relative to each row, clipped to its episode; and if they lie in it."""
        episode = self._episodes.of(rows)
        first, end = self._episodes.offsets[episode, None], self._episodes.offsets[episode + 1, None]
        steps = rows[:, None] + positions
        return np.clip(steps, first, end - 1), (steps >= first) & (steps < end)
