"""The stores of a Dataset: one, or several with the same kind of samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import PurePosixPath
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from unistore.converters.registry import get_family
from unistore.data.kinds.joined import JoinedReader
from unistore.data.kinds.named import parse_kind
from unistore.data.kinds.protocol import INDEX, SOURCE, Picks, SampleKind, SampleReader
from unistore.data.kinds.reach import check_reach
from unistore.errors import InputError, Problem, first_few
from unistore.store.reader import Store
from unistore.system.arguments import matches_type
from unistore.zarr3.storage import AbsentError

T = TypeVar("T")
_BLOCK = 1 << 16
"""Samples whose sources are read together."""


class DatasetPart(NamedTuple):
    """The samples of one store."""

    store: Store
    kind: SampleKind
    splits: tuple[str, ...] | None  # names of the splits to read; None: all samples
    name: str  # the end of the store's path, as long as it takes to be unique in the Dataset

    def bind(self, fields: Sequence[str]) -> SampleReader:
        """Return the reader of this process."""
        return self.kind.bind(self.store, fields, self.units())

    def units(self) -> NDArray[np.int64] | None:
        """Return rows of the sample table that the splits select; None: all."""
        if self.splits is None:
            return None
        codes, names = self.store.splits()
        return np.flatnonzero(np.isin(codes, [names.index(name) for name in self.splits]))

    def source_of(self, index: int) -> str:
        """Name of the source that a sample comes from."""
        picks = Picks(np.array([index]), np.zeros(1, np.int64))
        return str(self.bind((SOURCE,)).read(picks, np.empty)[SOURCE].values[0])

    def source_starts(self) -> NDArray[np.int64]:
        """Return the first sample of each source that has any."""
        reader = self.bind((SOURCE,))
        starts = []
        names = [""]
        for lo in range(0, len(reader), _BLOCK):
            index = np.arange(lo, min(lo + _BLOCK, len(reader)))
            sources = reader.read(Picks(index, np.zeros_like(index)), np.empty)[SOURCE].values
            new = np.flatnonzero(np.concatenate(([sources[0] != names[-1]], sources[1:] != sources[:-1])))
            starts.append(new + lo)
            names += sources[new].tolist()
        if len(set(names)) < len(names):
            message = (
                "samples of one source do not follow one another, so that they cannot be taken file by file"
            )
            raise InputError(Problem(self.store.path, message, 'shuffle="blocks"', "option"))
        return np.concatenate(starts).astype(np.int64) if starts else np.empty(0, np.int64)

    def check_splits(self) -> None:
        """Raise an InputError if the store lacks one of the splits; the message lists those that it has."""
        try:
            split_names = self.store.split_names()
        except AbsentError:
            split_names = []
        unknown = [name for name in self.splits or () if name not in split_names]
        if unknown:
            available = (
                f"it has {', '.join(split_names)}"
                if split_names
                else "it has none (unistore convert --split)"
            )
            msg = f"{self.store.path}: no split {', '.join(map(repr, unknown))}; {available}"
            raise InputError(msg)


def default_kind(store: Store) -> SampleKind:
    """Return the default kind of samples of a store."""
    try:
        kind: SampleKind = get_family(store.family).part("kind")(store)
    except InputError as error:
        msg = f"{store.path}: {error}; or give the kind of samples, as in samples=unistore.Rows()"
        raise InputError(msg) from error
    return kind


def open_parts(
    paths: Sequence[str],  # folders or URLs, at least one
    # kind of samples, or its name; None: the default kind, which must be the same for all stores
    kind: SampleKind | str | None,
    splits: tuple[str, ...] | None,  # names of splits; None: all samples
    cache: Mapping[str, Any],  # arguments of `Store` for local copies
) -> tuple[DatasetPart, ...]:
    """Open the stores of a Dataset."""
    if not paths:
        raise InputError("no store is given: Dataset takes a path, or a list of paths")
    if isinstance(kind, str):
        kind = parse_kind(kind)
    if isinstance(kind, type) or not (kind is None or hasattr(kind, "bind")):
        cure = "give an instance, as in samples=unistore.Rows()"
        raise InputError(Problem("samples", f"is {kind!r}, not a kind of samples", cure, "option"))
    stores = [Store(path, **cache) for path in paths]
    kinds = [default_kind(store) if kind is None else kind for store in stores]
    first = stores[0]
    other_stores = range(1, len(stores))
    problems = [
        Problem(
            stores[number].path,
            f"its samples are {kinds[number]} of a {stores[number].family} store, and those of "
            f"{first.path} are {kinds[0]} of a {first.family} store",
            "a Dataset has samples of one kind: give it as samples=…, or open the stores separately",
            "family",
        )
        for number in other_stores
        if stores[number].family != first.family or kinds[number] != kinds[0]
    ]
    if problems:
        raise InputError(problems)
    names = _short_names(paths)
    parts = tuple(
        DatasetPart(store, kind, splits, name) for store, kind, name in zip(stores, kinds, names, strict=True)
    )
    _call_all(lambda part: part.check_splits(), parts)
    return parts


def common_fields(
    parts: Sequence[DatasetPart],  # the stores
    # requested keys; None: the default ones, which must be the same in every store
    fields: Sequence[str] | None,
) -> tuple[str, ...]:
    """Return keys that samples of all stores have."""
    selected = _call_all(lambda part: part.kind.select(part.store, fields), parts)
    common = [key for key in selected[0] if all(key in keys for keys in selected)]
    every = dict.fromkeys(chain.from_iterable(selected))
    problems = []
    for key in every:
        if key in common:
            continue
        present = [part.name for part, keys in zip(parts, selected, strict=True) if key in keys]
        absent = [part.name for part, keys in zip(parts, selected, strict=True) if key not in keys]
        message = f"is in {first_few(present)}, but not in {first_few(absent)}"
        problems.append(Problem(f"field {key!r}", message, kind="fields"))
    if problems:
        cure = f"to read the common ones: fields={common}" if common else ""
        message = "have different fields and no common ones" if not common else "have different fields"
        raise InputError([*problems, Problem("the stores", message, cure, "fields")])
    return selected[0]


def bind_parts(parts: Sequence[DatasetPart], fields: Sequence[str]) -> SampleReader:
    """Return the reader of all samples, store after store."""
    readers = [part.bind(fields) for part in parts]
    check_reach(readers, [part.store.path for part in parts])
    return readers[0] if len(parts) == 1 else JoinedReader(readers, [part.name for part in parts])


def checked_names(names: Mapping[str, str] | None, fields: Sequence[str]) -> dict[str, str]:
    """Return the other names of fields in samples."""
    new_names: Mapping[str, str] = {} if names is None else names
    message = ""
    if not matches_type(new_names, Mapping[str, str]):
        message = f"must map keys to names, got {names!r}"
    elif unknown := [key for key in new_names if key not in fields]:
        message = f"{', '.join(unknown)}: no such field is read; there are {', '.join(fields)}"
    else:
        named = [INDEX, *(new_names.get(key, key) for key in fields if key != INDEX)]
        twice = sorted({name for name in named if named.count(name) > 1})
        message = f"several keys would be called {', '.join(twice)}" if twice else ""
    if message:
        raise InputError(Problem("names", message, "as in {'voxel': 'spike_vox'}", kind="option"))
    return dict(new_names)


def checked_weights(weights: Sequence[float], parts: Sequence[DatasetPart]) -> tuple[float, ...]:
    """Return weights of the stores as floats."""
    message = ""
    try:
        numbers = np.asarray(weights, np.float64)
    except (TypeError, ValueError):
        numbers = np.empty(0)
    if len(parts) == 1:
        message = "need several stores, and this is one"
    elif numbers.shape != (len(parts),):
        message = f"must be one number per store, {len(parts)} in all, got {weights!r}"
    elif not np.isfinite(numbers).all() or (numbers < 0).any() or not numbers.any():
        message = f"must be finite and not negative, and one of them positive, got {weights!r}"
    if message:
        raise InputError(Problem("weights", message, kind="option"))
    return tuple(numbers.tolist())


def check_drawable(weights: Sequence[float], parts: Sequence[DatasetPart], reader: SampleReader) -> None:
    """Raise an InputError if stores with a positive weight have no samples; names all of them."""
    assert isinstance(reader, JoinedReader)
    empty = [
        Problem(
            part.store.path, f"has no samples, and its weight is {weight:g}", "give it weight 0", "option"
        )
        for part, weight, count in zip(parts, weights, np.diff(reader.offsets), strict=True)
        if weight and not count
    ]
    if empty:
        raise InputError(empty)


def _call_all(function: Callable[[DatasetPart], T], parts: Sequence[DatasetPart]) -> list[T]:
    """Return results for all parts; the InputErrors of all parts are raised as one."""
    results = []
    errors = []
    for part in parts:
        try:
            results.append(function(part))
        except InputError as error:
            errors.append((part, error))
    if len(parts) == 1 and errors and parts[0].store.path in str(errors[0][1]):
        raise errors[0][1]
    if errors:
        raise InputError(
            [
                Problem(part.store.path, str(error).removeprefix(f"{part.store.path}: "))
                for part, error in errors
            ]
        )
    return results


def _short_names(paths: Sequence[str]) -> list[str]:
    """Return ends of paths, as long as it takes to be unique."""
    split = [PurePosixPath(path.split("://", 1)[-1]).parts for path in paths]
    for length in range(1, max(map(len, split))):
        ends = ["/".join(parts[-length:]) for parts in split]
        if len(set(ends)) == len(set(split)):
            return ends
    return ["/".join(parts) for parts in split]
