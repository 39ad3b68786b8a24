"""Checks of virtual datasets before HDF5 reads them.

HDF5 crashes on a dataset that maps to itself, directly or through others. It also trusts the chunks of the
source datasets, and reads fill values where a source is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import h5py

from unistore.converters.common.faults import is_read_error
from unistore.converters.files.hdf5.chunks import chunks_of, creation_of
from unistore.converters.files.hdf5.safety import check_safe_to_open
from unistore.converters.files.paths import is_inside
from unistore.errors import printable

_MAX_DEPTH = 16
"""Virtual datasets that may map to one another in a row."""


def _sources(dataset: h5py.Dataset) -> Iterator[tuple[Any, Path | None, str]]:
    """Each mapping of a virtual dataset, the file (None: the same), and the name of the source dataset.

    A name with ``%b`` stands for all datasets of that name with a number, from 0 on.
    """
    for each in dataset.virtual_sources():
        own = each.file_name == "."
        file = None if own else (Path(dataset.file.filename).parent / each.file_name).resolve()
        name = each.dset_name.replace("%%", "\0")
        for number in count() if "%b" in name else (0,):
            one = name.replace("%b", str(number)).replace("\0", "%")
            if "%b" in name:
                with _opened(dataset, file) as opened:
                    if one not in opened:
                        break
            yield each, file, one


@contextmanager
def _opened(dataset: h5py.Dataset, file: Path | None) -> Iterator[h5py.File]:
    if file is None:
        yield dataset.file
    else:
        check_safe_to_open(file, str(file))
        with h5py.File(file, "r", driver="sec2", locking="best-effort") as opened:
            yield opened


def check_sources(
    dataset: h5py.Dataset,
    lo: int = 0,
    hi: int = 0,
    *,
    roots: Sequence[Path] = (),
    above: tuple[object, ...] = (),
) -> set[Path]:
    """Check that the sources of a virtual dataset exist, and that HDF5 can read rows ``lo:hi`` of them.

    Parameters
    ----------
    lo, hi
        Rows whose chunks are decoded as a check; if empty, only the mapping is checked.
    roots
        Folders that source files must lie in; any folder if empty.
    above
        Virtual datasets that map to this one.

    Returns
    -------
    set of Path
        Source files other than its own file.

    Raises
    ------
    ValueError
        If it maps to itself, through too many others, or to a source that is missing, damaged or outside the
        roots.
    """
    info = h5py.h5o.get_info(dataset.id)
    here = (info.fileno, info.addr)
    if here in above:
        msg = "is virtual and maps to itself"
        raise ValueError(msg)
    if creation_of(dataset).fill_value_defined() == h5py.h5d.FILL_VALUE_UNDEFINED:
        msg = "is virtual and has no fill value: HDF5 leaves what no source fills undefined"
        raise ValueError(msg)
    if len(above) >= _MAX_DEPTH:
        msg = f"is virtual and maps through more than {_MAX_DEPTH} others"
        raise ValueError(msg)
    files: set[Path] = set()
    done: set[object] = set()
    for mapping, file, name in _sources(dataset):
        rows = (0, 0) if hi <= lo else _rows(mapping, lo, hi)
        if (hi > lo and rows == (0, 0)) or (file, name, rows) in done:
            continue
        done.add((file, name, rows))
        with _opened(dataset, file) as opened:
            source = None
            try:
                source = opened[name]
            except KeyError as error:
                if is_read_error(error):
                    raise
            if not isinstance(source, h5py.Dataset):
                owner = f" of {file}" if file else ""
                msg = f"is virtual and maps to {name!r}, which is not a dataset{owner}"
                raise ValueError(msg)
            reached = Path(source.file.filename).resolve()
            if roots and not is_inside(reached, roots):
                msg = f"is virtual and maps into {printable(str(reached))}, outside the given paths"
                raise ValueError(msg)
            files.add(reached)
            if source.is_virtual:
                files |= check_sources(source, *rows, roots=roots, above=(*above, here))
            elif rows != (0, 0) and source.chunks is not None:
                chunks_of(source).check(rows[0], min(rows[1], source.shape[0]))
            elif source.size and not source.external and not source.id.get_storage_size():
                msg = f"is virtual and maps to {name!r}, which was never written"
                raise ValueError(msg)
    return files - {Path(dataset.file.filename).resolve()}


def _rows(mapping: Any, lo: int, hi: int) -> tuple[int, int]:
    """Source rows that rows ``lo:hi`` of the virtual dataset may need; 0, 0 if none."""
    try:
        (start, *_), (stop, *_) = mapping.vspace.get_select_bounds()
        if stop < lo or start >= hi:
            return 0, 0
        (first, *_), (last, *_) = mapping.src_space.get_select_bounds()
    except (RuntimeError, ValueError, TypeError):  # an unlimited selection, or all rows
        return 0, 1 << 62
    return first, last + 1
