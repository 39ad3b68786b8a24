"""Write random sound HDF5 files and read them beside h5py: every value equal, or refused where there is none.

h5py reads each dataset twice, into memory filled with different bytes. Where the results differ, HDF5 leaves
the values undefined: they must be refused. Also refused are chunks that were never written and have no fill
value of their own, and elements of variable length where they are not asked for. All else must be read,
whole, in parts and from the last axis.

    python tools/faults/compare_hdf5.py --count 5000 --seed 1
    python tools/faults/compare_hdf5.py --seed 1 --only 4711 --keep    one case again, its folder kept
"""

from __future__ import annotations

import contextlib
import ctypes
import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np
from fuzz_run import ACCEPTED, FAILED, REFUSED, Failure, main, require
from hdf5_samples import NAME, Sample, library_function, make_sample
from numpy.typing import NDArray

from unistore.converters.files.hdf5.file import (
    check_dataset,
    open_hdf5,
    read_objects,
    read_reversed,
    read_rows,
)
from unistore.converters.files.hdf5.tree import walk
from unistore.errors import InputError

FILLS = (0x00, 0xFF)
INDICES = ("B-tree 1", "one chunk", "implicit", "fixed", "extensible", "B-tree 2")
MAX_ROWS = 20
"""Rows of objects that are read one by one."""
_get_index_type = library_function("H5Dget_chunk_index_type", ctypes.c_int64, ctypes.c_void_p)


def case(seed: int, number: int, work: Path) -> dict[str, Any]:
    """Make one file and compare how it is read."""
    rng = Random(f"{seed}/{number}")
    with contextlib.chdir(work):  # HDF5 looks for external files in the working directory
        sample = make_sample(work, rng)
    about = {"family": index_of(sample) or sample.layout, "mutation": sample.element, "number": number}
    try:
        with contextlib.chdir(work):
            reason = why_refused(sample.path)
            try:
                check_values(sample.path, rng)
            except InputError as error:
                require(reason is not None, f"a sound dataset is refused: {error}")
                require(reason in str(error), f"refused, but not as {reason!r}: {error}")
                return {**about, "status": REFUSED}
            require(reason is None, f"should be refused: {reason}")
    except Failure as error:
        return {**about, "status": FAILED, "why": str(error)}
    return {**about, "status": ACCEPTED}


def index_of(sample: Sample) -> str:
    """Kind of index of the chunks; empty if there is none."""
    if sample.layout != "chunked":
        return ""
    kind = ctypes.c_int()
    with h5py.File(sample.path) as file:
        dataset = file[NAME].id
        require(_get_index_type(dataset.id, ctypes.byref(kind)) >= 0, "HDF5 does not tell the kind of index")
    return INDICES[kind.value]


def why_refused(path: Path) -> str | None:
    """Words of the message that must refuse the dataset of a file; None if all its values are there."""
    with h5py.File(path) as file:
        dataset = file[NAME]
        if dataset.is_virtual:
            if dataset.id.get_create_plist().fill_value_defined() == h5py.h5d.FILL_VALUE_UNDEFINED:
                return "no fill value"
            lacks_values = any(map(is_partly_unwritten, sources_of(dataset)))
        else:
            lacks_values = is_partly_unwritten(dataset)
        if lacks_values:
            return "never written"
        if dataset.dtype.hasobject or not dataset.shape or not dataset.size:
            return None
        try:
            is_undefined = has_undefined_values(dataset)
        except OSError:  # elements that are arrays, which h5py reads by other means
            return "cannot be read"
        require(not is_undefined, "h5py reads undefined values of a dataset that was written")
    return None


def has_undefined_values(dataset: h5py.Dataset) -> bool:
    zeros, ones = (raw_values(dataset, fill) for fill in FILLS)
    pairs = zip(leaves(zeros), leaves(ones), strict=True)
    return any(first.tobytes() != second.tobytes() for first, second in pairs)


def raw_values(dataset: h5py.Dataset, fill: int) -> NDArray[Any]:
    values = np.empty(dataset.shape, dataset.dtype)
    values.reshape(-1).view("u1")[...] = fill
    dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
    return values


def leaves(values: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Arrays of the innermost fields in native byte order, without the gaps between them."""
    if values.dtype.names is not None:
        for name in values.dtype.names:
            yield from leaves(values[name])
    elif values.dtype == np.longdouble:
        yield values.astype(str)  # ten bytes of sixteen are its value
    else:
        yield values.astype(values.dtype.newbyteorder("="))


def sources_of(dataset: h5py.Dataset) -> Iterator[h5py.Dataset]:
    for source in dataset.virtual_sources():
        if source.file_name == ".":
            yield dataset.file[source.dset_name]
        else:
            with h5py.File(Path(dataset.file.filename).parent / source.file_name) as file:
                yield file[source.dset_name]


def is_partly_unwritten(dataset: h5py.Dataset) -> bool:
    """Whether chunks, or all values, were never written, and the writer chose no value for them."""
    creation = dataset.id.get_create_plist()
    if not dataset.size or creation.get_external_count():
        return False
    if dataset.id.get_storage_size() == 0:
        return True
    if dataset.chunks is None:
        return False
    is_filled = creation.fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED
    if is_filled and creation.get_fill_time() != h5py.h5d.FILL_TIME_NEVER:
        return False
    lengths = zip(dataset.shape, dataset.chunks, strict=True)
    return dataset.id.get_num_chunks() < math.prod(-(-length // chunk) for length, chunk in lengths)


def check_values(path: Path, rng: Random) -> None:
    """Compare all ways to read a dataset with h5py."""
    with h5py.File(path) as file:
        dataset = file[NAME]
        are_objects = dataset.dtype.hasobject or not dataset.shape
        if not dataset.size:
            expected = dataset[()]
        else:
            expected = None if are_objects or why_refused(path) else raw_values(dataset, 0)
    with open_hdf5(path, path.name) as file:
        tree = walk(file, path.name, [path.parent])
        problems = [problem for problem in tree.problems if problem.location == f"{path.name}: {NAME}"]
        if problems:
            raise InputError(problems)
        dataset = tree.datasets[NAME]
        if dataset.dtype.hasobject and dataset.dtype.names is None:  # fields of records are judged one by one
            require(
                [problem.kind for problem in check_dataset(dataset, NAME)] == ["dtype"], "taken as numbers"
            )
        problems = check_dataset(dataset, NAME, allow_object=True)
        if problems:
            raise InputError(problems)
        if are_objects:
            check_objects(path, dataset)
        elif expected is None:
            read_rows(dataset, NAME)
        else:
            check_rows(expected, dataset, rng)


def check_objects(path: Path, dataset: h5py.Dataset) -> None:
    with h5py.File(path) as file:
        require_same_text(read_objects(dataset, NAME), file[NAME][()], "all of it")
        for row in range(min(len(dataset), MAX_ROWS) if dataset.shape else 0):
            require_same_text(read_objects(dataset, NAME, row), file[NAME][row], f"row {row}")


def require_same_text(values: Any, expected: Any, what: str) -> None:
    values, expected = np.asarray(values), np.asarray(expected)
    require(repr(values.tolist()) == repr(expected.tolist()), f"{what} differs: {values!r}, not {expected!r}")


def check_rows(expected: NDArray[Any], dataset: h5py.Dataset, rng: Random) -> None:
    rows = len(expected)
    marks = [0, *sorted(rng.randrange(rows + 1) for _ in range(3)), rows]
    for lo, hi in [(0, rows), *pairwise(marks)]:
        require_same(read_rows(dataset, NAME, lo, hi), expected[lo:hi], f"rows {lo}:{hi}")
    out = np.empty_like(read_rows(dataset, NAME))
    require_same(read_rows(dataset, NAME, out=out), expected, "what is read into an array")
    if dataset.ndim > 1 and dataset.dtype.subdtype is None:
        last = expected.shape[-1]
        lo, hi = sorted(rng.randrange(last + 1) for _ in range(2))
        entries = np.ascontiguousarray(expected[..., lo:hi].T)
        require_same(read_reversed(dataset, NAME, lo, hi), entries, f"entries {lo}:{hi} of the last axis")


def require_same(values: NDArray[Any], expected: NDArray[Any], what: str) -> None:
    require(values.shape == expected.shape, f"{what}: shape {values.shape}, not {expected.shape}")
    for found, right in zip(leaves(values), leaves(expected), strict=True):
        require(found.dtype == right.dtype, f"{what}: {found.dtype}, not {right.dtype}")
        if found.tobytes() != right.tobytes():
            msg = f"{what} differ: {found.ravel()[:20]}, not {right.ravel()[:20]}"
            raise Failure(msg)


if __name__ == "__main__":
    main(Path(__file__), __doc__, case, 2000)
