"""The stores of a Dataset, and the reader of their samples together."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain, groupby, pairwise
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from unistore.data.default_kind import first_natural_kind, fitting_kind
from unistore.data.kinds.named import as_code, parse_kind
from unistore.data.kinds.protocol import (
    INDEX,
    SOURCE,
    SampleIndices,
    SampleKind,
    SampleReader,
    Shareable,
)
from unistore.data.packed import Allocate, Batch, Packed, offsets_from_lengths, packed_copy, range_of_rows
from unistore.data.where import Where
from unistore.errors import InputError, Problem, RunCommand, first_few
from unistore.memory import Arena, Slab, round_up
from unistore.order.permutation import random_words
from unistore.order.sequences import uniform_blocks
from unistore.schemas.indices import contradiction
from unistore.store.joined import JoinedStore
from unistore.store.reader import Store
from unistore.store.side_tables import folders_beside
from unistore.store.versions import OpenedStores, Part, Version, open_stores
from unistore.system.arguments import Arguments, matches_type, wrong_argument
from unistore.system.types import AnyArray, Int64s
from unistore.zarr3.array import StoredArray
from unistore.zarr3.cache import CHUNKS
from unistore.zarr3.gather import POOL_BYTES
from unistore.zarr3.joined import UnalikeError
from unistore.zarr3.storage import AbsentError

# Seeds of stores that are kept
_MOST_SEEDS = 1 << 16


class JoinedReader(SampleReader):
    """Reads samples of several stores, one store after another.

    A batch from one store is read directly into allocated memory. A mixed one is read store by store into
    scratch memory, and copied from there.

    Attributes
    ----------
    offsets : int64 array of shape (stores + 1,)
        First sample of each store.
    """

    def __init__(
        self, readers: Sequence[SampleReader], names: Sequence[str], prefixes: Sequence[str]
    ) -> None:
        self._readers = readers
        self._prefixes = prefixes
        self.offsets = offsets_from_lengths(np.array([len(reader) for reader in readers]))
        no_samples = SampleIndices(np.empty(0, np.int64), np.empty(0, np.int64))
        empty = [reader.read(no_samples, np.empty) for reader in readers]
        nonempty = np.flatnonzero(np.diff(self.offsets)).tolist() or [0]
        _check_forms({names[number]: empty[number] for number in nonempty})
        # Boxes of several shapes are flat in every batch, though those of one store may be dense
        self._flat: dict[str, str] = {}
        for key, packed in empty[nonempty[0]].items():
            shapes = {readers[number].box_shape(key) for number in nonempty}
            if packed.shapes is not None and (len(shapes) > 1 or None in shapes):
                self._flat[key] = packed.group
        self._is_direct = [all(reader.box_shape(key) is None for key in self._flat) for reader in readers]
        self._scratch = threading.local()
        self._seed_of = lru_cache(_MOST_SEEDS)(_seed_of_store)

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def shareable(self) -> Sequence[Shareable]:
        return list(chain.from_iterable(reader.shareable() for reader in self._readers))

    def read(self, picks: SampleIndices, allocate: Allocate) -> Batch:
        store = range_of_rows(self.offsets, picks.index)
        stores = np.unique(store).tolist() or [0]
        if len(stores) == 1 and self._is_direct[stores[0]]:
            return self._read_part(stores[0], picks, np.arange(len(picks)), allocate)
        # Fresh memory would cost page faults, half as much time again, where freed memory is not kept.
        scratch = Arena(getattr(self._scratch, "slab", None))
        positions = [np.flatnonzero(store == number) for number in stores]
        parts = [
            self._read_part(number, picks, part, scratch.allocate)
            for number, part in zip(stores, positions, strict=True)
        ]
        batch = join_batches(parts, positions, allocate, self._flat)
        if scratch.overflow:
            self._scratch.slab = Slab(round_up(scratch.needed))
        return batch

    def _read_part(self, number: int, picks: SampleIndices, positions: Int64s, allocate: Allocate) -> Batch:
        # one seed per store: sample i of one store must not be cropped like sample i of the next one. That of
        # a store which grew stays the same
        seed = self._seed_of(picks.seed, number) if number or self._prefixes[0] else picks.seed
        picks_of_store = SampleIndices(
            picks.index[positions] - self.offsets[number], picks.epoch[positions], seed
        )
        batch = self._readers[number].read(picks_of_store, allocate)
        if SOURCE in batch:
            names = np.char.add(self._prefixes[number], batch[SOURCE].values)
            batch[SOURCE] = packed_copy(names, allocate)
        return batch


def _seed_of_store(seed: int, number: int) -> int:
    return int(random_words(seed, np.array([number]), np.array([0]), 1)[0, 0])


def _check_forms(empty: Mapping[str, Batch]) -> None:
    # An empty batch of each store shows the form of its values
    problems = []
    for key in next(iter(empty.values())):
        stores: dict[str, list[str]] = {}
        for name, batch in empty.items():
            stores.setdefault(_form(batch[key]), []).append(name)
        if len(stores) > 1:
            forms = "; ".join(f"{form} in {', '.join(members)}" for form, members in stores.items())
            fix = (
                f"list the other fields in fields=[…], without {key!r}, or convert all sources into one store"
            )
            problems.append(Problem(f"field {key!r}", f"differs between stores: {forms}", fix, "fields"))
    if problems:
        raise InputError(problems)


def _form(packed: Packed) -> str:
    dtype = "text" if packed.values.dtype.kind == "U" else str(packed.values.dtype)
    if packed.shapes is not None:
        return f"{dtype} of varying shape"
    shape = ["*"] * (packed.offsets is not None) + [str(extent) for extent in packed.values.shape[1:]]
    return f"{dtype} ({', '.join(shape)})"


def join_batches(
    parts: Sequence[Batch],
    positions: Sequence[Int64s],
    allocate: Allocate,
    flat_groups: Mapping[str, str] = MappingProxyType({}),
) -> Batch:
    """Join parts of a batch.

    Parameters
    ----------
    parts : sequence of dict of str to Packed
        Parts of the batch, with the same keys.
    positions : sequence of int64 array
        Positions of the samples of each part in the batch. Together they are all positions.
    allocate : callable
        Called as ``allocate(shape, dtype)`` for the memory of the batch.
    flat_groups : mapping of str to str
        Group of each key with volumes or crops that is flat in the batch, even if it is dense in a part.
    """
    offsets: dict[str, Int64s] = {}
    batch: Batch = {}
    for key in parts[0]:
        packed = [part[key] for part in parts]
        batch[key] = _join_parts(packed, positions, offsets, allocate, flat_groups.get(key))
    return batch


def _join_parts(
    parts: Sequence[Packed],
    positions: Sequence[Int64s],  # of the samples of each part in the batch, (n,); together all
    # offsets (B + 1,) of the ragged groups of the batch so far; those of a new group are added
    group_offsets: dict[str, Int64s],
    allocate: Allocate,
    flat_group: str | None = None,  # group of boxes that are flat, though those of a part may be dense
) -> Packed:
    """Join one key of a batch from parts of it. Ragged samples are concatenated in the order of the batch."""
    first = parts[0]
    is_flat = flat_group is not None or first.shapes is not None
    if first.offsets is None and not is_flat:
        return _join_dense([part.values for part in parts], positions, allocate)
    samples: list[AnyArray] = [np.empty(0)] * sum(map(len, positions))
    for part, where in zip(parts, positions, strict=True):
        for number, position in enumerate(where.tolist()):
            samples[position] = part[number]
    sizes = np.array([sample.shape if is_flat else sample.shape[:1] for sample in samples], np.int64)
    group = first.group if flat_group is None else flat_group
    offsets = group_offsets.setdefault(group, offsets_from_lengths(sizes.prod(axis=1)))
    row = () if is_flat else first.values.shape[1:]
    widest = np.result_type(*{part.values.dtype for part in parts})  # of texts
    out = allocate((int(offsets[-1]), *row), widest)
    for sample, (lo, hi) in zip(samples, pairwise(offsets.tolist()), strict=True):
        out[lo:hi].reshape(sample.shape)[...] = sample
    return Packed(out, offsets, group, sizes if is_flat else None)


def _join_dense(parts: Sequence[AnyArray], positions: Sequence[Int64s], allocate: Allocate) -> Packed:
    # In the memory order of the parts
    first = parts[0]
    order = [0, *sorted(range(1, first.ndim), key=lambda axis: -abs(first.strides[axis]))]
    shape = (sum(map(len, positions)), *(first.shape[axis] for axis in order[1:]))
    out = allocate(shape, np.result_type(*{part.dtype for part in parts}))
    for part, where in zip(parts, positions, strict=True):
        out[where] = part.transpose(order)
    return Packed(out.transpose(np.argsort(order)))


T = TypeVar("T")
# Samples whose sources are read together
_BLOCK = 1 << 16


class DatasetPart(NamedTuple):
    """The samples of one store of a Dataset.

    Attributes
    ----------
    store : Store
        The store.
    kind : SampleKind
        The sample kind.
    splits : tuple of str or None
        Splits to read. None: all samples.
    name : str
        End of the path of the store, as long as needed to be unique in the Dataset.
    where : Where, optional
        Conditions on the samples. None: no conditions.
    prefix : str, default ""
        Prefix for the names of its sources.
    like : int, default 0
        Number of the first part with the same family and fields.
    version : Version, optional
        Version of the versioned store that it is a part of. None: the store has no versions.
    joined : DatasetPart, optional
        Several parts with the same arrays that are read as one, of which this is one. None: it is read by
        itself.
    """

    store: Store
    kind: SampleKind
    splits: tuple[str, ...] | None
    name: str
    where: Where | None = None
    prefix: str = ""
    like: int = 0
    version: Version | None = None
    joined: DatasetPart | None = None

    @property
    def path(self) -> str:
        """Folder or URL of the store."""
        return self.store.path

    @property
    def removed(self) -> tuple[int, ...]:
        """Numbers of the sources that its version does not have."""
        return () if self.where is None else self.where.removed

    @property
    def identity(self) -> tuple[Any, ...]:
        """Values that identify its samples, within one Dataset."""
        return self.store.root.seal, self.removed

    def bind(self, fields: Sequence[str]) -> SampleReader:
        """Return a reader of its samples."""
        return self.kind.bind(self.store, fields, self.units())

    def units(self) -> Int64s | None:
        """Return the rows of the sample table that splits and conditions select. None: all rows."""
        units = None
        if self.splits is not None:
            units = np.flatnonzero(np.isin(self.store.splits()[0], self.split_codes()))
        return units if self.where is None else self.where.units(self.store, units)

    def split_codes(self) -> list[int]:
        """Return the codes of its splits."""
        names = self.store.split_names()
        return [names.index(name) for name in self.splits or () if name in names]

    def source_of(self, index: int) -> str:
        """Return the source of a sample, by its index in this part."""
        picks = SampleIndices(np.array([index]), np.zeros(1, np.int64))
        return str(self.bind((SOURCE,)).read(picks, np.empty)[SOURCE].values[0])

    def source_starts(self) -> Int64s:
        """Return the first sample of each source that has samples, int64.

        Raises
        ------
        InputError
            If the samples of a source are not consecutive.
        """
        reader = self.bind((SOURCE,))
        starts = []
        names = [""]
        for lo in range(0, len(reader), _BLOCK):
            index = np.arange(lo, min(lo + _BLOCK, len(reader)))
            sources = reader.read(SampleIndices(index, np.zeros_like(index)), np.empty)[SOURCE].values
            is_new = np.append(sources[0] != names[-1], sources[1:] != sources[:-1])
            new = np.flatnonzero(is_new)
            starts.append(new + lo)
            names += sources[new].tolist()
        if len(set(names)) < len(names):
            message = "the samples of a source are not consecutive, so they cannot be read source by source"
            raise wrong_argument(self.store.path, message, 'use shuffle="blocks"')
        return np.concatenate(starts).astype(np.int64) if starts else np.empty(0, np.int64)

    def check_splits(self) -> None:
        """Raise InputError if the store lacks one of the splits. The message lists the existing ones."""
        try:
            split_names = self.store.split_names() if self.version is None else self.version.split_names
        except AbsentError:
            split_names = []
        unknown = [repr(name) for name in self.splits or () if name not in split_names]
        if unknown:
            if split_names:
                message = f"there is no split {', '.join(unknown)}"
                fix = f"use one of {', '.join(map(repr, split_names))}, or leave split out"
            else:
                message = f"there is no split {', '.join(unknown)}, because this store has no splits"
                fix = f"leave split out, or {_splitting(self.splits or ())}"
            raise InputError.at(self.store.path, message, fix, "split")


def _splitting(splits: Sequence[str]) -> str:
    """Return how to make a store again with the splits that were asked for."""
    further = [name for name in dict.fromkeys(splits) if name != "train"] or ["val"]
    share = round(0.2 / len(further), 3)
    shares = {"train": round(1 - share * len(further), 3), **dict.fromkeys(further, share)}
    text = ",".join(f"{name}={share:g}" for name, share in shares.items())
    again = f"convert all sources again with --overwrite --split {text}"
    return f'{again}, or open source files with convert={{"split": "{text}"}}'


def open_parts(
    paths: Sequence[str],
    kind: object,
    splits: tuple[str, ...] | None,
    cache: Mapping[str, Any],
    where: Where | None = None,
    fields: Sequence[str] = (),
    version: int | str | None = None,
) -> tuple[DatasetPart, ...]:
    """Open the stores of a Dataset.

    Parameters
    ----------
    paths : sequence of str
        Folders or URLs, at least one.
    kind : SampleKind, str or None
        The sample kind. None: the default one, which must be the same for all stores.
    splits : tuple of str or None
        Splits to read. None: all samples.
    cache : mapping
        Arguments of `Store` for local copies.
    where : Where, optional
        Conditions on the samples. None: no conditions.
    fields : sequence of str, default ()
        Requested keys, for added columns.
    version : int or str, optional
        Version of the only path. None: the newest.

    Raises
    ------
    InputError
        If an argument is invalid, or stores differ in their samples. It contains the problems of all stores.
    """
    if not paths:
        raise wrong_argument("path", "the list is empty", "give a path, or a list of paths")
    if isinstance(kind, str):
        kind = parse_kind(kind)
    if not isinstance(kind, SampleKind | None):
        fix = "give for example samples=unistore.Rows()"
        raise wrong_argument("samples", f"must be a sample kind, got {kind!r}", fix)
    kind_of = first_natural_kind() if kind is None else lambda _: kind
    listed: list[DatasetPart] = []
    for path, name in zip(paths, _short_names(paths), strict=True):
        prefix = "" if len(paths) == 1 else f"{name}/"
        opened = open_stores(path, version, **cache)
        if where is not None and where.top_fraction is not None and len(opened.stores) > 1:
            message = f"works only with a single store, but {path} has {len(opened.stores)} parts"
            whole = f"{path.rstrip('/').removesuffix('.zarr')}-whole.zarr"
            raise wrong_argument(
                "top_fraction", message, RunCommand(("compact", path, whole), "to make it a single store")
            )
        own_kind = kind_of(opened.stores[0])
        example = DatasetPart(opened.stores[0], own_kind, splits, name, where, prefix, version=opened.version)
        listed += _parts_of(opened, example, kind_of, fields, len(listed))
    parts = tuple(listed)
    problems = []
    first = f"{parts[0].kind} of a {parts[0].store.family} store"
    for number, part in enumerate(parts):
        samples = f"{part.kind} of a {part.store.family} store"
        if part.like == number and samples != first:
            message = f"its samples are {samples}, but the samples of {parts[0].store.path} are {first}"
            fix = "give one sample kind for all stores as samples=…, or open the stores separately"
            problems.append(Problem(part.store.path, message, fix, "family"))
    if problems:
        raise InputError(problems)
    _call_all(lambda part: part.check_splits(), parts)
    if where is not None:
        _call_all(lambda part: where.check(part.store), parts)
    return parts


def _parts_of(
    opened: OpenedStores,
    example: DatasetPart,
    kind_of: Callable[[Store], SampleKind],
    fields: Sequence[str],
    number: int,  # of the first one in the Dataset
) -> Iterator[DatasetPart]:
    """Yield the parts of a path, as `example`."""
    has_side_tables = opened.may_have_side_tables
    first_like: dict[int, DatasetPart] = {}
    parts = []
    for like, (plain, described) in enumerate(zip(opened.stores, opened.parts, strict=True), number):
        store = plain.with_side_tables(folders_beside(plain, fields)) if has_side_tables else plain
        part_name = example.name
        where = example.where
        alike = None
        if described is not None:
            part_name = store.path
            alike = first_like.get(described.schema) if store is plain else None
            if described.removed:
                where = replace(where or Where({}, None), removed=described.removed)
        first = like if alike is None else alike.like
        own_kind = kind_of(store) if alike is None else alike.kind
        part = example._replace(store=store, kind=own_kind, name=part_name, where=where, like=first)
        if described is not None and store is plain:
            first_like.setdefault(described.schema, part)
        parts.append(part)
    if opened.version is None:
        yield from parts
    else:
        yield from _in_runs(opened, opened.version.parts, parts, example.where)


def common_fields(
    parts: Sequence[DatasetPart],
    fields: Sequence[str] | None,
) -> tuple[str, ...]:
    """Return the keys to read, which all stores have.

    Parameters
    ----------
    parts : sequence of DatasetPart
        The stores.
    fields : sequence of str or None
        Requested keys. None: the default keys, which must be the same in every store.

    Raises
    ------
    InputError
        If stores differ in their keys. The message lists the common ones.
    """
    selected_like = dict.fromkeys(part.like for part in parts)
    several = _call_all(lambda part: part.kind.select(part.store, fields), [parts[n] for n in selected_like])
    of_form = dict(zip(selected_like, several, strict=True))
    selected = [of_form[part.like] for part in parts]
    common = [key for key in selected[0] if all(key in keys for keys in selected)]
    problems = []
    for key in dict.fromkeys(chain.from_iterable(selected)):
        if key not in common:
            has_key = {part.name: key in keys for part, keys in zip(parts, selected, strict=True)}
            present = [name for name, has in has_key.items() if has]
            absent = [name for name, has in has_key.items() if not has]
            message = f"is in {first_few(present)}, but not in {first_few(absent)}"
            problems.append(Problem(f"field {key!r}", message, kind="fields"))
    if problems:
        fix = f"read the common ones with fields={common}" if common else "open the stores separately"
        message = "have different fields" if common else "have no common fields"
        raise InputError([*problems, Problem("the stores", message, fix, "fields")])
    return selected[0]


class BoundParts(NamedTuple):
    """Samples that are ready to read.

    Attributes
    ----------
    parts : tuple of DatasetPart
        The parts that are read one by one.
    reader : SampleReader
        Reader of all samples, one part after another.
    """

    parts: tuple[DatasetPart, ...]
    reader: SampleReader


def bind_parts(
    parts: Sequence[DatasetPart],
    fields: Sequence[str],
    *,
    fits: bool = False,  # whether a kind that does not fit the data is replaced by the most similar that does
) -> BoundParts:
    """Bind all samples. Parts of a grown store that are alike are read as one."""
    try:
        return _bind_each(_joined_parts(parts), fields, fits=fits)
    except UnalikeError:
        return _bind_each(parts, fields, fits=fits)


def _bind_each(parts: Sequence[DatasetPart], fields: Sequence[str], *, fits: bool) -> BoundParts:
    readers = [part.bind(fields) for part in parts]
    tried = [parts[0].kind]
    while fits:
        fitting = fitting_kind([reader.reach() for reader in readers])
        if fitting is None or fitting in tried:
            break
        tried.append(fitting)
        parts = [part._replace(kind=fitting) for part in parts]
        readers = [part.bind(fields) for part in parts]
    check_reach(readers, [part.store.path for part in parts])
    reader = readers[0]
    if len(parts) > 1:
        reader = JoinedReader(readers, [part.name for part in parts], [part.prefix for part in parts])
    for part in parts:
        if isinstance(part.store, JoinedStore):
            _largest(part.store)  # which the order of blocks depends on
    return BoundParts(tuple(parts), reader)


_PAD = (
    'give pad="edge", pad="zero" or a number; sample kinds cut from larger data also take pad="valid", which '
    'adds keys for the valid extent, and pad="drop", which skips such samples'
)


def check_reach(readers: Sequence[SampleReader], paths: Sequence[str]) -> None:
    """Raise InputError if samples extend beyond their data without `pad`, or limits leave no samples."""
    beyond = []
    empty = []
    has_samples = False
    for path, reader in zip(paths, readers, strict=True):
        reach = reader.reach()
        has_samples |= reach.samples > 0
        if reach.beyond and not reach.padded:
            beyond.append(Problem(path, reach.problem, _fix(reach.fitting), "padding"))
        elif reach.problem:
            fix = f"use {as_code(reach.fitting)}, which has samples" if reach.fitting else ""
            empty.append(Problem(path, reach.problem, fix, "empty"))
    problems = beyond or ([] if has_samples else empty)
    if problems:
        raise InputError(problems)


def _fix(fitting: SampleKind | None) -> str:
    if fitting is None or getattr(fitting, "pad", None) is not None:
        return _PAD
    fits = f"use {as_code(fitting)}, which fits"
    return f"{fits}, or {_PAD}" if hasattr(fitting, "pad") else fits


def _in_runs(
    opened: OpenedStores, described: Sequence[Part], parts: Sequence[DatasetPart], where: Where | None
) -> Iterator[DatasetPart]:
    """Yield the parts of a version, each with the run of parts of one schema that it is read with."""
    for _, numbers in groupby(range(len(parts)), key=lambda number: parts[number].like):
        run = list(numbers)
        removed: list[int] = []
        sources = 0
        for number in run:
            removed += [sources + source for source in described[number].removed]
            sources += described[number].sources
        joined = None
        if len(run) > 1:
            store = JoinedStore(opened, run)
            own_where = replace(where or Where({}, None), removed=tuple(removed)) if removed else where
            joined = parts[run[0]]._replace(store=store, name=opened.path, where=own_where)
        for number in run:
            yield parts[number]._replace(joined=joined)


def _joined_parts(parts: Sequence[DatasetPart]) -> list[DatasetPart]:
    """Return runs of alike parts in place of these."""
    joined = []
    for _, run in groupby(parts, key=lambda part: id(part.joined or part.store)):
        part = next(run)
        joined.append(
            part if part.joined is None else part.joined._replace(splits=part.splits, kind=part.kind)
        )
    return joined


def checked_names(names: Mapping[str, str] | None, fields: Sequence[str]) -> dict[str, str]:
    """Check the argument `names` of a Dataset, and return the new names by key."""
    check = Arguments()
    are_names = matches_type(names, Mapping[str, str])
    check.expect("names", names, are_names, "a mapping such as {'voxel': 'spike_vox'}", none=True)
    check.raise_problems()
    new_names = dict(names or {})
    if unknown := sorted(set(new_names) - set(fields)):
        message = f"the Dataset does not read {', '.join(map(repr, unknown))}"
        check.refuse("names", message, f"use keys of {', '.join(fields)}")
    keys = Counter([INDEX, *(new_names.get(key, key) for key in fields if key != INDEX)])
    if twice := sorted(key for key, count in keys.items() if count > 1):
        message = f"several keys would get the name {', '.join(map(repr, twice))}"
        check.refuse("names", message, "give each key another name")
    check.raise_problems()
    return new_names


def checked_weights(weights: Sequence[float], parts: Sequence[DatasetPart]) -> tuple[float, ...]:
    """Check the argument `weights` of a Dataset, and return a float for each store."""
    check = Arguments()
    if len(parts) == 1:
        check.refuse("weights", "have an effect only with several stores", "remove them, or give more paths")
    if any(part.version is not None for part in parts):
        fix = "run unistore compact STORE NEW for each of these, and open the new stores"
        check.refuse("weights", "do not work with versioned stores", fix)
    is_right = matches_type(weights, Sequence[float]) and len(weights) == len(parts)
    is_right = is_right and min(weights) >= 0 and max(weights) > 0
    expected = f"{len(parts)} numbers, one for each store, none below 0 and at least one above 0"
    check.expect("weights", weights, is_right, expected)
    check.raise_problems()
    return tuple(map(float, weights))


def check_drawable(weights: Sequence[float], parts: Sequence[DatasetPart], counts: Int64s) -> None:
    """Raise InputError if a store has a weight and no samples."""
    problems = []
    for part, weight, count in zip(parts, weights, counts, strict=True):
        if weight and not count:
            message = f"has no samples, but its weight is {weight:g}"
            problems.append(Problem(part.store.path, message, "give it the weight 0", "option"))
    if problems:
        raise InputError(problems)


def _call_all(function: Callable[[DatasetPart], T], parts: Sequence[DatasetPart]) -> list[T]:
    results = []
    problems = []
    for part in parts:
        try:
            results.append(function(part))
        except InputError as error:
            problems += [
                _of_store(part.store.path, problem) for problem in error.problems_at(part.store.path)
            ]
    if problems:
        raise InputError(problems)
    return results


def _of_store(path: str, problem: Problem) -> Problem:
    """Return a problem that names the store."""
    message = problem.message.removeprefix(f"{path}: ")
    if problem.file.startswith(path):
        return replace(problem, message=message)
    return Problem(path, f"{problem.location}: {message}", problem.fix, problem.kind)


def _short_names(paths: Sequence[str]) -> list[str]:
    split = [PurePosixPath(path.split("://", 1)[-1]).parts for path in paths]
    for length in range(1, max(map(len, split))):
        ends = ["/".join(parts[-length:]) for parts in split]
        if len(set(ends)) == len(set(split)):
            return ends
    return ["/".join(parts) for parts in split]


# Which samples share chunks, for block shuffle.

CACHE_SHARE = 0.95  # Share of the memory for decoded chunks that the open blocks may take
UNALIGNED_CHUNKS = 4  # Chunks per block if block edges fall inside chunks: each block then decodes one more
# Stores with more get larger blocks, so that shuffling the blocks takes hundredths of a second
MAX_BLOCKS = 1 << 18
MAX_DECODED = 8  # Samples that a full shuffle may decode per delivered sample


class Blocks:
    """Blocks of consecutive samples of a store that share chunks of the largest array.

    A block has one chunk if samples are rows, and a few chunks if samples differ in length, because edges
    of blocks then lie inside chunks.

    Parameters
    ----------
    store : Store
        The store.
    samples : int
        Number of samples.
    """

    def __init__(self, store: Store, samples: int) -> None:
        self._samples = samples
        self._room = _room(store, samples)
        self._per_chunk, self._chunk_bytes = samples_per_chunk(store, samples) if samples else (1.0, 1)
        chunks = 1 if self._per_chunk == int(self._per_chunk) else UNALIGNED_CHUNKS
        self._size = max(1, round(chunks * self._per_chunk), -(-samples // MAX_BLOCKS))

    @property
    def offsets(self) -> Int64s:
        """First sample of each block, and the number of samples: (blocks + 1,) int64."""
        return uniform_blocks(self._samples, self._size)

    @property
    def open(self) -> int:
        """Number of blocks whose decoded chunks fit into the cache together, at least 1."""
        block_bytes = max(self._chunk_bytes, self._size / self._per_chunk * self._chunk_bytes)
        return max(1, int(self._room // block_bytes))

    @property
    def are_needed(self) -> bool:
        """Whether a full shuffle would decode many samples for each sample that it delivers.

        That is so if a chunk has many samples and the decoded chunks do not all fit into the cache.
        """
        decoded = self._samples / self._per_chunk * self._chunk_bytes
        return self._per_chunk > MAX_DECODED and decoded > self._room


def _room(store: Store, samples: int) -> float:
    largest = _largest(store)
    if not (largest.pooled and len(largest) == samples):
        return CACHE_SHARE * CHUNKS.limit
    first = store.example
    beside = (first.array(path) for path in first.paths())
    pooled = [array for array in beside if array.pooled and len(array) == first.sample_count]
    beside_bytes = sum(samples * _row_bytes(array) for array in pooled)
    return CACHE_SHARE * POOL_BYTES * samples * _row_bytes(largest) / max(1, beside_bytes)


def samples_per_chunk(store: Store, samples: int) -> tuple[float, int]:
    """Return the mean number of samples per chunk of the largest array, and the bytes of such a chunk."""
    largest = _largest(store)
    chunk_bytes = math.prod(largest.chunk_shape) * largest.dtype.itemsize
    whole_rows = largest.chunk_shape[1:] == largest.shape[1:]
    if whole_rows and largest.shape[0] == samples:
        return float(largest.chunk_shape[0]), chunk_bytes
    decoded = len(largest) * _row_bytes(largest)
    return chunk_bytes * samples / max(1, decoded), chunk_bytes


def _largest(store: Store) -> StoredArray:
    first = store.example
    if not first.paths():
        raise contradiction(store, "zarr.json", "lists no array")
    arrays = map(first.array, first.paths())
    largest = max(arrays, key=lambda array: len(array) * _row_bytes(array))
    return store.array(largest.path)


def _row_bytes(array: StoredArray) -> int:
    return math.prod(array.shape[1:]) * array.dtype.itemsize
