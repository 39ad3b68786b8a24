"""The split of every sample: from the sources, from a list, or by shares of the samples."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unistore.conversion.repeated import Repeated
from unistore.conversion.split_rule import SOURCE, SplitRule
from unistore.conversion.split_units import Units
from unistore.converters.protocol import Finalized, Scan
from unistore.errors import InputError
from unistore.system.sizes import count_of

Codes: TypeAlias = NDArray[np.uint8] | Repeated
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
    """Return a rule for the sources of a scan under the given paths.

    Raises
    ------
    InputError
        If it cannot be applied to them, as far as this is known before values are read.
    """
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
    found = {}
    if rule.taken is not None:
        packed = base64.b64encode(zlib.compress(splits.codes.tobytes()))
        found["splits"] = {"names": list(splits.names), "codes": packed.decode()}
    return Assigned(codes, splits.names, tuple(notes), found)


def _samples_of_sources(scan: Scan, finalized: Finalized) -> NDArray[np.int64]:
    """Return the number of samples of each source, (sources,)."""
    sizes = np.zeros(len(scan.sources), np.int64)
    runs: Any = finalized.sample_runs
    if runs is None:
        runs = 1
    np.add.at(sizes, finalized.sample_source, runs)
    return sizes


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
