"""How samples are assigned to splits: the options of a conversion, and what a store records of them."""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import xxhash

from unistore.converters.files.paths import real_path
from unistore.converters.protocol import Scan
from unistore.errors import AddOptions, Fixes, InputError, Problem, StoreError, printable, without_fix
from unistore.remote.url import require_local_path
from unistore.schemas.indices import sample_sources
from unistore.system.arguments import MAX_COUNT, is_integer
from unistore.system.types import AnyArray, Int64s, JsonObject, PathLike

if TYPE_CHECKING:
    from unistore.store.reader import Store

SOURCE = "source"
EXACT = "exact:"  # Prefix of shares that are met exactly
COLUMN = "column:"  # Prefix of a column in ``--group-by``
_METHODS = ("hash", "exact", "list")


class RecordedSplits(NamedTuple):
    """Splits that a store took over, as its root records them."""

    origin: str
    digest: str
    names: tuple[str, ...]
    codes: bytes  # of each source or sample, compressed


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRule:
    """How samples are assigned to splits."""

    # share of each split; empty: all splits are taken over
    shares: Mapping[str, float] = field(default_factory=dict)
    # ``"hash"``: by the position of a name's hash on the cumulative shares. ``"exact"``: whatever is furthest
    # below its share gets the next name, in the order of their hashes. ``"list"``: no shares
    method: Literal["hash", "exact", "list"] = "hash"
    # unit that is never divided between splits: ``"source"``, or the name of a sample: ``"episode"``
    by: str = SOURCE
    seed: int = 0  # seed of the hash
    group_by: str | None = None  # pattern in names, or ``"column:NAME"``: what agrees in it is never divided
    taken: SplitList | RecordedSplits | None = None  # splits that are taken over
    # folder of the sources below the folder that was given; names that are hashed begin with it
    below: str = ""
    # whether it is that of a store, so that these sources may leave splits empty
    is_recorded: bool = field(default=False, compare=False)

    @classmethod
    def recorded(cls, options: Mapping[str, Any]) -> SplitRule | None:
        """Return the rule in a store's recorded options."""
        origin = _recorded_splits(options)
        if options["split"] is None and origin is None:
            return None
        shares: dict[str, float] = {}
        if options["split"] is not None:
            shares = parse_shares(dict(options["split"]))
        method = options.get("split_rule")
        if method not in _METHODS:
            msg = f"split_rule {method!r} is unknown"
            raise ValueError(msg)
        seed = options.get("split_seed", 0)
        if not is_integer(seed, 0, MAX_COUNT):
            msg = f"split_seed {seed!r} is not a seed"
            raise ValueError(msg)
        pattern = options.get("group_by")
        if pattern is not None:
            check_pattern(pattern)
        return cls(
            shares=shares,
            method=method,
            by=str(options.get("split_by", SOURCE)),
            seed=seed,
            group_by=pattern,
            taken=origin,
            below=str(options.get("split_below", "")),
            is_recorded=True,
        )

    def to_json(self) -> JsonObject:
        """Return options that a store records."""
        options: JsonObject = {"split": dict(self.shares) or None}
        if self.by != SOURCE:
            options["split_by"] = self.by
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
        """Return the shares as on the command line: ``"train=0.8,val=0.2"``."""
        return share_text(self.shares)

    @property
    def column(self) -> str | None:
        """Return the column of ``--group-by column:NAME``."""
        if self.group_by is None or not self.group_by.startswith(COLUMN):
            return None
        return self.group_by.removeprefix(COLUMN)

    def prepared(self, paths: Sequence[Path], scan: Scan) -> SplitRule:
        """Return the rule for the sources of a scan under the given paths."""
        sample = sample_noun(scan)
        if self.by not in (SOURCE, sample):
            message = f"these samples can be assigned to splits only by {SOURCE} or by {sample}"
            option = f"--split-by {self.by}"
            raise InputError.at(option, message, f"give {SOURCE} or {sample}", "option")
        below = ""
        if self.method in ("hash", "list"):
            below = _below(paths, scan)
        by = self.by
        if self.column is not None:
            by = sample
        return replace(self, below=below, by=by)


def share_text(shares: Mapping[str, float]) -> str:
    """Return shares as on the command line: ``"train=0.8,val=0.2"``."""
    return ",".join(f"{name}={share}" for name, share in shares.items())


def sample_noun(scan: Scan) -> str:
    """Return what a sample is called: ``"episode"``."""
    return scan.sample_table.rpartition("/")[2].removesuffix("s")


def _recorded_splits(options: Mapping[str, Any]) -> RecordedSplits | None:
    if "split_from" not in options:
        return None
    origin = options["split_from"]
    splits = options["found"]["splits"]
    return RecordedSplits(
        origin=origin["name"],
        digest=origin["digest"],
        names=tuple(map(str, splits["names"])),
        codes=base64.b64decode(splits["codes"], validate=True),
    )


def check_pattern(group_by: str) -> None:
    """Refuse a pattern that is no regular expression, or has several groups."""
    if group_by.startswith(COLUMN):
        return
    reason = ""
    try:
        compiled = re.compile(group_by)
        if compiled.groups > 1:
            reason = f"has {compiled.groups} groups in brackets, but at most one is allowed"
    except (re.error, RecursionError, OverflowError) as error:
        reason = f"is not a regular expression: {error}"
    if reason:
        fix = r"give a pattern such as 'patient_\d+', or '(\w+)/' for the first folder"
        raise InputError(Problem(f"--group-by {group_by}", reason, fix, "option"))


def parse_split(
    split: str | Mapping[str, float] | None,
    by: str = SOURCE,
    seed: int = 0,
    split_from: PathLike | None = None,
    group_by: str | None = None,
) -> SplitRule | None:
    """Return the rule of the arguments of `unistore.convert`, or None if splits come from the sources."""
    if split is None and split_from is None:
        _refuse_idle_options(by, seed, group_by)
        return None
    if group_by is not None:
        check_pattern(group_by)
    method: Literal["hash", "exact", "list"] = "hash"
    shares: Mapping[str, float] = {}
    if split is None:
        method = "list"
    elif isinstance(split, str) and split.startswith(EXACT):
        method = "exact"
        shares = parse_shares(split.removeprefix(EXACT))
    else:
        shares = parse_shares(split)
    if seed and method != "hash":
        used = "with a --split that begins with exact:" if method == "exact" else "without --split"
        fix = "remove it, or give --split without exact:, for example train=0.8,val=0.2"
        raise InputError.at("--split-seed", f"has no effect {used}", fix, "option")
    origin = None
    if split_from is not None:
        if method == "exact":
            message = "does not work with exact shares, which count all samples, also listed ones"
            fix = "give --split without exact: for samples that are not listed"
            raise InputError.at("--split-from", message, fix, "option")
        origin = read_split_list(split_from)
    return SplitRule(shares=shares, method=method, by=by, seed=seed, group_by=group_by, taken=origin)


def _refuse_idle_options(by: str, seed: int, group_by: str | None) -> None:
    names = []
    if by != SOURCE:
        names.append("--split-by")
    if seed:
        names.append("--split-seed")
    if group_by is not None:
        names.append("--group-by")
    message = "has no effect without --split"
    fix = AddOptions(("--split", "train=0.8,val=0.2"), "or other shares")
    if names:
        raise InputError([Problem(name, message, fix, "option") for name in names])


def parse_shares(split: str | Mapping[str, float]) -> dict[str, float]:
    """Parse ``"train=0.8,val=0.2"``, or a mapping of the same."""
    text = split if isinstance(split, str) else share_text(split)
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, _, share = part.partition("=")
        try:
            shares[name.strip()] = float(share)
        except ValueError:
            shares[name.strip()] = 0.0
    # NaN compares false and is refused
    positive = all(share > 0 for share in shares.values())
    total = sum(shares.values())
    message = ""
    if not positive or "" in shares or len(shares) < text.count(",") + 1:
        message = "is not a list of names that differ, each with a share above 0"
    elif abs(total - 1) > 1e-6:
        message = f"the shares add up to {total:.6g}, not 1"
    if message:
        option = f"--split {text}"
        raise InputError.at(option, message, "give for example train=0.8,val=0.2", "option")
    return shares


def _below(paths: Sequence[Path], scan: Scan) -> str:
    # Names in a store begin at the common folder of its sources, which a new folder of sources changes
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


MAX_BYTES = 64 << 20  # Largest list that is read
MAX_NAMES = 10_000_000  # Most samples of a store whose splits are taken over one by one
MAX_SPLITS = 256
MAX_PROBLEMS = 20  # Problems of a list that are told
_CSV = ".csv"
_JSON = ".json"
_HEADERS = {("source", "split"), ("sample", "split"), ("name", "split")}
_FORM = 'write lines NAME,SPLIT in a .csv file, or {"NAME": "SPLIT"} in a .json file'


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitList:
    """Splits by the names of sources, and of samples as ``"SOURCE: SAMPLE"``."""

    origin: str  # name of the file or store, without its folder
    splits: Mapping[str, str]
    from_store: bool = False  # then names begin at the folders that were given to its conversion

    @property
    def digest(self) -> str:
        """Return the xxh3-128 of all names and splits, in any order."""
        lines = (json.dumps(item) for item in sorted(self.splits.items()))
        return xxhash.xxh3_128_hexdigest("\n".join(lines).encode())

    def problem(self, message: str, fix: Fixes) -> Problem:
        """Return a problem of this list."""
        return Problem(f"--split-from {self.origin}", message, fix, "split")


def read_split_list(path: str | os.PathLike[str]) -> SplitList:
    """Read the splits of a store, or of a ``.csv`` or ``.json`` file."""
    suffix = Path(path).suffix.lower()
    if suffix not in (_CSV, _JSON):
        return _of_store(os.fspath(path))
    file = Path(require_local_path(path, "a list of splits"))
    origin = printable(file.name)
    try:
        text = _text(file)
        pairs = _json_pairs(text) if suffix == _JSON else _csv_pairs(text)
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
        raise InputError.at(printable(str(path)), message, "check the path", "split") from error
    except RecursionError as error:
        raise InputError.at(printable(str(path)), "is nested too deeply", _FORM, "split") from error
    except (ValueError, csv.Error) as error:
        raise InputError.at(printable(str(path)), str(error), _FORM, "split") from error
    return SplitList(origin=origin, splits=_without_contradictions(pairs, printable(str(path))))


def _text(file: Path) -> str:
    with file.open("rb") as opened:
        data = opened.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        msg = f"is larger than {MAX_BYTES >> 20} MiB, the limit for a list of splits"
        raise ValueError(msg)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        msg = f"is not UTF-8 text: byte {error.start:,} is wrong"
        raise ValueError(msg) from error


def _json_pairs(text: str) -> list[tuple[Any, Any]]:
    if not text.lstrip().startswith("{"):
        raise ValueError("is not a JSON object")
    # pairs, not a dict: a name that comes twice must be seen
    pairs: list[tuple[Any, Any]] = json.loads(text, object_pairs_hook=list)
    wrong = [name for name, split in pairs if not isinstance(split, str)]
    if wrong:
        msg = f"the split of {wrong[0]!r} is not a text"
        raise ValueError(msg)
    return pairs


def _csv_pairs(text: str) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for number, row in enumerate(csv.reader(io.StringIO(text, newline=""), strict=True), 1):
        cells = [cell.strip() for cell in row]
        if not any(cells):
            continue
        if len(cells) != 2:
            msg = f"line {number:,} has {len(cells)} cells, but 2 are expected"
            raise ValueError(msg)
        if not pairs and (cells[0].lower(), cells[1].lower()) in _HEADERS:
            continue
        pairs.append((cells[0], cells[1]))
    return pairs


def _without_contradictions(pairs: Iterable[tuple[str, str]], location: str) -> dict[str, str]:
    splits: dict[str, str] = {}
    problems = []
    for name, split in pairs:
        if not name:
            problems.append(Problem(location, f"a line with the split {split!r} has no name", _FORM, "split"))
        elif not split:
            problems.append(Problem(location, f"{name!r} has no split", _FORM, "split"))
        elif splits.setdefault(name, split) != split:
            message = f"'{name}' is in two splits, {splits[name]} and {split}"
            problems.append(Problem(location, message, "keep one of the two lines", "split"))
    if not splits and not problems:
        problems.append(Problem(location, "the list is empty", _FORM, "split"))
    count = len(set(splits.values()))
    if count > MAX_SPLITS:
        message = f"names {count:,} splits, but a store has at most {MAX_SPLITS}"
        problems.append(Problem(location, message, "put the split into the second column", "split"))
    if problems:
        raise InputError(problems[:MAX_PROBLEMS])
    return splits


def _of_store(path: str) -> SplitList:
    from unistore.store.reader import Store

    try:
        store = Store(path)
        codes, names = store.splits()
        sources = store.text("sources/path")
        if not names:
            msg = f"{path}: this store has no splits"
            raise StoreError(msg)
        splits = _splits_of_names(store, sources, np.array(names, object)[codes])
    except StoreError as error:
        fix = "give a store with splits, or a .csv or .json list"
        problem = Problem("--split-from", without_fix(error), fix, "split")
        raise InputError(problem) from error
    below = store.root.options.get("split_below", "")
    if below:
        splits = {f"{below}/{name}": split for name, split in splits.items()}
    return SplitList(origin=printable(Path(path.partition("?")[0]).name), splits=splits, from_store=True)


def _splits_of_names(store: Store, sources: list[str], splits: AnyArray) -> dict[str, str]:
    owner = sample_sources(store)
    present, first = np.unique(owner, return_index=True)
    split_of_source = np.full(len(sources), "", object)
    split_of_source[present] = splits[first]
    if (splits == split_of_source[owner]).all():
        return {sources[number]: split_of_source[number] for number in present}
    if len(owner) > MAX_NAMES:
        msg = f"{store.path}: assigns samples one by one to splits, and has more than {MAX_NAMES:,} samples"
        raise StoreError(msg)
    names = sample_names(sources, owner, _own_names(store))
    return dict(zip(names, splits.tolist(), strict=True))


def sample_names(sources: Sequence[str], owner: Int64s, own: Sequence[str] = ()) -> Iterator[str]:
    """Yield ``"SOURCE: SAMPLE"`` of each sample, by its `own` name or else by its number in the source."""
    inner: Iterable[Any] = own or _numbers_in_source(owner).tolist()
    return (f"{sources[source]}: {name}" for source, name in zip(owner.tolist(), inner, strict=True))


def _numbers_in_source(owner: Int64s) -> Int64s:
    order = np.argsort(owner, kind="stable")
    first = np.searchsorted(owner[order], owner[order])
    numbers = np.empty(len(owner), np.int64)
    numbers[order] = np.arange(len(owner)) - first
    return numbers


def _own_names(store: Store) -> list[str]:
    path = f"{store.sample_table}/name"
    return store.text(path) if store.has(f"{path}/data") else []
