"""Helper process that tries HDF5 files first: ``python -m unistore.converters.files.hdf5.trial_process``.

A request on standard input is a line of JSON: ``{"path": …}`` to read all metadata, or
``{"path": …, "dataset": …, "rows": [lo, hi]}`` to read rows. The answer is one byte, whatever the library
raised: it shows that the process has survived. The kernel ends the process when it exceeds its time limit.
"""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import hdf5plugin  # noqa: F401  registers the codecs with the HDF5 library

from unistore.converters.files.hdf5.helper_process import serve

_OBJECT_SECONDS = 2
"""Processor time for one object, besides one second for each 20 MB that the file takes on disk."""
_REQUEST_SECONDS = 20
"""Processor time for one request, besides one second for each MB."""
_BLOCK = 16 << 20
"""Bytes of values read at a time."""
_ADDRESS_SPACE = 4 << 30
"""Bytes: less than a damaged shape asks for."""


def _limit(what: int, value: int) -> None:
    hard = resource.getrlimit(what)[1]
    resource.setrlimit(what, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


class _Trial:
    def __init__(self, path: str) -> None:
        self._path = path
        status = Path(path).stat()
        self._size, used = status.st_size, status.st_blocks * 512
        self._object_seconds = _OBJECT_SECONDS + used / 20e6
        self._end = time.process_time() + _REQUEST_SECONDS + used / 1e6

    def _restart_timer(self) -> None:
        """Let the kernel end this process unless the timer is restarted in time."""
        _limit(resource.RLIMIT_CPU, math.ceil(min(time.process_time() + self._object_seconds, self._end)))

    @contextmanager
    def _opened(self) -> Iterator[h5py.File]:
        self._restart_timer()
        with h5py.File(self._path, "r", driver="sec2", locking="best-effort") as file:
            yield file

    def read_metadata(self) -> None:
        """Read the metadata of every object in the file, once."""
        with self._opened() as file:
            seen = set[Any]()
            open_groups = [iter([file["/"]])]
            while open_groups:
                item = None
                with suppress(Exception):
                    item = next(open_groups[-1], None)
                if item is None:
                    open_groups.pop()
                    continue
                self._restart_timer()
                if not self._is_new(item, seen):
                    continue
                with suppress(Exception):
                    self._read_attributes(item)
                if isinstance(item, h5py.Group):
                    open_groups.append(self._members(item))
                elif isinstance(item, h5py.Dataset):
                    with suppress(Exception):
                        self._read_dataset(item)

    def _is_new(self, item: Any, seen: set[Any]) -> bool:
        try:
            info = h5py.h5o.get_info(item.id)
        except Exception:  # noqa: BLE001  the library raises whatever it likes
            return not isinstance(item, h5py.Group)  # a group without an address could be entered for ever
        key = info.fileno, info.addr
        new = key not in seen
        seen.add(key)
        return new

    def _read_attributes(self, item: Any) -> None:
        for name in item.attrs:
            self._restart_timer()
            with suppress(Exception):
                _ = item.attrs[name]

    def _members(self, group: h5py.Group) -> Iterator[Any]:
        for name in group:
            self._restart_timer()
            with suppress(Exception):
                key = name.encode("utf-8", "surrogateescape") if isinstance(name, str) else name
                if group.id.links.get_info(key).type in (h5py.h5l.TYPE_HARD, h5py.h5l.TYPE_SOFT):
                    yield group[name]

    def _read_dataset(self, dataset: h5py.Dataset) -> None:
        _ = dataset.dtype, dataset.external, dataset.is_virtual and dataset.virtual_sources()
        creation = dataset.id.get_create_plist()
        _ = creation.get_layout(), dataset.id.get_storage_size()
        if dataset.chunks is not None:
            _ = dataset.id.get_num_chunks()
        elif dataset.is_virtual:
            return
        if dataset.dtype.hasobject and dataset.shape:
            self._read_rows(dataset, 0, dataset.shape[0])
        elif dataset.dtype.hasobject:
            _ = dataset[()]

    def read_rows(self, name: str, lo: int, hi: int) -> None:
        """Read rows of a dataset in blocks."""
        with self._opened() as file:
            self._read_rows(file[name], lo, hi)

    def _read_rows(self, dataset: h5py.Dataset, lo: int, hi: int) -> None:
        width = math.prod(dataset.shape[1:]) * dataset.dtype.itemsize
        if dataset.dtype.hasobject:
            width += self._size // dataset.shape[0]
        step = max(1, _BLOCK // max(1, width))
        for start in range(lo, hi, step):
            self._restart_timer()
            _ = dataset[start : min(start + step, hi)]


def _answer(request: dict[str, Any], _: BinaryIO) -> tuple[bytes]:
    with suppress(Exception):
        trial = _Trial(request["path"])
        if "rows" in request:
            trial.read_rows(request["dataset"], *request["rows"])
        else:
            trial.read_metadata()
    return (b".",)


if __name__ == "__main__":
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, _ADDRESS_SPACE)
    serve(_answer)
