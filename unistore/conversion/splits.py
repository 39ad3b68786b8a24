"""The split of every sample: from the sources, from a list, or by shares of sources or samples."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain, compress, islice
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
    sample_noun,
)
from unistore.converters.common.faults import as_problem
from unistore.converters.protocol import Finalized, ParallelMap, Scan, SourceReader
from unistore.errors import AddOptions, Fix, InputError, Problem, first_few, printable
from unistore.schemas.tables import Field, text_values
from unistore.system.packed import view
from unistore.system.sizes import count_of
from unistore.system.types import AnyArray, Int64s, Shape, UInt8s


@dataclass(frozen=True, slots=True, eq=False)
class RepeatedRows:
    """``np.repeat(values, counts, axis=0)`` without its memory. Supports slices along axis 0."""

    values: AnyArray  # value of each run, (runs, …)
    counts: Int64s  # rows of each run, 0 or more, (runs,) int64

    def __len__(self) -> int:
        return int(self.counts.sum())

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the dtype of the values."""
        return self.values.dtype

    @property
    def shape(self) -> Shape:
        """Return the shape of the whole array."""
        return (len(self), *self.values.shape[1:])

    def __getitem__(self, rows: slice) -> AnyArray:
        lo, hi, step = rows.indices(len(self))
        bounds = np.concatenate(([0], np.cumsum(self.counts))).clip(lo, max(lo, hi))
        return np.repeat(self.values, np.diff(bounds), axis=0)[::step]


_UNASSIGNED = -1
# Seeds that are tried for a fix
_SEEDS = 100


def positions(names: Iterable[str], count: int, seed: int = 0) -> NDArray[np.uint64]:
    """Return the position of each name from 0 to 2⁶⁴ - 1, its xxh3-64, (count,)."""
    hashes = (xxhash.xxh3_64_intdigest(name.encode(), seed) for name in names)
    return np.fromiter(hashes, np.uint64, count)


def splits_at(position: NDArray[np.uint64], shares: Iterable[float]) -> UInt8s:
    """Return the number of the share that each position falls into, of shares that follow each other."""
    most = 2**64
    ends = [min(int(end * most), most - 1) for end in accumulate(shares)]
    bounds = np.array(ends[:-1], np.uint64)
    return np.searchsorted(bounds, position, side="right").astype(np.uint8)


class UnitSplits(NamedTuple):
    """Splits of units."""

    codes: UInt8s  # (units,)
    names: tuple[str, ...]  # by code


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """What a rule assigns to splits: the sources, or the samples."""

    rule: SplitRule
    sizes: Int64s  # samples of each unit, (units,)
    names: Callable[[], Iterable[str]]  # makes the name of each unit
    # makes the name of what each unit is a part of and must not be divided, the unit itself as a rule
    wholes: Callable[[], Iterable[str]]
    first: Int64s  # number of the first unit of the same whole, (units,)
    excluded: Collection[str]  # names that the conversion leaves out
    values: Sequence[Any] | None = None  # value of each unit in the column that it is grouped by

    @classmethod
    def of_sources(cls, scan: Scan, rule: SplitRule, sizes: Int64s) -> Units:
        """Return the sources, of `sizes` samples each."""
        names = scan.sources.names
        return cls(
            rule=rule,
            sizes=sizes,
            names=lambda: names,
            wholes=lambda: scan.units or names,
            first=_first_of_units(scan),
            excluded=scan.options.get("exclude", ()),
        )

    @classmethod
    def of_samples(
        cls, scan: Scan, finalized: Finalized, rule: SplitRule, values: Sequence[Any] | None
    ) -> Units:
        """Return the samples."""
        owner = finalized.sample_source
        if finalized.sample_runs is not None:
            owner = np.repeat(owner, finalized.sample_runs)
        if rule.method == "exact":
            owner = _first_of_units(scan)[owner]
        names = partial(sample_names, scan.sources.names, owner, finalized.sample_names)
        return cls(
            rule=rule,
            sizes=np.ones(len(owner), np.int64),
            names=names,
            wholes=names,
            first=np.arange(len(owner)),
            excluded=scan.options.get("exclude", ()),
            values=values,
        )

    def assign(self) -> UnitSplits:
        """Assign each unit to a split."""
        taken = self.rule.taken
        if isinstance(taken, RecordedSplits):
            return UnitSplits(self._recorded(taken), taken.names)
        if taken is not None:
            return self._from_list(taken)
        codes = self._hashed(self.rule.seed) if self.rule.method == "hash" else self._exact()
        if not self.rule.is_recorded:
            self._check_filled(codes)
        return UnitSplits(codes, tuple(self.rule.shares))

    def reached(self, splits: UnitSplits) -> str:
        """Return one line about the shares of the samples that each split got."""
        samples = np.bincount(splits.codes, self.sizes, len(splits.names))
        total = int(self.sizes.sum())
        shares = 100 * samples / max(1, total)
        parts = []
        for name, share in zip(splits.names, shares, strict=True):
            parts.append(f"{name} {share:.3g} %")
        methods = {"hash": f"--split-seed {self.rule.seed}", "list": "as listed"}
        method = methods.get(self.rule.method, "exact")
        if self.rule.method == "hash":
            asked = " / ".join(f"{100 * share:.3g}" for share in self.rule.shares.values())
            method = f"asked for {asked} %, {method}"
        samples_text = count_of(total, "sample")
        return f"splits of {samples_text}: {', '.join(parts)} ({method})"

    def _hashed(self, seed: int) -> UInt8s:
        hashes = positions(self._keys(), len(self.sizes), seed)
        return splits_at(hashes, self.rule.shares.values())

    def _keys(self) -> Iterable[str]:
        if self.values is not None:
            return (f"{self.rule.column}={value}" for value in self.values)
        names = _full_names(self.wholes(), self.rule.below)
        return names if self.rule.group_by is None else _groups(names, self.rule.group_by)

    def _exact(self) -> UInt8s:
        # Units come in the order of their hashes, each goes to the split furthest below its share
        names = self.names()
        number = self.first
        count = len(self.sizes)
        if self.rule.group_by is not None:
            numbers: dict[str, int] = {}
            codes_of_keys = [numbers.setdefault(key, len(numbers)) for key in self._keys()]
            number = np.array(codes_of_keys)
            names = numbers
            count = len(numbers)
        sizes = np.bincount(number, self.sizes, count).astype(np.int64)
        shares = list(self.rule.shares.values())
        order = np.argsort(positions(names, count), kind="stable")
        assigned = [0] * len(shares)
        total = 0
        codes = np.empty(count, np.uint8)
        for unit, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
            total += size
            missing = []
            for share, have in zip(shares, assigned, strict=True):
                missing.append(share * total - have)
            code = missing.index(max(missing))
            codes[unit] = code
            assigned[code] += size
        return codes[number]

    def _empty(self, codes: UInt8s) -> list[str]:
        samples = np.bincount(codes, self.sizes, len(self.rule.shares))
        sizes = zip(self.rule.shares, samples, strict=True)
        return [name for name, size in sizes if not size]

    def _check_filled(self, codes: UInt8s) -> None:
        empty = self._empty(codes)
        if not empty or not self.sizes.any():
            return
        units = count_of(len(self.sizes), self.rule.by)
        is_hash = self.rule.method == "hash"
        why = f"the hash puts {units} into the other splits" if is_hash else f"{units} are too few"
        message = f"{first_few(empty)} would be empty, because {why}"
        fixes: list[Fix] = [f"give more {self.rule.by}s, or fewer splits"]
        if is_hash:
            filling = (seed for seed in range(_SEEDS) if not self._empty(self._hashed(seed)))
            exact = AddOptions(("--split", f"{EXACT}{self.rule.text}"), "(new data may then move samples)")
            purpose = "to fill every split"
            fixes = [AddOptions(("--split-seed", str(seed)), purpose) for seed in islice(filling, 1)]
            fixes.append(exact)
        raise InputError(Problem(f"--split {self.rule.text}", message, tuple(fixes), "split"))

    def _from_list(self, split_list: SplitList) -> UnitSplits:
        names = tuple(dict.fromkeys((*split_list.splits.values(), *self.rule.shares)))
        if len(names) > MAX_SPLITS:
            message = f"makes {len(names):,} splits, but a store has at most {MAX_SPLITS}"
            raise InputError(split_list.problem(message, "use fewer splits"))
        codes = self._listed(split_list, names)
        has_parts = len(np.unique(self.first)) < len(self.first)
        if self.rule.group_by is not None or has_parts:
            codes = self._of_groups(split_list, names, codes)
        missing = codes == _UNASSIGNED
        if missing.any():
            if not self.rule.shares:
                unlisted = list(compress(self.names(), missing))
                split = AddOptions(("--split", "train=0.8,val=0.2"), "for names that are not in the list")
                fix = "add them to the list", split
                raise InputError(split_list.problem(f"does not contain {first_few(unlisted, 5)}", fix))
            code_of_share = np.array([names.index(name) for name in self.rule.shares])
            codes = np.where(missing, code_of_share[self._hashed(self.rule.seed)], codes)
        # splits of a store may have no source any more
        present, numbered = np.unique(codes, return_inverse=True)
        present_names = tuple(names[code] for code in present)
        return UnitSplits(numbered.astype(np.uint8), present_names)

    def _listed(self, split_list: SplitList, names: tuple[str, ...]) -> Int64s:
        # By the name of the unit, or that of its source, or -1
        below = self.rule.below if split_list.from_store else ""
        codes = np.full(len(self.sizes), _UNASSIGNED)
        used = set()
        own_names = _full_names(self.names(), below)
        units = zip(own_names, _full_names(self.wholes(), below), strict=True)
        for number, (name, whole) in enumerate(units):
            source = whole if self.rule.by == SOURCE else name.rpartition(": ")[0]
            key = name if name in split_list.splits else source
            if key in split_list.splits:
                codes[number] = names.index(split_list.splits[key])
                used.add(key)
        if not (split_list.from_store and used):  # sources of a store may have gone
            self._check_used(split_list, used)
        return codes

    def _check_used(self, split_list: SplitList, used: set[str]) -> None:
        unknown = [
            printable(name)
            for name in split_list.splits
            if name not in used and {name, name.partition(": ")[0]}.isdisjoint(self.excluded)
        ]
        if unknown:
            fix = f"write each {self.rule.by} as 'unistore inspect' shows it, from the common folder on"
            if self.rule.by == SOURCE and any(": " in name for name in unknown):
                fix = "add --split-by, which allows names of single samples"
            message = f"has {len(unknown):,} names that do not exist here: {first_few(unknown, 5)}"
            raise InputError(split_list.problem(message, fix))

    def _of_groups(self, split_list: SplitList, names: tuple[str, ...], codes: Int64s) -> Int64s:
        keys = list(self._keys())
        splits = []
        for key, code in zip(keys, codes, strict=True):
            if code >= 0:
                splits.append((key, names[code]))
        if self.rule.group_by is not None and self.values is None:
            # A group keeps its split when members have gone.
            pattern = re.compile(self.rule.group_by)
            below = "" if split_list.from_store else self.rule.below
            for name, split in split_list.splits.items():
                if match := pattern.search(f"{below}/{name}" if below else name):
                    splits.append((_group_of(match), split))
        split_of_group: dict[str, str] = {}
        for key, split in splits:
            if split_of_group.setdefault(key, split) != split:
                message = f"puts the group '{key}' into two splits, {split_of_group[key]} and {split}"
                fix = "change the list or --group-by, so that each group is in one split"
                raise InputError(split_list.problem(message, fix))
        code_of = {group: names.index(split) for group, split in split_of_group.items()}
        return np.array([code_of.get(key, _UNASSIGNED) for key in keys])

    def _recorded(self, recorded: RecordedSplits) -> UInt8s:
        # Zeros for other sources: the comparison of a store with its sources names these
        count = len(self.sizes)
        try:
            raw = zlib.decompressobj().decompress(recorded.codes, count + 1)
        except zlib.error:
            raw = b""
        codes = np.frombuffer(raw, np.uint8)
        is_ours = len(codes) == count and (codes < len(recorded.names)).all()
        return codes if is_ours else np.zeros(count, np.uint8)


def _first_of_units(scan: Scan) -> Int64s:
    if not scan.units:
        return np.arange(len(scan.sources))
    first: dict[str, int] = {}
    numbers = [first.setdefault(unit, number) for number, unit in enumerate(scan.units)]
    return np.array(numbers)


def _full_names(names: Iterable[str], below: str) -> Iterable[str]:
    if not below:
        return names
    return (f"{below}/{name}" for name in names)


def _groups(names: Iterable[str], pattern: str) -> Iterator[str]:
    compiled = re.compile(pattern)
    without: list[str] = []
    for name in names:
        if match := compiled.search(name):
            yield _group_of(match)
        else:
            without.append(name)
    if without:
        message = f"does not match {len(without):,} names: {first_few(without, 5)}"
        fix = "extend the pattern until it matches every name, for example 'patient_\\d+|phantom'"
        raise InputError(Problem(f"--group-by {pattern}", message, fix, "option"))


def _group_of(match: re.Match[str]) -> str:
    group = match.group(match.re.groups)
    return match.group() if group is None else group


Codes: TypeAlias = UInt8s | RepeatedRows  # Split code of each sample, (samples,) uint8
ReadColumn = Callable[[str], Sequence[Any]]  # Values of a column of the sample table, one a sample

OTHER = "other"  # Split of sources without one, if others have one
KEPT = "the splits that the sources name are kept, and --split is ignored"
MOVES = "the splits have exact shares: adding or skipping a source can move others to another split"


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
    if scan.sources.row_splits:
        raise InputError(_two_kinds_of_splits(rule, scan))
    prepared = rule.prepared(paths, scan)
    if prepared.by != SOURCE:
        return prepared
    sources = len(scan.sources)
    if sources < len(rule.shares) and rule.taken is None and not rule.is_recorded:
        names = ", ".join(rule.shares)
        message = (
            f"asks for {len(rule.shares)} splits ({names}) of {count_of(sources, 'source')}, but a source is "
            "never divided"
        )
        fix = (
            f"add --split-by {sample_noun(scan)} (then samples of one file may be in different splits), "
            "or give at least one source for each split"
        )
        option = f"--split {rule.text}"
        raise InputError.at(option, message, fix, "split")
    Units.of_sources(scan, prepared, np.ones(sources, np.int64)).assign()
    return prepared


def _two_kinds_of_splits(rule: SplitRule, scan: Scan) -> Problem:
    """Return the problem of a rule beside sources that say the splits of their samples themselves."""
    names = [scan.sources.names[number] for number in scan.sources.row_splits]
    splits = dict.fromkeys(name for runs in scan.sources.row_splits.values() for name, _ in runs)
    option = f"--split {rule.text}"
    if isinstance(rule.taken, SplitList):
        option = f"--split-from {rule.taken.origin}"
    noun = sample_noun(scan)
    message = f"each {noun} has a split already, given by groups in {first_few(names)}: {', '.join(splits)}"
    return Problem(option, message, "remove it, or read the columns of one group with --map", "split")


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
        sizes = np.zeros(len(scan.sources), np.int64)
        runs: Any = 1 if finalized.sample_runs is None else finalized.sample_runs
        np.add.at(sizes, finalized.sample_source, runs)
        units = Units.of_sources(scan, rule, sizes)
    else:
        values = None
        if rule.column is not None and read_column is not None:
            values = read_column(rule.column)
        units = Units.of_samples(scan, finalized, rule, values)
    splits = units.assign()
    codes = _of_samples(splits.codes, finalized) if rule.by == SOURCE else splits.codes
    notes = [units.reached(splits)]
    if rule.method == "exact":
        notes.append(MOVES)
    found_in_values = {}
    if rule.taken is not None:
        packed = base64.b64encode(zlib.compress(splits.codes.tobytes()))
        found_in_values["splits"] = {"names": list(splits.names), "codes": packed.decode()}
    return Assigned(codes, splits.names, tuple(notes), found_in_values)


def _of_sources(scan: Scan, finalized: Finalized) -> Assigned:
    if finalized.splits is not None:
        return Assigned(finalized.splits, finalized.split_names)
    splits = scan.sources.splits
    if scan.sources.row_splits:
        return _of_rows(scan, finalized)
    names = tuple(dict.fromkeys(split for split in splits if split is not None))
    if not names:
        codes = RepeatedRows(np.zeros(1, np.uint8), np.array([finalized.samples]))
        return Assigned(codes, ())
    if None in splits:
        names = tuple(dict.fromkeys((*names, OTHER)))
    named = (OTHER if split is None else split for split in splits)
    code = np.array([names.index(split) for split in named], np.uint8)
    return Assigned(_of_samples(code, finalized), names)


def _of_rows(scan: Scan, finalized: Finalized) -> Assigned:
    """Return the splits of samples of which sources say several, beside sources with one or none."""
    runs: list[tuple[str, int]] = []
    samples = np.bincount(finalized.sample_source, finalized.sample_runs, len(scan.sources)).astype(np.int64)
    for number, split in enumerate(scan.sources.splits):
        count = int(samples[number])
        own = scan.sources.row_splits.get(number, ((OTHER if split is None else split, count),))
        assert sum(rows for _, rows in own) == count, f"splits of source {number} are not of {count} samples"
        runs += own
    names = tuple(dict.fromkeys(name for name, _ in runs))
    codes = np.array([names.index(name) for name, _ in runs], np.uint8)
    return Assigned(RepeatedRows(codes, np.array([rows for _, rows in runs], np.int64)), names)


def _of_samples(code: UInt8s, finalized: Finalized) -> Codes:
    codes = code[finalized.sample_source]
    return codes if finalized.sample_runs is None else RepeatedRows(codes, finalized.sample_runs)


def column_values(
    converter: SourceReader,
    scan: Scan,
    finalized: Finalized,
    ask: ParallelMap,  # reads the sources, in a worker process if a foreign library does
    name: str,
) -> Sequence[Any]:
    """Return values of a column of the sample table, one a sample: whole numbers, or texts."""
    prefix = f"{scan.sample_table}/"
    direct = {
        field.path.removeprefix(prefix): field
        for table in scan.tables
        for field in table.fields
        if table.name == scan.sample_table and not table.spilled and _is_whole(field.dtype, field.row_shape)
    }
    if name in direct:
        parts = view(range(len(scan.sources)), lambda source: (scan.only((source,)), source))
        return list(chain.from_iterable(ask(partial(_column_of_source, converter, direct[name]), parts)))
    arrays = {field.path.removeprefix(prefix): values for field, values in finalized.arrays}
    texts = {
        path.removesuffix("/offsets")
        for path, offsets in arrays.items()
        if path.endswith("/offsets") and len(offsets) == finalized.samples + 1
    } & {path.removesuffix("/data") for path in arrays}
    if name in texts:
        return text_values(arrays[f"{name}/data"][:], arrays[f"{name}/offsets"][:])
    numbers = {
        path
        for path, values in arrays.items()
        if "/" not in path and len(values) == finalized.samples and _is_whole(values.dtype, values.shape[1:])
    }
    if name in numbers:
        whole: list[Any] = arrays[name][:].tolist()
        return whole
    columns = sorted({*direct, *texts, *numbers})
    option = f"--group-by column:{name}"
    message = f"is not a column of whole numbers or texts with one value for each {sample_noun(scan)}"
    if not columns:
        message += "; these sources have no such column"
    fix = f"use one of {first_few(columns)}" if columns else "use a pattern of names instead"
    raise InputError(Problem(option, message, fix, "option"))


def _is_whole(dtype: Any, row_shape: Shape) -> bool:
    return not row_shape and np.dtype(dtype).kind in "bui"


def _column_of_source(converter: SourceReader, column: Field, part: tuple[Scan, int]) -> list[Any]:
    scan, source = part
    table = scan.sample_table
    rows = scan.sources[source].rows.get(table, 0)
    values = np.full(rows, column.fill, column.dtype)
    if rows:
        with as_problem(scan.sources.names[source]):
            name = column.path.removeprefix(f"{table}/")
            converter.read(scan, table, source, 0, rows, {name: values})
    whole: list[Any] = values.tolist()
    return whole
