"""The split of every sample: from the sources, from a list, or by shares of the samples."""

from __future__ import annotations

import base64
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from unistore.conversion.repeated import Repeated
from unistore.conversion.split_lists import MAX_SPLITS, SplitList, read_split_list, sample_names
from unistore.converters.files.paths import real_path
from unistore.converters.protocol import Finalized, Scan
from unistore.errors import InputError, Problem, first_few, printable
from unistore.system.arguments import MAX_COUNT, is_integer
from unistore.system.sizes import count_of

Codes: TypeAlias = NDArray[np.uint8] | Repeated
"""Split code of each sample, (samples,) uint8."""
ReadColumn = Callable[[str], Sequence[Any]]
"""Values of a column of the sample table, one a sample."""

SOURCE = "source"
OTHER = "other"
"""Split of sources without one, if others have one."""
EXACT = "exact:"
"""Prefix of shares that are met exactly."""
COLUMN = "column:"
"""Prefix of a column in ``--group-by``."""
KEPT = "the splits that the sources name were kept; --split was ignored"
MOVES = "splits by exact shares: sources that are added or left out move others to another split"
_UNASSIGNED = -1
_SEEDS = 100
"""Seeds that are tried for a cure, with at most so many names."""
_TRIED_NAMES = 2000


class RecordedSplits(NamedTuple):
    """Splits that a store took over, as its root records them."""

    origin: str
    digest: str
    names: tuple[str, ...]
    codes: bytes  # of each source or sample, compressed


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRule:
    """How samples are assigned to splits.

    Attributes
    ----------
    shares
        Share of each split; empty: all splits are taken over.
    method
        ``"hash"``: by the position of a name's hash on the cumulative shares. ``"exact"``: whatever is
        furthest below its share gets the next name, in the order of their hashes. ``"list"``: no shares.
        Empty, in stores that record no method: as ``"exact"``.
    by
        Unit that is never divided between splits: ``"source"``, or the name of a sample: ``"episode"``.
    seed
        Seed of the hash.
    group_by
        Pattern in names, or ``"column:NAME"``: what agrees in it is never divided.
    taken
        Splits that are taken over.
    below
        Folder of the sources below the folder that was given; names that are hashed begin with it.
    """

    shares: Mapping[str, float] = field(default_factory=dict)
    method: Literal["hash", "exact", "list", ""] = "hash"
    by: str = SOURCE
    seed: int = 0
    group_by: str | None = None
    taken: SplitList | RecordedSplits | None = None
    below: str = ""

    @classmethod
    def recorded(cls, options: Mapping[str, Any]) -> SplitRule | None:
        """The rule in a store's recorded options.

        Raises
        ------
        KeyError, TypeError, ValueError, InputError
            If they are none that a conversion records.
        """
        taken = None
        if "split_from" in options:
            splits = options["found"]["splits"]
            names = tuple(map(str, splits["names"]))
            codes = base64.b64decode(splits["codes"], validate=True)
            taken = RecordedSplits(
                options["split_from"]["name"], options["split_from"]["digest"], names, codes
            )
        if options["split"] is None and taken is None:
            return None
        method = options.get("split_rule", "")
        seed = options.get("split_seed", 0)
        if method not in ("hash", "exact", "list", "") or not is_integer(seed, 0, MAX_COUNT):
            msg = f"split_rule {method!r} with the seed {seed!r} is unknown"
            raise ValueError(msg)
        shares = {} if options["split"] is None else dict(options["split"])
        group_by = options.get("group_by")
        rule = cls(
            shares=parse_shares(shares) if shares else {},
            method=method,
            by=str(options.get("split_by", SOURCE)),
            seed=seed,
            group_by=None if group_by is None else str(group_by),
            taken=taken,
            below=str(options.get("split_below", "")),
        )
        if not rule.shares and taken is None:
            raise ValueError("split has no shares")
        rule.check_pattern()
        return rule

    def to_json(self) -> dict[str, Any]:
        """Options that a store records."""
        options: dict[str, Any] = {"split": dict(self.shares) or None}
        if self.by != SOURCE:
            options["split_by"] = self.by
        if self.method:
            options["split_rule"] = self.method
        if self.method == "hash":
            options["split_seed"] = self.seed
        if self.below:
            options["split_below"] = self.below
        if self.group_by is not None:
            options["group_by"] = self.group_by
        if self.taken is not None:
            options["split_from"] = {"name": self.taken.origin, "digest": self.taken.digest}
        return options

    @property
    def text(self) -> str:
        """The shares as on the command line: ``"train=0.8,val=0.2"``."""
        return ",".join(f"{name}={share}" for name, share in self.shares.items())

    @property
    def column(self) -> str | None:
        """Column of ``--group-by column:NAME``."""
        is_column = self.group_by is not None and self.group_by.startswith(COLUMN)
        return self.group_by.removeprefix(COLUMN) if is_column and self.group_by else None

    def check_pattern(self) -> None:
        """Refuse a pattern that is no regular expression, or has several groups."""
        if self.group_by is None or self.column is not None:
            return
        reason = ""
        try:
            if re.compile(self.group_by).groups > 1:
                reason = "has more than one pair of brackets"
        except (re.error, RecursionError, OverflowError) as error:
            reason = f"is no regular expression: {error}"
        if reason:
            cure = r"as in 'patient_\d+', or '(\w+)/' for the first folder"
            raise InputError(Problem(f"--group-by {self.group_by}", reason, cure, "option"))

    def prepared(self, paths: Sequence[Path], scan: Scan) -> SplitRule:
        """The rule for the sources of a scan under the given paths.

        Raises
        ------
        InputError
            If it cannot be applied to them, as far as this is known before values are read.
        """
        single = scan.sample_table.rpartition("/")[2].removesuffix("s")
        if self.by not in (SOURCE, single):
            msg = f"--split-by {self.by}: splits can be assigned by {SOURCE} or by {single} here"
            raise InputError(msg)
        rule = self
        if self.method in ("hash", "list"):
            rule = replace(self, below=_below(paths, scan))
        if self.column is not None:
            return replace(rule, by=single)
        if rule.by == SOURCE:
            count = len(scan.sources)
            if count < len(self.shares) and self.taken is None:
                msg = (
                    f"--split: {len(self.shares)} splits ({', '.join(self.shares)}) of "
                    f"{count_of(count, 'source')}: a source is never divided, so give "
                    f"at least one source for each split, or --split-by {single}"
                )
                raise InputError(msg)
            _Units.of_sources(scan, np.ones(count, np.int64)).assign(rule)
        return rule


class Assigned(NamedTuple):
    """Splits of all samples."""

    codes: Codes
    names: tuple[str, ...]  # by code; empty: the store has no splits
    notes: tuple[str, ...] = ()
    found: Mapping[str, Any] = {}  # what the root records so that they can be assigned again


def parse_split(
    split: str | Mapping[str, float] | None,
    by: str = SOURCE,
    seed: int = 0,
    split_from: str | os.PathLike[str] | None = None,
    group_by: str | None = None,
) -> SplitRule | None:
    """The rule of the arguments of `unistore.convert`; None: splits come from the sources.

    Raises
    ------
    InputError
        If an argument is invalid, or has no effect without another.
    """
    if split is None and split_from is None:
        idle = [
            ("--split-by", by != SOURCE),
            ("--split-seed", seed != 0),
            ("--group-by", group_by is not None),
        ]
        problems = [
            Problem(name, "has no effect without --split", "as in --split train=0.8,val=0.2", "option")
            for name, is_given in idle
            if is_given
        ]
        if problems:
            raise InputError(problems)
        return None
    exact = isinstance(split, str) and split.startswith(EXACT)
    if exact and split_from is not None:
        message = "exact shares are of all samples, and some are listed"
        cure = f"--split {str(split).removeprefix(EXACT)} for those that are not listed"
        raise InputError(Problem("--split-from", message, cure, "option"))
    if seed and (exact or split is None):
        raise InputError(
            Problem("--split-seed", "has no effect here", "give shares without exact:", "option")
        )
    shares = (
        {} if split is None else parse_shares(split.removeprefix(EXACT) if isinstance(split, str) else split)
    )
    rule = SplitRule(
        shares=shares,
        method="exact" if exact else "hash" if shares else "list",
        by=by,
        seed=seed,
        group_by=group_by,
        taken=None if split_from is None else read_split_list(split_from),
    )
    rule.check_pattern()
    return rule


def parse_shares(split: str | Mapping[str, float]) -> dict[str, float]:
    """Parse ``"train=0.8,val=0.2"``, or a mapping of the same.

    Raises
    ------
    InputError
        If a share is not a number above 0, a name comes twice, or they do not add up to 1.
    """
    text = split if isinstance(split, str) else ",".join(f"{name}={share}" for name, share in split.items())
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, _, share = part.partition("=")
        try:
            shares[name.strip()] = float(share)
        except ValueError:
            shares[name.strip()] = 0.0
    # NaN compares false and is refused
    fair = all(share > 0 for share in shares.values()) and abs(sum(shares.values()) - 1) <= 1e-6
    if not fair or "" in shares or len(shares) < text.count(",") + 1:
        msg = f"--split {text}: expected shares above 0 that add up to 1, as in train=0.8,val=0.2"
        raise InputError(msg)
    return shares


def positions(names: Iterable[str], count: int, seed: int = 0) -> NDArray[np.uint64]:
    """Position of each name from 0 to 2⁶⁴ - 1, its xxh3-64, (count,)."""
    hashes = (xxhash.xxh3_64_intdigest(name.encode(), seed) for name in names)
    return np.fromiter(hashes, np.uint64, count)


def splits_at(position: NDArray[np.uint64], shares: Sequence[float]) -> NDArray[np.uint8]:
    """Number of the share that each position falls into, of shares that follow each other."""
    ends = [min(int(end * 2**64), 2**64 - 1) for end in accumulate(shares)]
    return np.searchsorted(np.array(ends[:-1], np.uint64), position, side="right").astype(np.uint8)


def assign_splits(
    scan: Scan, finalized: Finalized, rule: SplitRule | None, read_column: ReadColumn | None = None
) -> Assigned:
    """Assign each sample to a split.

    Parameters
    ----------
    rule
        A prepared rule; None: splits come from the sources.
    read_column
        Reads the column that `rule` groups by.

    Raises
    ------
    InputError
        If a split gets no samples, names are missing in a list, or a group is in several splits.
    """
    if rule is None:
        return _of_sources(scan, finalized)
    if rule.by != SOURCE and finalized.splits is not None and rule.taken is None:
        return _of_sources(scan, finalized)._replace(notes=(KEPT,))
    if rule.by == SOURCE:
        sizes = np.zeros(len(scan.sources), np.int64)
        np.add.at(
            sizes, finalized.sample_source, 1 if finalized.sample_runs is None else finalized.sample_runs
        )
        units = _Units.of_sources(scan, sizes)
    else:
        units = _Units.of_samples(scan, finalized, rule, read_column)
    code, names = units.assign(rule)
    codes = _of_samples(code, finalized) if rule.by == SOURCE else code
    found = {}
    if rule.taken is not None:
        packed = base64.b64encode(zlib.compress(code.tobytes())).decode()
        found = {"splits": {"names": list(names), "codes": packed}}
    moving = (MOVES,) if rule.method == "exact" else ()
    return Assigned(codes, names, (units.reached(rule, code, names), *moving), found)


def _of_sources(scan: Scan, finalized: Finalized) -> Assigned:
    """Splits that the sources name."""
    if finalized.splits is not None:
        return Assigned(finalized.splits, finalized.split_names)
    splits = scan.sources.splits
    names = tuple(dict.fromkeys(split for split in splits if split is not None))
    if not names:
        return Assigned(Repeated(np.zeros(1, np.uint8), np.array([finalized.samples])), ())
    if None in splits:
        names = tuple(dict.fromkeys((*names, OTHER)))
    code = np.array([names.index(OTHER if split is None else split) for split in splits], np.uint8)
    return Assigned(_of_samples(code, finalized), names)


def _of_samples(code: NDArray[np.uint8], finalized: Finalized) -> Codes:
    """Codes of samples from those of sources."""
    codes = code[finalized.sample_source]
    return codes if finalized.sample_runs is None else Repeated(codes, finalized.sample_runs)


@dataclass(frozen=True, slots=True)
class _Units:
    """What is assigned to splits: the sources, or the samples."""

    kind: str  # "source", "episode", …
    sizes: NDArray[np.int64]  # samples of each
    names: Callable[[], Iterable[str]]
    wholes: Callable[[], Iterable[str]]  # name of what each belongs to and must not be divided
    first: NDArray[np.int64]  # number of the first unit of the same whole
    column: Sequence[Any] | None = None
    excluded: frozenset[str] = frozenset()

    @classmethod
    def of_sources(cls, scan: Scan, sizes: NDArray[np.int64]) -> _Units:
        names, units = scan.sources.names, scan.units or scan.sources.names
        excluded = frozenset(scan.options.get("exclude", ()))
        return cls(SOURCE, sizes, lambda: names, lambda: units, _first_of(scan), None, excluded)

    @classmethod
    def of_samples(
        cls, scan: Scan, finalized: Finalized, rule: SplitRule, read_column: ReadColumn | None
    ) -> _Units:
        owner = finalized.sample_source
        if finalized.sample_runs is not None:
            owner = np.repeat(owner, finalized.sample_runs)
        if rule.method in ("exact", ""):
            owner = _first_of(scan)[owner]

        def names() -> Iterator[str]:
            return sample_names(scan.sources.names, owner, finalized.sample_names)

        column = None
        if rule.column is not None and read_column is not None:
            column = read_column(rule.column)
        one = np.ones(len(owner), np.int64)
        excluded = frozenset(scan.options.get("exclude", ()))
        return cls(rule.by, one, names, names, np.arange(len(owner)), column, excluded)

    def assign(self, rule: SplitRule) -> tuple[NDArray[np.uint8], tuple[str, ...]]:
        """Split code of each unit, (units,) uint8, and the names by code."""
        if isinstance(rule.taken, RecordedSplits):
            return self._recorded(rule.taken), rule.taken.names
        if rule.method in ("exact", ""):
            code = self._exact(rule)
            self._check_filled(rule, code)
            return code, tuple(rule.shares)
        if rule.taken is not None:
            return self._taken_over(rule, rule.taken)
        code = self._hashed(rule, rule.seed)
        self._check_filled(rule, code)
        return code, tuple(rule.shares)

    def reached(self, rule: SplitRule, code: NDArray[np.uint8], names: tuple[str, ...]) -> str:
        """One line: how many samples, and units, each split got."""
        samples = np.bincount(code, self.sizes, len(names)).astype(np.int64).tolist()
        counts = np.bincount(code, minlength=len(names)).tolist()
        total = max(1, sum(samples))
        parts = []
        for name, size, count in zip(names, samples, counts, strict=True):
            of = "" if (self.sizes == 1).all() else f" ({count_of(count, self.kind)})"
            parts.append(f"{name} {100 * size / total:.3g} %{of}")
        noun = self.kind if (self.sizes == 1).all() else "sample"
        rules = {"hash": f"--split-seed {rule.seed}", "exact": "exact", "list": "as listed", "": "exact"}
        return f"splits of {count_of(sum(samples), noun)}: {', '.join(parts)} ({rules[rule.method]})"

    def _hashed(self, rule: SplitRule, seed: int) -> NDArray[np.uint8]:
        position = positions(self._keys(rule), len(self.sizes), seed)
        return splits_at(position, list(rule.shares.values()))

    def _keys(self, rule: SplitRule) -> Iterable[str]:
        """The name of each unit that is hashed: its own, or that of its group."""
        if self.column is not None:
            return (f"{rule.column}={value}" for value in self.column)
        names = _full(self.wholes(), rule.below)
        return names if rule.group_by is None else _groups(names, rule.group_by)

    def _exact(self, rule: SplitRule) -> NDArray[np.uint8]:
        count = len(self.sizes)
        number = self.first
        if rule.group_by is not None:
            numbers: dict[str, int] = {}
            number = np.fromiter(
                (numbers.setdefault(key, len(numbers)) for key in self._keys(rule)), np.int64, count
            )
            names, count = iter(numbers), len(numbers)
        else:
            names = iter(self.names())
        sizes = np.bincount(number, self.sizes, count).astype(np.int64)
        return _most_missing(positions(names, count), sizes, list(rule.shares.values()))[number]

    def _check_filled(self, rule: SplitRule, code: NDArray[np.uint8]) -> None:
        """Refuse splits without samples, unless a store records the former way."""
        samples = np.bincount(code, self.sizes, len(rule.shares))
        empty = [name for name, size in zip(rule.shares, samples.tolist(), strict=True) if not size]
        if not empty or not rule.method or not self.sizes.any():
            return
        message = f"none of {count_of(len(self.sizes), self.kind)} falls into {first_few(empty)}"
        exact = f"--split {EXACT}{rule.text}, which moves samples when data is added"
        cure = (
            f"{self._filling_seed(rule)}, or {exact}"
            if rule.method == "hash"
            else "give more, or fewer splits"
        )
        raise InputError(Problem(f"--split {rule.text}", message, cure, "split"))

    def _filling_seed(self, rule: SplitRule) -> str:
        """Cure: a seed with which every split gets samples, if one is quickly found."""
        if len(self.sizes) <= _TRIED_NAMES:
            for seed in range(_SEEDS):
                samples = np.bincount(self._hashed(rule, seed), self.sizes, len(rule.shares))
                if samples.all():
                    return f"--split-seed {seed} fills all"
        return "another --split-seed"

    def _taken_over(self, rule: SplitRule, taken: SplitList) -> tuple[NDArray[np.uint8], tuple[str, ...]]:
        """Splits of the units that a list names; of others by their group, or else by shares."""
        names = tuple(dict.fromkeys((*taken.splits.values(), *rule.shares)))
        if len(names) > MAX_SPLITS:
            raise InputError(taken.problem(f"has more than {MAX_SPLITS} splits", "name fewer"))
        listed, used = self._listed(rule, taken, names)
        self._check_used(taken, used)
        if rule.group_by is not None or len(set(self.first.tolist())) < len(self.first):
            listed = self._of_groups(rule, taken, names, listed)
        others = np.flatnonzero(listed == _UNASSIGNED)
        if len(others) and not rule.shares:
            wanted = set(others.tolist())
            missing = [name for at, name in enumerate(self.names()) if at in wanted]
            cure = "list them, or give --split train=0.8,val=0.2 for those that are not listed"
            raise InputError(taken.problem(f"does not name {first_few(missing, 5)}", cure))
        if len(others):
            of_share = np.array([names.index(name) for name in rule.shares])
            listed[others] = of_share[self._hashed(rule, rule.seed)[others]]
        present = np.unique(listed)
        code = np.searchsorted(present, listed).astype(np.uint8)
        return code, tuple(names[at] for at in present.tolist())

    def _listed(
        self, rule: SplitRule, taken: SplitList, names: tuple[str, ...]
    ) -> tuple[NDArray[np.int64], set[str]]:
        """Split code of each unit by the list, or -1, and the names of the list that were used."""
        number = {name: at for at, name in enumerate(names)}
        below = rule.below if taken.from_store else ""
        code = np.full(len(self.sizes), _UNASSIGNED)
        used: set[str] = set()
        pairs = zip(_full(self.names(), below), _full(self.wholes(), below), strict=True)
        for at, (name, whole) in enumerate(pairs):
            source = name.rpartition(": ")[0] if self.kind != SOURCE else whole
            for candidate in (name, source):
                if candidate in taken.splits:
                    code[at] = number[taken.splits[candidate]]
                    used.add(candidate)
                    break
        return code, used

    def _check_used(self, taken: SplitList, used: set[str]) -> None:
        """Refuse names that are not here: of a list each, of a store all, since sources may have gone."""
        excluded = self.excluded
        unknown = [name for name in taken.splits if name not in used]
        unknown = [
            name for name in unknown if name not in excluded and name.partition(": ")[0] not in excluded
        ]
        if not unknown or (taken.from_store and used):
            return
        few = first_few([printable(name) for name in unknown], 5)
        cure = f"{self.kind}s are named as 'unistore inspect' shows them, below their common folder"
        if self.kind == SOURCE and any(": " in name for name in unknown):
            cure = "to name single samples, add --split-by"
        raise InputError(taken.problem(f"names what is not here: {few}", cure))

    def _of_groups(
        self, rule: SplitRule, taken: SplitList, names: tuple[str, ...], listed: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Codes with those of the units whose group the list knows."""
        keys = list(self._keys(rule))
        pairs = [(key, code) for key, code in zip(keys, listed.tolist(), strict=True) if code != _UNASSIGNED]
        if rule.group_by is not None and self.column is None:
            # a group keeps its split although its listed members have gone
            pattern = re.compile(rule.group_by)
            below = "" if taken.from_store else rule.below
            full = list(_full(taken.splits, below))
            for name, split in zip(full, taken.splits.values(), strict=True):
                match = pattern.search(name)
                if match is not None:
                    pairs.append((_group_of(match), names.index(split)))
        of_group: dict[str, int] = {}
        for key, code in pairs:
            if of_group.setdefault(key, code) != code:
                message = f"has {key} in {names[of_group[key]]} and in {names[code]}"
                cure = "one group is in one split: change the list or --group-by"
                raise InputError(taken.problem(message, cure))
        return np.array([of_group.get(key, _UNASSIGNED) for key in keys])

    def _recorded(self, taken: RecordedSplits) -> NDArray[np.uint8]:
        """Codes as a store records them; zeros if they are of other sources, which is told elsewhere."""
        count = len(self.sizes)
        try:
            raw = zlib.decompressobj().decompress(taken.codes, count + 1)
        except zlib.error:
            raw = b""
        code = np.frombuffer(raw, np.uint8)
        is_valid = len(code) == count and (code < len(taken.names)).all()
        return code if is_valid else np.zeros(count, np.uint8)


def _most_missing(
    position: NDArray[np.uint64], sizes: NDArray[np.int64], shares: Sequence[float]
) -> NDArray[np.uint8]:
    """Visit units in the order of their positions; assign each to the split furthest below its share."""
    order = np.argsort(position, kind="stable")
    assigned, total = [0] * len(shares), 0
    codes = bytearray()
    for size in sizes[order].tolist():  # Python ints are faster than numpy scalars
        total += size
        missing = [share * total - have for share, have in zip(shares, assigned, strict=True)]
        codes.append(missing.index(max(missing)))
        assigned[codes[-1]] += size
    code = np.empty(len(sizes), np.uint8)
    code[order] = np.frombuffer(codes, np.uint8)
    return code


def _first_of(scan: Scan) -> NDArray[np.int64]:
    """For each source, the first source that belongs together with it, (sources,)."""
    if not scan.units:
        return np.arange(len(scan.sources))
    first: dict[str, int] = {}
    return np.array([first.setdefault(unit, at) for at, unit in enumerate(scan.units)])


def _full(names: Iterable[str], below: str) -> Iterable[str]:
    return (f"{below}/{name}" for name in names) if below else names


def _groups(names: Iterable[str], pattern: str) -> Iterator[str]:
    """The group of each name."""
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


def _below(paths: Sequence[Path], scan: Scan) -> str:
    """Path from the common folder of the given paths to that of the sources; empty if they are the same.

    Names in a store begin at the common folder of its sources, which a new folder of sources changes.
    """
    if not paths or not len(scan.sources):
        return ""
    folders = [path if path.is_dir() else path.parent for path in paths]
    top = os.path.commonpath([real_path(folder) for folder in folders])
    source = scan.sources[0]
    inner = source.name.rpartition("/")[0]
    root = str(real_path(source.path.parent))
    if inner and not root.endswith(f"{os.sep}{inner.replace('/', os.sep)}"):
        return ""
    root = root[: len(root) - len(inner)]
    below = Path(os.path.relpath(root, top)).as_posix()
    return "" if below == "." or below.startswith("..") else printable(below)
