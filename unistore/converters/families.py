"""Properties of a family: as its class states them, or as they follow from its schema."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from unistore.converters.family import Family
from unistore.converters.options import declared
from unistore.converters.registry import find_family

if TYPE_CHECKING:  # imported where they are used: help needs no numpy, and a reader no converter
    from unistore.converters.adapter.converter import Converter
    from unistore.converters.family_types import Exporter
    from unistore.converters.files.comparison import Restore
    from unistore.converters.preview import Preview
    from unistore.converters.protocol import Scan
    from unistore.schemas.declared_rules import ArraySpecs
    from unistore.schemas.indices import StoreView


class Offer(NamedTuple):
    """Something that a conversion could precompute.

    Attributes
    ----------
    option : str
        Words to add to the command: ``"--voxel-bins 5"``.
    gives : str
        What is then precomputed: ``"voxels of 5 bins"``.
    most_bytes : int
        Largest size of its values in bytes, before compression and without offsets.
    """

    option: str
    gives: str
    most_bytes: int

    def __str__(self) -> str:
        from unistore.system.sizes import size

        cost = f"up to about {size(self.most_bytes)} before compression"
        return f"could be precomputed: {self.gives} by {self.option}, {cost}"


def converter_of(family: type[Family], **options: Any) -> Converter:
    """Return the converter of a family with these options."""
    from unistore.converters.adapter.converter import Converter

    return Converter(family(**options))


def modules_of(family: type[Family]) -> tuple[str, ...]:
    """Return the modules that a conversion of a family imports."""
    return family.__module__, "unistore.converters.adapter.converter"


def specs_of(family: type[Family]) -> ArraySpecs:
    """Return what the arrays of its stores must be."""
    from unistore.converters.adapter.stored_columns import specs_by_schema

    return family.specs() or specs_by_schema(family.schema)


def kind_of(family: type[Family]) -> str:
    """Return the name of the default sample kind of its stores."""
    if family.kind:
        return family.kind
    if family.schema.spatial and not family.schema.of_samples:
        return "Volumes"
    return "Ragged" if family.schema.samples else "Rows"


def kinds_of(family: type[Family], paths: Collection[str]) -> list[str]:
    """Return the sample kinds that suit a store with arrays at these paths, the default one first."""
    return [*(family.kinds(paths) or (f"unistore.{kind_of(family)}()", *family.other_kinds))]


def exporter_of(family: type[Family], to: str = "") -> Exporter | None:
    """Return what makes the files of a store in a format of `Family.exports`, None if there is no such one.

    Of an empty `to`, in the layout of its sources.
    """
    if to and to not in family.exports:
        return None
    exporter = family.exporter(to)
    if exporter is None and not to:
        from unistore.converters.adapter.restore import exported_files

        return lambda store: exported_files(_recorded(family, store), store)
    return exporter


def restorer_of(family: type[Family], store: StoreView, scan: Scan) -> Restore:
    """Return what gives back the arrays of each source of a store."""
    from unistore.converters.adapter.restore import opened_by_formats, restore

    own = family.restorer(store, scan)
    if own is None:
        return restore(_recorded(family, store), store, scan)
    return opened_by_formats(family(), own, store, scan)


def preview_of(family: type[Family]) -> Preview:
    """Return how pages show samples of its stores."""
    from unistore.converters.adapter.restore import preview_of as preview_by_view

    return family.preview() or preview_by_view(family())


def preview_of_store(store: StoreView) -> Preview:
    """Return how pages show samples of a store: as its family does, or its columns if none is installed."""
    from unistore.converters.preview import COLUMNS

    family = find_family(store.family)
    return COLUMNS if family is None else preview_of(family)


def offers_of(
    family: Family, arrays: Mapping[str, tuple[Sequence[int], str]], samples: int
) -> tuple[Offer, ...]:
    """Return what could be precomputed of sources whose store has these arrays, and is not."""
    return tuple(Offer(*offer) for offer in family.offers(arrays, samples))


def offers_of_store(store: StoreView) -> tuple[Offer, ...]:
    """Return what could be precomputed of a store's sources, and is not."""
    family = find_family(store.family)
    if family is None:
        return ()
    views = {path: store.array(path) for path in store.paths()}
    arrays = {path: (view.shape, str(view.dtype)) for path, view in views.items()}
    return offers_of(_recorded(family, store), arrays, store.sample_count)


def _recorded(family: type[Family], store: StoreView) -> Family:
    """Return a family with the options that a store records."""
    recorded = store.root.options
    names = {option.name for option in declared(family)}
    return family(**{name: value for name, value in recorded.items() if name in names})
