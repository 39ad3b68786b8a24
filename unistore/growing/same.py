"""Whether sources of two stores are the same: their digests, then what these do not cover."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat

import numpy as np

from unistore.errors import InputError
from unistore.growing.alike import make_alike
from unistore.growing.merging import KeptSource, Merging
from unistore.schemas.array_specs import SOURCE_BOUNDS
from unistore.store.reader import Store
from unistore.system.types import AnyArray

# Arrays that say how a store names, counts and orders its sources, not what these hold
_OF_STORE = (
    "sources/path/",
    "sources/bytes",
    "sources/digest",
    "splits/",
)
_BLOCK = 16 << 20  # bytes of rows that are compared at a time


def same_sources(first: Store, second: Store, pairs: Sequence[tuple[int, int]]) -> list[bool]:
    """Compare sources of two stores: those of equal digests by all of their values, NaN equal to itself.

    Digests say which values of their own sources have. What is computed from these, and what a header says,
    they do not cover.

    Parameters
    ----------
    first, second
        Stores of one family. Where one has a column in a wider dtype or in larger rows, as other sources of
        its own need, values are compared as both would hold them.
    pairs
        Number of a source in the first store, and of one in the second.

    Returns
    -------
    list of bool
        For each pair, whether all values are equal. False where no one form holds both.
    """
    if not pairs:
        return []
    sides = [[KeptSource("", part, pair[part]) for pair in pairs] for part in (0, 1)]
    try:
        stores, fields = make_alike((first, second), [*sides[0], *sides[1]], None)
        mergings = [Merging(stores, side, fields) for side in sides]
        digests = [store.array("sources/digest").read() for store in (first, second)]
        numbers = np.array(pairs, np.int64)
        same = np.ones(len(pairs), bool)
        same &= (digests[0][numbers[:, 0]] == digests[1][numbers[:, 1]]).all(axis=1)
        for path in fields:
            if not path.startswith(_OF_STORE) and not _is_of_several(mergings[0], path):
                _compare(mergings, path, same)
    except InputError:
        return [*repeat(False, len(pairs))]
    return same.tolist()


def _is_of_several(merging: Merging, path: str) -> bool:
    # Named ranges of samples that may hold several sources
    table = path.rpartition("/")[0]
    spanning = [other for other in merging.fields if merging.spans_sources(other)]
    return any(f"{table}/".startswith(f"{other.rpartition('/')[0]}/") for other in spanning)


def _compare(mergings: Sequence[Merging], path: str, same: np.ndarray[tuple[int], np.dtype[np.bool]]) -> None:
    """Clear `same` where the values of a path differ."""
    (first, count), (other_first, other_count) = (merging.rows(path) for merging in mergings)
    same &= count == other_count
    for number in np.flatnonzero(same).tolist():
        starts = int(first[number]), int(other_first[number])
        blocks = []
        for merging, start in zip(mergings, starts, strict=True):
            blocks.append(_blocks(merging, path, merging.sources[number], start, start + int(count[number])))
        same[number] = all(map(_is_equal, *blocks))


def _blocks(merging: Merging, path: str, source: KeptSource, first: int, stop: int) -> Iterator[AnyArray]:
    """Yield the rows of a source, free of where it stands in its store."""
    array = merging.stores[source.part].array(path)
    if merging.spec(path).is_offsets:
        yield np.diff(array.read(first, stop + 1))
        return
    spec = merging.spec(path)
    is_number = spec.indexes is not None and spec.indexes[0] == SOURCE_BOUNDS
    step = max(1, _BLOCK // max(1, merging.fields[path].row_bytes))
    for lo in range(first, stop, step):
        values = merging.padded(path, array.read(lo, min(lo + step, stop)))
        yield values - source.number if is_number else values


def _is_equal(one: AnyArray, other: AnyArray) -> bool:
    if one.shape != other.shape:
        return False
    if one.dtype == other.dtype:  # a sign of zero counts
        return one.tobytes() == other.tobytes()
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind == other.dtype.kind == "f"))
