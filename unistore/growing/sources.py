"""The sources of a version, or of several stores together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from unistore.converters.files.paths import natural_key
from unistore.store.joined import UnitedStores
from unistore.store.reader import Store


class KeptSource(NamedTuple):
    """A source of a version.

    Attributes
    ----------
    name : str
        Name of the source.
    part : int
        Number of its part.
    number : int
        Number of the source in that part.
    """

    name: str
    part: int
    number: int


def kept_sources(
    stores: Sequence[Store], removed: Sequence[Sequence[int]], *, by_name: bool
) -> list[KeptSource]:
    """Return the sources that are not removed.

    Parameters
    ----------
    stores : sequence of Store
        The parts.
    removed : sequence of sequence of int
        For each part, numbers of its removed sources.
    by_name : bool
        True: in the order of one conversion of all sources. False: part after part.
    """
    kept = []
    for part, store in enumerate(stores):
        names = store.text("sources/path")
        left = sorted({*range(len(names))}.difference(removed[part]))
        kept += [KeptSource(names[number], part, number) for number in left]
    return sorted(kept, key=lambda source: natural_key(source.name)) if by_name else kept


def numbers_in(store: UnitedStores, sources: Sequence[KeptSource]) -> list[int]:
    """Return the numbers of sources in the united stores."""
    return [store.first_sources[source.part] + source.number for source in sources]
