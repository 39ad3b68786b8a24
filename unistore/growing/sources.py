"""The sources that a version keeps, or several stores together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from unistore.converters.files.paths import natural_key
from unistore.store.joined import UnitedStores
from unistore.store.reader import Store


class KeptSource(NamedTuple):
    """A source of a version."""

    name: str
    part: int  # number of its part
    number: int  # its number there


def kept_sources(
    stores: Sequence[Store], removed: Sequence[Sequence[int]], *, by_name: bool
) -> list[KeptSource]:
    """Return the sources that are left, part after part, or in the order of one conversion."""
    kept = []
    for part, store in enumerate(stores):
        names = store.text("sources/path")
        left = sorted({*range(len(names))}.difference(removed[part]))
        kept += [KeptSource(names[number], part, number) for number in left]
    return sorted(kept, key=lambda source: natural_key(source.name)) if by_name else kept


def numbers_in(store: UnitedStores, sources: Sequence[KeptSource]) -> list[int]:
    """Return the numbers of sources in the united stores."""
    return [store.first_sources[source.part] + source.number for source in sources]
