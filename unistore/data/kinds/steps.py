"""Samples of episodes: a step with the next observation (`Transitions`); columns and labels of steps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.images import EncodedImages
from unistore.data.kinds.protocol import INDEX, SOURCE, Picks, SourceNames, require_arrays, select_keys
from unistore.data.kinds.reach import Reach
from unistore.data.packed import Allocate, Batch, Packed, offsets_from_lengths, packed_copy
from unistore.errors import CorruptionError
from unistore.schemas.indices import Column, contradiction, whole
from unistore.schemas.trajectory.fields import (
    CHANNEL,
    EPISODES,
    FINAL,
    JPEG_SUFFIX,
    NEXT,
    OBSERVATION,
    RAGGED_SUFFIX,
    STEPS,
    column_group,
    sample_key,
)
from unistore.store.reader import Store
from unistore.system.arguments import Arguments

NEXT_PREFIX = "next."
EPISODE_OFFSETS = f"{EPISODES}/offsets"
ON_REQUEST = (SOURCE, "episode", "episode_name", "step")
_RESERVED = frozenset({INDEX, *ON_REQUEST, "history_valid", "horizon_valid"})
"""Reserved keys; a column of that name gets the key ``steps.<name>``."""
_FRAME_DTYPES = ("uint8", "uint16")
_MAX_FRAME_VALUES = 1 << 30
"""Largest number of values of a frame: more than any image decoder supports."""


class StepColumn(Protocol):
    """One value per step."""

    dtype: np.dtype[Any]
    row_shape: tuple[int, ...]
    image: bool
    """Whether rows are (H, W, 3) images; samples have (3, H, W)."""

    def read(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Read rows into `out`, C-contiguous (rows, *row_shape)."""
        ...


class PlainColumn:
    """A stored array."""

    def __init__(self, store: Store, path: str) -> None:
        self._array = store.array(path)
        self.dtype = self._array.dtype
        self.row_shape = self._array.shape[1:]
        axes = store.attributes["fields"][path].get("axes", ())
        self.image = tuple(axes[-1:]) == (CHANNEL,) and len(self.row_shape) == 3 and self.row_shape[2] == 3

    def read(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        """See `StepColumn.read`."""
        self._array.read_rows(rows, out)


class EncodedColumn:
    """Compressed frames; each frame is decoded once per batch."""

    def __init__(self, store: Store, group: str) -> None:
        data = store.array(f"{group}/data")
        self._path = data.path
        self._images = EncodedImages(store, group, exact=True)
        shape: Any = data.attributes.get("shape")
        dtype = data.attributes.get("dtype", "uint8")
        if not _is_frame_shape(shape) or dtype not in _FRAME_DTYPES:
            message = (
                f"its frames are {dtype!r} {shape!r}, expected {' or '.join(_FRAME_DTYPES)} [y, x, channel]"
            )
            raise contradiction(store, data.path, message)
        self.row_shape = tuple(shape)
        self.dtype = np.dtype(dtype)
        self.image = len(self.row_shape) == 3 and self.row_shape[2] == 3

    def read(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        """See `StepColumn.read`."""
        frames, numbers = np.unique(rows, return_inverse=True)
        images = self._images.read(frames)
        for target, number in zip(out, numbers.tolist(), strict=True):
            image = images[number]
            if image.size != target.size or image.dtype != target.dtype:
                found, expected = f"{image.dtype} {image.shape}", f"{self.dtype} {self.row_shape}"
                msg = f"{self._path}: frame {frames[number]} is {found}, expected {expected}"
                raise CorruptionError(msg)
            target[...] = image.reshape(self.row_shape)


def _is_frame_shape(shape: Any) -> TypeGuard[list[int]]:
    """Whether an attribute is the shape of a frame of at most `_MAX_FRAME_VALUES` values."""
    extents = isinstance(shape, list) and all(type(extent) is int and extent > 0 for extent in shape)
    return extents and 2 <= len(shape) <= 3 and prod(shape) <= _MAX_FRAME_VALUES


class RaggedColumn:
    """A column with any number of values, (*row_shape) each, in a row."""

    def __init__(self, store: Store, group: str) -> None:
        self._data = store.array(f"{group}/data")
        self._offsets = Column(store, f"{group}/offsets")

    def read(
        self, key: str, rows: NDArray[np.int64], is_wanted: NDArray[np.bool_], allocate: Allocate
    ) -> tuple[Packed, NDArray[np.int64]]:
        """Read rows (B, k) for a batch.

        Returns
        -------
        values, counts
            The values of each sample's k rows, one after the other, and how many each row has, (B, k); none
            where a row is not wanted.
        """
        lo, hi = self._offsets.ranges(rows.reshape(-1))
        hi = np.where(is_wanted.reshape(-1), hi, lo)
        counts = (hi - lo).reshape(rows.shape)
        out = allocate((int(counts.sum()), *self._data.shape[1:]), self._data.dtype)
        self._data.read_ranges(lo, hi, out)
        return Packed(out, offsets_from_lengths(counts.sum(axis=1)), group=key), counts


def is_ragged(path: str) -> bool:
    """Whether a column, by its path in `step_paths`, has any number of values in a row."""
    return path.endswith(RAGGED_SUFFIX)


def step_column(store: Store, path: str) -> StepColumn:
    """Reader of a column by its path in `step_paths`."""
    return EncodedColumn(store, path) if path.endswith(JPEG_SUFFIX) else PlainColumn(store, path)


def step_paths(store: Store) -> dict[str, str]:
    """Path of each column of the steps, by sample key; the group's path where rows have any length."""
    found = {}
    for path in store.paths():
        if path.startswith(f"{STEPS}/") and not path.startswith(f"{NEXT}/"):
            key = sample_key(path)
            found[f"{STEPS}.{key}" if key in _RESERVED else key] = column_group(path)
    return found


def attribute_place(store: Store, name: str) -> str | None:
    """Return where a store keeps an attribute of its episodes or sources; None if it has none such."""
    for path in (f"{EPISODES}/attributes", "sources/attributes"):
        texts = store.text(path) if store.has(f"{path}/data") else []
        if any(name in json.loads(text) for text in texts):
            return f"in the JSON texts of dataset.store.text({path!r})"
    return None


def next_observation_paths(store: Store, key: str) -> tuple[str | None, str | None]:
    """Paths of the stored next observations of ``observation.<name>``.

    Returns
    -------
    next, final
        ``steps/next_observation/<name>`` and ``episodes/final_observation/<name>``; None if not stored.
    """
    name = step_paths(store)[key].removeprefix(f"{OBSERVATION}/").removesuffix(JPEG_SUFFIX)
    following, final = f"{NEXT}/{name}", f"{FINAL}/{name}"
    return following if store.has(following) else None, final if store.has(final) else None


def channels_first(values: NDArray[Any], column: StepColumn) -> Packed:
    """Values (B, …, *row_shape) for a batch: images as a view with channels first."""
    return Packed(np.moveaxis(values, -1, -3) if column.image else values)


class EpisodeRows:
    """The episodes of a store, and their steps.

    Parameters
    ----------
    store
        The store.
    units
        Episodes to use; None: all.
    offsets
        Path of the offsets of their rows: those of the steps, or of another clock.
    """

    def __init__(self, store: Store, units: NDArray[np.int64] | None, offsets: str = EPISODE_OFFSETS) -> None:
        self._store = store
        self.offsets: NDArray[np.int64] = whole(store, offsets)
        self.used = np.arange(len(self.offsets) - 1) if units is None else units

    def rows(self, stride: int = 1) -> NDArray[np.int64]:
        """Every `stride`-th step of the used episodes."""
        first = self.offsets[self.used]
        lengths = self.offsets[self.used + 1] - first
        counts = -(-lengths // stride)
        starts = offsets_from_lengths(counts)
        inside = np.arange(starts[-1]) - np.repeat(starts[:-1], counts)
        rows: NDArray[np.int64] = np.repeat(first, counts) + stride * inside
        return rows

    def of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Episode of each step."""
        return np.searchsorted(self.offsets, rows, side="right") - 1

    def labels(self, fields: set[str]) -> EpisodeMetadata:
        """Reader of the keys `ON_REQUEST`."""
        return EpisodeMetadata(self._store, self, fields)


class EpisodeMetadata:
    """Origin of steps: source, number and name of the episode, step inside the episode."""

    def __init__(self, store: Store, episodes: EpisodeRows, fields: set[str]) -> None:
        self._episodes = episodes
        self._fields = fields
        self._sources = SourceNames(store, f"{EPISODES}/source") if SOURCE in fields else None
        wanted = "episode_name" in fields
        self._names = np.array(store.text(f"{EPISODES}/name"), np.str_) if wanted else None

    def read(self, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Values for a batch of steps, by key."""
        episodes = self._episodes.of(rows)
        values = self.of_episodes(episodes)
        if "step" in self._fields:
            values["step"] = rows - self._episodes.offsets[episodes]
        return values

    def of_episodes(self, episodes: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Values for a batch of episodes, by key."""
        values: dict[str, NDArray[Any]] = {}
        if self._sources is not None:
            values[SOURCE] = self._sources.take(episodes)
        if self._names is not None:
            values["episode_name"] = self._names[episodes]
        if "episode" in self._fields:
            values["episode"] = episodes
        return values


# Samples of one step of an episode and the next observation.

_NEXT_VALID = "steps/next_valid"


@dataclass(frozen=True, slots=True)
class Transitions:
    """Samples of a trajectory store: step t, and the next observation of the same episode.

    Keys: every column of the steps by its dotted name, ``observation.<name>``, ``action``, ``reward``,
    ``terminated``, ``truncated``, ``next_valid``, …; ``next.observation.<name>`` for every observation.
    Images are (3, H, W) u1 RGB. Columns with any number of values in a row, as scans of a lidar, are ragged.
    On request: ``source``, ``episode`` (number), ``episode_name``, ``step`` (inside the episode).

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
        self._episodes = EpisodeRows(store, units)
        self._rows = None if units is None and not kind.only_valid else self._episodes.rows()
        if kind.only_valid and self._rows is not None:
            useful = whole(store, _NEXT_VALID) | whole(store, "steps/terminated")
            self._rows = self._rows[useful[self._rows]]
        self._valid = Column(store, _NEXT_VALID)
        self._labels = self._episodes.labels(set(fields))
        paths = step_paths(store)
        own = {key: key if key in paths else key.removeprefix(NEXT_PREFIX) for key in fields}
        stored = {key: paths[name] for key, name in own.items() if name in paths}
        self._ragged = {key: RaggedColumn(store, path) for key, path in stored.items() if is_ragged(path)}
        dense = [key for key in stored if key not in self._ragged]
        self._columns = {key: step_column(store, paths[key]) for key in dense if key in paths}
        self._next = {key: _NextObservation(store, own[key]) for key in dense if key not in paths}
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
        for key, ragged in self._ragged.items():
            wanted = after if key.startswith(NEXT_PREFIX) else rows
            batch[key], _ = ragged.read(key, wanted[:, None], np.ones((len(rows), 1), bool), allocate)
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
