"""The split of every sample: from the sources, or by shares of the samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from unistore.conversion.repeated import Repeated
from unistore.converters.protocol import Finalized, Scan
from unistore.errors import InputError
from unistore.system.sizes import count_of

Codes: TypeAlias = NDArray[np.uint8] | Repeated
"""Split code of each sample, (samples,) uint8."""

SOURCE = "source"
OTHER = "other"
"""Split of sources without one, if others have one."""


class Shares(dict[str, float]):
    """Shares of the samples by split.

    Attributes
    ----------
    by
        Unit that is never divided between splits: ``"source"``, or the name of a sample: ``"episode"``.
    """

    by: str = SOURCE

    def check(self, scan: Scan) -> None:
        """Refuse an unknown `by`, and more splits than sources.

        Raises
        ------
        InputError
            Naming the alternatives.
        """
        single = scan.sample_table.rpartition("/")[2].removesuffix("s")
        if self.by not in (SOURCE, single):
            msg = f"--split-by {self.by}: splits can be assigned by {SOURCE} or by {single} here"
            raise InputError(msg)
        if self.by == SOURCE and len(scan.sources) < len(self):
            msg = (
                f"--split: {len(self)} splits ({', '.join(self)}) of "
                f"{count_of(len(scan.sources), 'source')}: a source is never divided, so give "
                f"at least one source for each split, or --split-by {single}"
            )
            raise InputError(msg)

    @classmethod
    def recorded(cls, options: Mapping[str, Any]) -> Shares | None:
        """Shares from a store's recorded options."""
        found = options["split"]
        if found is None:
            return None
        shares = cls(found)
        shares.by = options.get("split_by", SOURCE)
        return shares

    def to_json(self) -> dict[str, Any]:
        """Options that a store records."""
        return {"split": dict(self), **({} if self.by == SOURCE else {"split_by": self.by})}


def parse_shares(split: str | Mapping[str, float], by: str = SOURCE) -> Shares:
    """Parse ``"train=0.8,val=0.2"``, or a mapping of the same.

    Raises
    ------
    InputError
        If a share is not a number above 0, a name comes twice, or they do not add up to 1.
    """
    text = split if isinstance(split, str) else ",".join(f"{name}={share}" for name, share in split.items())
    shares = Shares()
    shares.by = by
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


def assign_splits(scan: Scan, finalized: Finalized, shares: Shares | None) -> tuple[Codes, tuple[str, ...]]:
    """Split code of each sample, (samples,) uint8, and the names by code; no names: the store has no splits.

    With `shares`, sources are visited in the order of the xxh3-64 of their names, and each is assigned to the
    split that is furthest below its share of the samples so far. So a source is never divided, and adding one
    moves few others. With ``shares.by`` a sample, samples are visited in the order of the hash of source and
    name, unless the sources themselves name the splits of samples.
    """
    if shares is not None and not keeps_splits(finalized, shares):
        return (
            _assign_samples(scan, finalized, shares)
            if shares.by != SOURCE
            else _assign_sources(scan, finalized, shares)
        )
    if finalized.splits is not None:
        return finalized.splits, finalized.split_names
    splits = scan.sources.splits
    names = tuple(dict.fromkeys(split for split in splits if split is not None))
    if not names:
        return Repeated(np.zeros(1, np.uint8), np.array([finalized.samples])), ()
    if None in splits:
        names = tuple(dict.fromkeys((*names, OTHER)))
    code = np.array([names.index(OTHER if split is None else split) for split in splits], np.uint8)
    return _of_samples(code, finalized), names


def keeps_splits(finalized: Finalized, shares: Shares | None) -> bool:
    """Whether splits that the sources name for samples take precedence over shares."""
    return shares is not None and shares.by != SOURCE and finalized.splits is not None


def _of_samples(code: NDArray[np.uint8], finalized: Finalized) -> Codes:
    """Codes of samples from those of sources."""
    codes = code[finalized.sample_source]
    return codes if finalized.sample_runs is None else Repeated(codes, finalized.sample_runs)


def _assign_sources(scan: Scan, finalized: Finalized, shares: Shares) -> tuple[Codes, tuple[str, ...]]:
    sizes = np.zeros(len(scan.sources), np.int64)
    np.add.at(sizes, finalized.sample_source, 1 if finalized.sample_runs is None else finalized.sample_runs)
    code = _assign(scan.sources.names, sizes, shares)
    return _of_samples(code, finalized), tuple(shares)


def _assign_samples(scan: Scan, finalized: Finalized, shares: Shares) -> tuple[Codes, tuple[str, ...]]:
    owner = finalized.sample_source
    if finalized.sample_runs is not None:
        owner = np.repeat(owner, finalized.sample_runs)
    own: Iterable[Any] = finalized.sample_names
    if not own:
        order = np.argsort(owner, kind="stable")
        first = np.searchsorted(owner[order], owner[order])
        numbers = np.empty(len(owner), np.int64)
        numbers[order] = np.arange(len(owner)) - first
        own = numbers.tolist()
    sources = scan.sources.names
    names = (f"{sources[at]}: {name}" for at, name in zip(owner.tolist(), own, strict=True))
    return _assign(names, np.ones(len(owner), np.int64), shares), tuple(shares)


def _assign(names: Iterable[str], sizes: NDArray[np.int64], shares: Shares) -> NDArray[np.uint8]:
    """Split code of each name, (n,) uint8; `sizes` are the samples of each, (n,)."""
    hashed = np.fromiter((xxhash.xxh3_64_intdigest(name.encode()) for name in names), np.uint64, len(sizes))
    order = np.argsort(hashed, kind="stable")
    wanted, given, total = list(shares.values()), [0] * len(shares), 0
    codes = bytearray()
    for size in sizes[order].tolist():  # Python ints are faster than numpy scalars
        total += size
        missing = [share * total - have for share, have in zip(wanted, given, strict=True)]
        codes.append(missing.index(max(missing)))
        given[codes[-1]] += size
    code = np.empty(len(sizes), np.uint8)
    code[order] = np.frombuffer(codes, np.uint8)
    return code
