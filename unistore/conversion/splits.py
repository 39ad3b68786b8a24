"""The split of every sample: from the sources, from a list, or by shares of sources or samples."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from unistore.conversion.split_rule import (
    EXACT,
    MAX_SPLITS,
    SOURCE,
    RecordedSplits,
    SplitList,
    SplitRule,
    sample_names,
)
from unistore.converters.common.faults import as_problem
from unistore.converters.protocol import Ask, Converter, Finalized, Scan
from unistore.errors import InputError, Problem, first_few, printable
from unistore.schemas.tables import Field, IndexValues, text_values
from unistore.system.hints import AnyArray, Int64s, Shape, UInt8s
from unistore.system.packed import view
from unistore.system.sizes import count_of


@dataclass(frozen=True, slots=True, eq=False)
class RepeatedRows:
    """``np.repeat(values, counts, axis=0)`` without its memory; supports slices along axis 0."""

    values: AnyArray  # value of each run, (runs, …)
    counts: Int64s  # rows of each run, 0 or more, (runs,) int64

    def __len__(self) -> int:
        return int(self.counts.sum())

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values."""
        return self.values.dtype

    @property
    def shape(self) -> Shape:
        """Shape of the whole array."""
        return (len(self), *self.values.shape[1:])

    def __getitem__(self, rows: slice) -> AnyArray:
        lo, hi, step = rows.indices(len(self))
        bounds = np.concatenate(([0], np.cumsum(self.counts))).clip(lo, max(lo, hi))
        return np.repeat(self.values, np.diff(bounds), axis=0)[::step]


_UNASSIGNED = -1
# Seeds that are tried for a cure, with at most so many names
_SEEDS = 100
_TRIED_NAMES = 2000


def positions(names: Iterable[str], count: int, seed: int = 0) -> NDArray[np.uint64]:
    """Position of each name from 0 to 2⁶⁴ - 1, its xxh3-64, (count,)."""
    hashes = (xxhash.xxh3_64_intdigest(name.encode(), seed) for name in names)
    return np.fromiter(hashes, np.uint64, count)


def splits_at(position: NDArray[np.uint64], shares: Sequence[float]) -> UInt8s:
    """Return the number of the share that each position falls into, of shares that follow each other."""
    ends = [min(int(end * 2**64), 2**64 - 1) for end in accumulate(shares)]
    return np.searchsorted(np.array(ends[:-1], np.uint64), position, side="right").astype(np.uint8)


class UnitSplits(NamedTuple):
    """Splits of units."""

    codes: UInt8s  # (units,)
    names: tuple[str, ...]  # by code


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """What is assigned to splits: the sources, or the samples."""

    kind: str  # ``"source"``, or the name of a sample
    sizes: Int64s  # samples of each unit, (units,)
    names: Callable[[], Iterable[str]]  # makes the name of each unit
    # makes the name of what each unit is a part of and must not be divided, the unit itself as a rule
    wholes: Callable[[], Iterable[str]]
    first: Int64s  # number of the first unit of the same whole, (units,)
    values: Sequence[Any] | None = None  # value of each unit in the column that it is grouped by
    excluded: frozenset[str] = frozenset()  # names that the conversion leaves out

    @classmethod
    def of_sources(cls, scan: Scan, sizes: Int64s) -> Units:
        """Return the sources, of `sizes` samples each."""
        names = scan.sources.names
        wholes = scan.units or names
        return cls(
            kind=SOURCE,
            sizes=sizes,
            names=lambda: names,
            wholes=lambda: wholes,
            first=_first_of_units(scan),
            excluded=_excluded(scan),
        )

    @classmethod
    def of_samples(
        cls, scan: Scan, finalized: Finalized, rule: SplitRule, values: Sequence[Any] | None
    ) -> Units:
        """Return the samples."""
        owner = finalized.sample_source
        if finalized.sample_runs is not None:
            owner = np.repeat(owner, finalized.sample_runs)
        if rule.method in ("exact", ""):
            owner = _first_of_units(scan)[owner]

        def names() -> Iterator[str]:
            return sample_names(scan.sources.names, owner, finalized.sample_names)

        return cls(
            kind=rule.by,
            sizes=np.ones(len(owner), np.int64),
            names=names,
            wholes=names,
            first=np.arange(len(owner)),
            values=values,
            excluded=_excluded(scan),
        )

    def assign(self, rule: SplitRule) -> UnitSplits:
        """Assign each unit to a split."""
        if isinstance(rule.taken, RecordedSplits):
            return UnitSplits(self._recorded(rule.taken), rule.taken.names)
        if rule.taken is not None:
            return self._from_list(rule, rule.taken)
        codes = self._hashed(rule, rule.seed) if rule.method == "hash" else self._exact(rule)
        self._check_filled(rule, codes)
        return UnitSplits(codes, tuple(rule.shares))

    def reached(self, rule: SplitRule, splits: UnitSplits) -> str:
        """Return one line about the samples, and units, that each split got."""
        count = len(splits.names)
        samples = np.bincount(splits.codes, self.sizes, count)
        units = np.bincount(splits.codes, minlength=count)
        total = int(self.sizes.sum())
        single = bool((self.sizes == 1).all())
        parts = []
        for code, name in enumerate(splits.names):
            share = 100 * samples[code] / max(1, total)
            text = f"{name} {share:.3g} %"
            if not single:
                text += f" ({count_of(int(units[code]), self.kind)})"
            parts.append(text)
        noun = self.kind if single else "sample"
        method = "exact"
        if rule.method == "hash":
            method = f"--split-seed {rule.seed}"
        elif rule.method == "list":
            method = "as listed"
        return f"splits of {count_of(total, noun)}: {', '.join(parts)} ({method})"

    def _hashed(self, rule: SplitRule, seed: int) -> UInt8s:
        position = positions(self._keys(rule), len(self.sizes), seed)
        return splits_at(position, list(rule.shares.values()))

    def _keys(self, rule: SplitRule) -> Iterable[str]:
        """Return the name of each unit that is hashed: its own, or that of its group."""
        if self.values is not None:
            return (f"{rule.column}={value}" for value in self.values)
        names = _full_names(self.wholes(), rule.below)
        if rule.group_by is None:
            return names
        return _groups(names, rule.group_by)

    def _exact(self, rule: SplitRule) -> UInt8s:
        names = self.names()
        count = len(self.sizes)
        number = self.first
        if rule.group_by is not None:
            numbers: dict[str, int] = {}
            in_order = [numbers.setdefault(key, len(numbers)) for key in self._keys(rule)]
            number = np.array(in_order)
            names = numbers
            count = len(numbers)
        sizes = np.bincount(number, self.sizes, count).astype(np.int64)
        codes = _furthest_below(positions(names, count), sizes, list(rule.shares.values()))
        return codes[number]

    def _check_filled(self, rule: SplitRule, codes: UInt8s) -> None:
        """Refuse splits without samples."""
        is_former = not rule.method
        if is_former or not self.sizes.any():
            return
        samples = np.bincount(codes, self.sizes, len(rule.shares))
        empty = [name for name, size in zip(rule.shares, samples, strict=True) if not size]
        if not empty:
            return
        message = f"none of {count_of(len(self.sizes), self.kind)} falls into {first_few(empty)}"
        cure = "give more of them, or fewer splits"
        if rule.method == "hash":
            seed = self._filling_seed(rule)
            exact = f"--split {EXACT}{rule.text}, which moves samples when data is added"
            cure = f"{seed}, or {exact}"
        raise InputError(Problem(f"--split {rule.text}", message, cure, "split"))

    def _filling_seed(self, rule: SplitRule) -> str:
        """Return as a cure a seed with which every split gets samples, if one is quickly found."""
        seeds = range(_SEEDS) if len(self.sizes) <= _TRIED_NAMES else ()
        for seed in seeds:
            codes = self._hashed(rule, seed)
            samples = np.bincount(codes, self.sizes, len(rule.shares))
            if samples.all():
                return f"--split-seed {seed} fills all"
        return "another --split-seed"

    def _from_list(self, rule: SplitRule, split_list: SplitList) -> UnitSplits:
        """Return splits by a list, of units that it lacks by their group, or else by shares."""
        names = tuple(dict.fromkeys((*split_list.splits.values(), *rule.shares)))
        if len(names) > MAX_SPLITS:
            raise InputError(split_list.problem(f"has more than {MAX_SPLITS} splits", "name fewer"))
        codes = self._listed(rule, split_list, names)
        is_grouped = rule.group_by is not None or len(np.unique(self.first)) < len(self.first)
        if is_grouped:
            codes = self._of_groups(rule, split_list, names, codes)
        missing = codes == _UNASSIGNED
        if missing.any():
            if not rule.shares:
                raise InputError(self._not_listed(split_list, missing))
            code_of_share = np.array([names.index(name) for name in rule.shares])
            hashed = code_of_share[self._hashed(rule, rule.seed)]
            codes = np.where(missing, hashed, codes)
        # splits of a store may have no source any more
        present, numbered = np.unique(codes, return_inverse=True)
        return UnitSplits(numbered.astype(np.uint8), tuple(names[code] for code in present))

    def _not_listed(self, split_list: SplitList, missing: NDArray[np.bool_]) -> Problem:
        pairs = zip(self.names(), missing.tolist(), strict=True)
        names = [name for name, is_missing in pairs if is_missing]
        cure = "list them, or give --split train=0.8,val=0.2 for those that are not listed"
        return split_list.problem(f"does not name {first_few(names, 5)}", cure)

    def _listed(self, rule: SplitRule, split_list: SplitList, names: tuple[str, ...]) -> Int64s:
        """Return the code of each unit by its name in the list, or that of its source, or -1."""
        below = rule.below if split_list.from_store else ""
        code_of = {name: code for code, name in enumerate(names)}
        codes = np.full(len(self.sizes), _UNASSIGNED)
        used = set()
        units = zip(_full_names(self.names(), below), _full_names(self.wholes(), below), strict=True)
        for number, (name, whole) in enumerate(units):
            key = name
            if key not in split_list.splits:
                key = whole if self.kind == SOURCE else name.rpartition(": ")[0]
            if key in split_list.splits:
                codes[number] = code_of[split_list.splits[key]]
                used.add(key)
        self._check_used(split_list, used)
        return codes

    def _check_used(self, split_list: SplitList, used: set[str]) -> None:
        """Refuse a list with a name that is not here, and a store with no name that is."""
        if split_list.from_store and used:
            return
        unknown = []
        for name in split_list.splits:
            source = name.partition(": ")[0]
            if name not in used and self.excluded.isdisjoint((name, source)):
                unknown.append(printable(name))
        if not unknown:
            return
        cure = f"{self.kind}s are named as 'unistore inspect' shows them, below their common folder"
        if self.kind == SOURCE and any(": " in name for name in unknown):
            cure = "to name single samples, add --split-by"
        raise InputError(split_list.problem(f"names what is not here: {first_few(unknown, 5)}", cure))

    def _of_groups(
        self,
        rule: SplitRule,
        split_list: SplitList,
        names: tuple[str, ...],
        codes: Int64s,
    ) -> Int64s:
        """Return codes in which units that the list lacks have the split of their group."""
        keys = list(self._keys(rule))
        splits = [(key, names[code]) for key, code in zip(keys, codes, strict=True) if code >= 0]
        if rule.group_by is not None and self.values is None:
            splits += _splits_of_groups(rule, rule.group_by, split_list)
        code_of_group: dict[str, int] = {}
        for key, split in splits:
            code = code_of_group.setdefault(key, names.index(split))
            if names[code] != split:
                message = f"has {key} in {names[code]} and in {split}"
                cure = "one group is in one split: change the list or --group-by"
                raise InputError(split_list.problem(message, cure))
        return np.array([code_of_group.get(key, _UNASSIGNED) for key in keys])

    def _recorded(self, recorded: RecordedSplits) -> UInt8s:
        """Return the codes that a store records.

        Zeros if they are of other sources, which the comparison of a store with its sources names.
        """
        count = len(self.sizes)
        try:
            raw = zlib.decompressobj().decompress(recorded.codes, count + 1)
        except zlib.error:
            raw = b""
        codes = np.frombuffer(raw, np.uint8)
        if len(codes) != count or (codes >= len(recorded.names)).any():
            return np.zeros(count, np.uint8)
        return codes


def _splits_of_groups(rule: SplitRule, group_by: str, split_list: SplitList) -> Iterator[tuple[str, str]]:
    """Return group and split of each name in a list: a group keeps its split when members have gone."""
    pattern = re.compile(group_by)
    below = "" if split_list.from_store else rule.below
    names = _full_names(split_list.splits, below)
    for name, split in zip(names, split_list.splits.values(), strict=True):
        match = pattern.search(name)
        if match is not None:
            yield _group_of(match), split


def _excluded(scan: Scan) -> frozenset[str]:
    return frozenset(scan.options.get("exclude", ()))


def _furthest_below(position: NDArray[np.uint64], sizes: Int64s, shares: Sequence[float]) -> UInt8s:
    """Visit units in the order of their positions; assign each to the split furthest below its share."""
    order = np.argsort(position, kind="stable")
    assigned = [0] * len(shares)
    total = 0
    codes = bytearray()
    for size in sizes[order].tolist():  # Python ints are faster than numpy scalars
        total += size
        missing = [share * total - have for share, have in zip(shares, assigned, strict=True)]
        code = missing.index(max(missing))
        codes.append(code)
        assigned[code] += size
    by_unit = np.empty(len(sizes), np.uint8)
    by_unit[order] = np.frombuffer(codes, np.uint8)
    return by_unit


def _first_of_units(scan: Scan) -> Int64s:
    """Return for each source, the first source that belongs together with it, (sources,)."""
    if not scan.units:
        return np.arange(len(scan.sources))
    first: dict[str, int] = {}
    return np.array([first.setdefault(unit, number) for number, unit in enumerate(scan.units)])


def _full_names(names: Iterable[str], below: str) -> Iterable[str]:
    if not below:
        return names
    return (f"{below}/{name}" for name in names)


def _groups(names: Iterable[str], pattern: str) -> Iterator[str]:
    """Yield the group of each name."""
    compiled = re.compile(pattern)
    without: list[str] = []
    for name in names:
        match = compiled.search(name)
        if match is None:
            without.append(name)
        else:
            yield _group_of(match)
    if without:
        message = f"does not match {first_few(without, 5)}"
        cure = "give a pattern that matches every name, as in 'patient_\\d+|phantom'"
        raise InputError(Problem(f"--group-by {pattern}", message, cure, "option"))


def _group_of(match: re.Match[str]) -> str:
    group = match.group(match.re.groups)
    return match.group() if group is None else group


Codes: TypeAlias = UInt8s | RepeatedRows
"""Split code of each sample, (samples,) uint8."""
ReadColumn = Callable[[str], Sequence[Any]]
"""Values of a column of the sample table, one a sample."""

OTHER = "other"
"""Split of sources without one, if others have one."""
KEPT = "the splits that the sources name were kept; --split was ignored"
MOVES = "splits by exact shares: sources that are added or left out move others to another split"


class Assigned(NamedTuple):
    """Splits of all samples."""

    codes: Codes
    names: tuple[str, ...]  # by code; empty: the store has no splits
    notes: tuple[str, ...] = ()
    found: Mapping[str, Any] = {}  # what the root records so that they can be assigned again


def prepare_splits(rule: SplitRule | None, paths: Sequence[Path], scan: Scan) -> SplitRule | None:
    """Return a rule for the sources of a scan under the given paths."""
    if rule is None:
        return None
    prepared = rule.prepared(paths, scan)
    if prepared.by != SOURCE:
        return prepared
    sources = len(scan.sources)
    if sources < len(rule.shares) and rule.taken is None:
        names = ", ".join(rule.shares)
        sample = scan.sample_table.rpartition("/")[2].removesuffix("s")
        msg = (
            f"--split: {len(rule.shares)} splits ({names}) of {count_of(sources, 'source')}: "
            f"a source is never divided, so give at least one source for each split, or --split-by {sample}"
        )
        raise InputError(msg)
    Units.of_sources(scan, np.ones(sources, np.int64)).assign(prepared)
    return prepared


def assign_splits(
    scan: Scan,
    finalized: Finalized,
    rule: SplitRule | None,  # a prepared rule; None: splits come from the sources
    read_column: ReadColumn | None = None,  # reads the column that `rule` groups by
) -> Assigned:
    """Assign each sample to a split."""
    if rule is None:
        return _of_sources(scan, finalized)
    if rule.by != SOURCE and finalized.splits is not None and rule.taken is None:
        return _of_sources(scan, finalized)._replace(notes=(KEPT,))
    if rule.by == SOURCE:
        units = Units.of_sources(scan, _samples_of_sources(scan, finalized))
    else:
        values = None
        if rule.column is not None and read_column is not None:
            values = read_column(rule.column)
        units = Units.of_samples(scan, finalized, rule, values)
    splits = units.assign(rule)
    codes: Codes = splits.codes
    if rule.by == SOURCE:
        codes = _of_samples(splits.codes, finalized)
    notes = [units.reached(rule, splits)]
    if rule.method == "exact":
        notes.append(MOVES)
    found_in_values = {}
    if rule.taken is not None:
        packed = base64.b64encode(zlib.compress(splits.codes.tobytes()))
        found_in_values["splits"] = {"names": list(splits.names), "codes": packed.decode()}
    return Assigned(codes, splits.names, tuple(notes), found_in_values)


def _samples_of_sources(scan: Scan, finalized: Finalized) -> Int64s:
    """Return the number of samples of each source, (sources,)."""
    sizes = np.zeros(len(scan.sources), np.int64)
    runs: Any = finalized.sample_runs
    if runs is None:
        runs = 1
    np.add.at(sizes, finalized.sample_source, runs)
    return sizes


def _of_sources(scan: Scan, finalized: Finalized) -> Assigned:
    """Return splits that the sources name."""
    if finalized.splits is not None:
        return Assigned(finalized.splits, finalized.split_names)
    splits = scan.sources.splits
    names = tuple(dict.fromkeys(split for split in splits if split is not None))
    if not names:
        return Assigned(RepeatedRows(np.zeros(1, np.uint8), np.array([finalized.samples])), ())
    if None in splits:
        names = tuple(dict.fromkeys((*names, OTHER)))
    code = np.array([names.index(OTHER if split is None else split) for split in splits], np.uint8)
    return Assigned(_of_samples(code, finalized), names)


def _of_samples(code: UInt8s, finalized: Finalized) -> Codes:
    """Return codes of samples from those of sources."""
    codes = code[finalized.sample_source]
    return codes if finalized.sample_runs is None else RepeatedRows(codes, finalized.sample_runs)


_KINDS = "bui"


def column_values(
    converter: Converter,
    scan: Scan,
    finalized: Finalized,
    ask: Ask,  # reads the sources, in a worker process if a foreign library does
    name: str,
) -> Sequence[Any]:
    """Return values of a column of the sample table, one a sample: whole numbers, or texts."""
    direct = _direct_columns(scan)
    if name in direct:
        parts = view(range(len(scan.sources)), lambda source: (scan.only((source,)), source))
        return list(chain.from_iterable(ask(partial(_column_of_source, converter, direct[name]), parts)))
    index = _index_columns(scan, finalized)
    if name in index:
        return index[name]()
    columns = sorted({*direct, *index})
    sample = scan.sample_table.rpartition("/")[2].removesuffix("s")
    cure = f"columns of whole numbers or texts, one a {sample}: {first_few(columns) or 'none'}"
    raise InputError(Problem(f"--group-by column:{name}", "is no column to group by", cure, "option"))


def _index_columns(scan: Scan, finalized: Finalized) -> dict[str, Callable[[], Sequence[Any]]]:
    """Return what reads each index array of one whole number, or text, a sample."""
    prefix = f"{scan.sample_table}/"
    arrays = {field.path.removeprefix(prefix): values for field, values in finalized.arrays}
    columns: dict[str, Callable[[], Sequence[Any]]] = {}
    for name, values in arrays.items():
        column, _, part = name.rpartition("/")
        if part == "offsets" and f"{column}/data" in arrays and len(values) == finalized.samples + 1:
            columns[column] = partial(_texts, arrays[f"{column}/data"], values)
        elif part == name and values.dtype.kind in _KINDS and values.shape == (finalized.samples,):
            columns[name] = partial(_numbers, values)
    return columns


def _texts(data: IndexValues, offsets: IndexValues) -> Sequence[Any]:
    return text_values(data[:], offsets[:])


def _numbers(values: IndexValues) -> Sequence[Any]:
    whole: list[Any] = values[:].tolist()
    return whole


def _direct_columns(scan: Scan) -> dict[str, Field]:
    """Return the columns of one whole number a sample that are read from the sources."""
    columns = {}
    for table in scan.tables:
        if table.name != scan.sample_table or table.spilled:
            continue
        for field in table.fields:
            if not field.row_shape and np.dtype(field.dtype).kind in _KINDS:
                columns[field.path.removeprefix(f"{table.name}/")] = field
    return columns


def _column_of_source(converter: Converter, column: Field, part: tuple[Scan, int]) -> list[Any]:
    """Return the values of a column in one source, which `part` has with its number."""
    scan, source = part
    table = scan.sample_table
    rows = scan.sources[source].rows.get(table, 0)
    values = np.full(rows, column.fill, column.dtype)
    if rows:
        with as_problem(scan.sources.names[source]):
            converter.read(scan, table, source, 0, rows, {column.path.removeprefix(f"{table}/"): values})
    whole: list[Any] = values.tolist()
    return whole
