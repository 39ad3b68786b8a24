"""Which split every sample belongs to: by source folder, by the converter, or by shares of the samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from unistore.conversion.repeated import Repeated
from unistore.converters.protocol import Scan, Settled
from unistore.errors import InputError

__all__ = ["Codes", "assign_splits", "parse_shares"]

Codes: TypeAlias = NDArray[np.uint8] | Repeated
"""Split code a sample, (samples,) u1."""

OTHER = "other"
"""Split of the sources that name none, where others do."""


def parse_shares(split: str | Mapping[str, float]) -> dict[str, float]:
    """Read ``"train=0.8,val=0.2"``, or a mapping of the same.

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
    # written so that NaN, which compares false, is refused
    fair = all(share > 0 for share in shares.values()) and abs(sum(shares.values()) - 1) <= 1e-6
    if not fair or "" in shares or len(shares) < text.count(",") + 1:
        msg = f"--split {text}: expected shares above 0 that add up to 1, as in train=0.8,val=0.2"
        raise InputError(msg)
    return shares


def assign_splits(
    scan: Scan, settled: Settled, shares: Mapping[str, float] | None
) -> tuple[Codes, tuple[str, ...]]:
    """Split code a sample, (samples,) u1, and the names by code; no names: the store has no splits.

    With `shares`, whole sources are dealt out: sources in the order of the xxh3-64 of their names are given,
    one after the other, to the split whose share of the samples so far is furthest below what it asked for.
    So no source straddles two splits, and adding a source moves few others.
    """
    if shares is not None:
        return _dealt(scan, settled, shares)
    if settled.splits is not None:
        return settled.splits, settled.split_names
    splits = scan.sources.splits
    names = tuple(dict.fromkeys(split for split in splits if split is not None))
    if not names:
        return Repeated(np.zeros(1, np.uint8), np.array([settled.samples])), ()
    if None in splits:
        names = tuple(dict.fromkeys((*names, OTHER)))
    code = np.array([names.index(OTHER if split is None else split) for split in splits], np.uint8)
    return _of_samples(code, settled), names


def _of_samples(code: NDArray[np.uint8], settled: Settled) -> Codes:
    """Codes of the samples, from those of their sources."""
    codes = code[settled.sample_source]
    return codes if settled.sample_runs is None else Repeated(codes, settled.sample_runs)


def _dealt(scan: Scan, settled: Settled, shares: Mapping[str, float]) -> tuple[Codes, tuple[str, ...]]:
    names = tuple(shares)
    sizes = np.zeros(len(scan.sources), np.int64)
    np.add.at(sizes, settled.sample_source, 1 if settled.sample_runs is None else settled.sample_runs)
    names_hashed = [xxhash.xxh3_64_intdigest(name.encode()) for name in scan.sources.names]
    order = sorted(range(len(scan.sources)), key=lambda source: (names_hashed[source], source))
    wanted = np.array([shares[name] for name in names])
    given = np.zeros(len(names))
    code = np.zeros(len(scan.sources), np.uint8)
    for source in order:
        missing = wanted * (given.sum() + sizes[source]) - given
        code[source] = int(np.argmax(missing))
        given[code[source]] += sizes[source]
    return _of_samples(code, settled), names
