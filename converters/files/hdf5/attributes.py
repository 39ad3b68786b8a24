"""The attributes of an HDF5 file's groups and datasets, as far as they can be kept.

An attribute is left out, and said to be, if its name is no UTF-8, if it holds references or other values that
stand for nothing outside of its file, if it cannot be read, and if it is too large: alone, or with those that
were taken before it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import h5py
import numpy as np

from unistore.converters.files.hdf5.attribute import encoded, type_problem
from unistore.converters.files.hdf5.file import FAILURES
from unistore.converters.files.hdf5.tree import Tree

__all__ = ["LARGEST", "LARGEST_FILE", "Attributes", "Entry", "objects_of", "read_attributes"]

LARGEST = 256 << 10
"""Bytes of JSON that one attribute may take."""
LARGEST_FILE = 1 << 20
"""Bytes of JSON that those of one file may take."""

Entry = dict[str, Any]
MadeAgain = Callable[[str, h5py.HLObject, str, Entry], bool]
"""``(path, object, name, entry)``: whether an export writes the same attribute anyhow."""


@dataclass(slots=True)
class Attributes:
    """Attributes of one file.

    Attributes
    ----------
    kept
        By path of the group or dataset (``""``: the root) their names, and JSON of all of them, as `encoded`
        gives each, by name.
    left_out
        By reason the first that is not kept, and how many there are.
    """

    kept: dict[str, tuple[tuple[str, ...], str]] = field(default_factory=dict)
    left_out: dict[str, tuple[str, int]] = field(default_factory=dict)


def objects_of(
    file: h5py.File, tree: Tree, wanted: Callable[[str], bool]
) -> Iterator[tuple[str, h5py.HLObject]]:
    """The root, the groups and the wanted datasets of a file that was walked through, each with its path."""
    yield "", file
    for path in tree.groups:
        yield path, file[path]
    yield from ((path, dataset) for path, dataset in tree.datasets.items() if wanted(path))


def read_attributes(
    objects: Iterable[tuple[str, h5py.HLObject]], made_again: MadeAgain = lambda *_: False
) -> Attributes:
    """Read the attributes of some groups and datasets.

    Parameters
    ----------
    objects
        Each with its path; where there are too many attributes, the first ones are kept.
    made_again
        Which need not be kept.
    """
    found = Attributes()
    room = LARGEST_FILE
    for path, item in objects:
        kept: dict[str, Entry] = {}
        for number in range(h5py.h5a.get_num_attrs(item.id)):
            name, entry = _entry(item, number)
            if isinstance(entry, str):
                reason = entry
            elif made_again(path, item, name, entry):
                continue
            else:
                size = len(json.dumps({name: entry, "" if kept else path: 0}))
                reason = _too_large(size, room)
                if not reason:
                    room -= size
                    kept[name] = entry
                    continue
            first, count = found.left_out.get(reason, (f"{name} of {path or '/'}", 0))
            found.left_out[reason] = first, count + 1
        if kept:
            found.kept[path] = tuple(kept), json.dumps(kept)
    return found


def _too_large(size: int, room: int) -> str:
    if size > LARGEST:
        return f"larger than {LARGEST >> 10} KiB"
    return f"more than {LARGEST_FILE >> 20} MiB of attributes in one file" if size > room else ""


def _entry(item: h5py.HLObject, number: int) -> tuple[str, Entry | str]:
    """Name and entry of an attribute, or in place of the entry why there is none."""
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
            return name, "no value of a compound type" if dtype.fields else encoded(None, dtype)
        if prod(shape) * dtype.itemsize > LARGEST:
            return name, f"larger than {LARGEST >> 10} KiB"
        values = np.empty(shape, dtype)
        attribute.read(values)
        return name, encoded(values, dtype)
    except (*FAILURES, AttributeError):
        return name, "unreadable"
