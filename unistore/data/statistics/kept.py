"""The file beside a store's arrays that keeps its statistics."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from unistore.data.parts import default_kind
from unistore.data.statistics.bins import Histogram
from unistore.data.statistics.moments import Moments
from unistore.data.statistics.record import Share, Statistics, statistics_from
from unistore.data.statistics.summary import Form, Summary, summarise
from unistore.data.statistics.whole import whole_kind
from unistore.errors import InputError, Problem, StoreError
from unistore.remote.url import local_path
from unistore.store.names import STATISTICS
from unistore.store.reader import Store, open_storage
from unistore.system.hints import AnyArray, PathLike, UInt8s
from unistore.zarr3.durable import Folder
from unistore.zarr3.storage import AbsentError

_VERSION = 1
_LIMIT = 1 << 30
"""Most bytes of the file, and of what is packed in it."""
_ABOUT = "about"
_ROUNDING = 1e-9
"""Moments that another version of numpy adds up differ by less, as a share."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Summaries of the keys of a kind of samples."""

    kind: str  # as Python expression
    summaries: Mapping[str, Summary]

    def statistics(self, path: str) -> dict[str, Statistics]:
        """Return statistics of all samples, by key."""
        return {key: _all_of(path, key, summary) for key, summary in self.summaries.items()}


def _all_of(path: str, key: str, summary: Summary) -> Statistics:
    def histogram() -> Histogram:
        return summary.histogram.by_component(None, summary.form.components)

    return statistics_from(key, [Share(path, summary.form, summary.moments, histogram)], None)


def splits_of(store: Store) -> UInt8s:
    """Return the split of each sample, (samples,); 0 in a store without splits."""
    return store.splits()[0] if store.has("splits/code") else np.zeros(store.sample_count, np.uint8)


def compute(store: Store) -> Kept:
    """Read all samples of a store once; returns what its file keeps.

    Raises
    ------
    InputError
        If nothing says how the samples of the store are read whole.
    """
    kind = whole_kind(default_kind(store))
    if kind is None:
        message = "its family's kind of samples does not say how they are read whole"
        raise InputError(Problem(store.path, message, "ask a Dataset for statistics", "family"))
    keys = kind.select(store, None)
    reader = kind.bind(store, keys, None)
    return Kept(repr(kind), summarise(reader, keys, np.arange(len(reader)), splits_of(store)))


def keep_statistics(path: PathLike) -> dict[str, Statistics]:
    """Compute the statistics of a store, and keep them in its folder.

    All samples are read once. The statistics are in a file of their own, ``unistore-statistics.npz``: the
    sealed files of the store do not change. `Dataset.statistics`, ``unistore inspect`` and
    ``unistore verify`` read it.

    Parameters
    ----------
    path
        Folder of the store.

    Returns
    -------
    dict of str to Statistics
        Statistics of all samples, by key.

    Raises
    ------
    StoreError
        If there is no finished store at `path`.
    InputError
        If `path` is in an object store, or the file cannot be written.
    """
    store = Store(path)
    folder = local_path(store.path)
    if folder is None:
        message = "is in an object store, where no file is added to a sealed store"
        cure = "run the command on a copy in a folder, and upload its unistore-statistics.npz"
        raise InputError(Problem(store.path, message, cure, "option"))
    kept = compute(store)
    try:
        Folder(Path(folder)).put(STATISTICS, [to_bytes(store, kept)])
    except OSError as error:
        message = f"{STATISTICS} cannot be written ({error.strerror})"
        raise InputError(Problem(store.path, message, "make the folder writable", "option")) from error
    return kept.statistics(store.path)


def to_bytes(store: Store, kept: Kept) -> bytes:
    """Return the content of the file, the same for the same values."""
    about: dict[str, Any] = {
        "version": _VERSION,
        "seal": store.attributes["seal"]["digest"],
        "kind": kept.kind,
        "keys": {},
    }
    arrays: dict[str, Any] = {}
    for number, (key, summary) in enumerate(kept.summaries.items()):
        form = summary.form
        about["keys"][key] = {
            "number": number,
            "dtype": form.dtype.name,
            "axis": form.axis,
            "components": form.components,
            "by_sample": form.by_sample,
        }
        arrays |= {f"{number}.{name}": values for name, values in _arrays(summary)}
    text = json.dumps(about, indent=1).encode()
    content = io.BytesIO()
    arrays[_ABOUT] = np.frombuffer(text, np.uint8)
    np.savez_compressed(content, **arrays)
    return content.getvalue()


def _arrays(summary: Summary) -> Iterator[tuple[str, AnyArray]]:
    for part in fields(Moments):
        yield part.name, getattr(summary.moments, part.name)
    yield "split", summary.split
    yield "bins", summary.histogram.bins
    yield "counts", summary.histogram.counts


def read_kept(store: Store) -> Kept | None:
    """Read the statistics that are kept with a store; None if there are none, or they are of another store.

    Raises
    ------
    StoreError
        If the file is damaged.
    """
    try:
        content = open_storage(store.path).get(STATISTICS, _LIMIT)
    except AbsentError:
        return None
    try:
        return _parse(store, content)
    except (ValueError, KeyError, TypeError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        message = f"{STATISTICS} is damaged ({error})"
        msg = f"{store.path}: {message}; remove it, or run 'unistore statistics {store.path}'"
        raise StoreError(msg) from error


def _parse(store: Store, content: bytes) -> Kept | None:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
    if unpacked > _LIMIT:
        msg = f"holds {unpacked} bytes, {_LIMIT} at most"
        raise ValueError(msg)
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        about = json.loads(arrays[_ABOUT].tobytes())
        if about["version"] != _VERSION or about["seal"] != store.attributes["seal"]["digest"]:
            return None
        summaries = {str(key): _summary(form, arrays) for key, form in dict(about["keys"]).items()}
    for key, summary in summaries.items():
        if summary.form.by_sample and len(summary.moments) != store.sample_count:
            msg = f"has {len(summary.moments)} samples of {key}, the store {store.sample_count}"
            raise ValueError(msg)
    return Kept(str(about["kind"]), summaries)


def kept_problem(store: Store) -> str | None:
    """Return what is wrong with the statistics that are kept with a store, which is read; None: nothing.

    None as well where there are none.
    """
    try:
        kept = read_kept(store)
    except StoreError as error:
        return str(error).removeprefix(f"{store.path}: {STATISTICS} ")
    if kept is None:
        return None
    computed = compute(store)
    if (kept.kind, [*kept.summaries]) != (computed.kind, [*computed.summaries]):
        return "has other keys than the samples"
    for key, summary in kept.summaries.items():
        if not _is_same(summary, computed.summaries[key]):
            return f"has statistics of {key} that are not those of its values"
    return None


def _is_same(summary: Summary, other: Summary) -> bool:
    """Return whether counts are equal, and moments are but for the order of additions."""
    pairs = zip(_arrays(summary), _arrays(other), strict=True)
    return summary.form == other.form and all(_are_close(own, values) for (_, own), (_, values) in pairs)


def _are_close(values: AnyArray, other: AnyArray) -> bool:
    if values.shape != other.shape:
        return False
    return np.allclose(values, other, _ROUNDING if values.dtype.kind == "f" else 0.0, 0.0, equal_nan=True)


def _summary(about: Mapping[str, Any], arrays: Mapping[str, AnyArray]) -> Summary:
    number = int(about["number"])
    components = int(about["components"])
    axis = None if about["axis"] is None else int(about["axis"])
    form = Form(np.dtype(str(about["dtype"])), axis, components, bool(about["by_sample"]))
    split = _checked(arrays[f"{number}.split"], "u", (-1,))
    moments = {}
    for part in fields(Moments):
        kind = "i" if part.name in ("count", "nan", "infinite") else "f"
        moments[part.name] = _checked(arrays[f"{number}.{part.name}"], kind, (len(split), components))
    bins = _checked(arrays[f"{number}.bins"], "i", (-1,))
    counts = _checked(arrays[f"{number}.counts"], "i", (len(bins),))
    if len(bins) and (bins[0] < 0 or (np.diff(bins) <= 0).any()):
        raise ValueError("bins are not in their order")
    return Summary(form, Moments(**moments), split, Histogram(bins, counts))


def _checked(values: AnyArray, kind: str, shape: tuple[int, ...]) -> AnyArray:
    """Return an array of the file; ValueError if its dtype or shape is not what it must be."""
    is_shape = values.ndim == len(shape) and all(
        extent in (-1, own) for extent, own in zip(shape, values.shape, strict=True)
    )
    if values.dtype.kind != kind or not is_shape:
        msg = f"an array is {values.dtype} {values.shape}, expected kind {kind} and shape {shape}"
        raise ValueError(msg)
    return values
