"""The stores of a Dataset: they are opened, checked, and bound to a reader of their samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby
from pathlib import PurePosixPath
from typing import Any, NamedTuple, TypeVar

import numpy as np

from unistore.data.blocks import largest_array
from unistore.data.default_kind import first_natural_kind, fitting_kind
from unistore.data.joined import JoinedReader
from unistore.data.kinds.named import as_code, parse_kind
from unistore.data.kinds.protocol import INDEX, SOURCE, SampleIndices, SampleKind, SampleReader
from unistore.data.packed import offsets_from_lengths
from unistore.data.where import Where
from unistore.errors import InputError, Problem, RunCommand, first_few
from unistore.store.joined import JoinedStore
from unistore.store.reader import Store
from unistore.store.side_tables import folders_beside
from unistore.store.versions import OpenedStores, Part, Version, open_stores
from unistore.system.arguments import Arguments, matches_type, wrong_argument
from unistore.system.types import Int64s
from unistore.zarr3.joined import UnalikeError
from unistore.zarr3.storage import AbsentError

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
    offsets : int64 array of shape (parts + 1,)
        First sample of each part, then the number of samples.
    """

    parts: tuple[DatasetPart, ...]
    reader: SampleReader
    offsets: Int64s


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
    offsets = offsets_from_lengths(np.array([len(reader) for reader in readers]))
    reader = readers[0]
    if len(parts) > 1:
        names = [part.name for part in parts]
        reader = JoinedReader(readers, offsets, names, [part.prefix for part in parts])
    for part in parts:
        if isinstance(part.store, JoinedStore):
            largest_array(part.store)  # which the order of blocks depends on
    return BoundParts(tuple(parts), reader, offsets)


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
