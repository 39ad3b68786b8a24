"""Opens a file that was exported again, and compares it with what was written."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
import xxhash

from unistore.converters.common.columns import is_text
from unistore.converters.common.exported import ExportedArray, Form
from unistore.errors import ConversionError, StoreError
from unistore.store.reader import open_zarr
from unistore.system.types import AnyArray, Attributes, Dtype, Shape

_BLOCK = 16 << 20  # bytes that are read at a time
_FIX = "export again, to another disk"
# ``read(lo, hi)``: rows of an array of a file
_ReadRows = Callable[[int, int], AnyArray]


class _RowDigests:
    """Digests of rows, however they are cut into blocks."""

    def __init__(self, dtype: Dtype) -> None:
        self._dtype = dtype
        self._digests: dict[str, xxhash.xxh3_128] = {}

    def take(self, rows: AnyArray) -> None:
        if self._dtype.names is None:
            self._take("", rows, self._dtype)
        else:  # not what lies between the fields
            for name in self._dtype.names:
                self._take(name, rows[name], self._dtype[name])

    def _take(self, name: str, rows: AnyArray, dtype: Dtype) -> None:
        digest = self._digests.setdefault(name, xxhash.xxh3_128())
        if not dtype.hasobject:
            rows = np.ascontiguousarray(rows, dtype.base)
            digest.update(rows.reshape(-1).view(np.uint8).data if rows.size else b"")
            return
        metadata: Attributes = dtype.metadata or {}
        of_items = metadata.get("vlen", np.uint8)
        for item in rows.flat:
            if isinstance(item, str):
                data = item.encode("utf-8", "surrogateescape")
            elif isinstance(item, bytes):
                data = item
            else:
                data = np.asarray(item, None if is_text(dtype) else of_items).tobytes()
            digest.update(len(data).to_bytes(8, "little") + data)

    def hexdigests(self) -> dict[str, str]:
        return {name: digest.hexdigest() for name, digest in self._digests.items()}


class Written:
    """An array of a file, whose rows are kept in mind, by their digest, while they are written."""

    def __init__(self, values: ExportedArray) -> None:
        self.shape = values.shape
        self.dtype = values.dtype
        self._values = values
        self._rows = _RowDigests(values.dtype)

    @property
    def values(self) -> ExportedArray:
        """Return the array to write, once."""
        return self._values._replace(blocks=self._blocks)

    def _blocks(self) -> Iterator[AnyArray]:
        for block in self._values.blocks():
            if block.size:
                self._rows.take(block)
            yield block

    def difference(self, shape: Shape, dtype: Dtype, read: _ReadRows, step: int = 0) -> str:
        """Say how an array of a file differs, empty if it does not. `step`: rows that it has together."""
        forms = f"{dtype} {shape}, expected {self.dtype} {self.shape}"
        if shape != self.shape or _form(dtype) != _form(self.dtype):
            return f"it is {forms}"
        row_bytes = max(1, prod(shape[1:]) * dtype.itemsize)
        step = max(1, step, _BLOCK // row_bytes)
        rows = _RowDigests(self.dtype)
        count = shape[0] if shape else 0
        for lo in range(0, count if 0 not in shape else 0, step):
            rows.take(read(lo, min(lo + step, count)))
        return "" if rows.hexdigests() == self._rows.hexdigests() else "it has other values"


def _form(dtype: Dtype) -> object:
    if dtype.names is not None:
        return {name: _form(dtype[name]) for name in dtype.names}
    return object if dtype.hasobject else dtype


def check_written(path: Path, form: Form, written: Mapping[str, Written]) -> None:
    """Refuse a file that a library opens and reads as something else than was written."""
    try:
        reason = _READERS[form](path, written)
    except (StoreError, OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        reason = f"{type(error).__name__}: {error}"
    if reason:
        msg = f"{path.name}: was written, but reading it back gives other values: {reason}. Fix: {_FIX}"
        raise ConversionError(msg)


def _check_hdf5(path: Path, written: Mapping[str, Written]) -> str:
    import h5py

    with h5py.File(path, "r") as file:
        for name, array in written.items():
            dataset = file[name]
            step = dataset.chunks[0] if dataset.chunks else 0
            read = lambda lo, hi, dataset=dataset: dataset[lo:hi]  # noqa: E731
            if reason := array.difference(dataset.shape, dataset.dtype, read, step):
                return f"{name}: {reason}"
    return ""


def _check_npy(path: Path, written: Mapping[str, Written]) -> str:
    with path.open("rb") as file:
        return _npy_difference(file, written[""])


def _check_npz(path: Path, written: Mapping[str, Written]) -> str:
    with zipfile.ZipFile(path) as archive:
        for name, array in written.items():
            with archive.open(f"{name}.npy") as member:
                if reason := _npy_difference(member, array):
                    return f"{name}: {reason}"
    return ""


def _npy_difference(file: IO[bytes], array: Written) -> str:
    np.lib.format.read_magic(file)
    shape, _, dtype = np.lib.format.read_array_header_1_0(file, max_header_size=1 << 20)
    row_bytes = prod(shape[1:]) * dtype.itemsize

    def read(lo: int, hi: int) -> AnyArray:  # one after the other
        return np.frombuffer(file.read((hi - lo) * row_bytes), dtype).reshape(hi - lo, *shape[1:])

    return array.difference(shape, dtype, read) or ("bytes follow it" if file.read(1) else "")


def _check_zarr(path: Path, written: Mapping[str, Written]) -> str:
    group = open_zarr(path)
    for name, array in written.items():
        stored: Any = group[name]
        read = lambda lo, hi, stored=stored: stored[lo:hi]  # noqa: E731
        if reason := array.difference(stored.shape, stored.dtype, read, stored.chunks[0]):
            return f"{name}: {reason}"
    return ""


def _check_png(path: Path, written: Mapping[str, Written]) -> str:
    import cv2

    decoded: Any = cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_COLOR)
    pixels = decoded[..., ::-1]
    return written[""].difference(pixels.shape, pixels.dtype, lambda lo, hi: pixels[lo:hi])


def _check_raw(path: Path, written: Mapping[str, Written]) -> str:
    array = written[""]
    row_bytes = prod(array.shape[1:]) * array.dtype.itemsize
    with path.open("rb") as file:

        def read(lo: int, hi: int) -> AnyArray:
            rows = np.frombuffer(file.read((hi - lo) * row_bytes), array.dtype)
            return rows.reshape(hi - lo, *array.shape[1:])

        return array.difference(array.shape, array.dtype, read) or ("bytes follow it" if file.read(1) else "")


_READERS: Mapping[Form, Callable[[Path, Mapping[str, Written]], str]] = {
    "hdf5": _check_hdf5,
    "npy": _check_npy,
    "npz": _check_npz,
    "png": _check_png,
    "raw": _check_raw,
    "zarr": _check_zarr,
}
