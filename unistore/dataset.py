"""`Dataset`: the samples of a store, whatever its modality, for torch."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np
import torch.utils.data
import xxhash
from numpy.typing import NDArray

from unistore.errors import InputError, StoreError
from unistore.order import At
from unistore.packed import Allocate, Batch, placed
from unistore.sample import Sample, Samples
from unistore.samples import natural_kind
from unistore.samples.locality import block_offsets
from unistore.samples.protocol import INDEX, SOURCE, Picks, SampleKind, SampleReader
from unistore.samples.watched import WatchedPicks
from unistore.store.reader import CACHE_LIMIT, Store
from unistore.tensors import Memory

__all__ = ["Dataset"]

Index = SupportsIndex | At


class Dataset(torch.utils.data.Dataset[Mapping[str, Any]]):
    """Samples of a sealed store, map-style, for torch's ``DataLoader`` and for ``unistore.Loader``.

    Opening reads metadata only; handles appear with the first sample, and each process has its own. It
    pickles as its arguments. Safe in workers under fork, forkserver and spawn, after the parent has read too.

    Every sample has ``index``, its position here. What is random in a sample is a function of (`seed`, epoch,
    index): the epoch comes with indices of type `At`, as `unistore.Shuffle` yields them, or else from
    `set_epoch`. Workers that stay alive between epochs (``persistent_workers``) see only the former.

    Parameters
    ----------
    path
        Folder of the store, or its URL: ``s3://``, ``gs://``, ``az://``, ``https://``, ``file://``. Stores in
        an object store need workers that are started by ``spawn`` or ``forkserver``.
    samples
        What one sample is: ``Segments(max_points=4096)``, ``Patches(96)``, …; None: the modality's natural
        kind (`Rows`, `Segments`, `Volumes`).
    fields
        Keys to read; None: all that the kind has by itself. Its description lists what there is on request.
    split
        Name of a split, or several; None: all samples.
    transform
        Called with every sample, a dict of tensors; what it returns is the sample.
    seed
        Seed of whatever is random in a sample.
    cache_dir
        Folder of a local disk for copies of the shards that were read; see `Store`. None: no copies.
    cache_limit
        Bytes of all copies in that folder (``"50GB"``).

    Raises
    ------
    StoreError
        If there is no finished store at `path`.
    InputError
        If the store has no such samples, fields or split; the message lists what there is.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        samples: SampleKind | None = None,
        fields: Sequence[str] | None = None,
        split: str | Sequence[str] | None = None,
        transform: Callable[[Sample], Any] | None = None,
        seed: int = 0,
        *,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_limit: str | int = CACHE_LIMIT,
    ) -> None:
        self.store = Store(path, cache_dir=cache_dir, cache_limit=cache_limit)
        self.samples = natural_kind(self.store) if samples is None else samples
        self.fields = self.samples.select(self.store, fields)
        self.splits = (split,) if isinstance(split, str) else None if split is None else tuple(split)
        self.transform = transform
        self.seed = seed
        self.epoch = 0
        self._reader: SampleReader | None = None
        self._expected = 0
        if self.splits is not None:
            self._check_splits(self.splits)

    @property
    def path(self) -> str:
        """Folder or URL of the store."""
        return self.store.path

    @property
    def start_method(self) -> str | None:
        """How worker processes must be started; None: in any way."""
        return None if self.store.fork_safe else "spawn"

    def __repr__(self) -> str:
        split = "" if self.splits is None else f", split={'+'.join(self.splits)}"
        return (
            f"Dataset({self.path!r}, {self.samples}{split}, {len(self)} samples of {', '.join(self.fields)})"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None, "_expected": 0}

    def set_epoch(self, epoch: int) -> None:
        """Epoch of indices that carry none."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, index: Index) -> Any:
        """Sample `index`, a dict of tensors; negative indices count from the end.

        Raises
        ------
        IndexError
            If there is no such sample; names the range.
        """
        sample = Samples(self.read_batch([index]), Memory())[0]
        return sample if self.transform is None else self.transform(sample)

    def __getitems__(self, indices: Sequence[Index]) -> Sequence[Any]:
        """Samples of a batch, read at once; views of one batch that `unistore.collate` takes whole."""
        memory = Memory(self._expected)
        found = Samples(self.read_batch(indices, memory.allocate), memory)
        self._expected = max(memory.used + memory.used // 8, self._expected - self._expected // 8)
        if self.transform is None:
            return found
        return [_keep_ragged(self.transform(sample), found) for sample in found]

    def read_batch(
        self, indices: Sequence[Index] | NDArray[np.integer], allocate: Allocate = np.empty
    ) -> Batch:
        """Read samples as packed arrays; the transform is not applied.

        Parameters
        ----------
        indices
            Sample indices, bare or with their epoch (`At`; or an array (B,) or (B, 2) of index and epoch).
        allocate
            Where values are read to.

        Returns
        -------
        dict of str to Packed
            Every key of the kind, and ``index``.

        Raises
        ------
        IndexError
            If there is no such sample; names the range.
        CorruptionError
            If stored bytes are damaged; names array, shard and chunk.
        """
        return self._read(self._picks(indices), allocate)

    def read_watched(
        self, indices: Sequence[Index] | NDArray[np.integer], allocate: Allocate = np.empty
    ) -> tuple[Batch, NDArray[np.bool_]]:
        """As `read_batch`, and which samples depend on the epoch, (B,) bool: those must not be cached."""
        picks = WatchedPicks(self._picks(indices))
        return self._read(picks, allocate), picks.drawn

    def _read(self, picks: Picks, allocate: Allocate) -> Batch:
        batch = self.reader.read(picks, allocate)
        return {INDEX: placed(picks.index, allocate)} | {key: batch[key] for key in self.fields}

    def block_offsets(self) -> NDArray[np.int64]:
        """Offsets of blocks of samples that share chunks, for block shuffle."""
        return block_offsets(self.store, len(self))

    @property
    def digest(self) -> str:
        """Digest of which samples these are: the store's seal, their kind, the splits, the seed."""
        said = [self.store.attributes["seal"], repr(self.samples), self.splits, self.seed]
        return xxhash.xxh3_128_hexdigest(json.dumps(said, sort_keys=True).encode())

    def source_of(self, index: int) -> str:
        """Name of the source that a sample comes from."""
        reader = self.samples.bind(self.store, (SOURCE,), self._units())
        return str(reader.read(self._picks([index]), np.empty)[SOURCE].values[0])

    @property
    def reader(self) -> SampleReader:
        """Reader of this process, made when first needed."""
        if self._reader is None:
            self._reader = self.samples.bind(self.store, self.fields, self._units())
        return self._reader

    def _picks(self, indices: Sequence[Index] | NDArray[np.integer]) -> Picks:
        numbers = _numbers(indices, self.epoch)
        index, epoch, count = numbers[:, 0], numbers[:, 1], len(self)
        index = np.where(index < 0, index + count, index)
        outside = (index < 0) | (index >= count)
        if outside.any():
            wrong = int(numbers[outside][0, 0])
            span = f"0 to {count - 1}, or {-count} to -1" if count else "none"
            msg = f"sample {wrong} does not exist: this dataset has {count} samples ({span})"
            raise IndexError(msg)
        return Picks(index, epoch, self.seed)

    def _units(self) -> NDArray[np.int64] | None:
        """Rows of the sample table that the splits select; None: all."""
        if self.splits is None:
            return None
        codes, names = self.store.splits()
        return np.flatnonzero(np.isin(codes, [names.index(name) for name in self.splits]))

    def _check_splits(self, splits: Sequence[str]) -> None:
        try:
            known: list[str] = self.store.group("splits").get("names", [])
        except StoreError:
            known = []
        unknown = [name for name in splits if name not in known]
        if unknown:
            held = f"it has {', '.join(known)}" if known else "it has none (unistore convert --split)"
            msg = f"{self.path}: no split {', '.join(map(repr, unknown))}; {held}"
            raise InputError(msg)


def _numbers(indices: Sequence[Index] | NDArray[np.integer], epoch: int) -> NDArray[np.int64]:
    """Index and epoch of each sample, (B, 2) int64."""
    if not isinstance(indices, np.ndarray):
        pairs = [
            (operator.index(item[0]), operator.index(item[1]))
            if isinstance(item, tuple)
            else (operator.index(item), epoch)
            for item in indices
        ]
        return np.array(pairs, np.int64).reshape(-1, 2)
    if indices.ndim == 1 and indices.dtype.kind in "iu":
        return np.stack((indices.astype(np.int64), np.full(len(indices), epoch)), axis=1)
    if indices.ndim == 2 and indices.shape[1] == 2 and indices.dtype.kind in "iu":
        return indices.astype(np.int64)
    msg = f"indices must be integers (B,) or (B, 2) with epochs, found {indices.dtype} {indices.shape}"
    raise IndexError(msg)


def _keep_ragged(made: Any, samples: Samples) -> Any:
    """What a transform returned, with what is known of its ragged keys."""
    plain = isinstance(made, Mapping) and not isinstance(made, Sample)
    return Sample(made, samples.ragged) if plain else made
