"""Read HDF5 files from untrusted sources: whatever is wrong with them becomes a clear error."""

# - Empty files, Git LFS pointers, truncated downloads and files of other formats are reported as such.
# - Datasets that were allocated and never written would read as fill values: refused.
# - Variable-length and object dtypes are refused unless asked for.
# - A corrupt chunk can be opened but not read: `read_rows` names the file and the dataset.
# - A chunk that is stored or decodes too short would be completed with arbitrary memory: `chunks` checks the
#   size of every chunk.
# - Chunks that were never written have no value if the fill time is "never": refused.
# - A virtual dataset that maps to itself would crash the process: `check_sources` checks the mapping.
# - A damaged structure hangs the library or crashes the process: files are read in workers, which name each
#   one before it is opened, see `unistore.system.foreign`.

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from traceback import format_exception
from typing import Any

import numpy as np

from unistore.converters.common.faults import (
    CHECK_DISK,
    COPY_AGAIN,
    MORE_MEMORY,
    OUT_OF_MEMORY,
    UNREADABLE,
    WRITE_AGAIN,
    as_problem,
    fix_of,
    is_out_of_memory,
    is_read_error,
    reason_of,
)
from unistore.converters.files.formats import lfs_pointer_problem
from unistore.converters.files.hdf5 import library as h5py
from unistore.converters.files.hdf5.chunks import (
    chunks_of,
    creation_of,
    filters_of,
    has_fill_value,
    native,
    stored_size,
)
from unistore.converters.files.hdf5.filters import are_decoded_here, missing_filter
from unistore.converters.files.paths import is_inside
from unistore.errors import InputError, Location, Problem, location_of, printable
from unistore.system.extras import is_installed
from unistore.system.foreign import begin_reading, opening
from unistore.system.types import AnyArray

# File name endings taken from folders
SUFFIXES = (".h5", ".hdf5", ".hdf", ".he5")

# Bytes of HDF5's chunk cache for a dataset
_CHUNK_CACHE = 1 << 20
# Chunks in memory while the library decodes one: two results, its own, and the stored bytes with padding
_COPIES_OF_LIBRARY = 5
# Bytes of HDF5's metadata cache for a file; unlimited, it grows by 7 kB with every dataset
_METADATA_CACHE = 2 << 20
# How HDF5 names the size that a truncated file should have
_STATED_SIZE = re.compile(r"stored_eof = (\d+)")
# What h5py raises where a file is damaged
FAILURES = (OSError, RuntimeError, ValueError, KeyError, TypeError, MemoryError)


@contextmanager
def open_hdf5(path: Path, name: str = "") -> Iterator[h5py.File]:
    """Open a file for reading, or raise an `InputError` that says what is there instead."""
    location = location_of(name or str(path))
    with opening(path, location):
        try:
            file = h5py.File(path, "r", driver="sec2", locking="best-effort")
        except FAILURES as error:
            problem = _diagnose(path, location, error)
            raise InputError(replace(problem, trace="".join(format_exception(error)))) from error
        with as_problem(location), file:
            config = file.id.get_mdc_config()
            config.max_size = config.initial_size = _METADATA_CACHE
            file.id.set_mdc_config(config)
            yield file


def member(group: h5py.Group, path: str) -> h5py.HLObject:
    """``group[path]`` in a file opened for reading. Faster, since h5py checks the mode for each dataset."""
    identifier = h5py.h5o.open(group.id, path.encode("utf-8", "surrogateescape"), lapl=group._lapl)
    kind = h5py.h5i.get_type(identifier)
    if kind == h5py.h5i.DATASET:
        return h5py.Dataset(identifier, readonly=True)
    return h5py.Group(identifier) if kind == h5py.h5i.GROUP else h5py.Datatype(identifier)


def file_of(item: h5py.Group | h5py.Dataset) -> Path:
    """Return the file of an object, ten times as fast as ``item.file.filename``."""
    return Path(os.fsdecode(h5py.h5f.get_name(item.id)))


def _diagnose(path: Path, location: Location, error: Exception) -> Problem:
    if not path.exists():
        return Problem.at(location, "does not exist", "check the path", "missing")
    if path.is_dir():
        return Problem.at(location, "is a folder, not an HDF5 file", "check the path", "format")
    try:
        with path.open("rb") as stream:
            head = stream.read(32)
    except OSError as refusal:
        return Problem.at(location, f"cannot be read: {refusal.strerror}", CHECK_DISK, UNREADABLE)
    if not head:
        return Problem.at(location, "the file is empty (0 bytes)", COPY_AGAIN, "empty")
    pointer = lfs_pointer_problem(head, location)
    if pointer is not None:
        return pointer
    if is_read_error(error):
        return Problem.at(location, f"cannot be read: {reason_of(error)}", fix_of(error), UNREADABLE)
    reason = str(error)
    if "signature not found" in reason:
        if not any(head):
            message = "is not an HDF5 file: it begins with zeros, because its writer did not finish it"
            return Problem.at(location, message, WRITE_AGAIN, "format")
        message = f"is not an HDF5 file: it begins with {head[:8]!r}"
        return Problem.at(
            location, message, "check the name of the file and the program that wrote it", "format"
        )
    if "truncated" in reason:
        size = f"{path.stat().st_size:,}"
        stated = _STATED_SIZE.search(reason)
        if stated is not None:
            size = f"{size} of {int(stated[1]):,}"
        return Problem.at(location, f"the file is truncated: it has {size} bytes", COPY_AGAIN, "truncated")
    if any(words in reason for words in ("bad object header", "addr overflow", "bad heap")):
        cause = "it was cut short by a download, or its writer was killed"
        message = f"the file is damaged, probably because {cause}: {reason}"
        return Problem.at(location, message, WRITE_AGAIN, "truncated")
    if "already open for write" in reason:
        message = "its writer has not closed the file"
        fix = f"wait until the writer has finished; if it was killed: h5clear -s {shlex.quote(str(path))}"
        return Problem.at(location, message, fix, "unclosed")
    return Problem.at(location, f"HDF5 cannot open the file: {reason}", WRITE_AGAIN, "damaged")


def names_in(members: Iterable[str | bytes], location: Location) -> list[str]:
    """Return names of the members of a group, or of attributes, which must be UTF-8."""
    # h5py returns names that are not UTF-8 as bytes.
    names = list[str]()
    wrong = list[Problem]()
    for name in members:
        if isinstance(name, str):
            names.append(name)
        else:
            wrong.append(
                Problem.at(location, f"contains the name {name!r}, which is not UTF-8", "rename it", "name")
            )
    if wrong:
        raise InputError(wrong)
    return names


def check_dataset(dataset: h5py.Dataset, location: Location, *, allow_object: bool = False) -> list[Problem]:
    """Return problems that make the values of a dataset unusable, without reading them.

    Parameters
    ----------
    dataset : h5py.Dataset
        The dataset.
    location : Location
        Its place, for messages.
    allow_object : bool, default False
        Whether objects and values of variable length are allowed.

    Returns
    -------
    list of Problem
        Of the kinds ``"dtype"`` (objects, variable length, no values), ``"unwritten"`` and ``"damaged"``.
    """
    shape = dataset.shape
    dtype = dataset.dtype
    if shape is None:
        return [Problem.at(location, "has no values: its dataspace is null", "write values to it", "dtype")]
    # Of records, each field of any length is judged by itself
    if dtype.hasobject and not allow_object and dtype.names is None:
        message = "contains objects or values of variable length, and only values of a fixed size are read"
        return [Problem.at(location, message, "store numbers of a fixed size", "dtype")]
    creation = creation_of(dataset)
    storage = creation.get_layout()
    if 0 in shape or storage == h5py.h5d.VIRTUAL or creation.get_external_count():
        return []
    fix = "write the file again: its writer was probably killed"
    stored = dataset.id.get_storage_size()
    if stored == 0:
        return [
            Problem.at(
                location,
                f"has the shape {shape}, but its values were never written and would read as zeros",
                fix,
                "unwritten",
            )
        ]
    if storage != h5py.h5d.CHUNKED:
        expected = math.prod(shape) * stored_size(dataset)
        if stored == expected:
            return []
        return [
            Problem.at(
                location,
                f"has {stored:,} bytes in the file, but the shape {shape} needs {expected:,}",
                WRITE_AGAIN,
                "damaged",
            )
        ]
    missing = missing_filter(filters_of(creation))
    if missing is not None:
        name = creation.get_filter_by_id(missing)[2].decode("utf-8", "replace").partition(";")[0]
        message = f"is compressed with the HDF5 filter {missing}, '{name}', which is not installed"
        fix = "set HDF5_PLUGIN_PATH to the folder of its plugin, or write the file again with gzip"
        if not is_installed("hdf5plugin"):
            fix = "pip install 'unistore[filters]'"
        return [Problem.at(location, message, fix, "filter")]
    if has_fill_value(creation):
        return []
    chunks = zip(shape, creation.get_chunk(), strict=True)
    expected = math.prod(-(-length // chunk) for length, chunk in chunks)
    written = dataset.id.get_num_chunks() if expected > 1 else 1
    if written < expected:
        reads_as = "read as zeros"
        if creation.get_fill_time() == h5py.h5d.FILL_TIME_NEVER:
            reads_as = "have arbitrary values, because its fill time is 'never'"
        message = (
            f"has {written:,} of {expected:,} chunks; the others were never written and would {reads_as}"
        )
        return [Problem.at(location, message, fix, "unwritten")]
    return []


def chunk_memory(dataset: h5py.Dataset) -> int:
    """Return the bytes needed to decode one chunk, 0 for small chunks."""
    creation = creation_of(dataset)
    if creation.get_layout() != h5py.h5d.CHUNKED or not creation.get_nfilters():
        return 0
    size = math.prod(creation.get_chunk()) * stored_size(dataset)
    if size <= _CHUNK_CACHE:
        return 0
    copies = 1 if are_decoded_here(filters_of(creation)) else _COPIES_OF_LIBRARY
    return int(copies * size + dataset.id.get_storage_size() // max(1, dataset.id.get_num_chunks()))


def read_rows(
    dataset: h5py.Dataset,
    location: Location,
    lo: int = 0,
    hi: int | None = None,
    out: AnyArray | None = None,
) -> AnyArray:
    """Return rows ``lo:hi`` of a dataset in native byte order, in `out` (C-contiguous) if there is one."""
    stop = dataset.shape[0] if hi is None else hi
    if dataset.dtype.hasobject and stop > lo:
        rows: AnyArray = read_objects(dataset, location, slice(lo, stop))
        return rows
    if out is None:
        out = np.empty((stop - lo, *dataset.shape[1:]), native(dataset.dtype))
    if out.size == 0:
        return out
    with _reading(dataset, location, f"rows {lo}:{stop} cannot be read"):
        if creation_of(dataset).get_layout() == h5py.h5d.CHUNKED:
            chunks = chunks_of(dataset)
            if chunks.decodable and out.dtype == chunks.dtype:
                chunks.read(lo, stop, out)
                return out
        _check_rows(dataset, lo, stop)
        # HDF5 converts numbers of fewer bits than NumPy has wrongly if it changes their byte order, too.
        is_swapped = not dataset.dtype.isnative and out.dtype == native(dataset.dtype) != dataset.dtype
        values = out.view(dataset.dtype) if is_swapped else out
        if (lo, stop) == (0, dataset.shape[0]):  # less than half the time for small datasets
            dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
        else:
            dataset.read_direct(values, np.s_[lo:stop])
        if is_swapped:
            out.byteswap(inplace=True)
    return out


def read_reversed(dataset: h5py.Dataset, location: Location, lo: int, hi: int) -> AnyArray:
    """Entries ``lo:hi`` of the last axis, with all axes reversed: (hi - lo, …), in native byte order."""
    if dataset.ndim < 2:
        return read_rows(dataset, location, lo, hi)
    out = np.zeros((*dataset.shape[:-1], hi - lo), dataset.dtype)
    if out.size:
        with _reading(dataset, location, f"entries {lo}:{hi} of the last axis cannot be read"):
            _check_rows(dataset, 0, dataset.shape[0])
            dataset.read_direct(out, np.s_[..., lo:hi])
    return np.ascontiguousarray(out.T, native(dataset.dtype))


def read_objects(dataset: h5py.Dataset, location: Location, rows: slice | int | None = None) -> Any:
    """Return one row of a dataset, some, or all, as h5py returns them: text, variable length, scalars."""
    lo = 0
    hi = dataset.shape[0] if dataset.shape else 1
    what = "cannot be read"
    if isinstance(rows, slice):
        lo = rows.start
        hi = rows.stop
        what = f"rows {lo}:{hi} cannot be read"
    elif rows is not None:
        lo = rows
        hi = rows + 1
        what = f"row {rows} cannot be read"
    with _reading(dataset, location, what):
        _check_rows(dataset, lo, hi)
        return dataset[()] if rows is None else dataset[rows]


@contextmanager
def _reading(dataset: h5py.Dataset, location: Location, what: str) -> Iterator[None]:
    """Name the file before the library reads it. Say `what` cannot be read."""
    try:
        begin_reading(file_of(dataset))
        yield
    except FAILURES as error:
        if is_read_error(error):
            problem = Problem.at(location, f"{what}: {reason_of(error)}", fix_of(error), UNREADABLE)
        elif is_out_of_memory(error):
            problem = Problem.at(
                location, f"{what} in the available memory: {error}", MORE_MEMORY, OUT_OF_MEMORY
            )
        else:
            problem = Problem.at(location, f"{what}: {error}", WRITE_AGAIN, "damaged")
        raise InputError(problem) from error


def _check_rows(dataset: h5py.Dataset, lo: int, hi: int) -> None:
    storage = creation_of(dataset).get_layout()
    if storage == h5py.h5d.CHUNKED:
        chunks_of(dataset).check(lo, hi)
    elif storage == h5py.h5d.VIRTUAL:
        check_sources(dataset, lo, hi)


# Virtual datasets: HDF5 crashes on one that maps to itself, directly or through others. It also trusts the
# chunks of the source datasets, and reads fill values where a source is missing.

# Virtual datasets that may map to one another in a row
_MAX_DEPTH = 16


def sources_of(dataset: h5py.Dataset, roots: Sequence[Path]) -> Iterator[tuple[Any, Path | None, str]]:
    """Yield each mapping of a virtual dataset, its file (None: its own), and the name of the source.

    A name with ``%b`` stands for all datasets with this name and a number, from 0. A file outside of
    `roots` is a `ValueError`; without roots, sources may be in any folder.
    """
    for mapping in dataset.virtual_sources():
        own = mapping.file_name == "."
        file = None if own else (Path(dataset.file.filename).parent / mapping.file_name).resolve()
        if file is not None:
            _check_inside(file, roots)
        name = mapping.dset_name.replace("%%", "\0")
        for number in count() if "%b" in name else (0,):
            one = name.replace("%b", str(number)).replace("\0", "%")
            if "%b" in name:
                with opened_source(dataset, file) as opened:
                    if one not in opened:
                        break
            yield mapping, file, one


def _check_inside(file: Path, roots: Sequence[Path]) -> None:
    if roots and not is_inside(file, roots):
        shown = printable(str(file))
        raise ValueError(f"is virtual and maps to {shown}, which is outside the given paths")


@contextmanager
def opened_source(dataset: h5py.Dataset, file: Path | None) -> Iterator[h5py.File]:
    """Open the file of a source, for as long as the context lasts. None: the file of the dataset itself."""
    if file is None:
        yield dataset.file
    else:
        with opening(file, str(file)), h5py.File(file, "r", driver="sec2", locking="best-effort") as opened:
            yield opened


def check_sources(
    dataset: h5py.Dataset,
    lo: int = 0,
    hi: int = 0,
    *,
    roots: Sequence[Path] = (),
    depth: int = 0,
) -> set[Path]:
    """Check that HDF5 can read rows ``lo:hi`` of a virtual dataset, and return its other source files.

    Without rows, only the mapping is checked. Without roots, sources may be in any folder.
    """
    # A dataset that maps to itself would crash the process: `depth` counts those that map to this one.
    if creation_of(dataset).fill_value_defined() == h5py.h5d.FILL_VALUE_UNDEFINED:
        raise ValueError("is virtual and has no fill value, so values without a source would be arbitrary")
    if depth >= _MAX_DEPTH:
        raise ValueError(f"is virtual and maps to itself, or through more than {_MAX_DEPTH} other datasets")
    files: set[Path] = set()
    done: set[object] = set()
    for mapping, file, name in sources_of(dataset, roots):
        rows = (0, 0) if hi <= lo else _rows(mapping, lo, hi)
        if (hi > lo and rows == (0, 0)) or (file, name, rows) in done:
            continue
        done.add((file, name, rows))
        with opened_source(dataset, file) as opened:
            source = None
            try:
                source = opened[name]
            except KeyError as error:
                if is_read_error(error):
                    raise
            if not isinstance(source, h5py.Dataset):
                owner = f" of {file}" if file else ""
                raise ValueError(f"is virtual and maps to {name!r}, which is not a dataset{owner}")
            reached = Path(source.file.filename).resolve()  # links may lead on
            _check_inside(reached, roots)
            files.add(reached)
            if source.is_virtual:
                files |= check_sources(source, *rows, roots=roots, depth=depth + 1)
            elif rows != (0, 0) and source.chunks is not None:
                chunks_of(source).check(rows[0], min(rows[1], source.shape[0]))
            elif source.size and not source.external and not source.id.get_storage_size():
                raise ValueError(f"is virtual and maps to {name!r}, which was never written")
    return files - {Path(dataset.file.filename).resolve()}


def _rows(mapping: Any, lo: int, hi: int) -> tuple[int, int]:
    """Source rows that rows ``lo:hi`` of the virtual dataset may need, 0, 0 if none."""
    try:
        (start, *_), (stop, *_) = mapping.vspace.get_select_bounds()
        if stop < lo or start >= hi:
            return 0, 0
        (first, *_), (last, *_) = mapping.src_space.get_select_bounds()
    except (RuntimeError, ValueError, TypeError):  # an unlimited selection, or all rows
        return 0, 1 << 62
    return first, last + 1
