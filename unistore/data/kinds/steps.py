"""Read the columns of the steps of episodes, and assign rows to episodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from unistore.converters.formats.packets import KeptVideo
from unistore.data.kinds.columns import EncodedImages, UnevenColumn, count_key, is_uneven, row_axes
from unistore.data.kinds.protocol import (
    INDEX,
    MASK_SUFFIX,
    PRESENT_SUFFIX,
    SOURCE,
    RowValues,
    masks_of,
)
from unistore.data.packed import (
    Allocate,
    Batch,
    Packed,
    packed_copies,
    packed_copy,
    range_of_rows,
    rows_of_ranges,
)
from unistore.data.where import Known, known_of
from unistore.errors import CorruptionError
from unistore.schemas.indices import require_rule, whole
from unistore.schemas.trajectory.fields import (
    CHANNEL,
    EPISODES,
    EXTENT,
    KEPT_SUFFIXES,
    NEXT,
    PRESENT,
    STEPS,
    VIDEO_SUFFIX,
    column_group,
    sample_key,
)
from unistore.schemas.trajectory.origins import FrameForm
from unistore.store.reader import Store
from unistore.system.types import AnyArray, Int64s, Shape

EPISODE_OFFSETS = f"{EPISODES}/offsets"
ON_REQUEST = (SOURCE, "episode", "episode_name", "step")
_OF_EPISODES = "episode."  # begins the keys of numbers and texts of an episode
# Reserved keys; a column of that name gets the key ``steps.<name>``
_RESERVED = frozenset({INDEX, *ON_REQUEST, "history_valid", "horizon_valid"})


class StepColumn(ABC):
    """Base class of readers of a column with one value per step.

    Attributes
    ----------
    dtype : numpy.dtype
        Dtype of the values.
    row_shape : tuple of int
        Shape of a row.
    image : bool
        Whether rows are images of shape (H, W, 3), which samples have as (3, H, W).
    """

    dtype: np.dtype[Any]
    row_shape: Shape
    image: bool  # Whether rows are (H, W, 3) images; samples have (3, H, W)
    stored_axes: tuple[str, ...]  # names of the axes of a row; empty if the store records none

    @abstractmethod
    def read(self, rows: Int64s, out: AnyArray) -> None:
        r"""Read rows (n,) into `out`, a C-contiguous array of shape (n, \*row_shape)."""

    def values(self, rows: Int64s, allocate: Allocate = np.empty) -> AnyArray:
        r"""Read rows of any shape.

        Parameters
        ----------
        rows : int64 array of shape (…)
            Rows of the table.
        allocate : callable, default numpy.empty
            Called as ``allocate(shape, dtype)`` for the memory of the values.

        Returns
        -------
        array of shape (…, \*row_shape)
            The values.
        """
        out = allocate((*rows.shape, *self.row_shape), self.dtype)
        self.read(rows.reshape(-1), out.reshape(-1, *self.row_shape))
        return out

    @property
    def axis_names(self) -> tuple[str, ...]:
        """Return the names of the axes of a row as samples have it, empty if the store records none."""
        return (self.stored_axes[-1], *self.stored_axes[:-1]) if self.image else self.stored_axes

    def as_samples(self, values: AnyArray) -> AnyArray:
        r"""Return values (…, \*row_shape) as samples have them: images as a view with channels first."""
        return np.moveaxis(values, -1, -3) if self.image else values


class PlainColumn(StepColumn):
    """Reads a column that is stored as an array."""

    def __init__(self, store: Store, path: str) -> None:
        self._array = store.array(path)
        self.dtype = self._array.dtype
        self.row_shape = self._array.shape[1:]
        self.stored_axes = row_axes(store, path)
        self.image = self.row_shape[2:] == (3,) and self.stored_axes[-1:] == (CHANNEL,)

    def read(self, rows: Int64s, out: AnyArray) -> None:
        self._array.read_rows(rows, out)


class EncodedColumn(StepColumn):
    """Reads a column of compressed images or video. Each frame is decoded once per batch."""

    def __init__(self, store: Store, group: str) -> None:
        data = store.array(f"{group}/data")
        self._path = data.path
        is_video = group.endswith(VIDEO_SUFFIX)
        self.dtype, self.row_shape = FrameForm.of(store, data.path)
        blank = None
        if store.has(f"{PRESENT}/{sample_key(data.path).removeprefix('next.')}"):
            blank = np.zeros(self.row_shape, self.dtype)
        self._images = (
            KeptVideo(store, group) if is_video else EncodedImages(store, group, exact=True, blank=blank)
        )
        self.image = self.row_shape[2:] == (3,)
        self.stored_axes = ("y", "x", CHANNEL)[: len(self.row_shape)]

    def read(self, rows: Int64s, out: AnyArray) -> None:
        frames, numbers = np.unique(rows, return_inverse=True)
        images = self._images.read(frames)
        for target, number in zip(out, numbers.tolist(), strict=True):
            image = images[number]
            if image.size != target.size or image.dtype != target.dtype:
                actual = f"{image.dtype} {image.shape}"
                expected = f"{self.dtype} {self.row_shape}"
                msg = f"{self._path}: frame {frames[number]:,} is {actual}, expected {expected}"
                raise CorruptionError(msg)
            target[...] = image.reshape(self.row_shape)


class StepColumns:
    """Readers of the columns of a table, by key.

    Attributes
    ----------
    dense : dict of str to StepColumn
        Columns with one value per row.
    uneven : dict of str to UnevenColumn
        Columns whose rows have any number of values, or a text.
    """

    def __init__(self, store: Store, paths: Mapping[str, str], keys: Collection[str]) -> None:
        needed = {key: path for key, path in paths.items() if key in keys or count_key(key) in keys}
        self.uneven = {key: UnevenColumn(store, path) for key, path in needed.items() if is_uneven(path)}
        self.dense = {key: step_column(store, path) for key, path in needed.items() if not is_uneven(path)}

    def axis_names(self, key: str) -> Sequence[str]:
        """Return the names of the axes of a row as samples have it, empty if the store records none."""
        column = self.dense.get(key) or self.uneven.get(key)
        return () if column is None else column.axis_names


def step_column(store: Store, path: str) -> StepColumn:
    """Return the reader of a column, given by its path in `step_paths`."""
    return EncodedColumn(store, path) if path.endswith(KEPT_SUFFIXES) else PlainColumn(store, path)


def step_paths(store: Store) -> dict[str, str]:
    """Return the path of each column of the steps by key; for rows of any length, the path of the group."""
    paths = {}
    for path in store.paths():
        if path.startswith(f"{STEPS}/") and not path.startswith(f"{NEXT}/"):
            key = sample_key(path)
            paths[f"{STEPS}.{key}" if key in _RESERVED else key] = column_group(path)
    return paths


def validity_keys(store: Store) -> dict[str, str]:
    """Return the path of the values for each ``<key>_present`` and ``<key>_mask``, by key."""
    keys: dict[str, str] = {}
    for group, suffix in ((PRESENT, PRESENT_SUFFIX), (EXTENT, MASK_SUFFIX)):
        paths = [path for path in store.paths() if path.startswith(f"{group}/")]
        keys |= {f"{path.removeprefix(f'{group}/')}{suffix}": path for path in paths}
    return keys


def keys_on_request(store: Store, fields: Sequence[str] | None) -> list[str]:
    """Return the optional keys of samples. Values of episodes are listed only if `fields` names one."""
    is_read = any(name.startswith(_OF_EPISODES) for name in fields or ())
    return [*ON_REQUEST, *(_known_of_episodes(store) if is_read else ())]


def _known_of_episodes(store: Store) -> Known:
    return {key: read for key, read in known_of(store).items() if key.startswith(_OF_EPISODES)}


class EpisodeRows:
    """The episodes of a store, their rows in one table, and values of the episodes.

    Parameters
    ----------
    store : Store
        A trajectory store.
    fields : sequence of str
        Keys to read.
    units : int64 array
        Numbers of the episodes to use.
    offsets : str, default "episodes/offsets"
        Path of the offsets of their rows in the table.

    Attributes
    ----------
    offsets : int64 array of shape (episodes + 1,)
        First row of each episode.
    used : int64 array
        Numbers of the episodes to use.
    """

    def __init__(
        self,
        store: Store,
        fields: Sequence[str],
        units: Int64s,  # episodes to use
        offsets: str = EPISODE_OFFSETS,  # path of the offsets of their rows
    ) -> None:
        clock = offsets.removeprefix(f"{EPISODES}/").removesuffix("/offsets")
        require_rule(store, offsets, offsets_of=STEPS if offsets == EPISODE_OFFSETS else clock)
        self.offsets: Int64s = whole(store, offsets)
        self.used = units
        validity = validity_keys(store)
        names = {"episode_name": f"{EPISODES}/name", **validity}
        self._padded = {
            key: step_column(store, store.array(path).attributes["array"])
            for key, path in validity.items()
            if key in fields and path.startswith(f"{EXTENT}/")
        }
        self._labels = RowValues(store, fields, names, f"{EPISODES}/source")
        self._numbers = [key for key in ("episode", "step") if key in fields]
        is_read = any(key.startswith(_OF_EPISODES) for key in fields)
        known = _known_of_episodes(store) if is_read else {}
        self._of_episodes = {key: known[key]() for key in fields if key in known}

    def rows(self, stride: int = 1) -> Int64s:
        """Return every `stride`-th row of the used episodes, episode after episode."""
        lo = self.offsets[self.used]
        return rows_of_ranges(lo, self.offsets[self.used + 1], stride)

    def of(self, rows: Int64s) -> Int64s:
        """Return the number of the episode of each row."""
        return range_of_rows(self.offsets, rows)

    def labels(self, episodes: Int64s, rows: Int64s, allocate: Allocate) -> Batch:
        """Return the values of the optional keys that are read.

        Parameters
        ----------
        episodes : int64 array of shape (B,)
            Episode of each sample.
        rows : int64 array of shape (B,)
            Row of each sample, from which ``step`` is computed.
        allocate : callable
            Called as ``allocate(shape, dtype)`` for the memory of the values.

        Returns
        -------
        dict of str to Packed
            Values of shape (B, …).
        """
        numbers = {"episode": episodes, "step": rows - self.offsets[episodes]}
        batch = self._labels.read(episodes, allocate)
        for key, column in self._padded.items():
            masks = masks_of(batch[key].values, column.row_shape, allocate)
            batch[key] = Packed(column.as_samples(masks))
        of_episodes = self._of_episodes.items()
        batch |= {key: packed_copy(values[episodes], allocate) for key, values in of_episodes}
        return batch | packed_copies(numbers, self._numbers, allocate)
