"""Compare sources of two stores: first their hashes, then the values that these do not cover."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np

from unistore.errors import InputError
from unistore.growing.alike import unite
from unistore.growing.sources import KeptSource, numbers_in
from unistore.schemas.array_specs import SOURCE_BOUNDS
from unistore.store.joined import SelectedSources, UnitedStores
from unistore.store.reader import Store
from unistore.system.types import AnyArray, Shape

# Arrays that say how a store names, counts and orders its sources, not what these hold
_OF_STORE = (
    "sources/path/",
    "sources/bytes",
    "sources/hash",
    "splits/",
)
_Bools: TypeAlias = np.ndarray[tuple[int], np.dtype[np.bool]]
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
        For each pair, whether all values are equal. If no form can have both, values of the sources
        themselves are compared by their hashes.
    """
    if not pairs:
        return []
    sides = [[KeptSource("", part, pair[part]) for pair in pairs] for part in (0, 1)]
    try:
        store = unite((first, second), [*sides[0], *sides[1]], None)
        selected = [SelectedSources(store, numbers_in(store, side)) for side in sides]
        same = _same_hashes(selected)
        for path in store.fields:
            if not path.startswith(_OF_STORE) and not _is_of_several(selected[0], path):
                _compare(selected, path, same)
    except InputError:
        same = _same_in_own_forms((first, second), pairs)
    return [bool(is_same) for is_same in same]


def _same_hashes(sides: Sequence[SelectedSources]) -> _Bools:
    first, second = [side.values("sources/hash") for side in sides]
    same: _Bools = (first == second).all(axis=1)
    return same


def _same_in_own_forms(stores: Sequence[Store], pairs: Sequence[tuple[int, int]]) -> _Bools:
    """Compare sources of two stores that no one form holds, (pairs,).

    Their own values are compared by their hash, which does not depend on how a store holds them. Arrays that
    both stores hold in one form are compared, too, and those that one lacks with what rows have without them.
    """
    sides = []
    for part, store in enumerate(stores):
        numbers = [pair[part] for pair in pairs]
        united = unite([store], [KeptSource("", 0, number) for number in numbers], None)
        sides.append(SelectedSources(united, numbers))
    same = _same_hashes(sides)
    first, second = sides
    for path in dict.fromkeys([*first.store.fields, *second.store.fields]):
        having = [side for side in sides if path in side.store.fields]
        if path.startswith(_OF_STORE) or any(_is_of_several(side, path) for side in having):
            continue
        if len(having) == 1:
            _compare_with_absent(having[0], path, same)
        elif _form(first, path) == _form(second, path):
            _compare(sides, path, same)
    return same


def _form(side: SelectedSources, path: str) -> tuple[str, Shape]:
    field = side.store.fields[path]
    return field.dtype, field.row_shape


def _compare_with_absent(side: SelectedSources, path: str, same: _Bools) -> None:
    """Clear `same` where rows have other values than in stores that lack the array."""
    absent = side.store.specs.of(path).absent
    if absent is None:
        return
    if isinstance(absent, str):
        group = path.rpartition("/")[0]
        _, texts = side.rows(f"{group}/offsets")
        _, nbytes = side.rows(f"{group}/data")
        same &= nbytes == texts * len(absent.encode())
        return
    values = side.store.array(path).read()
    for number, (first, count) in enumerate(zip(*side.rows(path), strict=True)):
        same[number] &= bool((values[first : first + count] == absent).all())


def _is_of_several(sources: SelectedSources, path: str) -> bool:
    # Named ranges of samples that may hold several sources
    table = path.rpartition("/")[0]
    spanning = [other for other in sources.store.fields if sources.spans_sources(other)]
    return any(f"{table}/".startswith(f"{other.rpartition('/')[0]}/") for other in spanning)


def _compare(sides: Sequence[SelectedSources], path: str, same: _Bools) -> None:
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
