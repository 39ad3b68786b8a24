"""Virtual datasets: where their values come from, before HDF5 follows the mapping.

HDF5 follows without end: a dataset that maps to itself, on whatever way, ends the process. It also trusts the
chunks of the sources, and takes a source that is not there for fill values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import h5py

from unistore.converters.files.hdf5.chunks import chunks_of
from unistore.converters.files.hdf5.vouching import vouch
from unistore.converters.files.paths import is_inside
from unistore.errors import printable

__all__ = ["check_sources"]

_DEEPEST = 16
"""Virtual datasets that may map to each other, one after the other."""


def _file(dataset: h5py.Dataset, name: str) -> Path | None:
    """File that a mapping names, seen from its dataset's file; None if it is that file."""
    return None if name == "." else (Path(dataset.file.filename).parent / name).resolve()


def _sources(dataset: h5py.Dataset) -> Iterator[tuple[Any, Path | None, str]]:
    """Each mapping of a virtual dataset: h5py's entry, the file, the dataset's name (``%b`` filled in)."""
    for each in dataset.virtual_sources():
        file = _file(dataset, each.file_name)
        name = each.dset_name.replace("%%", "\0")
        if "%b" in name:
            for number in count():
                one = name.replace("%b", str(number)).replace("\0", "%")
                with _opened(dataset, file) as opened:
                    present = one in opened
                if not present:
                    break
                yield each, file, one
        else:
            yield each, file, name.replace("\0", "%")


@contextmanager
def _opened(dataset: h5py.Dataset, file: Path | None) -> Iterator[h5py.File]:
    if file is None:
        yield dataset.file
    else:
        vouch(file, str(file))
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
    """See that a virtual dataset leads to values; with rows ``lo:hi``, that HDF5 can be trusted with those.

    Parameters
    ----------
    dataset
        A virtual dataset.
    lo, hi
        Rows whose chunks are decoded to check them; none to follow the whole mapping only.
    roots
        Where the files must lie that the mapping leads to; anywhere if none are given.
    above
        Virtual datasets that led to this one.

    Returns
    -------
    set of Path
        Files in which its values are, if not in its own.

    Raises
    ------
    ValueError
        If it maps to itself, through too many others, or to something that is not there, is damaged or lies
        outside the roots.
    """
    info = h5py.h5o.get_info(dataset.id)
    here = (info.fileno, info.addr)
    if here in above:
        msg = "is virtual and maps to itself"
        raise ValueError(msg)
    if len(above) >= _DEEPEST:
        msg = f"is virtual and maps through more than {_DEEPEST} others"
        raise ValueError(msg)
    files: set[Path] = set()
    done: set[object] = set()
    for mapping, file, name in _sources(dataset):
        rows = (0, 0) if hi <= lo else _rows(mapping, lo, hi)
        if (hi > lo and rows == (0, 0)) or (file, name, rows) in done:
            continue
        done.add((file, name, rows))
        with _opened(dataset, file) as opened:
            source = opened.get(name)
            if not isinstance(source, h5py.Dataset):
                msg = f"is virtual and maps to {name!r}, which is no dataset" + (
                    f" of {file}" if file else ""
                )
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
    return files - {Path(dataset.file.filename).resolve()}


def _rows(mapping: Any, lo: int, hi: int) -> tuple[int, int]:
    """Rows of a source that rows ``lo:hi`` of the virtual dataset may need; 0, 0 if none."""
    try:
        (start, *_), (stop, *_) = mapping.vspace.get_select_bounds()
        if stop < lo or start >= hi:
            return 0, 0
        (first, *_), (last, *_) = mapping.src_space.get_select_bounds()
    except (RuntimeError, ValueError, TypeError):  # without end, or everything
        return 0, 1 << 62
    return first, last + 1
