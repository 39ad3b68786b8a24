"""Writing one HDF5 file, on a disk that may fill.

When a write fails, libhdf5 crashes as it closes the file, with its own drivers and also where a Python file
object raises. So it is never told of a failure. The file object that it writes to remembers the first error,
keeps what follows in memory, and reads that back: for libhdf5 the file is whole until it is closed. The error
is looked at after each block of rows, and raised once the file is closed: that is at most one block of rows
and the file's metadata.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from unistore.converters.common.exported import File, Values
from unistore.errors import StoreError

__all__ = ["write_hdf5"]

_CHUNK_ROWS = 8192


def write_hdf5(file: File, path: Path) -> None:
    """Write an HDF5 file that does not exist yet.

    On a thread of its own: signals are handled by the main thread, so that no KeyboardInterrupt is raised
    inside of libhdf5's writes, where it would be one more failure.

    Raises
    ------
    OSError
        If the disk refuses it.
    StoreError
        If the store's values cannot be read, or a name inside the file cannot be used.
    """
    with _Disk(path) as disk, ThreadPoolExecutor(1, "unistore-hdf5") as thread:
        try:
            thread.submit(_write, file, disk).result()
        except BaseException as error:
            disk.stop(error)
            raise


class _Disk:
    """A new file as libhdf5 writes it: no call of it ever fails.

    Leaving the ``with`` statement raises the error that the disk gave, if any.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._at = self._end = 0
        self._error: BaseException | None = None
        self._kept: list[tuple[int, bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            os.close(self._descriptor)
        except OSError as refused:  # network file systems tell of a full disk only now
            self._fail(refused)
        if error is None:
            self.check()

    def check(self) -> None:
        """Raise the error there was."""
        if self._error is not None:
            raise self._error

    def stop(self, error: BaseException) -> None:
        """Write no more; `check` raises the error, unless there was another one before."""
        self._error = self._error or error

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the place of the next read or write."""
        self._at = offset if whence == os.SEEK_SET else self._end + offset
        return self._at

    def tell(self) -> int:
        """Place of the next read or write."""
        return self._at

    def write(self, data: Any) -> int:
        """Write, or keep in memory what the disk refuses."""
        view, at = memoryview(data).cast("B"), self._at
        size = len(view)
        self._end = max(self._end, at + size)
        try:
            while view and self._error is None:
                done = os.pwrite(self._descriptor, view, at)
                view, at = view[done:], at + done
        except OSError as error:
            self._fail(error)
        if view:
            self._kept.append((at, bytes(view)))
        return size

    def read(self, size: int) -> bytes:
        """Read what was written or kept; zeros where nothing was."""
        out = bytearray(size)
        self.readinto(out)
        return bytes(out)

    def readinto(self, out: Any) -> int:
        """Read what was written or kept; zeros where nothing was."""
        view, at = memoryview(out).cast("B"), self._at
        view[:] = bytes(len(view))
        try:
            os.preadv(self._descriptor, [view], at)
        except OSError as error:
            self._fail(error)
        for start, data in self._kept:
            lo, hi = max(start, at), min(start + len(data), at + len(view))
            if lo < hi:
                view[lo - at : hi - at] = data[lo - start : hi - start]
        return len(view)

    def truncate(self, size: int) -> None:
        """Give the file its size."""
        self._end = size
        try:
            if self._error is None:
                os.ftruncate(self._descriptor, size)
        except OSError as error:
            self._fail(error)

    def flush(self) -> None:
        """Nothing is held back."""

    def _fail(self, error: OSError) -> None:
        error.filename = str(self._path)
        self.stop(error)


def _check_names(file: File) -> None:
    """Refuse what HDF5 cannot call an object."""
    for name in (*file.values, *file.attributes):
        if "\0" in name or (name and "" in name.split("/")):
            msg = f"{file.name}: dataset or group {name!r} cannot be written: HDF5 has no such names"
            raise StoreError(msg)


def _write(file: File, disk: _Disk) -> None:
    import h5py

    _check_names(file)
    with h5py.File(disk, "w", libver=("v108", "latest")) as out:  # 1.8 on: attributes above 64 KiB
        for name, values in file.values.items():
            try:
                _write_dataset(out, name, values, disk, compressed=file.compressed)
            except (ValueError, TypeError) as error:
                msg = f"{file.name}: dataset {name!r} cannot be written ({error})"
                raise StoreError(msg) from error
        for name, attributes in file.attributes.items():
            target = out.require_group(name) if name and name not in out else out[name or "/"]
            for key, value in attributes.items():
                _write_attribute(target.attrs, key, value)


def _write_dataset(out: Any, name: str, values: Values, disk: _Disk, *, compressed: bool) -> None:
    import h5py

    if values.dtype.hasobject:
        dataset = out.create_dataset(name, values.shape, h5py.vlen_dtype(np.uint8))
    elif compressed and 0 not in values.shape:
        chunks = (min(_CHUNK_ROWS, values.shape[0]), *values.shape[1:])
        dataset = out.create_dataset(
            name,
            values.shape,
            values.dtype,
            chunks=_bounded(chunks, values.dtype.itemsize),
            compression="gzip",
            compression_opts=4,
            shuffle=True,
        )
    else:
        dataset = out.create_dataset(name, values.shape, values.dtype)
    at = 0
    for block in values.blocks():
        if block.size:
            dataset[at : at + len(block)] = block[0] if values.dtype.hasobject else block
        disk.check()
        at += len(block)


def _bounded(chunks: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Chunk of at most 16 MiB: fewer rows where rows are long."""
    row = max(1, prod(chunks[1:]) * itemsize)
    return (max(1, min(chunks[0], (16 << 20) // row)), *chunks[1:])


def _write_attribute(attributes: Any, name: str, value: Any) -> None:
    """Write an array or an empty value as it is, any other value as JSON is written."""
    import h5py

    plain = value if isinstance(value, np.ndarray | h5py.Empty) else _attribute(value)
    attributes.create(name, plain, dtype=plain.dtype if isinstance(plain, np.ndarray) else None)


def _attribute(value: Any) -> Any:
    """A JSON value as an HDF5 attribute: None becomes an empty one, lists of unlike things JSON text."""
    import h5py

    if value is None:
        return h5py.Empty("f4")
    if not isinstance(value, list):
        return value
    array = np.asarray(value) if _is_array(value) else None
    if array is None or array.dtype.kind == "O":
        return json.dumps(value)
    return value if array.dtype.kind == "U" else array


def _is_array(value: list[Any]) -> bool:
    """Whether a list, nested or not, is an array: parts of one length and one kind."""
    if any(isinstance(item, list) for item in value):
        same = all(isinstance(item, list) and len(item) == len(value[0]) for item in value)
        return same and all(_is_array(item) for item in value)
    kinds = {type(item) for item in value}
    return kinds <= {int, float} or kinds in ({str}, {bool})
