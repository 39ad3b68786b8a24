"""Attributes of HDF5 files: reading them, and the JSON text of each source in a store.

An attribute is left out if its name is not UTF-8, if its type has no meaning outside its file (references,
values of variable length), if it cannot be read, or if a size limit is reached. A note says so.

A store has one JSON text per source, ``sources/hdf5_attributes``: ``{path: {name: entry}}``, each entry as in
`unistore.converters.files.hdf5.attribute_json`. Between scan and store, the text of a source is in
``detail["attributes"]``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import h5py
import numpy as np

from unistore.converters.common.faults import is_read_error
from unistore.converters.files.hdf5.attribute_json import decode, encode, type_problem
from unistore.converters.files.hdf5.file import FAILURES
from unistore.converters.files.hdf5.plain import PlainDataset, PlainGroup
from unistore.converters.files.hdf5.tree import Tree
from unistore.errors import first_few, printable
from unistore.schemas.store_view import StoreView
from unistore.schemas.tables import HDF5_ATTRIBUTES, Field, IndexValues, lazy_text_arrays
from unistore.system.packed import view
from unistore.system.sizes import count_of

MAX_ATTRIBUTE_BYTES = 256 << 10
MAX_FILE_BYTES = 1 << 20
MAX_STORE_BYTES = 256 << 20
"""Limits on the JSON of one attribute, of all attributes of a file, and of all files of a store."""

_DETAIL = "attributes"
_LISTED = 5

Entry = dict[str, Any]
IsRewritten = Callable[[str, h5py.HLObject, str, Entry], bool]
"""``(path, object, name, entry)``: whether an export writes this attribute without its being stored."""


@dataclass
class Attributes:
    """Attributes of one file.

    Attributes
    ----------
    kept
        By path of the group or dataset (``""``: the root): the names of its attributes, and their JSON.
    left_out
        By reason: the first attribute that is left out, and how many there are.
    """

    kept: dict[str, tuple[tuple[str, ...], str]] = field(default_factory=dict)
    left_out: dict[str, tuple[str, int]] = field(default_factory=dict)


def objects_of(
    file: h5py.File, tree: Tree, wanted: Callable[[str], bool]
) -> Iterator[tuple[str, h5py.HLObject]]:
    """Path and object of the root, all groups, and the wanted datasets."""
    yield "", file
    for path in tree.groups:
        yield path, file[path]
    yield from ((path, dataset) for path, dataset in tree.datasets.items() if wanted(path))


def read_attributes(
    objects: Iterable[tuple[str, h5py.HLObject]], is_rewritten: IsRewritten = lambda *_: False
) -> Attributes:
    """Read the attributes of groups and datasets.

    Parameters
    ----------
    objects
        Path and object. Once `MAX_FILE_BYTES` are reached, further attributes are left out.
    is_rewritten
        Attributes for which it is true are skipped.
    """
    found = Attributes()
    bytes_left = MAX_FILE_BYTES
    for path, item in objects:
        kept: dict[str, Entry] = {}
        for name, entry in _entries(item):
            if isinstance(entry, str):
                reason = entry
            elif is_rewritten(path, item, name, entry):
                continue
            else:
                size = len(json.dumps({name: entry, "" if kept else path: 0}))
                if size <= min(MAX_ATTRIBUTE_BYTES, bytes_left):
                    bytes_left -= size
                    kept[name] = entry
                    continue
                reason = f"more than {MAX_FILE_BYTES >> 20} MiB of attributes in one file"
                if size > MAX_ATTRIBUTE_BYTES:
                    reason = f"larger than {MAX_ATTRIBUTE_BYTES >> 10} KiB"
            first, count = found.left_out.get(reason, (f"{name} of {path or '/'}", 0))
            found.left_out[reason] = first, count + 1
        if kept:
            found.kept[path] = tuple(kept), json.dumps(kept)
    return found


def _entries(item: h5py.HLObject | PlainGroup | PlainDataset) -> Iterator[tuple[str, Entry | str]]:
    """Names of the attributes of an object, and the entry of each or the reason why it is left out."""
    if isinstance(item, PlainGroup | PlainDataset):
        yield from ((name, encode(values, values.dtype)) for name, values in item.attributes.items())
        return
    for number in range(h5py.h5a.get_num_attrs(item.id)):
        yield _entry(item, number)


def _entry(item: h5py.HLObject, number: int) -> tuple[str, Entry | str]:
    """Name of an attribute, and its entry or the reason why it is left out."""
    name = f"number {number}"
    try:
        attribute = h5py.h5a.open(item.id, index=number)
        raw: bytes = attribute.name
        name = raw.decode("utf-8", "backslashreplace")
        if not raw or name.encode() != raw:
            return name, "without a name in UTF-8"
        shape, dtype = attribute.shape, attribute.dtype
        if (problem := type_problem(dtype)) is not None:
            return name, problem
        if shape is None:
            return name, "no value of a compound type" if dtype.fields else encode(None, dtype)
        if prod(shape) * dtype.itemsize > MAX_ATTRIBUTE_BYTES:
            return name, f"larger than {MAX_ATTRIBUTE_BYTES >> 10} KiB"
        values = np.empty(shape, dtype)
        attribute.read(values)
        return name, encode(values, dtype)
    except (*FAILURES, AttributeError) as error:
        if is_read_error(error):
            raise
        return name, "unreadable"


class AttributeCollector:
    """Collects the attribute texts of all sources of a conversion."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._size = self._count = self._sources = 0
        self._left_out: dict[str, list[tuple[str, int]]] = {}

    def detail(
        self, source: str, found: Attributes, stored: Callable[[str], bool] = lambda _: True
    ) -> dict[str, str]:
        """Entry for the ``detail`` of a source; empty if it has no attributes.

        Parameters
        ----------
        stored
            Whether the store has the group or dataset at a path: attributes of others are skipped.
        """
        for reason, (first, count) in found.left_out.items():
            self._left_out.setdefault(reason, []).append((f"{first} in {source}", count))
        kept = {path: each for path, each in found.kept.items() if stored(path)}
        if not kept:
            return {}
        count = sum(len(names) for names, _ in kept.values())
        text = f"{{{', '.join(f'{json.dumps(path)}: {entries}' for path, (_, entries) in kept.items())}}}"
        if self._size + len(text) > MAX_STORE_BYTES:
            reason = f"more than {MAX_STORE_BYTES >> 20} MiB of attributes in one store"
            self._left_out.setdefault(reason, []).append((f"those in {source}", count))
            return {}
        self._size += len(text)
        self._count += count
        self._sources += 1
        self._names |= dict.fromkeys(name for names, _ in kept.values() for name in names)
        return {_DETAIL: text}

    def notes(self) -> list[str]:
        """Notes on the attributes that are kept and left out."""
        notes = []
        if self._count:
            shown, files = first_few(list(self._names), _LISTED), count_of(self._sources, "file")
            notes.append(f"attributes kept: {self._count} of {files} ({shown})")
        for reason, found in self._left_out.items():
            rest = sum(count for _, count in found) - 1
            others = f" and {rest} more" if rest else ""
            notes.append(f"attributes left out ({reason}): {printable(found[0][0])}{others}")
        return notes


def attribute_text(detail: Mapping[str, Any]) -> str:
    """JSON text in the ``detail`` of a source."""
    text: str = detail.get(_DETAIL, "{}")
    return text


def attribute_arrays(details: Sequence[Mapping[str, Any]]) -> list[tuple[Field, IndexValues]]:
    """Text column made from the ``detail`` of every source; empty if no source has attributes."""
    if not any(_DETAIL in detail for detail in details):
        return []
    texts = view(details, attribute_text)
    description = "attributes of the HDF5 file, its groups and datasets, JSON"
    return lazy_text_arrays(HDF5_ATTRIBUTES, texts, axis="source", description=description)


def attribute_texts(store: StoreView, sources: int) -> list[str]:
    """JSON text of each of the `sources` sources of a store."""
    return store.text(HDF5_ATTRIBUTES) if store.has(f"{HDF5_ATTRIBUTES}/data") else ["{}"] * sources


def parse_attributes(text: str) -> dict[str, dict[str, Any]]:
    """Attributes by path and name, each as `decode` returns it.

    Raises
    ------
    AttributeError, LookupError, TypeError, ValueError
        If the text was not written by `read_attributes`.
    """
    return {
        path: {name: decode(entry) for name, entry in entries.items()}
        for path, entries in json.loads(text).items()
    }
