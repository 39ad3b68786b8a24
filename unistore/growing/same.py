"""Compare sources of two stores: first their hashes, then the values that these do not cover."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from unistore.errors import InputError
from unistore.growing.alike import unite
from unistore.growing.sources import KeptSource, numbers_in
from unistore.schemas.array_specs import SOURCE_BOUNDS
from unistore.store.joined import SelectedSources, UnitedStores
from unistore.store.reader import Store
from unistore.system.types import AnyArray

# Arrays that say how a store names, counts and orders its sources, not what these hold
_OF_STORE = (
    "sources/path/",
    "sources/bytes",
    "sources/hash",
    "splits/",
)
_BLOCK = 16 << 20  # bytes of rows that are compared at a time


def same_sources(first: Store, second: Store, pairs: Sequence[tuple[int, int]]) -> list[bool]:
    """Return whether sources of two stores have equal values. NaN equals NaN.

    Hashes cover the values of a source itself, not values that are computed from them or come from
    headers. Sources with equal hashes are therefore compared value by value.

    Parameters
    ----------
    first, second : Store
        Stores of the same family. If a column has a wider dtype or larger rows in one store, because
        other sources need it, values are compared in a form that both can have.
    pairs : sequence of (int, int)
        Number of a source in the first store, and of one in the second.

    Returns
    -------
    list of bool
        For each pair, whether all values are equal. If no form can have both, their hashes are compared.
    """
    if not pairs:
        return []
    sides = [[KeptSource("", part, pair[part]) for pair in pairs] for part in (0, 1)]
    try:
        store = unite((first, second), [*sides[0], *sides[1]], None)
        selected = [SelectedSources(store, numbers_in(store, side)) for side in sides]
        digests = [sources.values("sources/hash") for sources in selected]
        same: np.ndarray[tuple[int], np.dtype[np.bool]] = (digests[0] == digests[1]).all(axis=1)
        for path in store.fields:
            if not path.startswith(_OF_STORE) and not _is_of_several(selected[0], path):
                _compare(selected, path, same)
    except InputError:
        return [_describe_alike(first, second, *pair) for pair in pairs]
    return [bool(is_same) for is_same in same]


def _describe_alike(first: Store, second: Store, number: int, other: int) -> bool:
    """Compare a source of each of two stores that no one form holds.

    Its values are compared by their hash, which does not depend on how a store holds them. What else both
    stores say of the source is compared where both say it in one dtype.
    """
    for path in first.specs.rules().keys() & second.specs.rules().keys():
        is_of_a_source = first.specs.of(path).rows == (SOURCE_BOUNDS, -1)
        if is_of_a_source and path != "sources/bytes":
            one, two = first.array(path), second.array(path)
            values = one.read(number, number + 1), two.read(other, other + 1)
            if one.dtype == two.dtype and not _is_equal(*values):
                return False
    texts = set(first.specs.texts()) & set(second.specs.texts())
    of_sources = [text for text in texts if text.startswith("sources/") and text != "sources/path"]
    return all(first.text(text)[number] == second.text(text)[other] for text in of_sources)


def _is_of_several(sources: SelectedSources, path: str) -> bool:
    # Named ranges of samples that may hold several sources
    table = path.rpartition("/")[0]
    spanning = [other for other in sources.store.fields if sources.spans_sources(other)]
    return any(f"{table}/".startswith(f"{other.rpartition('/')[0]}/") for other in spanning)


def _compare(
    sides: Sequence[SelectedSources], path: str, same: np.ndarray[tuple[int], np.dtype[np.bool]]
) -> None:
    """Clear `same` where the values of a path differ."""
    (first, count), (other_first, other_count) = (side.rows(path) for side in sides)
    same &= count == other_count
    for number in np.flatnonzero(same).tolist():
        starts = int(first[number]), int(other_first[number])
        blocks = []
        for side, start in zip(sides, starts, strict=True):
            source = int(side.numbers[number])
            blocks.append(_blocks(side.store, path, source, start, start + int(count[number])))
        same[number] = all(map(_is_equal, *blocks))


def _blocks(store: UnitedStores, path: str, source: int, first: int, stop: int) -> Iterator[AnyArray]:
    """Yield the rows of a source, free of where it stands in its store."""
    array = store.array(path)
    spec = store.specs.of(path)
    if spec.is_offsets:
        yield np.diff(array.read(first, stop + 1))
        return
    is_number = spec.indexes is not None and spec.indexes[0] == SOURCE_BOUNDS
    step = max(1, _BLOCK // max(1, store.fields[path].row_bytes))
    for lo in range(first, stop, step):
        values = array.read(lo, min(lo + step, stop))
        yield values - source if is_number else values


def _is_equal(one: AnyArray, other: AnyArray) -> bool:
    return one.tobytes() == other.tobytes()  # a sign of zero counts
