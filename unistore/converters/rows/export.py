"""Export plain arrays: every file in its own format, every array under its own name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.adapter.restore import file_of_format, formats_of_sources, stored_metadata
from unistore.converters.common.exported import (
    ExportedArray,
    File,
    SourceRows,
    StoredRagged,
    names_in_source,
    sources_of,
)
from unistore.converters.files.comparison import Restore, RestoredArray, RestoredFile, RestoredFiles
from unistore.converters.files.hdf5.attributes import kept_attributes
from unistore.converters.rows.columns import SPLIT_GROUPS
from unistore.converters.scan_types import Scan
from unistore.plugin import Array, Family
from unistore.schemas.indices import ArrayView, StoreView
from unistore.schemas.ragged import RAGGED_SUFFIX, TEXT_SUFFIX
from unistore.schemas.rows.fields import TABLE
from unistore.schemas.tables import SourceForms

_JOINT = re.compile(r"(?P<before>(?:.*/)?)\{[^/{}]*\}(?P<after>[^/]*\.npy)", re.IGNORECASE)


def files(family: Family, store: StoreView) -> Iterator[File]:
    """Yield every file of a rows store."""
    options = store.root.options
    names = _columns(store)
    sources = sources_of(store)
    for source, opening in zip(sources, formats_of_sources(family, store, sources), strict=True):
        having = [
            name for name, array in names.items() if SourceForms.of(array.attributes).has(source.number)
        ]
        arrays: dict[str, ExportedArray] = {}
        for group, rows in _groups(store, source):
            columns = {name: _own_rows(store, name, rows) for name in having}
            in_group = _in_file(store, columns, rows, options.get("map", {}))
            arrays |= {f"{group}{name}": values for name, values in in_group.items()}
        joint = _JOINT.fullmatch(source.name)
        if joint is not None and not any("/" in name for name in arrays):
            for name, values in arrays.items():
                file = f"{joint['before']}{name}{joint['after']}"
                yield File(name=file, form="npy", source=source.number, values={"": values})
        elif opening.name == "npy" and list(arrays) == ["data"]:
            yield File(name=source.name, form="npy", source=source.number, values={"": arrays["data"]})
        elif opening.name == "npz":
            yield File(name=source.name, form="npz", source=source.number, values=arrays)
        elif opening.name in ("npy", "hdf5"):
            name = f"{source.name[:-4]}.h5" if opening.name == "npy" else source.name
            if options.get("reverse_axes") and opening.name == "hdf5":
                arrays = {key: _reversed(values) for key, values in arrays.items()}
            attributes = kept_attributes(store, source.number)
            yield File(name=name, form="hdf5", source=source.number, values=arrays, attributes=attributes)
        else:
            whole = {name: Array(values.whole()) for name, values in arrays.items()}
            yield file_of_format(opening, source, whole, stored_metadata(store, source))


def restore(store: StoreView, scan: Scan) -> Restore:
    """Restore every array of a source. The scan says which array of which file a column is."""
    sources = sources_of(store)

    def source(number: int) -> RestoredFiles:
        source = scan.sources[number]
        metadata = stored_metadata(store, sources[number])
        files = []
        for file, (path, name) in enumerate(zip(source.files, source.detail.formats, strict=False)):
            arrays = []
            for column, place in source.detail.tables[TABLE].places.items():
                if place.file != file:
                    continue
                for group, rows in _groups(store, sources[number]):
                    values = _own_rows(store, column, rows)
                    if scan.options.get("reverse_axes") and name == "hdf5":
                        values = _reversed(values)
                    arrays.append(RestoredArray(f"{group}{place.array}", values, place.field))
            files.append(RestoredFile(path, arrays, metadata=metadata, format=name))
        return RestoredFiles(files)

    return source


def _groups(store: StoreView, source: SourceRows) -> list[tuple[str, SourceRows]]:
    """Return the rows of each group of a file that is a split, by its name and a slash. Without: all rows."""
    groups = stored_metadata(store, source).get(SPLIT_GROUPS)
    if groups is None:
        return [("", source)]
    rows = []
    start = source.lo
    for name, count in groups:
        rows.append((f"{name}/", source._replace(lo=start, hi=start + count)))
        start += count
    return rows


def _columns(store: StoreView) -> dict[str, ArrayView]:
    """Return the array of each column by name, of ragged ones ``data``."""
    columns = {}
    for path in store.paths():
        column = path.removeprefix(f"{TABLE}/")
        group, _, name = column.rpartition("/")
        is_ragged = store.has(f"{TABLE}/{group}/offsets") and store.has(f"{TABLE}/{group}/data")
        if column == path or (is_ragged and name == "offsets"):
            continue
        columns[group if is_ragged and name == "data" else column] = store.array(path)
    return columns


def _file_name(column: str) -> str:
    return column.removesuffix(TEXT_SUFFIX).removesuffix(RAGGED_SUFFIX)


def _own_rows(store: StoreView, column: str, source: SourceRows) -> ExportedArray:
    path = f"{TABLE}/{column}"
    if not store.has(path):
        return StoredRagged(store, path).values(source.number, source.lo, source.hi)
    array = store.array(path)
    row_shape = SourceForms.of(array.attributes).row_shape(source.number, array.shape[1:])
    values = ExportedArray.of_rows(array, source.lo, source.hi).within(row_shape)
    return values.in_source(array.attributes, source.number)


def _unmapped(arrays: Mapping[str, ExportedArray], mapping: Mapping[str, str]) -> dict[str, ExportedArray]:
    """Return arrays by their names in the file. Fields of a structured array are joined again."""
    datasets = dict(arrays)
    for stored, name in mapping.items():
        prefix = f"{stored}/"
        own_name = name.strip("/")
        inner = {path.removeprefix(prefix): datasets.pop(path) for path in arrays if path.startswith(prefix)}
        if inner:
            datasets[own_name] = _structured(inner)
        elif stored in datasets:
            datasets[own_name] = datasets.pop(stored)
    return datasets


def _in_file(
    store: StoreView,
    columns: Mapping[str, ExportedArray],
    source: SourceRows,
    mapping: Mapping[str, str],
) -> dict[str, ExportedArray]:
    """Return arrays by their names in the file. Columns that were fields are arrays of records again."""
    arrays: dict[str, ExportedArray] = {}
    records: dict[str, dict[int, tuple[str, ExportedArray]]] = {}
    for name, values in columns.items():
        is_ragged = not store.has(f"{TABLE}/{name}")
        attributes = store.array(f"{TABLE}/{name}/data" if is_ragged else f"{TABLE}/{name}").attributes
        array, field, position = names_in_source(attributes, source.number)
        if field:
            records.setdefault(array, {})[position] = field, values
        else:
            arrays[_file_name(name) if is_ragged else name] = values
    arrays = _unmapped(arrays, mapping)
    for array, fields in records.items():
        arrays[array] = _structured(dict(fields[position] for position in sorted(fields)))
    return arrays


def _reversed(values: ExportedArray) -> ExportedArray:
    """Return the array with its axes reversed again. Read into memory as a whole."""
    return ExportedArray(
        values.shape[::-1], values.dtype, lambda: iter([np.ascontiguousarray(values.whole().T)])
    )


def _structured(fields: Mapping[str, ExportedArray]) -> ExportedArray:
    rows = next(iter(fields.values())).shape[0]
    dtype = np.dtype([(name, column.dtype, column.shape[1:]) for name, column in fields.items()])

    def blocks() -> Iterator[NDArray[Any]]:
        whole = np.empty(rows, dtype)
        for name, column in fields.items():
            whole[name] = column.whole()
        yield whole

    return ExportedArray((rows,), dtype, blocks)
