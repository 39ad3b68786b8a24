"""What a store of a plugin's family gives back: its files, their comparison, pictures of samples."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unistore.converters.adapter.formats import (
    calling,
    fault,
    format_by_ending,
    formats_for,
    formats_of,
    is_own,
    json_metadata,
    open_file,
)
from unistore.converters.adapter.sources import RowOrigin
from unistore.converters.adapter.stored_columns import FORMAT, METADATA, OF_FAMILY
from unistore.converters.adapter.values import class_texts
from unistore.converters.array import Array
from unistore.converters.common.columns import ANY_TEXT, TEXT_KINDS, within
from unistore.converters.common.exported import (
    ExportedArray,
    File,
    SourceRows,
    StoredRagged,
    names_in_source,
    sources_of,
)
from unistore.converters.family import Family
from unistore.converters.family_types import Restored
from unistore.converters.files.comparison import (
    Restore,
    RestoredArray,
    RestoredFile,
    RestoredFiles,
    difference,
)
from unistore.converters.files.hdf5.attributes import attribute_texts
from unistore.converters.files.libraries import BY_FORMAT, UNISTORE, Open, OpenedByLibrary
from unistore.converters.formats.lazy import LazyRows
from unistore.converters.opened import Format, Metadata, OpenFile, SourceFile
from unistore.converters.preview import Measure, Preview
from unistore.converters.protocol import Scan
from unistore.converters.schema import Schema, bare_name
from unistore.converters.views import View, ViewLimits
from unistore.errors import InputError, Problem, UnistoreError, printable
from unistore.schemas.indices import StoreView, table_columns
from unistore.schemas.ragged import TEXT_SUFFIX
from unistore.schemas.table_rows import source_offsets
from unistore.schemas.tables import SourceForms
from unistore.system.types import AnyArray, Dtype

# Bytes that are read of a sample, at most
_SAMPLE_BYTES = 64 << 20
# Values of a column of any length that are shown of a sample, at most
_SHOWN_VALUES = 1 << 16


class _Columns(NamedTuple):
    """Paths of the columns of a table by name: arrays, and groups of ragged ones."""

    plain: Mapping[str, str]
    ragged: Mapping[str, str]


def _columns_of(schema: Schema, store: StoreView, table: str) -> _Columns:
    """Return the columns of a table: those of the schema, or what the files decided."""
    start = f"{table}/"
    plain = {path.removeprefix(start): path for path in table_columns(store, table)}
    if table == schema.table and schema.columns:  # others are computed, as the extent of volumes is
        plain = {name: path for name, path in plain.items() if name in schema.columns}
    ragged = {}
    for path, rule in store.specs.rules().items():
        group = path.removesuffix("/offsets")
        if path.startswith(start) and rule.offsets_of == f"{group}/data":
            ragged[group.removeprefix(start)] = group
    return _Columns(plain, ragged)


def restored(family: Family, store: StoreView, source: SourceRows) -> Restored:
    """Return the arrays and metadata of a source, from a store."""
    schema = family.schema
    columns: dict[str, Array] = {}
    of_main = _columns_of(schema, store, schema.table)
    for name, path in of_main.plain.items():
        extent = None
        if name in schema.spatial and source.hi > source.lo:
            extents = store.array(f"{schema.table}/extent")
            extent = extents.read(source.lo, source.lo + 1)[0].tolist()
        columns |= _column_of(store, name, path, source, extent)
    for name, path in of_main.ragged.items():
        columns |= _ragged_column_of(store, name, path, source)
    for table in store.root.tables:
        if table not in (schema.table, schema.samples, *schema.derived) and "/" not in table:
            lo, hi = _bounds(store, source_offsets(table), source.number)
            rows = source._replace(lo=lo, hi=hi)
            of_table = _columns_of(schema, store, table)
            for path in of_table.plain.values():
                columns |= _column_of(store, path, path, rows)
            for path in of_table.ragged.values():
                columns |= _ragged_column_of(store, path, path, rows)
    metadata = stored_metadata(store, source)
    if type(family).restore is Family.restore and store.has(f"{METADATA}/data"):
        of_family = store.array(f"{METADATA}/data").attributes.get(OF_FAMILY, ())
        metadata = {name: value for name, value in metadata.items() if name not in of_family}
    with calling(family, source.name):
        given = family.restore(columns, metadata)
    return _checked(family, source.name, given)


def _checked(family: Family, name: str, given: Any) -> Restored:
    """Refuse what no `Restored` is, in the name of the family."""
    if not isinstance(given, tuple) or len(given) != 2 or not isinstance(given[0], Mapping):
        message = f"returned {given!r:.60}, not arrays and metadata: Restored(…)"
        raise fault(family, "restore", name, message)
    for array_name, array in given[0].items():
        if not isinstance(array_name, str) or not isinstance(array, Array):
            message = f"returned {array!r:.60} as {array_name!r}, but names are texts and values an Array"
            raise fault(family, "restore", name, message)
    return Restored(given[0], json_metadata(family, "restore", name, given[1]))


def _bounds(store: StoreView, offsets: str, number: int) -> tuple[int, int]:
    lo, hi = store.array(offsets).read(number, number + 2).tolist()
    return lo, hi


def stored_metadata(store: StoreView, source: SourceRows) -> Metadata:
    """Read what a source said beside its arrays, and no text of the others."""
    if not store.has(f"{METADATA}/data"):
        return {}
    first, stop = _bounds(store, f"{METADATA}/offsets", source.number)
    metadata: Metadata = json.loads(store.array(f"{METADATA}/data").read(first, stop).tobytes())
    return metadata


def _column_of(
    store: StoreView, name: str, path: str, source: SourceRows, extent: Sequence[int] | None = None
) -> dict[str, Array]:
    """Return rows of a source in a column, by its name, or nothing if the source lacks it."""
    array = store.array(path)
    forms = SourceForms.of(array.attributes)
    if not forms.has(source.number):
        return {}
    dtype = forms.dtype(source.number, array.dtype)
    dtype = ANY_TEXT if dtype.hasobject else dtype
    row_shape = tuple(extent or forms.row_shape(source.number, array.shape[1:]))

    def read(lo: int, hi: int) -> AnyArray:
        rows = array.read(source.lo + lo, source.lo + hi)
        if dtype.kind in TEXT_KINDS:
            return class_texts(rows, array.attributes, dtype)
        return within(rows, (hi - lo, *row_shape)).astype(dtype, copy=False)

    rows = LazyRows((source.hi - source.lo, *row_shape), dtype, read)
    called = names_in_source(array.attributes, source.number)
    return {name: Array(rows, array.attributes.get("units"), "", *called)}


def _ragged_column_of(store: StoreView, name: str, path: str, source: SourceRows) -> dict[str, Array]:
    """Return rows of texts, or with any number of values, as objects."""
    data = store.array(f"{path}/data")
    if not SourceForms.of(data.attributes).has(source.number):
        return {}

    column = StoredRagged(store, path)
    whole = column.values(source.number, source.lo, source.hi)

    def read(lo: int, hi: int) -> AnyArray:
        return column.values(source.number, source.lo + lo, source.lo + hi).whole()

    rows = LazyRows(whole.shape, whole.dtype, read)
    array, *_ = names_in_source(data.attributes, source.number)
    return {name: Array(rows, data.attributes.get("units"), "", array)}


def exported_files(family: Family, store: StoreView) -> Iterator[File]:
    """Yield every source of a store, to be written by its format."""
    sources = sources_of(store)
    for source, opening in zip(sources, formats_of_sources(family, store, sources), strict=True):
        restored_columns = restored(family, store, source)
        yield file_of_format(opening, source, restored_columns.arrays, restored_columns.metadata)


def formats_of_sources(family: Family, store: StoreView, sources: Sequence[SourceRows]) -> Iterator[Format]:
    """Return the format that each source of a store had: a recorded one, or that of its ending."""
    if not store.has(f"{FORMAT}/data"):
        named = formats_of(family.formats)
        yield from [format_by_ending(named, source.name) for source in sources]
        return
    by_name = {one.name: one for one in formats_for(family)}
    for source, name in zip(sources, store.text(FORMAT), strict=True):
        if name not in by_name:
            message = f"was a file of the format '{printable(name)}', which does not exist here"
            fix = "install the package that adds this format"
            raise InputError(Problem(source.name, message, fix, "format"))
        yield by_name[name]


def file_of_format(
    opening: Format, source: SourceRows, arrays: Mapping[str, Array], metadata: Metadata
) -> File:
    """Return the file of a source, to be written by its format."""
    if type(opening).write is Format.write:
        message = f"was a file of the format '{opening.name}', which cannot be written"
        raise InputError(Problem(source.name, message, "read the store instead", "option"))
    write = partial(_write_checked, opening, source.name, arrays, metadata)
    return File(name=source.name, form="format", source=source.number, values={}, write=write)


def write_by_format(file: File, path: Path) -> None:
    """Write a file by the format that it names, open it again, and refuse it if it holds anything else."""
    (opening,) = formats_of((file.format,))

    # One array is in memory at a time: its rows stand elsewhere in the store.
    @lru_cache(maxsize=1)
    def whole(name: str) -> AnyArray:
        return file.values[name].whole()

    def rows_of(name: str, lo: int, hi: int) -> AnyArray:
        return whole(name)[lo:hi]

    arrays = {}
    for name, values in file.values.items():
        arrays[name] = Array(LazyRows(values.shape, values.dtype, partial(rows_of, name)))
    _write_checked(opening, file.name, arrays, file.metadata, path)


def _write_checked(
    opening: Format, name: str, arrays: Mapping[str, Array], metadata: Metadata, path: Path
) -> None:
    """Write a file by its format, open it again, and refuse it if it holds anything else."""
    try:
        opening.write(path, arrays, metadata)
    except (UnistoreError, OSError, MemoryError):
        raise
    except Exception as error:
        if is_own(opening):
            raise
        raise fault(opening, "write", name, f"failed: {type(error).__name__}: {error}") from error
    if not path.exists():
        raise fault(opening, "write", name, "did not write a file")
    with calling(opening, name), open_file(opening, SourceFile(path, name, (path.parent,))) as opened:
        reason = _difference(arrays, metadata, opened)
    if reason:
        raise fault(opening, "write", name, f"wrote a file that differs from the store: {reason}")


def _difference(arrays: Mapping[str, Array], metadata: Metadata, opened: OpenFile) -> str:
    """Say how an open file differs from these arrays and metadata, empty if it does not."""
    present = {**opened.objects, **opened.arrays}
    further = present.keys() - arrays.keys() - metadata.keys()
    if arrays.keys() - present.keys() or further:
        return f"it has {', '.join(sorted(present)) or 'no arrays'}, not {', '.join(sorted(arrays))}"
    for array_name, array in arrays.items():
        written = present[array_name]
        if (written.shape, _form(written.dtype)) != (
            array.shape,
            _form(array.dtype),
        ) and not array.dtype.hasobject:
            forms = f"{written.dtype} {written.shape}, not {array.dtype} {array.shape}"
            return f"{array_name} is {forms}"
        for lo, rows in array.blocks():
            reason = difference(rows, np.asarray(written[lo : lo + len(rows)]), lo)
            if reason is not None:
                return f"{array_name}: {reason}"
    texts = [json.dumps(dict(own), sort_keys=True) for own in (opened.metadata, metadata)]
    return f"its metadata are {texts[0]}, not {texts[1]}" if texts[0] != texts[1] else ""


def _form(dtype: Dtype) -> Dtype | dict[str, Dtype]:
    """Return what must be equal of two dtypes: of records the fields by name, which a format may order."""
    return dtype if dtype.names is None else {name: dtype[name] for name in dtype.names}


def restore(family: Family, store: StoreView, scan: Scan) -> Restore:
    """Restore each source by the family's `restore`. Its format opens the file."""
    sources = sources_of(store)
    by_name = {one.name: one for one in formats_for(family)}

    def source(number: int) -> RestoredFiles:
        source = scan.sources[number]
        stored = restored(family, store, sources[number])
        origin: RowOrigin = source.detail
        file_of: dict[str, int] = {}
        for table in origin.tables.values():
            for place in table.places.values():
                array = origin.arrays[place.file] if origin.arrays else place.array
                file_of[array] = place.file
        files = []
        for file, (path, name, kind) in enumerate(
            zip(source.files, origin.files, origin.formats, strict=False)
        ):
            arrays = [
                RestoredArray(array_name, _values(array))
                for array_name, array in stored.arrays.items()
                if file_of.get(array_name, 0) == file
            ]
            opening = partial(open_original, by_name[kind], SourceFile(path, name, source.files))
            metadata = {} if file else stored.metadata
            files.append(RestoredFile(path, arrays, opening, metadata=metadata))
        return RestoredFiles(files)

    return source


def opened_by_formats(family: Family, restore: Restore, store: StoreView, scan: Scan) -> Restore:
    """Return what a family restores, where files that name their format are opened, and have attributes."""
    formats = {one.name: one for one in formats_for(family)}
    texts = attribute_texts(store, len(scan.sources))

    def source(number: int) -> RestoredFiles:
        name = scan.sources.names[number]
        roots = tuple(map(Path, scan.sources.paths(number)))
        files = []
        restored = restore(number)
        for file in restored.files:
            if file.by_format:
                source_file = SourceFile(file.path, name, roots, parts=tuple(file.parts))
                opening = partial(open_original, formats[file.format], source_file)
                files.append(file._replace(open=partial(_adapted, opening, file)))
            elif file.format:
                opening = partial(open_arrays, formats[file.format], name)
                opening = partial(_adapted, opening, file)
                files.append(file._replace(open=opening, attributes=texts[number]))
            else:
                files.append(file)
        return restored._replace(files=files)

    return source


@contextmanager
def _adapted(opening: Open, file: RestoredFile, path: Path) -> Iterator[OpenedByLibrary]:
    """Open a file as what is compared of it."""
    with opening(path) as opened:
        yield file.adapt(opened)


def _values(array: Array) -> ExportedArray:
    return ExportedArray(array.shape, array.dtype, lambda: (rows for _, rows in array.blocks()))


@contextmanager
def open_original(opening: Format, file: SourceFile, path: Path) -> Iterator[OpenedByLibrary]:
    """Open a file by its format. Values of formats of this package are read by their library alone."""
    with calling(opening, file.name), open_file(opening, file) as opened:
        names = [name for name in opened.arrays if name not in opened.metadata]
        if _has_library(opening):
            with BY_FORMAT[opening.name](path) as by_library:
                yield by_library._replace(names=names, metadata=opened.metadata)
        else:
            library = opening.library or UNISTORE
            names += opened.left_out  # a receipt tells what a store lacks
            yield OpenedByLibrary(library, names, opened.arrays.__getitem__, metadata=opened.metadata)


@contextmanager
def open_arrays(opening: Format, name: str, path: Path) -> Iterator[OpenedByLibrary]:
    """Open a file with all its arrays: by its library, or by its format if no other reads it."""
    if _has_library(opening):
        with BY_FORMAT[opening.name](path) as by_library:
            yield by_library
        return
    with open_original(opening, SourceFile(path, name), path) as opened:
        yield opened


def _has_library(opening: Format) -> bool:
    """Return whether a format is one of this package, and another library reads it."""
    return is_own(opening) and opening.name in BY_FORMAT


def sample_of(family: Family, store: StoreView, number: int, most_bytes: int) -> Mapping[str, AnyArray]:
    """Return the columns of a sample, of its rows of further tables too, cut off where they are large."""
    schema = family.schema
    bounds = {schema.table: (number, number + 1)}
    if schema.samples:
        bounds[schema.table] = _bounds(store, f"{schema.samples}/offsets", number)
    for table in schema.of_samples:
        bounds[table] = _bounds(store, f"{schema.sample_table}/{table}/offsets", number)
    sample: dict[str, AnyArray] = {}
    for table, (lo, hi) in bounds.items():
        start = "" if table == schema.table else f"{table}."
        paths = _columns_of(schema, store, table)
        arrays = {name: store.array(path) for name, path in paths.plain.items()}
        row_bytes = sum(prod(array.shape[1:]) * array.dtype.itemsize for array in arrays.values())
        stop = min(hi, lo + max(1, most_bytes // max(1, row_bytes)))
        sample |= {f"{start}{name}": array.read(lo, stop) for name, array in arrays.items()}
        for name, path in paths.ragged.items():
            sample[f"{start}{bare_name(name)}"] = _values_of_any_length(store, path, lo, stop)
    return sample


def _values_of_any_length(store: StoreView, path: str, lo: int, hi: int) -> AnyArray:
    """Return the texts of some rows, or the values of a column of any number of them, (1, values, …)."""
    bounds = StoredRagged(store, path).bounds(lo, hi)
    bounds = np.minimum(bounds, bounds[0] + _SHOWN_VALUES)
    values = store.array(f"{path}/data").read(int(bounds[0]), int(bounds[-1]))
    if not path.endswith(TEXT_SUFFIX):
        return values[None]
    texts = [values[start:stop].tobytes() for start, stop in pairwise((bounds - bounds[0]).tolist())]
    return np.array([text.decode(errors="replace") for text in texts], np.str_)


def preview_of(family: Family) -> Preview:
    """Return how samples of the family are shown."""

    def view(store: StoreView, number: int, detail: ViewLimits) -> View:
        with calling(family, f"sample {number}"):
            return family.view(sample_of(family, store, number, min(detail.read, _SAMPLE_BYTES)), detail)

    def measures(store: StoreView) -> Iterator[Measure]:
        if family.schema.samples:
            lengths = np.diff(store.array(f"{family.schema.samples}/offsets").read())
            yield Measure(name=family.schema.table, values=lengths)

    return Preview(view=view, measures=measures)
