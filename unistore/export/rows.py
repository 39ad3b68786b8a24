"""Plain arrays given back: each file in the form that its name tells, every array under its own name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from unistore.export.files import File, Values, converted
from unistore.export.reading import SourceRows, row_values, source_dtype, sources_of
from unistore.schemas.rows import TABLE
from unistore.store.reader import Store

__all__ = ["files"]

_JOINT = re.compile(r"(?P<before>(?:.*/)?)\{[^/{}]*\}(?P<after>[^/]*\.npy)", re.IGNORECASE)
_NPY_NAME = "data"


def files(store: Store) -> Iterator[File]:
    """Every file of a rows store."""
    mapping: Mapping[str, str] = store.attributes["options"].get("map", {})
    paths = [path for path in store.paths() if path.startswith(f"{TABLE}/")]
    for source in sources_of(store):
        held: dict[str, Values] = {}
        for path in paths:
            array = store.array(path)
            if source.number not in array.attributes.get("missing_in", ()):
                values = row_values(array, source.lo, source.hi)
                dtype = source_dtype(array.attributes, source.number, array.dtype)
                held[_own_name(path.removeprefix(f"{TABLE}/"), mapping)] = converted(values, dtype)
        yield from _files(source, held)


def _files(source: SourceRows, held: Mapping[str, Values]) -> Iterator[File]:
    suffix = source.name.lower().rpartition(".")[2]
    joint = _JOINT.fullmatch(source.name)
    if joint is not None and not any("/" in name for name in held):
        for name, values in held.items():
            file = f"{joint['before']}{name}{joint['after']}"
            yield File(name=file, form="npy", source=source.number, values={"": values})
    elif suffix == "npy" and list(held) == [_NPY_NAME]:
        yield File(name=source.name, form="npy", source=source.number, values={"": held[_NPY_NAME]})
    elif suffix == "npz":
        yield File(name=source.name, form="npz", source=source.number, values=held)
    else:
        name = f"{source.name[:-4]}.h5" if suffix == "npy" else source.name
        yield File(name=name, form="hdf5", source=source.number, values=held)


def _own_name(column: str, mapping: Mapping[str, str]) -> str:
    """Name of a column's array in its file: that of ``--map``, else the column's own."""
    for stored, name in mapping.items():
        if column == stored:
            return name.strip("/")
        if column.startswith(f"{stored}/"):  # a field of a structured array
            return name.strip("/") + column.removeprefix(stored)
    return column
