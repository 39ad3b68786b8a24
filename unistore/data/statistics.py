"""`Statistics` of the values of a key, and the file in a store's folder that keeps them."""

from __future__ import annotations

import io
import json
import os
import warnings
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from unistore.data.component_axis import AxisLike, ComponentAxis, is_asked_for
from unistore.data.counts import CODES, Summary, ValueCounts, component_axes, merge, summarise
from unistore.data.default_kind import default_kind
from unistore.data.kinds.protocol import SampleKind, SampleReader
from unistore.data.parts import DatasetPart, check_reach, open_parts
from unistore.errors import InputError, Problem, StoreError
from unistore.progress import resolve_progress
from unistore.remote.url import local_path
from unistore.store.names import STATISTICS
from unistore.store.reader import Store, open_storage
from unistore.store.versions import OpenedStores, open_stores
from unistore.system.arguments import wrong_argument
from unistore.system.progress import NO_PROGRESS, Progress, ProgressLike, begin_items
from unistore.system.types import AnyArray, Float64s, Int64s, JsonObject, PathLike, UInt8s
from unistore.zarr3.documents import parse_document
from unistore.zarr3.durable import Folder
from unistore.zarr3.storage import AbsentError

_SHARES = (0.01, 0.1, 0.5, 0.9, 0.99)  # Share of the values that each quantile is not below
_VERSION = 4
_LIMIT = 1 << 30  # Most bytes of the file, and of what is packed in it
_ABOUT = "about"
# Arrays of a key with a row for each split, and their kind of dtype
_MOMENTS = {"count": "i", "nan": "i", "infinite": "i", "mean": "f", "deviation": "f", "low": "f", "high": "f"}
_ROUNDING = 1e-9  # Moments that another version of numpy adds up differ by less, as a share

# What was counted, by key, of stores, kinds and the axis that was asked for
Summaries = dict[tuple[str, str, AxisLike], dict[str, Summary]]


@dataclass(frozen=True, eq=False, repr=False)
class Statistics:
    """Statistics of the finite values of one key, per component, in the units of the samples.

    Arrays are ``(A,)`` for an action of A numbers, ``(3,)`` for images in colour, and ``()`` if all values
    are one component, as of scalars, images without channels, and volumes. `axis` and `axis_name` say which
    axis of a sample has the components; `Dataset.statistics` describes how it is chosen.

    Attributes
    ----------
    key : str
        The key.
    axis
        Axis of the components in a sample, counted from its end: -1 for vectors, -3 for images (3, H, W).
        None: a single component.
    axis_name
        Name of this axis in the store, as ``"channel"``. None: a single component, or the store has no name.
    count, nan, infinite
        int64: finite values, on which all else depends, those that are not a number, and infinite ones.
    mean, std, min, max
        Mean and standard deviation (ddof 0), smallest and largest value. NaN where there is no finite value.
    q01, q10, q50, q90, q99
        Quantiles: 1 %, …, 99 % of the values are not above it. Within 0.4 % of a value that is there.
    """

    key: str
    axis: int | None
    axis_name: str | None
    count: Int64s
    nan: Int64s
    infinite: Int64s
    mean: Float64s
    std: Float64s
    min: Float64s
    max: Float64s
    q01: Float64s
    q10: Float64s
    q50: Float64s
    q90: Float64s
    q99: Float64s

    def to_json(self) -> JsonObject:
        """Return plain JSON values by name, without the key. Null for what is not finite."""
        numbers = {field.name: _plain(getattr(self, field.name)) for field in fields(self)[3:]}
        return {"axis": self.axis, "axis_name": self.axis_name, **numbers}

    def __repr__(self) -> str:
        if self.axis is None:
            return f"Statistics({self.key!r}: {self.count:,} values, one component)"
        name = f" ({self.axis_name})" if self.axis_name else ""
        components = f"{len(self.count)} components along axis {self.axis}{name}"
        return f"Statistics({self.key!r}: {int(self.count.sum()):,} values, {components})"


def _plain(values: AnyArray) -> Any:
    shown = np.asarray(values).astype(object)
    shown[~np.isfinite(np.asarray(values, np.float64))] = None
    return shown.tolist()


def _statistics(key: str, summary: Summary, counts: ValueCounts, *, whole: bool) -> Statistics:
    is_none = counts.count == 0
    is_constant = counts.low == counts.high
    std = np.sqrt(counts.deviation / np.maximum(counts.count, 1))
    measured = (
        np.where(is_constant, counts.low, counts.mean),
        np.where(is_constant, 0.0, std),
        counts.low,
        counts.high,
        *counts.quantiles(_SHARES, whole=whole),
    )
    shown: list[AnyArray] = [counts.count, counts.nan, counts.infinite]
    shown += [np.where(is_none, np.nan, values) for values in measured]
    if summary.axis is None:
        shown = [values[0] for values in shown]
    index, name = _index_and_name(summary.axis)
    return Statistics(key, index, name, *shown)


def _index_and_name(axis: ComponentAxis | None) -> tuple[int | None, str | None]:
    return (None, None) if axis is None else (axis.index, axis.name)


def statistics_by_key(summaries: Mapping[str, Summary]) -> dict[str, Statistics]:
    """Return the statistics of all values, by key."""
    return {
        key: _statistics(key, summary, summary.total(), whole=summary.dtype.kind in "biu")
        for key, summary in summaries.items()
    }


@dataclass(frozen=True, slots=True)
class StatisticsQuery:
    """A question for the statistics of one key.

    Attributes
    ----------
    key : str
        The key.
    epoch, seed : int
        They determine random samples.
    summaries : dict
        Results for whole stores, which are kept for later questions.
    """

    key: str
    epoch: int
    seed: int
    summaries: Summaries
    axis: AxisLike = "auto"

    def answer(
        self,
        parts: Sequence[DatasetPart],
        weights: Sequence[float] | None,
        subsets: Sequence[Int64s] | None,
    ) -> Statistics:
        """Return the statistics of the samples of several parts.

        Parameters
        ----------
        parts : sequence of DatasetPart
            The parts.
        weights : sequence of float or None
            Weight of each part: the statistics then describe values drawn by weight. None: all values
            count once.
        subsets : sequence of int64 array, or None
            Samples of each part. None: all samples.

        Raises
        ------
        InputError
            If there is no such key, it has texts, or parts differ in its components.
        """
        drawn = [number for number in range(len(parts)) if weights is None or weights[number] > 0]
        counted = [
            self._count(parts[number], None if subsets is None else subsets[number]) for number in drawn
        ]
        first = counted[0][0]
        counts = [counts for _, counts in counted]
        for number, (summary, own) in zip(drawn, counted, strict=True):
            if len(own.count) != len(counts[0].count) or not _has_same_axis(summary, first):
                message = (
                    f"{self.key!r} has {len(own.count)} components here, but {len(counts[0].count)} in the "
                    "first store"
                )
                fix = "compute the statistics of each store separately"
                raise wrong_argument(parts[number].store.path, message, fix)
        are_whole_numbers = all(summary.dtype.kind in "biu" for summary, _ in counted)
        together = merge(counts, None if weights is None else [weights[number] for number in drawn])
        return _statistics(self.key, first, together, whole=are_whole_numbers)

    def _count(self, part: DatasetPart, subset: Int64s | None) -> tuple[Summary, ValueCounts]:
        whole_kind = self._whole(part)
        if whole_kind is None or (subset is not None and whole_kind != part.kind):
            if not part.kind.select(part.store, (self.key,)):
                raise wrong_argument("key", f"{self.key!r} is not a value of the samples")
            whole_kind = part.kind
            reader = self._reader(part.store, whole_kind, part.units())
            check_reach([reader], [part.store.path])
        elif subset is None and part.where is None:
            summary = self._kept(part.store, whole_kind)
            return summary, summary.total(None if part.splits is None else part.split_codes())
        else:
            reader = self._reader(part.store, whole_kind, part.units())
        index = np.arange(len(reader)) if subset is None else subset
        summary = self._summarise(part.store, whole_kind, reader, index, np.zeros(len(index), np.uint8))
        return summary, summary.total()

    def _whole(self, part: DatasetPart) -> SampleKind | None:
        whole_kind = None if part.kind.computes(self.key) else part.kind.whole
        if whole_kind is None:
            return None
        try:
            has_key = self.key in whole_kind.select(part.store, (self.key,))
        except InputError:
            return None
        is_one_per_row = (
            has_key and len(whole_kind.bind(part.store, (self.key,), None)) == part.store.sample_count
        )
        return whole_kind if is_one_per_row else None

    def _kept(self, store: Store, whole: SampleKind) -> Summary:
        name = (store.path, repr(whole), self.axis)
        if name not in self.summaries:
            kept = read_kept(store, repr(whole)) or {}
            if self.axis != "auto":
                kept = {
                    key: summary for key, summary in kept.items() if is_asked_for(summary.axis, self.axis)
                }
            self.summaries[name] = kept
        summaries = self.summaries[name]
        if self.key not in summaries:
            index = np.arange(store.sample_count)
            reader = self._reader(store, whole, None)
            summaries[self.key] = self._summarise(store, whole, reader, index, _splits_of(store))
        return summaries[self.key]

    def _reader(self, store: Store, kind: SampleKind, units: Int64s | None) -> SampleReader:
        return kind.bind(store, (self.key, *kind.validity(store, self.key)), units)

    def _summarise(
        self, store: Store, kind: SampleKind, reader: SampleReader, index: Int64s, splits: UInt8s
    ) -> Summary:
        axes, problems = component_axes(reader, (self.key,), self.axis)
        if problems:
            raise InputError(problems)
        if self.key not in axes:
            message = f"{self.key!r} is text in {store.path}, but statistics need numbers"
            raise wrong_argument("key", message)
        validity = {self.key: kind.validity(store, self.key)}
        return summarise(reader, axes, index, splits, self.epoch, self.seed, validity)[self.key]


def _has_same_axis(summary: Summary, other: Summary) -> bool:
    return _index_and_name(summary.axis)[0] == _index_and_name(other.axis)[0]


def _splits_of(store: Store) -> UInt8s:
    return store.splits()[0] if store.has("splits/code") else np.zeros(store.sample_count, np.uint8)


# The file that keeps statistics.


def _whole_kind(store: Store) -> SampleKind:
    kind = default_kind(store).whole
    if kind is None:
        message = "the default sample kind of this store cannot read whole samples"
        raise InputError(Problem(store.path, message, "use Dataset.statistics instead", "family"))
    return kind


def _count_all(store: Store, kind: SampleKind, progress: Progress = NO_PROGRESS) -> dict[str, Summary]:
    keys = kind.select(store, None)
    reader = kind.bind(store, keys, None)
    validity = {key: kind.validity(store, key) for key in keys}
    axes, _ = component_axes(reader, _counted_keys(validity))
    count = begin_items(progress, "counting", len(reader))
    splits = _splits_of(store)
    return summarise(reader, axes, np.arange(len(reader)), splits, validity=validity, count=count)


def _counted_keys(validity: Mapping[str, Sequence[str]]) -> list[str]:
    # Those that say which values of others are real have no statistics
    return [key for key in validity if all(key not in names for names in validity.values())]


def undecided_axes(store: Store, kind: SampleKind) -> list[Problem]:
    """Return a problem for each key of which several axes may be the components."""
    keys = kind.select(store, None)
    validity = {key: kind.validity(store, key) for key in keys}
    return component_axes(kind.bind(store, keys, None), _counted_keys(validity))[1]


def keep_statistics(
    path: PathLike, *, version: int | str | None = None, progress: ProgressLike = None
) -> dict[str, Statistics]:
    """Compute the statistics of a store, and keep them in its folder.

    All samples are read once. The statistics are written to a separate file, ``unistore-statistics.npz``;
    the sealed files of the store do not change. `Dataset.statistics`, ``unistore inspect`` and ``unistore
    verify`` read it.

    Parameters
    ----------
    path
        Folder of the store. Each part of a grown one keeps its own statistics.
    version
        Number or name of the version of a grown store. None: the newest.
    progress
        As of `unistore.convert`: a stage for each store, which counts samples.

    Returns
    -------
    dict of str to Statistics
        Statistics of all samples, by key, without those that the version leaves out. Keys are missing, with a
        warning, if several axes may be their components: `Dataset.statistics` takes the `axis` of these.

    Raises
    ------
    StoreError
        If there is no finished store at `path`.
    InputError
        If there is no such version, `path` is in an object store, or the file cannot be written.

    Examples
    --------
    >>> statistics = unistore.keep_statistics("demos.zarr")  # doctest: +SKIP
    >>> statistics["action"].mean.shape  # doctest: +SKIP
    (7,)
    """
    opened = open_stores(os.fspath(path), version)
    kind = _whole_kind(opened.stores[0])
    for problem in undecided_axes(opened.stores[0], kind):
        warnings.warn(f"the statistics are not saved: {problem}", stacklevel=2)
    summaries: Summaries = {}
    with resolve_progress(progress) as callbacks:
        for store in opened.stores:
            summaries[store.path, repr(kind), "auto"] = _keep(store, kind, callbacks)
    parts = open_parts([opened.path], kind, None, {}, version=version)
    keys = list(next(iter(summaries.values())))
    return {key: StatisticsQuery(key, 0, 0, summaries).answer(parts, None, None) for key in keys}


def kept_of_version(opened: OpenedStores) -> dict[str, Statistics]:
    """Return the statistics that the parts of a version keep, of all samples together, by key.

    Empty unless every part keeps them and the version leaves nothing out.
    """
    if any(opened.removed):
        return {}
    kind = _whole_kind(opened.stores[0])
    summaries: Summaries = {}
    for store in opened.stores:
        kept = read_kept(store, repr(kind))
        if kept is None:
            return {}
        summaries[store.path, repr(kind), "auto"] = kept
    assert opened.version is not None
    parts = open_parts([opened.path], kind, None, {}, version=opened.version.number)
    keys = set.intersection(*[set(kept) for kept in summaries.values()])
    first = next(iter(summaries.values()))
    query = partial(StatisticsQuery, epoch=0, seed=0, summaries=summaries)
    return {key: query(key).answer(parts, None, None) for key in first if key in keys}


def _keep(store: Store, kind: SampleKind, progress: Progress) -> dict[str, Summary]:
    folder = local_path(store.place)
    if folder is None:
        message = "is in a bucket, where unistore adds no file to a sealed store"
        fix = f"run 'unistore statistics' on a local copy, and upload its {STATISTICS}"
        raise wrong_argument(store.path, message, fix)
    summaries = _count_all(store, kind, progress)
    try:
        Folder(Path(folder)).put(STATISTICS, [_to_bytes(store, repr(kind), summaries)])
    except OSError as error:
        message = f"{STATISTICS} cannot be written: {error.strerror}"
        raise wrong_argument(store.path, message, "make the folder writable") from error
    return summaries


def _to_bytes(store: Store, kind: str, summaries: Mapping[str, Summary]) -> bytes:
    keys = {}
    arrays: dict[str, Any] = {}
    for number, (key, summary) in enumerate(summaries.items()):
        dtype = summary.dtype.name
        index, name = _index_and_name(summary.axis)
        keys[key] = {"number": number, "dtype": dtype, "axis": index, "axis_name": name}
        arrays |= {f"{number}.{name}": values for name, values in _arrays(summary).items()}
    seal = store.root.seal.digest
    text = json.dumps({"version": _VERSION, "seal": seal, "kind": kind, "keys": keys}, indent=1)
    content = io.BytesIO()
    arrays[_ABOUT] = np.frombuffer(text.encode(), np.uint8)
    np.savez_compressed(content, **arrays)
    return content.getvalue()


def _arrays(summary: Summary) -> dict[str, AnyArray]:
    counts = list(summary.by_split.values())
    arrays = {name: np.stack([getattr(part, name) for part in counts]) for name in _MOMENTS}
    lengths = [len(part.bins) for part in counts]
    return arrays | {
        "split": np.array(list(summary.by_split), np.uint8),
        "bins": np.concatenate([part.bins for part in counts]),
        "counts": np.concatenate([part.counts for part in counts]),
        "bin_offsets": np.cumsum([0, *lengths]),
    }


def read_kept(store: Store, kind: str | None = None) -> dict[str, Summary] | None:
    """Return the statistics that a store keeps for a sample kind.

    Parameters
    ----------
    store : Store
        The store.
    kind : str, optional
        The sample kind, as its repr. None: any.

    Returns
    -------
    dict of str to Summary, or None
        Counts by key. None: the store keeps none, or for another sample kind.

    Raises
    ------
    StoreError
        If the file is damaged.
    """
    try:
        content = open_storage(store.place).get(STATISTICS, _LIMIT)
    except AbsentError:
        return None
    try:
        return _parse(store, content, kind)
    except (ValueError, KeyError, TypeError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        fix = f"Fix: run 'unistore statistics {store.path}', which writes it again"
        msg = f"{store.path}: {STATISTICS} is damaged: {error}. {fix}"
        raise StoreError(msg) from error


def _parse(store: Store, content: bytes, kind: str | None) -> dict[str, Summary] | None:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
    if unpacked > _LIMIT:
        msg = f"it has {unpacked:,} bytes, but at most {_LIMIT:,} are allowed"
        raise ValueError(msg)
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        about = parse_document(arrays[_ABOUT].tobytes())
        seal = store.root.seal.digest
        if about["version"] != _VERSION or about["seal"] != seal or about["kind"] != (kind or about["kind"]):
            return None
        return {str(key): _summary(own, arrays) for key, own in dict(about["keys"]).items()}


def _summary(about: Mapping[str, Any], arrays: Mapping[str, AnyArray]) -> Summary:
    # ValueError if an array is not what it must be
    number = int(about["number"])

    def array(name: str, kind: str, *shape: int) -> AnyArray:
        values = arrays[f"{number}.{name}"]
        if values.dtype.kind != kind or values.shape != shape:
            msg = (
                f"{name} is {values.dtype} of shape {values.shape}, expected kind '{kind}' and shape {shape}"
            )
            raise ValueError(msg)
        return values

    split_count, components = np.shape(arrays[f"{number}.count"])
    splits = array("split", "u", split_count).tolist()
    moments = [array(name, kind, split_count, components) for name, kind in _MOMENTS.items()]
    offsets = array("bin_offsets", "i", split_count + 1).tolist()
    bins = array("bins", "i", offsets[-1])
    counts = array("counts", "i", offsets[-1])
    by_split = {}
    for row, (split, (lo, hi)) in enumerate(zip(splits, pairwise(offsets), strict=True)):
        if (np.diff(bins[lo:hi], prepend=-1, append=components * CODES) <= 0).any():
            raise ValueError("the bins are not in ascending order")
        arrays_of_split: list[Any] = [*(values[row] for values in moments), bins[lo:hi], counts[lo:hi]]
        by_split[split] = ValueCounts(*arrays_of_split)
    name = None if about["axis_name"] is None else str(about["axis_name"])
    axis = None if about["axis"] is None else ComponentAxis(int(about["axis"]), name)
    return Summary(np.dtype(str(about["dtype"])), axis, by_split)


def kept_problem(store: Store) -> str | None:
    """Return what is wrong with the statistics that a store keeps, or None. It reads all samples."""
    try:
        kept = read_kept(store)
    except StoreError as error:
        return str(error).removeprefix(f"{store.path}: {STATISTICS} ")
    if kept is None:
        return None
    kind = _whole_kind(store)
    computed = _count_all(store, kind)
    if read_kept(store, repr(kind)) is None or [*kept] != [*computed]:
        return "does not have the same keys as the samples"
    for key, summary in kept.items():
        if not _is_same(summary, computed[key]):
            return f"has statistics of {key!r} that differ from the values"
    return None


def _is_same(summary: Summary, other: Summary) -> bool:
    # Moments may differ by the order of additions
    if summary[:2] != other[:2]:
        return False
    pairs = zip(_arrays(summary).values(), _arrays(other).values(), strict=True)
    return all(
        own.shape == values.shape
        and np.allclose(own, values, _ROUNDING if own.dtype.kind == "f" else 0.0, 0.0, equal_nan=True)
        for own, values in pairs
    )
