"""Splits that are taken over: from another store, or from a list of names in a CSV or JSON file."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from unistore.errors import InputError, Problem, StoreError, printable
from unistore.remote.url import require_local_path
from unistore.store.reader import Store

MAX_BYTES = 64 << 20
"""Largest list that is read."""
MAX_NAMES = 10_000_000
"""Most samples of a store whose splits are taken over one by one."""
MAX_SPLITS = 256
MAX_PROBLEMS = 20
"""Problems of a list that are told."""
_CSV, _JSON = ".csv", ".json"
_HEADERS = {("source", "split"), ("sample", "split"), ("name", "split")}
_FORM = 'expected lines "NAME,SPLIT" in a .csv file, or {"NAME": "SPLIT"} in a .json file'


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitList:
    """Splits by the names of sources, and of samples as ``"SOURCE: SAMPLE"``."""

    origin: str  # name of the file or store, without its folder
    splits: Mapping[str, str]
    from_store: bool = False  # then names begin at the folders that were given to its conversion

    @property
    def digest(self) -> str:
        """xxh3-128 of all names and splits, in any order."""
        lines = (json.dumps(item) for item in sorted(self.splits.items()))
        return xxhash.xxh3_128_hexdigest("\n".join(lines).encode())

    def problem(self, message: str, cure: str) -> Problem:
        """A problem of this list."""
        return Problem(f"--split-from {self.origin}", message, cure, "split")


def read_split_list(path: str | os.PathLike[str]) -> SplitList:
    """Read the splits of a store, or of a ``.csv`` or ``.json`` file.

    Raises
    ------
    InputError
        If there is neither, the file is malformed or too large, or a name has two splits.
    """
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
        raise InputError(Problem(printable(str(path)), message, "check the path", "split")) from error
    except RecursionError as error:
        raise InputError(Problem(printable(str(path)), "is nested too deeply", _FORM, "split")) from error
    except (ValueError, csv.Error) as error:
        raise InputError(Problem(printable(str(path)), str(error), _FORM, "split")) from error
    return SplitList(origin=origin, splits=_without_contradictions(pairs, printable(str(path))))


def _text(file: Path) -> str:
    with file.open("rb") as opened:
        data = opened.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        msg = f"is larger than {MAX_BYTES >> 20} MiB, the most that a list may have"
        raise ValueError(msg)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        msg = f"is not UTF-8 at byte {error.start}"
        raise ValueError(msg) from error


def _json_pairs(text: str) -> list[tuple[Any, Any]]:
    if not text.lstrip().startswith("{"):
        raise ValueError("holds no JSON object")
    # pairs, not a dict: a name that comes twice must be seen
    pairs: list[tuple[Any, Any]] = json.loads(text, object_pairs_hook=list)
    wrong = [name for name, split in pairs if not isinstance(split, str)]
    if wrong:
        msg = f"{wrong[0]!r} has a split that is no text"
        raise ValueError(msg)
    return pairs


def _csv_pairs(text: str) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for number, row in enumerate(csv.reader(io.StringIO(text, newline=""), strict=True), 1):
        cells = [cell.strip() for cell in row]
        if not any(cells):
            continue
        if len(cells) != 2:
            msg = f"row {number} has {len(cells)} cells"
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
            problems.append(Problem(location, f"a line of split {split!r} has no name", _FORM, "split"))
        elif not split:
            problems.append(Problem(location, f"{name!r} has no split", _FORM, "split"))
        elif splits.setdefault(name, split) != split:
            message = f"{name} is in {splits[name]} and in {split}"
            problems.append(Problem(location, message, "keep one of the two lines", "split"))
    if not splits and not problems:
        problems.append(Problem(location, "names nothing", _FORM, "split"))
    count = len(set(splits.values()))
    if count > MAX_SPLITS:
        message = f"names {count:,} splits, and a store has at most {MAX_SPLITS}"
        problems.append(Problem(location, message, "is the split in the second column?", "split"))
    if problems:
        raise InputError(problems[:MAX_PROBLEMS])
    return splits


def _of_store(path: str) -> SplitList:
    try:
        store = Store(path)
        codes, names = store.splits()
        sources = store.text("sources/path")
        if not names:
            msg = f"{path}: has no splits"
            raise StoreError(msg)
        splits = _splits_of_names(store, sources, np.array(names, object)[codes])
    except StoreError as error:
        problem = Problem("--split-from", str(error), "give a store with splits, or a list", "split")
        raise InputError(problem) from error
    below = store.attributes.get("options", {}).get("split_below", "")
    if below:
        splits = {f"{below}/{name}": split for name, split in splits.items()}
    return SplitList(origin=printable(Path(path.partition("?")[0]).name), splits=splits, from_store=True)


def _splits_of_names(store: Store, sources: list[str], splits: NDArray[Any]) -> dict[str, str]:
    """Split of each source, or of each sample where a source has samples in several splits."""
    owner = _source_of_samples(store)
    present, first = np.unique(owner, return_index=True)
    split_of_source = np.full(len(sources), "", object)
    split_of_source[present] = splits[first]
    if (splits == split_of_source[owner]).all():
        return {sources[number]: split_of_source[number] for number in present}
    if len(owner) > MAX_NAMES:
        msg = f"{store.path}: has splits by sample, and more than {MAX_NAMES:,} samples"
        raise StoreError(msg)
    names = sample_names(sources, owner, _own_names(store))
    return dict(zip(names, splits.tolist(), strict=True))


def sample_names(sources: Sequence[str], owner: NDArray[np.int64], own: Sequence[str] = ()) -> Iterator[str]:
    """``"SOURCE: SAMPLE"`` of each sample, by its `own` name or else by its number in the source.

    `owner` has the source of each sample, (samples,).
    """
    inner: Iterable[Any] = own or _numbers_in_source(owner).tolist()
    return (f"{sources[at]}: {name}" for at, name in zip(owner.tolist(), inner, strict=True))


def _numbers_in_source(owner: NDArray[np.int64]) -> NDArray[np.int64]:
    order = np.argsort(owner, kind="stable")
    first = np.searchsorted(owner[order], owner[order])
    numbers = np.empty(len(owner), np.int64)
    numbers[order] = np.arange(len(owner)) - first
    return numbers


def _source_of_samples(store: Store) -> NDArray[np.int64]:
    """Source of each sample, (samples,)."""
    if store.sample_table == store.attributes.get("main_table"):
        rows = store.array("sources/rows").read()
        owner = np.repeat(np.arange(len(rows)), rows)
    else:
        owner = store.array(f"{store.sample_table}/source").read().astype(np.int64)
    if len(owner) != store.sample_count or (owner < 0).any():
        msg = f"{store.path}: does not say which source each sample is from"
        raise StoreError(msg)
    return owner


def _own_names(store: Store) -> list[str]:
    path = f"{store.sample_table}/name"
    return store.text(path) if store.has(f"{path}/data") else []
