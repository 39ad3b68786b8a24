"""`Dataset`: the samples of one or several stores of any family, for torch."""

from __future__ import annotations

import json
import operator
import os
from collections import Counter
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
from unistore.data.component_axis import AxisLike
from unistore.data.kinds.named import as_code
from unistore.data.kinds.protocol import EPOCH, INDEX, SampleIndices, SampleKind, SampleReader, Shareable
from unistore.data.packed import Allocate, Batch, packed_copy
from unistore.data.parts import (
    Blocks,
    BoundParts,
    DatasetPart,
    JoinedReader,
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
_TENSORS = "samples are tensors (read_batch reads numpy arrays) and need"
# Samples whose labels are read together
_COUNTED = 16
# Stores of which a notebook shows samples
_SHOWN = 16


class Dataset(MapDataset[SampleT]):
    """Samples of sealed stores, map-style, for torch's ``DataLoader`` and for ``unistore.Loader``.

    Opening reads metadata only. Files are opened by the first sample, in each process anew. Pickles as its
    arguments. Safe in workers started by fork, forkserver and spawn, also after the parent has read samples.

    Every sample has ``index``, its position in the Dataset. Random parts of a sample are a function of
    (`seed`, epoch, index). The epoch comes with indices of type `EpochIndex`, as `unistore.Shuffle` yields
    them, or else from `set_epoch`, which does not reach workers that already run (``persistent_workers``).

    Several stores of one family with the same fields form one Dataset: sample ``store_offsets[k] + i`` is
    sample i of store k. Names of sources are then prefixed with the name of the store.

    Parameters
    ----------
    path
        Folder of the store, or its URL: ``s3://``, ``gs://``, ``az://``, ``https://``, ``file://``. Stores in
        an object store need workers started by ``spawn`` or ``forkserver``. A list: several stores. Or source
        files, folders and patterns (``"data/*.h5"``), one or a list: they are converted once, into a store in
        the folder that ``UNISTORE_CACHE`` names (``~/.cache/unistore``), and found there afterwards.
    samples
        Kind of samples: ``Segments(max_points=4096)``, ``Patches(96)``, …, or its text: ``"Patches(96)"``, as
        kinds of packages are named. None: the default kind of the family (`Rows`, `Segments`, `Volumes`, …),
        with crops and lengths reduced to what the samples read here have. The attribute `samples` tells it.
    fields
        Keys to read. None: the default keys of the kind. Its documentation lists further ones. Names of
        `unistore.attach` are columns of their table. ``"epoch"`` is
        the epoch that a sample is read for, int64, unless the store has a field of this name.
    split
        Name of a split, or several. None: all samples.
    transform
        Called with every sample, a dict of tensors. Its result replaces the sample. One that has a parameter
        ``rng`` gets a ``numpy.random.Generator`` made of (`seed`, epoch, index). For any other, the global
        generators of ``random``, numpy and torch are seeded from the same three before each call, wherever
        the epoch is known: with indices of type `EpochIndex`, and after `set_epoch`. Outside of worker
        processes they are restored afterwards.
    seed
        Seed of random parts of samples.
    names
        Other names of keys in samples: ``{"voxel": "spike_vox"}``.
    weights
        With several stores, one weight per store: `unistore.Shuffle` and ``unistore.Loader`` draw stores by
        weight and samples of a store uniformly, with replacement, by default as many per epoch as there are
        samples. None: every sample once per epoch.
    where
        Only samples of which this holds: by name, a number, a pattern (``"lab_a/*"``), a range of numbers
        with its ends (``(50, None)``: 50 and more), or a list of values. Names are ``source``,
        ``sources.<name>`` and those of the table of samples: ``episode.length``, ``episode.return`` (the sum
        of ``reward``), ``episode.<name>`` of numbers, texts and attributes. Whole rows of that table are
        taken or left out.
    best
        Of the samples of each store that are left, the share with the largest value:
        ``("episode.return", 0.1)``, of equal ones the earlier.
    cache_dir
        Local folder for copies of the shards that were read. See `Store`. None: no copies.
    cache_limit
        Bytes of all copies in that folder (``"50GB"``).
    version
        Number or name of the version of a grown store. None: the newest one now.
    convert
        With source files: options of `unistore.convert`, as in ``{"voxel_size": 0.2}``, and ``family``. Other
        options make another store. None: the defaults.
    **options
        Single options of the conversion, as in ``voxel_size=0.2``. The name of an argument above is that
        argument: the conversion's ``split`` has to be in `convert`.

    Raises
    ------
    TypeError
        If there is neither an argument nor an option of a conversion of that name.
    StoreError
        If there is no finished store at `path`.
    InputError
        If an argument is invalid. If the store has no such samples, fields or split. The message lists what
        there is. If several stores have different fields. Names fields and stores. On first access to samples
        or length: if stores differ in dtypes or shapes, if boxes, crops or windows extend beyond their data
        without `pad`, with the largest size that fits, if a limit leaves no samples.
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
        best: tuple[str, float] | None = None,
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
            check.refuse("version", "is of one store, and several are given", "open each by itself")
        is_version = isinstance(version, str) or (type(version) is int and version > 0)
        check.expect("version", version, is_version, "a number from 1 on, or a name", none=True)
        check.names("fields", fields)
        check.names("split", split)
        check.function("transform", transform)
        check.integer("seed", seed, None)
        if check.path("cache_dir", cache_dir, none=True) and cache_dir is not None:
            require_local_path(cache_dir, "cache_dir")
        chosen = parse_where(check, where, best)
        check.raise_problems()
        paths = store_paths(paths, convert)
        self.where = chosen
        self.splits = as_names(split)
        self._paths = tuple(os.fspath(path) for path in paths)
        self._places = tuple(place_of(path) for path in paths)
        folder = None if cache_dir is None else absolute(cache_dir)
        self.cache_options = {"cache_dir": folder, "cache_limit": cache_limit}
        requested = as_names(fields) or ()
        self._requested = (*requested, *(where or ()), *([] if best is None else best[:1]))
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
        """Return the kind of samples: the given one, or the default one in a size that fits the data."""
        if self._given_kind is None:
            self._bind()
        return self.parts[0].kind

    @property
    def store(self) -> Store:
        """Return the store. AttributeError if there are several, see `parts`."""
        if len(self.parts) > 1:
            msg = f"this dataset has {len(self.parts)} stores: use parts, and the store of each"
            raise AttributeError(msg)
        return self.parts[0].store

    @property
    def path(self) -> str:
        """Return the folder or URL of the store, or of several, separated by commas."""
        return ", ".join(self._paths)

    @property
    def version(self) -> int | None:
        """Return the number of the version that is read, None of plain stores and of several."""
        version = self.parts[0].version
        return None if version is None or len(self._paths) > 1 else version.number

    def at_version(self, version: int | str) -> Self:
        """Return the same samples of another version of its store: a new Dataset.

        Raises
        ------
        InputError
            If there is no such version, or this reads several stores.
        """
        if len(self._paths) > 1:
            raise wrong_argument("version", "is of one store, and several are given", "open each by itself")
        other = copy(self)
        other.__dict__ |= self.__getstate__()
        kind = self._given_kind  # what fits one version may not fit another
        other.parts = open_parts(
            self._places, kind, self.splits, self.cache_options, self.where, self._requested, version
        )
        return other

    @property
    def runs(self) -> tuple[DatasetPart, ...]:
        """Return the parts that are read one by one: alike ones of a grown store are one."""
        return self._bind().parts

    @property
    def store_offsets(self) -> Int64s:
        """Return the first sample of each of `runs`, then the number of all samples: (runs + 1,) int64."""
        reader = self.reader
        return reader.offsets if isinstance(reader, JoinedReader) else np.array([0, len(reader)])

    @property
    def start_method(self) -> str | None:
        """Return the required start method of worker processes. None: any."""
        return None if all(part.store.fork_safe for part in self.parts) else "spawn"

    def extends(self, other: Dataset) -> bool:
        """Return whether the first samples are all samples of `other`, an older version."""
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
            content = "invalid: samples do not fit their data, or there are none"
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
        """Return the function that is called with every sample, or None."""
        return None if self._transform is None else self._transform.function

    @transform.setter
    def transform(self, function: Callable[..., Any] | None) -> None:
        self._transform = None if function is None else RandomFunction(function)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of indices without one."""
        self.epoch = checked_epoch(epoch)
        self._epoch_is_set = True

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, index: Index) -> SampleT:
        """Return the sample `index`, a dict of tensors. Negative indices count from the end.

        Raises
        ------
        IndexError
            If there is no such sample. The message names the range.
        TypeError
            If `index` is no whole number, such as a slice or a list.
        """
        if not _HAS_TORCH:
            require_torch(_TENSORS)
        from unistore.data.collate import BatchMemory, Samples

        picks = self._picks([index])
        sample = Samples(self._read(picks, np.empty), BatchMemory())[0]
        return cast("SampleT", self._transformed([sample], [index], picks)[0])

    def __getitems__(self, indices: Sequence[Index]) -> Sequence[Any]:
        """Return samples of a batch, read together. `unistore.collate` collates them without a copy."""
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
        """Read samples as packed arrays. The transform is not applied.

        Parameters
        ----------
        indices
            Sample indices with or without epochs: integers or `EpochIndex`, or an array (B,) or (B, 2).
        allocate
            Allocates the memory that values are read into.

        Returns
        -------
        dict of str to Packed
            ``index`` and the keys of `fields`, under their names in samples.

        Raises
        ------
        IndexError
            If there is no such sample. The message names the range.
        CorruptionError
            If stored bytes are damaged. The message names array, shard and chunk.
        StoreError
            If the samples do not fit into memory.
        """
        return self._read(self._picks(indices), allocate)

    def _read(self, picks: SampleIndices, allocate: Allocate) -> Batch:
        try:
            if self._ahead is None:
                values = self.reader.read(picks, allocate)
            else:
                values = self._ahead.read(self.reader, picks, allocate)
        except MemoryError as error:
            msg = f"{self.path}: a batch of {len(picks.index)} samples does not fit into memory: {error}"
            raise StoreError(msg) from error
        batch = {INDEX: packed_copy(picks.index, allocate)}
        batch |= {self.names.get(key, key): values[key] for key in self.fields}
        if self._adds_epoch:
            batch[EPOCH] = packed_copy(picks.epoch, allocate)
        return batch

    def arrays(self) -> list[Shareable]:
        """Return arrays of all its stores, each opened once, and what is computed of them."""
        arrays: list[Shareable] = []
        for part in self.runs:
            arrays += part.store.arrays().values()
        arrays += self.reader.shareable()
        return arrays

    def _blocks(self) -> list[Blocks]:
        sizes = np.diff(self.store_offsets).tolist()
        return [Blocks(part.store, size) for part, size in zip(self.runs, sizes, strict=True)]

    def block_offsets(self) -> Int64s:
        """Return offsets of blocks of samples, (blocks + 1,) int64: of one store, and sharing chunks.

        Of a store in a bucket they are samples of about 8 MiB, which a Loader reads together.
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
        """Return a dataset that reads blocks whole, of offsets (blocks + 1,) int64 in the chosen samples.

        These are indices (n,) int64, ascending, or None: all samples.
        """
        ahead = copy(self)
        ahead._bound = self._bound
        ahead._ahead = ReadAhead(offsets, chosen)
        return ahead

    def label_counts(
        self, key: str, *, split: str | Sequence[str] | None = None, subset: Any = None
    ) -> dict[int, int]:
        """Count the values of an integer key over the samples of this epoch: value to count.

        Reads that key of every sample. Values that mean "unlabelled" are counted like any other.

        Parameters
        ----------
        key
            Key of the labels.
        split
            Name of a split, or several, in place of those of the dataset. None: those of the dataset.
        subset
            Sample indices, or one bool a sample, as of ``unistore.Loader``. None: all samples.

        Raises
        ------
        InputError
            If the key is not read here, or holds no integers, if there is no such split, or no such sample,
            if both `split` and `subset` are given.
        """
        if key not in self.fields:
            message = f"{key} is not read; there are {', '.join(self.fields)}"
            raise wrong_argument("key", message)
        reader = bind_parts(self._parts_of(split, subset), [key]).reader
        every = np.arange(len(reader))
        chosen = every if subset is None else sample_indices("subset", subset, len(reader))
        counts: Counter[int] = Counter()
        for lo in range(0, len(chosen), _COUNTED):
            index = chosen[lo : lo + _COUNTED]
            picks = SampleIndices(index, np.full(len(index), self.epoch), self.seed)
            values = reader.read(picks, np.empty)[key].values
            if values.dtype.kind not in "biu":
                message = f"{key} is {values.dtype}, and labels are integers"
                raise wrong_argument("key", message)
            for label, count in zip(*np.unique(values, return_counts=True), strict=True):
                counts[int(label)] += int(count)
        return dict(sorted(counts.items()))

    def _parts_of(self, split: str | Sequence[str] | None, subset: Any) -> tuple[DatasetPart, ...]:
        if self._given_kind is None:
            self._bind()
        if split is None:
            return self.parts
        if subset is not None:
            message = "was given with split, and its numbers are those of the dataset's own samples"
            raise wrong_argument("subset", message, "give one of the two")
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
        """Return statistics of the values of a key: count, mean, std, min, max and quantiles.

        They are of the values as samples have them, before the transform. Where samples are crops, windows,
        steps or random subsets of larger ones, each value of these counts once: `Windows` and `Transitions`
        have the statistics of whole episodes. Values that are made by the kind of samples, as differences of
        actions or voxels of events, are counted in the samples of this epoch.

        What ``unistore statistics STORE`` keeps with a store answers at once. Else the key of all samples is
        read once, that of a `subset`, or under `where`, each time.

        Parameters
        ----------
        key
            Key of the values.
        axis
            Axis of a value that has the components, each of which has statistics of its own: a number below
            0, counted from the end of a value, or a name that the store records, as ``"channel"``. None: all
            values together. ``"auto"``: the axis that the store calls ``channel``; else that of a vector; of
            values without such names an axis that has the extent of channels, (3, H, W) or (H, W, 3), and no
            axis for images of uint8, uint16 or bool without channels, and for volumes. The result says which
            was taken.
        split
            Name of a split, or several, in place of those of the dataset. None: those of the dataset.
        subset
            Sample indices, or one bool a sample, as of ``unistore.Loader``. None: all samples.

        Returns
        -------
        Statistics
            Of all stores together: of their values where no `weights` were given, else of values drawn from
            the stores by weight.

        Raises
        ------
        InputError
            If there is no such key, it is text, or stores differ in its components, if there is no such
            axis, or with ``"auto"`` several that may be meant, as of float images (H, W), if there is no such
            split, or no such sample, if both `split` and `subset` are given.
        StoreError
            If the file of the statistics is damaged.
        """
        parts = self._parts_of(split, subset)
        subsets = None
        if subset is not None:
            parts = self.runs
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
        """Return class weights: number of labels / (number of classes that occur · count of the class).

        Parameters
        ----------
        key
            Key of the labels, 0 and more.
        classes
            Number of classes. None: one more than the largest label.
        unlabelled
            Value that stands for no class. It is not counted.
        split, subset
            The samples, as of `label_counts`.

        Returns
        -------
        (classes,) float32, 0 for classes that do not occur: for ``nn.CrossEntropyLoss(weight=…)``.

        Raises
        ------
        InputError
            As `label_counts`, or if there are no labels, or labels outside of 0 to classes - 1.
        """
        require_torch("class weights are a tensor and need")
        import torch

        counts = self.label_counts(key, split=split, subset=subset)
        if unlabelled is not None:
            counts.pop(unlabelled, None)
        most = max(counts, default=-1) + 1 if classes is None else classes
        outside = [label for label in counts if not 0 <= label < most]
        if outside or not counts:
            message = f"has labels {first_few([*map(str, outside)], 8)}, outside of {most} classes"
            fix = "give the value that stands for no class: unlabelled=…"
            raise wrong_argument(key, message if outside else "has no labels", fix)
        weights = torch.zeros(most)
        mean = sum(counts.values()) / len(counts)
        for label, count in counts.items():
            weights[label] = mean / count
        return weights

    def source_offsets(self) -> Int64s:
        """Return offsets of samples by source, (sources with samples + 1,) int64, for ``shuffle="sources"``.

        Raises
        ------
        InputError
            If the samples of a source do not follow one another.
        """
        bounds = self.store_offsets.tolist()
        starts = [first + part.source_starts() for part, first in zip(self.runs, bounds, strict=False)]
        return np.concatenate([*starts, bounds[-1:]]).astype(np.int64)

    @property
    def open_blocks(self) -> int:
        """Return the number of blocks whose decoded chunks are kept together."""
        return OPEN_BLOCKS if self.is_remote else min(blocks.open for blocks in self._blocks())

    @property
    def is_remote(self) -> bool:
        """Return whether a store is in a bucket, and its objects are not copied to this machine."""
        stores = [part.store for part in self.parts]
        return any(not store.fork_safe and not isinstance(store.storage, CachedStorage) for store in stores)

    @property
    def shuffled_requests(self) -> int:
        """Return about how many requests an epoch of a full shuffle makes, 0 without a store in a bucket."""
        return len(self) * len(self.fields) if self.is_remote else 0

    @property
    def shuffles_in_blocks(self) -> bool:
        """Return whether ``shuffle=True`` is a block shuffle, as a full shuffle would decode too much."""
        return any(blocks.are_needed for blocks in self._blocks())

    @property
    def repeats(self) -> bool:
        """Return whether samples are the same in every epoch and share nothing, see `SampleKind`."""
        return self.samples.repeats and not self._adds_epoch

    @property
    def digest(self) -> str:
        """Return the digest of what identifies the samples: the stores' seals, kind, splits and seed."""
        seals = [part.store.attributes["seal"] for part in self.parts]
        removed = [part.removed for part in self.parts]
        identity = [seals[0] if len(seals) == 1 else seals, repr(self.samples), self.splits, self.seed]
        if self.where is not None:
            identity.append(repr(self.where))
        if any(removed):
            identity.append(removed)
        return xxhash.xxh3_128_hexdigest(json.dumps(identity, sort_keys=True).encode())

    def source_of(self, index: int) -> str:
        """Return the name of a sample's source, prefixed with the store's if there are several stores."""
        sample = int(self._picks([index]).index[0])
        offsets = self.store_offsets
        number = int(np.searchsorted(offsets, sample, side="right")) - 1
        part = self.runs[number]
        source = part.source_of(sample - int(offsets[number]))
        return f"{part.prefix}{source}"

    @property
    def reader(self) -> SampleReader:
        """Return the reader of this process, made on first use."""
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
            span = f"0 to {count - 1}, or {-count} to -1" if count else "none"
            msg = f"sample {wrong} does not exist: this dataset has {count} samples ({span})"
            raise IndexError(msg)
        return SampleIndices(index, epoch, self.seed)


def _with_epochs(indices: Sequence[Index] | NDArray[np.integer], epoch: int) -> Int64s:
    if not isinstance(indices, np.ndarray):
        pairs = [item if isinstance(item, tuple) else (item, epoch) for item in indices]
        numbers = [operator.index(number) for number in chain.from_iterable(pairs)]
        try:
            return np.array(numbers, np.int64).reshape(-1, 2)
        except OverflowError:
            msg = f"there is no sample or epoch {max(numbers, key=abs)}"
            raise IndexError(msg) from None
    is_right = indices.dtype.kind in "iu" and (indices.ndim == 1 or indices.shape[1:] == (2,))
    if not is_right:
        msg = f"indices must be integers (B,) or (B, 2) with epochs, found {indices.dtype} {indices.shape}"
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
