"""Attributes of HDF5 sources in a store: one JSON text a source, ``sources/hdf5_attributes``.

``{path: {name: entry}}``, the entries as `unistore.converters.files.hdf5.attribute` writes them. Between scan
and store the text of a source is in ``detail["attributes"]``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from unistore.converters.files.hdf5.attribute import decoded
from unistore.converters.files.hdf5.attributes import Attributes
from unistore.errors import printable
from unistore.schemas.sources import HDF5_ATTRIBUTES
from unistore.schemas.store_view import StoreView
from unistore.schemas.tables import Field
from unistore.schemas.text import text_arrays

__all__ = [
    "LARGEST_STORE",
    "AttributeTexts",
    "attribute_arrays",
    "attribute_texts",
    "decoded_attributes",
    "source_text",
]

LARGEST_STORE = 256 << 20
"""Bytes of JSON that the attributes of all sources may take."""

_DETAIL = "attributes"
_SHOWN = 5


class AttributeTexts:
    """The texts of all sources of a conversion, one after the other."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._size = self._count = self._sources = 0
        self._left_out: dict[str, list[tuple[str, int]]] = {}

    def detail(
        self, source: str, found: Attributes, stored: Callable[[str], bool] = lambda _: True
    ) -> dict[str, str]:
        """What a source's ``detail`` says of its attributes; nothing where it has none.

        Parameters
        ----------
        source
            Name of the source.
        found
            Its attributes.
        stored
            Whether what stands at a path of the file is in the store: the attributes of others are not.
        """
        for reason, (first, count) in found.left_out.items():
            self._left_out.setdefault(reason, []).append((f"{first} in {source}", count))
        kept = {path: each for path, each in found.kept.items() if stored(path)}
        if not kept:
            return {}
        count = sum(len(names) for names, _ in kept.values())
        text = f"{{{', '.join(f'{json.dumps(path)}: {entries}' for path, (_, entries) in kept.items())}}}"
        if self._size + len(text) > LARGEST_STORE:
            reason = f"more than {LARGEST_STORE >> 20} MiB of attributes in one store"
            self._left_out.setdefault(reason, []).append((f"those in {source}", count))
            return {}
        self._size += len(text)
        self._count += count
        self._sources += 1
        self._names |= dict.fromkeys(name for names, _ in kept.values() for name in names)
        return {_DETAIL: text}

    def notes(self) -> list[str]:
        """What is kept, and what is not, and why."""
        notes = []
        if self._count:
            shown = [*list(self._names)[:_SHOWN], *(["…"] if len(self._names) > _SHOWN else [])]
            files = f"{self._sources} file{'s' if self._sources > 1 else ''}"
            notes.append(f"attributes kept: {self._count} of {files} ({printable(', '.join(shown))})")
        for reason, places in self._left_out.items():
            rest = sum(count for _, count in places) - 1
            others = f" and {rest} more" if rest else ""
            notes.append(f"attributes left out ({reason}): {printable(places[0][0])}{others}")
        return notes


def source_text(detail: Mapping[str, Any]) -> str:
    """Text that the ``detail`` of a source holds."""
    text: str = detail.get(_DETAIL, "{}")
    return text


def attribute_arrays(details: Sequence[Mapping[str, Any]]) -> list[tuple[Field, NDArray[Any]]]:
    """The text column of the sources' attributes, from the ``detail`` of each; nothing where none has any."""
    if not any(_DETAIL in detail for detail in details):
        return []
    texts = map(source_text, details)
    description = "attributes of the HDF5 file, its groups and datasets, JSON"
    return list(text_arrays(HDF5_ATTRIBUTES, texts, axis="source", description=description))


def attribute_texts(store: StoreView, sources: int) -> list[str]:
    """Text of each source of a store of so many sources."""
    return store.text(HDF5_ATTRIBUTES) if store.has(f"{HDF5_ATTRIBUTES}/data") else ["{}"] * sources


def decoded_attributes(text: str) -> dict[str, dict[str, Any]]:
    """Attributes by path and name, as `decoded` gives each.

    Raises
    ------
    AttributeError, LookupError, TypeError, ValueError
        If the text is not what `read_attributes` wrote.
    """
    return {
        path: {name: decoded(entry) for name, entry in entries.items()}
        for path, entries in json.loads(text).items()
    }
