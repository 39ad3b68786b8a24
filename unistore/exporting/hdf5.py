"""Writes one HDF5 file to a disk that may fill up.

libhdf5 crashes on closing a file after a failed write, with its own drivers as well as with a Python file
object that raises. So its writes never fail: the file object that it writes to records the first error, keeps
all later data in memory and reads them back, until the file is closed. The error is checked after each block
of rows and raised once the file is closed, so at most one block of rows and the file's metadata are kept in
memory.
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

_CHUNK_ROWS, _MAX_CHUNK_BYTES = 8192, 16 << 20


def write_hdf5(file: File, path: Path) -> None:
    """Write a new HDF5 file.

    It is written on a thread, as a KeyboardInterrupt is raised in the main thread only: inside a write of
    libhdf5 it would be a failed write.

    Raises `OSError` if the file cannot be written; `StoreError` if the store's values cannot be read, or HDF5
    does not allow a name.
    """
    with _FailSafeFile(path) as out, ThreadPoolExecutor(1, "unistore-hdf5") as thread:
        try:
            thread.submit(_write, file, out).result()
        except BaseException as error:
            out.stop(error)
            raise


class _FailSafeFile:
    """A new file for libhdf5, none of whose operations fails.

    Leaving the ``with`` statement raises the first error, if there was one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._position = self._end = 0
        self._error: BaseException | None = None
        self._unwritten: list[tuple[int, bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            os.close(self._descriptor)
        except OSError as failure:  # network file systems report a full disk only now
            self._fail(failure)
        if error is None:
            self.check()

    def check(self) -> None:
        """Raise the first error, if there was one."""
        if self._error is not None:
            raise self._error

    def stop(self, error: BaseException) -> None:
        """Stop writing to disk; `error` is the one that `check` raises, unless there was one before."""
        self._error = self._error or error

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position."""
        self._position = offset if whence == os.SEEK_SET else self._end + offset
        return self._position

    def tell(self) -> int:
        """Position."""
        return self._position

    def write(self, data: Any) -> int:
        """Write to disk; keep in memory what cannot be written."""
        view, offset = memoryview(data).cast("B"), self._position
        size = len(view)
        self._end = max(self._end, offset + size)
        try:
            while view and self._error is None:
                done = os.pwrite(self._descriptor, view, offset)
                view, offset = view[done:], offset + done
        except OSError as error:
            self._fail(error)
        if view:
            self._unwritten.append((offset, bytes(view)))
        return size

    def read(self, size: int) -> bytes:
        """Read `size` bytes; zeros where nothing was written."""
        out = bytearray(size)
        self.readinto(out)
        return bytes(out)

    def readinto(self, out: Any) -> int:
        """Fill a buffer; with zeros where nothing was written."""
        view, offset = memoryview(out).cast("B"), self._position
        view[:] = bytes(len(view))
        try:
            os.preadv(self._descriptor, [view], offset)
        except OSError as error:
            self._fail(error)
        for start, data in self._unwritten:
            lo, hi = max(start, offset), min(start + len(data), offset + len(view))
            if lo < hi:
                view[lo - offset : hi - offset] = data[lo - start : hi - start]
        return len(view)

    def truncate(self, size: int) -> None:
        """Set the size of the file."""
        self._end = size
        try:
            if self._error is None:
                os.ftruncate(self._descriptor, size)
        except OSError as error:
            self._fail(error)

    def flush(self) -> None:
        """Do nothing: writes are not buffered."""

    def _fail(self, error: OSError) -> None:
        error.filename = str(self._path)
        self.stop(error)


def _write(file: File, disk: _FailSafeFile) -> None:
    import h5py

    for name in (*file.values, *file.attributes):
        if "\0" in name or (name and "" in name.split("/")):
            msg = f"{file.name}: dataset or group {name!r} cannot be written: not a valid name in HDF5"
            raise StoreError(msg)
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


def _write_dataset(out: Any, name: str, values: Values, disk: _FailSafeFile, *, compressed: bool) -> None:
    import h5py

    dtype = h5py.vlen_dtype(np.uint8) if values.dtype.hasobject else values.dtype
    storage: dict[str, Any] = {}
    if compressed and not values.dtype.hasobject and 0 not in values.shape:
        row_bytes = max(1, prod(values.shape[1:]) * dtype.itemsize)
        rows = max(1, min(_CHUNK_ROWS, values.shape[0], _MAX_CHUNK_BYTES // row_bytes))
        chunks = (rows, *values.shape[1:])
        storage = {"chunks": chunks, "compression": "gzip", "compression_opts": 4, "shuffle": True}
    dataset = out.create_dataset(name, values.shape, dtype, **storage)
    row = 0
    for block in values.blocks():
        if block.size:
            dataset[row : row + len(block)] = block[0] if values.dtype.hasobject else block
        disk.check()
        row += len(block)


def _write_attribute(attributes: Any, name: str, value: Any) -> None:
    """Write an array, ``h5py.Empty`` or JSON value as an attribute."""
    import h5py

    plain = value if isinstance(value, np.ndarray | h5py.Empty) else _from_json(value)
    attributes.create(name, plain, dtype=plain.dtype if isinstance(plain, np.ndarray) else None)


def _from_json(value: Any) -> Any:
    """A JSON value as an HDF5 attribute: None becomes an empty one, an irregular list JSON text."""
    import h5py

    if value is None:
        return h5py.Empty("f4")
    if not isinstance(value, list):
        return value
    array = np.asarray(value) if _is_regular(value) else None
    if array is None or array.dtype.kind == "O":
        return json.dumps(value)
    return value if array.dtype.kind == "U" else array


def _is_regular(value: list[Any]) -> bool:
    """Whether a list, nested or not, has the form of an array: one length per axis, one type."""
    if any(isinstance(item, list) for item in value):
        same_length = all(isinstance(item, list) and len(item) == len(value[0]) for item in value)
        return same_length and all(_is_regular(item) for item in value)
    kinds = {type(item) for item in value}
    return kinds <= {int, float} or kinds in ({str}, {bool})
