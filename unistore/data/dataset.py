"""The `Dataset` class: samples of one or more stores, for PyTorch or NumPy."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Generic, Self, SupportsIndex, cast

import numpy as np
import numpy.ma  # else numpy imports these while samples are read, perhaps in a thread during a fork
import numpy.random
import xxhash
from numpy.typing import NDArray

from unistore.data.ahead import OPEN_BLOCKS, ReadAhead, block_samples
from unistore.data.blocks import Blocks
from unistore.data.component_axis import AxisLike
from unistore.data.kinds.named import as_code
from unistore.data.kinds.protocol import EPOCH, INDEX, SampleIndices, SampleKind, SampleReader, Shareable
from unistore.data.labels import class_weights, count_labels
from unistore.data.packed import Allocate, Batch, packed_copy
from unistore.data.parts import (
    BoundParts,
    DatasetPart,
    bind_parts,
    check_drawable,
    checked_names,
    checked_weights,
    common_fields,
    open_parts,
)
from unistore.data.source_paths import conversion_options, store_paths
from unistore.data.statistics import Statistics, StatisticsQuery, Summaries
from unistore.data.typed import SampleT
from unistore.data.where import Condition, parse_where
from unistore.errors import InputError, StoreError, first_few
from unistore.order.permutation import EpochIndex, RandomFunction
from unistore.order.sequences import sample_indices, uniform_blocks
from unistore.remote.url import place_of, require_local_path
from unistore.store.reader import CACHE_LIMIT, Store
from unistore.store.shard_cache import CachedStorage
from unistore.system.arguments import Arguments, as_names, checked_epoch, wrong_argument
from unistore.system.extras import require_torch
from unistore.system.machine import absolute
from unistore.system.types import Int64s, PathLike

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset as TorchDataset

    from unistore.data.collate import Sample, Samples

    MapDataset = TorchDataset
else:
    try:
        from torch.utils.data import Dataset as MapDataset
    except ModuleNotFoundError:  # `read_batch` does without
        MapDataset = Generic

Index = SupportsIndex | EpochIndex
_HAS_TORCH = MapDataset.__module__ != "typing"
# Begins the message about samples where torch is missing
_TENSORS = "samples are tensors (read_batch returns numpy arrays instead) and need"
_ONE_VERSION = "works only with one store, but several are given"
_OPEN_EACH = "open each store in its own Dataset"
# Stores of which a notebook shows samples
_SHOWN = 16


class Dataset(MapDataset[SampleT]):
    """A map-style dataset of the samples of one or more stores.

    Pass it to ``unistore.Loader``, or to PyTorch's ``DataLoader`` with ``collate_fn=unistore.collate``. A
    sample is a dict of tensors; its keys depend on the store and on `samples`.

    Opening reads metadata only. Each process opens the files again when it reads its first sample, so a
    Dataset is safe in workers started by fork, forkserver or spawn, even if the parent has already read
    samples. A pickled Dataset contains its arguments, not its open files.

    Every sample has the key ``index``: its position in the Dataset, an int64 scalar.

    **Source files.** If `path` names source files, they are converted to a store when the first Dataset
    of them is opened. The store is kept in the folder ``UNISTORE_CACHE`` (``~/.cache/unistore``), and
    found there afterwards.

    **Random samples.** Random crops, random subsets and `transform` depend only on (`seed`, epoch,
    index). The epoch comes from the sampler if its indices are `EpochIndex` tuples, as those of
    `unistore.Shuffle` are. Otherwise it is the one given to `set_epoch`, which does not reach workers
    that are already running (``persistent_workers=True``).

    **Several stores.** Stores of the same family with the same fields form one Dataset. Sample i of store k
    is sample ``store_offsets[k] + i``. Names of sources are then prefixed with the name of their store.

    Parameters
    ----------
    path : path, URL, or list of them
        Folder of a store, or its URL (``s3://``, ``gs://``, ``az://``, ``hf://``, ``https://``,
        ``file://``). A list joins several stores. Stores in an object store need workers started by
        ``spawn`` or ``forkserver``. Or source files, folders and patterns (``"data/*.h5"``), one or a list,
        which become one store.
    samples : sample kind or str, optional
        What one sample is, for example ``Segments(max_points=4096)`` or ``Patches(96)``. The text of the
        call works, too, also for sample kinds of packages: ``"Patches(96)"``. None: the default kind of
        the family (`Rows`, `Segments`, `Volumes`, …). If its crops or lengths are larger than the data,
        they are reduced; the attribute `samples` is then the kind that is read.
    fields : list of str, optional
        Keys to read, in this order; nothing else is decoded. The documentation of each sample kind lists
        its keys. Columns added by `unistore.attach` are read by their names. ``"epoch"`` adds the epoch
        of the sample, int64, unless the store has a field with that name. None: the default keys of the
        kind.
    split : str or list of str, optional
        Only the samples of this split, or of these splits. None: all samples.
    transform : callable, optional
        Called with every sample; its result replaces the sample. If it has a parameter ``rng``, it gets a
        ``numpy.random.Generator`` seeded by (`seed`, epoch, index). Otherwise the global generators of
        ``random``, NumPy and PyTorch are seeded from the same three numbers before each call if the epoch
        is known (from `EpochIndex` or `set_epoch`), and restored afterwards outside of workers.
    seed : int, default 0
        Seed of everything random in a sample. The order of samples has its own seed (`Loader`, `Shuffle`).
    names : dict of str to str, optional
        New names for keys in samples: ``{"voxel": "spike_vox"}``.
    weights : sequence of float, optional
        One weight per store. `unistore.Shuffle` and ``unistore.Loader`` then draw with replacement: a
        store in proportion to its weight, then one of its samples uniformly. An epoch has as many draws
        as there are samples, unless you set their `samples_per_epoch`. None: every sample once per epoch.
    where : dict, optional
        Keep only samples that meet all of these conditions. A condition is a number, a pattern
        (``"lab_a/*"``), a range that includes its ends (``(50, None)``: 50 and more), or a list of
        values. Names are ``"source"``, ``"sources.<name>"`` and those of the table of samples, for
        example ``"episode.length"``, ``"episode.return"`` (the sum of ``reward``) or ``"episode.<name>"``
        (numbers, texts and attributes). Rows of that table are kept or left out as a whole.
    top_fraction : (str, float), optional
        Keep only the share of samples with the largest values, per store and after `where`:
        ``("episode.return", 0.1)`` keeps the best tenth. Of equal values, the earlier samples are kept.
    cache_dir : path, optional
        Local folder for copies of shards read from an object store; see `Store`. None: no copies.
    cache_limit : str or int, default "20GB"
        Limit for all copies in `cache_dir`, in bytes or as text.
    version : int or str, optional
        Number (1, 2, …) or name of a version of a versioned store. None: the newest version now.
    convert : dict, optional
        Options of `unistore.convert` for source files, as in ``{"voxel_size": 0.2}``, and ``"family"``.
        Other options make another store. None: the defaults.
    **options
        Single options of the conversion, as in ``voxel_size=0.2``. An option with the name of an argument
        above, such as ``split``, must be in `convert`.

    Raises
    ------
    StoreError
        If the store at `path` is unfinished or damaged; `NoStoreError` if there is none.
    TypeError
        If a keyword is neither an argument nor an option of a conversion.
    InputError
        If an argument is invalid, or the store lacks the samples, fields or split; the message lists the
        valid ones. If several stores differ in their fields; the message names fields and stores. If
        source files have problems.

        The length or the first sample raises it if stores differ in dtypes or shapes, if a patch, crop or
        window extends beyond its data and `pad` is not set (the message gives the largest size that fits), or
        if a limit leaves no samples.

    See Also
    --------
    unistore.Loader : Batches in a reproducible order, prefetched by workers.
    unistore.collate : Batches in PyTorch's ``DataLoader``.

    Examples
    --------
    Read one sample:

    >>> dataset = unistore.Dataset("clouds.zarr")  # doctest: +SKIP
    >>> len(dataset)  # doctest: +SKIP
    24
    >>> dataset[0]["xyz"].shape  # doctest: +SKIP
    torch.Size([142, 3])

    Only some fields, of the training split, with at most 4096 points, another random subset in every epoch:

    >>> dataset = unistore.Dataset(  # doctest: +SKIP
    ...     "clouds.zarr", unistore.Segments(max_points=4096), fields=["xyz", "classification"], split="train"
    ... )

    Long episodes of two stores, three times as many draws from the first:

    >>> dataset = unistore.Dataset(  # doctest: +SKIP
    ...     ["lab_a.zarr", "lab_b.zarr"], weights=[3, 1], where={"episode.length": (50, None)}
    ... )

    Source files, converted when they are first used:

    >>> dataset = unistore.Dataset("clouds/*.h5", convert={"voxel_size": 0.5})  # doctest: +SKIP
    """

    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        samples: SampleKind | str | None = None,
        fields: Sequence[str] | None = None,
        split: str | Sequence[str] | None = None,
        transform: Callable[..., SampleT] | None = None,
        seed: int = 0,
        *,
        names: Mapping[str, str] | None = None,
        weights: Sequence[float] | None = None,
        where: Mapping[str, Condition] | None = None,
        top_fraction: tuple[str, float] | None = None,
        cache_dir: PathLike | None = None,
        cache_limit: str | int = CACHE_LIMIT,
        version: int | str | None = None,
        convert: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        convert = conversion_options(Dataset.__init__, convert, options)
        check = Arguments()
        paths = [path] if isinstance(path, (str, os.PathLike)) else path
        if not isinstance(paths, Sequence) or not all(isinstance(path, (str, os.PathLike)) for path in paths):
            check.refuse("path", f"must be a path, or a list of paths, got {path!r}")
        elif version is not None and len(paths) != 1:
            check.refuse("version", _ONE_VERSION, _OPEN_EACH)
        is_version = isinstance(version, str) or (type(version) is int and version > 0)
        check.expect("version", version, is_version, "a number of at least 1, or a name", none=True)
        check.names("fields", fields)
        check.names("split", split)
        check.function("transform", transform)
        check.integer("seed", seed, None)
        if check.path("cache_dir", cache_dir, none=True) and cache_dir is not None:
            require_local_path(cache_dir, "cache_dir")
        chosen = parse_where(check, where, top_fraction)
        check.raise_problems()
        paths = store_paths(paths, convert)
        self.where = chosen
        self.splits = as_names(split)
        self._paths = tuple(os.fspath(path) for path in paths)
        self._places = tuple(place_of(path) for path in paths)
        folder = None if cache_dir is None else absolute(cache_dir)
        self.cache_options = {"cache_dir": folder, "cache_limit": cache_limit}
        requested = as_names(fields) or ()
        self._requested = (*requested, *(where or ()), *([] if top_fraction is None else top_fraction[:1]))
        self.parts = open_parts(
            self._paths, samples, self.splits, self.cache_options, chosen, self._requested, version
        )
        self._given_kind = None if samples is None else self.parts[0].kind
        self.fields = common_fields(self.parts, fields)
        self._adds_epoch = EPOCH in requested and EPOCH not in self.fields
        self.names = checked_names(names, self.fields)
        self.transform = transform
        self.seed = int(seed)
        self.epoch = 0
        self._epoch_is_set = False
        self.weights = None if weights is None else checked_weights(weights, self.parts)
        self._bound: BoundParts | None = None
        self._ahead: ReadAhead | None = None
        self._expected_bytes = 0
        self._summaries: Summaries = {}

    @property
    def samples(self) -> SampleKind:
        """The sample kind: the given one, or the default kind with sizes that fit the data."""
        if self._given_kind is None:
            self._bind()
        return self.parts[0].kind

    @property
    def store(self) -> Store:
        """The store. With several stores, use `parts`: this raises AttributeError."""
        if len(self.parts) > 1:
            msg = f"this Dataset reads {len(self.parts)} stores. Fix: use the store of each of its parts"
            raise AttributeError(msg)
        return self.parts[0].store

    @property
    def path(self) -> str:
        """Folder or URL of the store; with several stores, all of them, separated by commas."""
        return ", ".join(self._paths)

    @property
    def version(self) -> int | None:
        """Number of the version that is read. None for a store that never grew, and for several stores."""
        version = self.parts[0].version
        return None if version is None or len(self._paths) > 1 else version.number

    def at_version(self, version: int | str) -> Self:
        """Open another version of the store with the same arguments.

        Parameters
        ----------
        version : int or str
            Number (1, 2, …) or name of the version.

        Returns
        -------
        Dataset
            A new Dataset; this one does not change.

        Raises
        ------
        InputError
            If the store has no such version, or this Dataset has several stores.

        Examples
        --------
        >>> paper = dataset.at_version("paper-v1")  # doctest: +SKIP
        """
        if len(self._paths) > 1:
            raise wrong_argument("version", _ONE_VERSION, _OPEN_EACH)
        other = copy(self)
        other.__dict__ |= self.__getstate__()
        kind = self._given_kind  # what fits one version may not fit another
        other.parts = open_parts(
            self._places, kind, self.splits, self.cache_options, self.where, self._requested, version
        )
        return other

    @property
    def read_parts(self) -> tuple[DatasetPart, ...]:
        """Parts that are read one at a time. Parts of a versioned store with the same arrays count as one."""
        return self._bind().parts

    @property
    def store_offsets(self) -> Int64s:
        """First sample of each of `read_parts`, then the number of samples: (parts + 1,), int64."""
        return self._bind().offsets

    @property
    def start_method(self) -> str | None:
        """Start method that workers need, such as ``"spawn"``. None: any."""
        return None if all(part.store.fork_safe for part in self.parts) else "spawn"

    def extends(self, other: Dataset) -> bool:
        """Return whether this Dataset begins with all samples of `other`, an older version of the store.

        It does not if both have the default kind of samples, and new data have changed it.
        """
        if self.samples != other.samples:
            return False
        shared = zip(self.parts, other.parts, strict=False)
        are_same = all(part.identity == before.identity for part, before in shared)
        return are_same and len(other.parts) <= len(self.parts)

    def __repr__(self) -> str:
        stores = repr(self.path) if len(self._paths) == 1 else str([*self._paths])
        stores += "" if self.version is None else f", version={self.version}"
        split = "" if self.splits is None else f", split={'+'.join(self.splits)}"
        try:
            content = f"{len(self)} samples of {first_few(self.fields)}"
        except InputError:
            content = "invalid: samples do not fit the data, or there are no samples"
        return f"Dataset({stores}, {as_code(self.parts[0].kind)}{split}, {content})"

    def _repr_html_(self) -> str:
        from unistore.html import notebook_html

        shown = [(part.store, part.units()) for part in self.parts[:_SHOWN]]
        return notebook_html(repr(self), [("fields", ", ".join(self.fields))], shown)

    def __getstate__(self) -> dict[str, Any]:
        emptied: dict[str, Any] = {"_bound": None, "_expected_bytes": 0, "_summaries": {}}
        return {**self.__dict__, **emptied}

    @property
    def transform(self) -> Callable[..., Any] | None:
        """Function that is called with every sample, or None. You can assign another one."""
        return None if self._transform is None else self._transform.function

    @transform.setter
    def transform(self, function: Callable[..., Any] | None) -> None:
        self._transform = None if function is None else RandomFunction(function)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of samples that are read by plain indices.

        Call it before each epoch if your sampler yields integers and samples are random; otherwise they are
        the same in every epoch. Workers that are already running do not see the new epoch. Indices of type
        `EpochIndex` carry their own epoch and ignore this one.

        Parameters
        ----------
        epoch : int
            Number of the epoch, from 0.
        """
        self.epoch = checked_epoch(epoch)
        self._epoch_is_set = True

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, index: Index) -> SampleT:
        """Read one sample.

        Parameters
        ----------
        index : int or EpochIndex
            Position of the sample; negative positions count from the end. With `EpochIndex`, also its epoch.

        Returns
        -------
        dict of str to Tensor
            The sample, or the result of `transform`. Text values are ``str``.

        Raises
        ------
        IndexError
            If there is no such sample; the message states the valid range.
        TypeError
            If `index` is not an integer: slices and lists are not supported, `read_batch` takes several
            indices.
        """
        if not _HAS_TORCH:
            require_torch(_TENSORS)
        from unistore.data.collate import BatchMemory, Samples

        picks = self._picks([index])
        sample = Samples(self._read(picks, np.empty), BatchMemory())[0]
        return cast("SampleT", self._transformed([sample], [index], picks)[0])

    def __getitems__(self, indices: Sequence[Index]) -> Sequence[Any]:
        """Read the samples of a batch together. `unistore.collate` then needs no copy."""
        if not _HAS_TORCH:
            require_torch(_TENSORS)
        from unistore.data.collate import BatchMemory, Samples

        memory = BatchMemory(self._expected_bytes)
        picks = self._picks(indices)
        batch = Samples(self._read(picks, memory.allocate), memory)
        self._expected_bytes = max(
            memory.used + memory.used // 8, self._expected_bytes - self._expected_bytes // 8
        )
        if self.transform is None:
            return batch
        return [_keep_ragged(result, batch) for result in self._transformed(batch, indices, picks)]

    def _transformed(
        self, samples: Sequence[Sample], indices: Sequence[Index], picks: SampleIndices
    ) -> Sequence[Any]:
        # Random numbers depend on (seed, epoch, index) alone. A transform that draws from the global
        # generators is left to torch's own seeds where nobody said the epoch, as its results would be the
        # same in every epoch
        if self._transform is None:
            return samples
        if self._transform.takes_rng or self._epoch_is_set or _have_epochs(indices):
            return self._transform.map(samples, self.seed, picks.epoch, picks.index)
        return [self._transform.function(sample) for sample in samples]

    def read_batch(
        self, indices: Sequence[Index] | NDArray[np.integer], allocate: Allocate = np.empty
    ) -> Batch:
        """Read several samples as packed NumPy arrays, without PyTorch and without `transform`.

        Parameters
        ----------
        indices : sequence of int or EpochIndex, or integer array of shape (B,) or (B, 2)
            Positions of the samples. The second column of a (B, 2) array holds epochs; plain positions use
            the epoch of `set_epoch`.
        allocate : callable, default numpy.empty
            Called as ``allocate(shape, dtype)`` for every array; values are decoded into its result.

        Returns
        -------
        dict of str to Packed
            ``"index"`` and the keys of `fields`, renamed by `names`. ``Packed.values`` has shape (B, …) for
            dense keys. For keys of variable length it holds one sample after another, and sample i is
            ``values[offsets[i]:offsets[i + 1]]``.

        Raises
        ------
        IndexError
            If a sample does not exist; the message states the valid range.
        CorruptionError
            If stored bytes are damaged; the message names the array, shard and chunk.
        StoreError
            If the samples do not fit into memory.

        Examples
        --------
        >>> batch = dataset.read_batch([0, 1])  # doctest: +SKIP
        >>> batch["xyz"].values.shape, batch["xyz"].offsets  # doctest: +SKIP
        ((247, 3), array([  0, 142, 247]))
        """
        return self._read(self._picks(indices), allocate)

    def _read(self, picks: SampleIndices, allocate: Allocate) -> Batch:
        try:
            if self._ahead is None:
                values = self.reader.read(picks, allocate)
            else:
                values = self._ahead.read(self.reader, picks, allocate)
        except MemoryError as error:
            msg = (
                f"{self.path}: a batch of {len(picks.index):,} samples does not fit into memory: {error}. "
                "Fix: use a smaller batch_size"
            )
            raise StoreError(msg) from error
        batch = {INDEX: packed_copy(picks.index, allocate)}
        batch |= {self.names.get(key, key): values[key] for key in self.fields}
        if self._adds_epoch:
            batch[EPOCH] = packed_copy(picks.epoch, allocate)
        return batch

    def arrays(self) -> list[Shareable]:
        """Return what a Loader's cache can share: arrays of all stores, and values computed from them."""
        arrays: list[Shareable] = []
        for part in self.read_parts:
            arrays += part.store.arrays().values()
        arrays += self.reader.shareable()
        return arrays

    def _blocks(self) -> list[Blocks]:
        sizes = np.diff(self.store_offsets).tolist()
        return [Blocks(part.store, size) for part, size in zip(self.read_parts, sizes, strict=True)]

    def block_offsets(self) -> Int64s:
        """Return where each block of samples begins, for a block shuffle.

        A block holds samples of one store that share chunks. For a store in an object store, it holds about
        8 MiB of samples, which a Loader reads together.

        Returns
        -------
        int64 array of shape (blocks + 1,)
            Block b holds samples ``offsets[b]`` to ``offsets[b + 1] - 1``.
        """
        bounds = self.store_offsets
        if self.is_remote:
            size = block_samples(self.reader, self.seed)
            own = [uniform_blocks(count, size) for count in np.diff(bounds).tolist()]
        else:
            own = [blocks.offsets for blocks in self._blocks()]
        starts = [first + offsets[:-1] for first, offsets in zip(bounds, own, strict=False)]
        return np.concatenate([*starts, bounds[-1:]]).astype(np.int64)

    def reading_ahead(self, offsets: Int64s, chosen: Int64s | None) -> Self:
        """Return a copy of this Dataset that reads each block as a whole.

        Parameters
        ----------
        offsets : int64 array of shape (blocks + 1,)
            Where each block begins, as positions in `chosen`.
        chosen : int64 array of shape (n,), optional
            Indices of the samples in use, ascending. None: all samples.
        """
        ahead = copy(self)
        ahead._bound = self._bound
        ahead._ahead = ReadAhead(offsets, chosen)
        return ahead

    def label_counts(
        self, key: str, *, split: str | Sequence[str] | None = None, subset: Any = None
    ) -> dict[int, int]:
        """Count how often each label occurs.

        This reads `key` of every sample, for random samples those of the current epoch. A value that means
        "unlabelled" is counted like any other.

        Parameters
        ----------
        key : str
            An integer key that this Dataset reads.
        split : str or list of str, optional
            Splits to use instead of those of the Dataset. None: those of the Dataset.
        subset : indices, or one bool per sample, optional
            Samples to use, as in ``unistore.Loader``. Not together with `split`. None: all samples.

        Returns
        -------
        dict of int to int
            Label to count, in ascending order of labels.

        Raises
        ------
        InputError
            If the Dataset does not read `key`, or its values are not integers. If there is no such split or
            sample. If both `split` and `subset` are given.

        Examples
        --------
        >>> dataset.label_counts("classification")  # doctest: +SKIP
        {1: 2106, 2: 742}
        """
        if key not in self.fields:
            message = f"the Dataset does not read {key!r}"
            raise wrong_argument(
                "key", message, f"use one of {', '.join(self.fields)}, or add it to fields=[…]"
            )
        reader = bind_parts(self._parts_of(split, subset), [key]).reader
        chosen = np.arange(len(reader)) if subset is None else sample_indices("subset", subset, len(reader))
        return count_labels(reader, key, chosen, self.epoch, self.seed)

    def _parts_of(self, split: str | Sequence[str] | None, subset: Any) -> tuple[DatasetPart, ...]:
        if self._given_kind is None:
            self._bind()
        if split is None:
            return self.parts
        if subset is not None:
            message = "does not work with split, because it numbers the samples of the whole Dataset"
            raise wrong_argument("subset", message, "give only subset or only split")
        parts = tuple(part._replace(splits=as_names(split)) for part in self.parts)
        for part in parts:
            part.check_splits()
        return parts

    def statistics(
        self,
        key: str,
        *,
        axis: AxisLike = "auto",
        split: str | Sequence[str] | None = None,
        subset: Any = None,
    ) -> Statistics:
        """Return count, mean, standard deviation, minimum, maximum and quantiles of a key.

        They describe the values of samples before `transform`, per component: for an action of 7 numbers, 7
        means; for images with channels, one mean per channel; for volumes and `Clips`, a single mean.

        If samples are cut from something larger (crops, windows, steps, random subsets), each value of the
        larger data counts once: `Windows` and `Transitions` have the statistics of whole episodes. Values
        that the sample kind computes, such as differences of actions or voxels of events, are counted in the
        samples of the current epoch.

        Run ``unistore statistics STORE`` to store the result; this method then returns at once. Otherwise
        it reads the key of all samples and remembers the result. With `subset` or `where`, it reads them
        each time.

        Parameters
        ----------
        key : str
            Key of the values.
        split : str or list of str, optional
            Splits to use instead of those of the Dataset. None: those of the Dataset.
        subset : indices, or one bool per sample, optional
            Samples to use, as in ``unistore.Loader``. Not together with `split`. None: all samples.

        Returns
        -------
        Statistics
            Float64, in the units of the samples, over all stores together. If the Dataset has `weights`, they
            describe values drawn by weight.

        Raises
        ------
        InputError
            If there is no such key, it is text, or stores differ in its components. If there is no such split
            or sample. If both `split` and `subset` are given.
        StoreError
            If the stored statistics are damaged.

        Examples
        --------
        >>> action = dataset.statistics("action", split="train")  # doctest: +SKIP
        >>> normalize = unistore.Normalize({"action": action})  # doctest: +SKIP
        """
        parts = self._parts_of(split, subset)
        subsets = None
        if subset is not None:
            parts = self.read_parts
            chosen = sample_indices("subset", subset, len(self))
            bounds = pairwise(self.store_offsets.tolist())
            subsets = [chosen[(chosen >= first) & (chosen < stop)] - first for first, stop in bounds]
        question = StatisticsQuery(key, self.epoch, self.seed, self._summaries, axis)
        return question.answer(parts, self.weights, subsets)

    def class_weights(
        self,
        key: str,
        *,
        classes: int | None = None,
        unlabelled: int | None = None,
        split: str | Sequence[str] | None = None,
        subset: Any = None,
    ) -> torch.Tensor:
        """Return a weight for each class that balances rare and frequent labels in a loss.

        The weight of a class is the number of labels, divided by its count and by the number of classes that
        occur. This reads `key` of every sample, as `label_counts` does.

        Parameters
        ----------
        key : str
            Key of the labels, integers from 0.
        classes : int, optional
            Number of classes. None: the largest label plus 1.
        unlabelled : int, optional
            Label that means "no class", which is not counted. None: every label is a class.
        split, subset
            Samples to use, as in `label_counts`.

        Returns
        -------
        float32 Tensor of shape (classes,)
            0 for classes that do not occur.

        Raises
        ------
        InputError
            As `label_counts`. If there are no labels, or labels outside 0 to ``classes - 1``.

        Examples
        --------
        >>> weight = dataset.class_weights("classification", unlabelled=255)  # doctest: +SKIP
        >>> loss = torch.nn.CrossEntropyLoss(weight=weight)  # doctest: +SKIP
        """
        require_torch("class weights are a tensor and need")
        import torch

        counts = self.label_counts(key, split=split, subset=subset)
        if unlabelled is not None:
            counts.pop(unlabelled, None)
        return torch.tensor(class_weights(key, counts, classes), dtype=torch.float32)

    def source_offsets(self) -> Int64s:
        """Return where the samples of each source begin, for ``shuffle="sources"``.

        Returns
        -------
        int64 array of shape (sources + 1,)
            Source s has samples ``offsets[s]`` to ``offsets[s + 1] - 1``. Sources without samples are left
            out.

        Raises
        ------
        InputError
            If the samples of a source are not consecutive.
        """
        bounds = self.store_offsets.tolist()
        starts = [first + part.source_starts() for part, first in zip(self.read_parts, bounds, strict=False)]
        return np.concatenate([*starts, bounds[-1:]]).astype(np.int64)

    @property
    def open_blocks(self) -> int:
        """Number of blocks that a block shuffle may have open at a time."""
        return OPEN_BLOCKS if self.is_remote else min(blocks.open for blocks in self._blocks())

    @property
    def is_remote(self) -> bool:
        """Whether any store is read from an object store without a local copy (`cache_dir`)."""
        stores = [part.store for part in self.parts]
        return any(not store.fork_safe and not isinstance(store.storage, CachedStorage) for store in stores)

    @property
    def shuffled_requests(self) -> int:
        """Estimated number of requests of an epoch in a full shuffle; 0 unless `is_remote`."""
        return len(self) * len(self.fields) if self.is_remote else 0

    @property
    def shuffles_in_blocks(self) -> bool:
        """Whether ``shuffle=True`` becomes a block shuffle, because a full shuffle would decode too much."""
        return any(blocks.are_needed for blocks in self._blocks())

    @property
    def repeats(self) -> bool:
        """Whether samples are the same in every epoch and share no data; see `SampleKind`."""
        return self.samples.repeats and not self._adds_epoch

    @property
    def digest(self) -> str:
        """Hash of the arguments that determine the samples, and of the seals of the stores."""
        seals: list[Any] = [part.store.root.seal.to_json() for part in self.parts]
        removed = [part.removed for part in self.parts]
        identity = [seals[0] if len(seals) == 1 else seals, repr(self.samples), self.splits, self.seed]
        if self.where is not None:
            identity.append(repr(self.where))
        if any(removed):
            identity.append(removed)
        return xxhash.xxh3_128_hexdigest(json.dumps(identity, sort_keys=True).encode())

    def source_of(self, index: int) -> str:
        """Return the source file of a sample; with several stores, prefixed by its store."""
        sample = int(self._picks([index]).index[0])
        offsets = self.store_offsets
        number = int(np.searchsorted(offsets, sample, side="right")) - 1
        part = self.read_parts[number]
        source = part.source_of(sample - int(offsets[number]))
        return f"{part.prefix}{source}"

    @property
    def reader(self) -> SampleReader:
        """Reader of this process, created on first use."""
        return self._bind().reader

    def _bind(self) -> BoundParts:
        if self._bound is None:
            is_default = self._given_kind is None
            bound = bind_parts(self.parts, self.fields, fits=is_default)
            if is_default:
                kind = bound.parts[0].kind
                self.parts = tuple(part._replace(kind=kind) for part in self.parts)
            self._bound = bound
            if self.where is not None and not len(self.reader):
                raise self.where.nothing_left([part.store.path for part in self.parts])
            if self.weights is not None:
                check_drawable(self.weights, self.parts, np.diff(self.store_offsets))
        return self._bound

    def _picks(self, indices: Sequence[Index] | NDArray[np.integer]) -> SampleIndices:
        numbers = _with_epochs(indices, self.epoch)
        index = numbers[:, 0]
        epoch = numbers[:, 1]
        count = len(self)
        index = np.where(index < 0, index + count, index)
        outside = (index < 0) | (index >= count)
        if outside.any():
            wrong = int(numbers[outside][0, 0])
            span = f": 0 to {count - 1}, or {-count} to -1 from the end" if count else ""
            msg = f"there is no sample {wrong}: this Dataset has {count:,} samples{span}"
            raise IndexError(msg)
        return SampleIndices(index, epoch, self.seed)


def _with_epochs(indices: Sequence[Index] | NDArray[np.integer], epoch: int) -> Int64s:
    if not isinstance(indices, np.ndarray):
        pairs = [item if isinstance(item, tuple) else (item, epoch) for item in indices]
        numbers = [operator.index(number) for number in chain.from_iterable(pairs)]
        try:
            return np.array(numbers, np.int64).reshape(-1, 2)
        except OverflowError:
            msg = f"there is no sample or epoch {max(numbers, key=abs):,}"
            raise IndexError(msg) from None
    is_right = indices.dtype.kind in "iu" and (indices.ndim == 1 or indices.shape[1:] == (2,))
    if not is_right:
        msg = (
            "indices must be integers of shape (B,), or (B, 2) with epochs, "
            f"got {indices.dtype} of shape {indices.shape}"
        )
        raise IndexError(msg)
    as_int64 = indices.astype(np.int64)
    return as_int64 if indices.ndim == 2 else np.stack((as_int64, np.full_like(as_int64, epoch)), axis=1)


def _have_epochs(indices: Sequence[Index] | NDArray[np.integer]) -> bool:
    if isinstance(indices, np.ndarray):
        return indices.ndim == 2
    return all(isinstance(index, tuple) for index in indices)


def _keep_ragged(result: Any, samples: Samples) -> Any:
    from unistore.data.collate import Sample

    is_plain = isinstance(result, Mapping) and not isinstance(result, Sample)
    return Sample(result, samples.ragged) if is_plain else result
