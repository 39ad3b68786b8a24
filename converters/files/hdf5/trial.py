"""A process that opens HDF5 files first: ``python -m unistore.converters.files.hdf5.trial``.

A request on standard input is a line of JSON: ``{"path": …}`` to look at everything that describes the data,
or ``{"path": …, "dataset": …, "rows": [lo, hi]}`` to read rows. The answer is one byte, whatever the library
raised: what counts is that the process is still there. The kernel ends it where it takes too much time.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import hdf5plugin  # noqa: F401  registers the codecs with the HDF5 library

__all__ = ["serve"]

_STEP = 2
"""Seconds of processor time for one object, besides one for each 20 MB that the file takes on disk."""
_WHOLE = 20
"""Seconds of processor time for one request, besides one for each MB."""
_SLAB = 16 << 20
"""Bytes of values that are read at a time."""
_ADDRESSES = 4 << 30
"""Bytes of address space: less than an absurd shape asks for."""


def _limit(what: int, value: int) -> None:
    most = resource.getrlimit(what)[1]
    resource.setrlimit(what, (value if most == resource.RLIM_INFINITY else min(value, most), most))


class _Trial:
    def __init__(self, path: str) -> None:
        self._path = path
        status = Path(path).stat()
        self._size, used = status.st_size, status.st_blocks * 512
        self._step, self._end = _STEP + used / 20e6, time.process_time() + _WHOLE + used / 1e6

    def _count_on(self) -> None:
        """Let the kernel end this process unless it is here again in time."""
        _limit(resource.RLIMIT_CPU, math.ceil(min(time.process_time() + self._step, self._end)))

    @contextmanager
    def _opened(self) -> Iterator[h5py.File]:
        self._count_on()
        with h5py.File(self._path, "r", driver="sec2", locking="best-effort") as file:
            yield file

    def look(self) -> None:
        """Look at every object that the file itself holds, once."""
        with self._opened() as file:
            seen = set[Any]()
            above = [iter([file["/"]])]
            while above:
                item = None
                with suppress(Exception):
                    item = next(above[-1], None)
                if item is None:
                    above.pop()
                    continue
                self._count_on()
                if not self._is_new(item, seen):
                    continue
                with suppress(Exception):
                    self._attributes(item)
                if isinstance(item, h5py.Group):
                    above.append(self._members(item))
                elif isinstance(item, h5py.Dataset):
                    with suppress(Exception):
                        self._dataset(item)

    def _is_new(self, item: Any, seen: set[Any]) -> bool:
        try:
            info = h5py.h5o.get_info(item.id)
        except Exception:  # noqa: BLE001  the library raises whatever it likes
            return not isinstance(item, h5py.Group)  # one that cannot be told from others is not entered
        key = info.fileno, info.addr
        new = key not in seen
        seen.add(key)
        return new

    def _attributes(self, item: Any) -> None:
        for name in item.attrs:
            self._count_on()
            with suppress(Exception):
                _ = item.attrs[name]

    def _members(self, group: h5py.Group) -> Iterator[Any]:
        for name in group:
            self._count_on()
            with suppress(Exception):
                key = name.encode("utf-8", "surrogateescape") if isinstance(name, str) else name
                if group.id.links.get_info(key).type in (h5py.h5l.TYPE_HARD, h5py.h5l.TYPE_SOFT):
                    yield group[name]

    def _dataset(self, dataset: h5py.Dataset) -> None:
        _ = dataset.dtype, dataset.external, dataset.is_virtual and dataset.virtual_sources()
        creation = dataset.id.get_create_plist()
        _ = creation.get_layout(), dataset.id.get_storage_size()
        if dataset.chunks is not None:
            _ = dataset.id.get_num_chunks()
        elif dataset.is_virtual:
            return
        if dataset.dtype.hasobject and dataset.shape:
            self._read(dataset, 0, dataset.shape[0])
        elif dataset.dtype.hasobject:
            _ = dataset[()]

    def rows(self, name: str, lo: int, hi: int) -> None:
        """Read rows of a dataset, some at a time."""
        with self._opened() as file:
            self._read(file[name], lo, hi)

    def _read(self, dataset: h5py.Dataset, lo: int, hi: int) -> None:
        width = math.prod(dataset.shape[1:]) * dataset.dtype.itemsize
        if dataset.dtype.hasobject:
            width += self._size // dataset.shape[0]
        step = max(1, _SLAB // max(1, width))
        for start in range(lo, hi, step):
            self._count_on()
            _ = dataset[start : min(start + step, hi)]


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer until there are no more requests."""
    while line := requests.readline():
        request = json.loads(line)
        with suppress(Exception):
            trial = _Trial(request["path"])
            if "rows" in request:
                trial.rows(request["dataset"], *request["rows"])
            else:
                trial.look()
        answers.write(b".")
        answers.flush()


if __name__ == "__main__":
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, _ADDRESSES)
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # some filters print to standard output
        serve(sys.stdin.buffer, answers)
