"""Readers of the steps of a trajectory store: columns, and the episode of each step."""

from __future__ import annotations

import json
from math import prod
from typing import Any, Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.columns import SourceNames
from unistore.data.kinds.images import EncodedImages
from unistore.data.kinds.protocol import INDEX, SOURCE
from unistore.data.packed import Packed, offsets_from_lengths
from unistore.errors import CorruptionError
from unistore.schemas.indices import contradiction, whole
from unistore.schemas.trajectory.fields import (
    CHANNEL,
    EPISODES,
    FINAL,
    JPEG_SUFFIX,
    NEXT,
    OBSERVATION,
    STEPS,
    sample_key,
)
from unistore.store.reader import Store

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


def step_column(store: Store, path: str) -> StepColumn:
    """Reader of a column by its path in `step_paths`."""
    return EncodedColumn(store, path) if path.endswith(JPEG_SUFFIX) else PlainColumn(store, path)


def step_paths(store: Store) -> dict[str, str]:
    """Path of each column of the steps, by sample key; the group's path for compressed frames."""
    found = {}
    for path in store.paths():
        if not path.startswith(f"{STEPS}/") or path.startswith(f"{NEXT}/"):
            continue
        if path.endswith(f"{JPEG_SUFFIX}/offsets"):
            continue
        key = sample_key(path)
        found[f"{STEPS}.{key}" if key in _RESERVED else key] = path.removesuffix("/data")
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


class Episodes:
    """The episodes of a store, and their steps.

    Parameters
    ----------
    store
        The store.
    units
        Episodes to use; None: all.
    """

    def __init__(self, store: Store, units: NDArray[np.int64] | None) -> None:
        self._store = store
        self.offsets: NDArray[np.int64] = whole(store, EPISODE_OFFSETS)
        self.used = np.arange(len(self.offsets) - 1) if units is None else units

    def rows(self, skip: int = 0, leave: int = 0, stride: int = 1) -> NDArray[np.int64]:
        """Every `stride`-th step of the used episodes, without the `skip` first and `leave` last ones."""
        first = self.offsets[self.used] + skip
        lengths = np.maximum(self.offsets[self.used + 1] - leave - first, 0)
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

    def __init__(self, store: Store, episodes: Episodes, fields: set[str]) -> None:
        self._episodes = episodes
        self._fields = fields
        self._sources = SourceNames(store, f"{EPISODES}/source") if SOURCE in fields else None
        wanted = "episode_name" in fields
        self._names = np.array(store.text(f"{EPISODES}/name"), np.str_) if wanted else None

    def read(self, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Values for a batch of steps, by key."""
        episode = self._episodes.of(rows)
        found: dict[str, NDArray[Any]] = {}
        if self._sources is not None:
            found[SOURCE] = self._sources.take(episode)
        if self._names is not None:
            found["episode_name"] = self._names[episode]
        if "episode" in self._fields:
            found["episode"] = episode
        if "step" in self._fields:
            found["step"] = rows - self._episodes.offsets[episode]
        return found
