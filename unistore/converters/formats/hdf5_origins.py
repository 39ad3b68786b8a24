"""Where the values of HDF5 datasets lie: behind links, virtual datasets and external storage."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from unistore.converters.files.hdf5 import library as h5py
from unistore.converters.files.hdf5.chunks import stored_size
from unistore.converters.files.hdf5.file import opened_source, sources_of
from unistore.converters.files.paths import real_path
from unistore.converters.opened import Origin
from unistore.system.types import Shape


class _Rows(NamedTuple):
    """Rows of a dataset that another one shows, and whether it shows every value of these."""

    start: int
    stop: int
    is_whole: bool


def origins_of(dataset: h5py.Dataset) -> list[Origin]:
    """Return the rows that hold the values of a dataset: of a virtual one, rows of its sources."""
    return list(_origins(dataset, _Rows(0, _length(dataset.shape), is_whole=True)))


def origin_of_group(group: h5py.Group) -> Origin:
    """Return where a group lies, of which nothing else is looked at."""
    address = h5py.h5o.get_info(group.id).addr
    return Origin(str(real_path(Path(group.file.filename))), f"object {address}", 0, 1, 0)


def _origins(dataset: h5py.Dataset, rows: _Rows) -> Iterator[Origin]:
    if dataset.is_virtual:
        is_all = rows == _Rows(0, _length(dataset.shape), is_whole=True)
        for mapping, file, name in sources_of(dataset, ()):
            with opened_source(dataset, file) as opened:
                source = opened[name]
                selected = _block(mapping.src_space, source.shape)
                shown = selected if is_all else _shown(mapping.vspace, rows, selected)
                if shown.stop > shown.start:
                    yield from _origins(source, shown)
    elif dataset.external:
        left = prod(dataset.shape) * stored_size(dataset)
        for name, offset, most in dataset.external:  # which HDF5 looks for in the working directory
            size = min(left, most)  # the last file may have no limit
            left -= size
            yield Origin(str(real_path(Path(name))), "", offset, offset + size, size, rows.is_whole)
    else:
        address = h5py.h5o.get_info(dataset.id).addr  # one, however many names and links it has
        size = (rows.stop - rows.start) * prod(dataset.shape[1:]) * stored_size(dataset)
        file_name = str(real_path(Path(dataset.file.filename)))
        yield Origin(file_name, f"object {address}", rows.start, rows.stop, size, rows.is_whole)


def _length(shape: Shape) -> int:
    return shape[0] if shape else 1


def _shown(virtual_space: Any, rows: _Rows, selected: _Rows) -> _Rows:
    """Return those of the selected rows of a source that some rows of a virtual dataset show."""
    virtual = _block(virtual_space, virtual_space.get_simple_extent_dims())
    if not virtual.is_whole or virtual.stop - virtual.start != selected.stop - selected.start:
        return selected._replace(is_whole=False)  # any of them
    start = max(virtual.start, rows.start)
    stop = max(start, min(virtual.stop, rows.stop))
    shift = selected.start - virtual.start
    return _Rows(start + shift, stop + shift, rows.is_whole and selected.is_whole)


def _block(space: Any, shape: Shape) -> _Rows:
    """Return the rows of a selection, and whether it has every value of them."""
    if space.get_select_type() != h5py.h5s.SEL_HYPERSLABS:
        return _Rows(0, _length(shape), is_whole=space.get_select_type() == h5py.h5s.SEL_ALL)
    try:
        first, last = space.get_select_bounds()
    except (RuntimeError, ValueError):  # of an unlimited selection, which goes on to the end
        return _unlimited(space, shape)
    lengths = [stop - start + 1 for start, stop in zip(first, last, strict=True)]
    is_block = prod(lengths) == space.get_select_npoints() and lengths[1:] == list(shape[1:])
    return _Rows(first[0], last[0] + 1, is_whole=is_block)


def _unlimited(space: Any, shape: Shape) -> _Rows:
    start, stride, count, block = space.get_regular_hyperslab()
    is_dense = stride[0] == block[0] or block[0] == h5py.h5s.UNLIMITED
    lengths = [number * size for number, size in zip(count[1:], block[1:], strict=True)]
    return _Rows(start[0], _length(shape), is_whole=is_dense and lengths == list(shape[1:]))
