"""Headerless ``.dat`` streams: bits or bytes of consecutive frames."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.faults import as_problem
from unistore.converters.files.formats import lfs_pointer_problem
from unistore.converters.parts import Taken, Verdict
from unistore.converters.spike.source import Format, ReadBytes, StreamSource
from unistore.errors import InputError, Problem


class DatSource(StreamSource):
    """A ``.dat`` file."""

    @contextmanager
    def open(self) -> Iterator[ReadBytes]:
        """As in `StreamSource`."""
        with as_problem(self.location), self.path.open("rb") as file:

            def read(count: int) -> NDArray[np.uint8]:
                block = np.empty(count, np.uint8)
                return block[: file.readinto(block.data)]  # np.fromfile takes a read error for the end

            yield read


def _open(path: Path, location: str) -> DatSource:
    with path.open("rb") as file:
        head = file.read(32)
        size = file.seek(0, 2)
    if not size:
        raise InputError(Problem(location, "is empty (0 bytes)", "copy or record it again", "empty"))
    if (pointer := lfs_pointer_problem(head, location)) is not None:
        raise InputError(pointer)
    return DatSource(path=path, location=location, size=size)


def _look(path: Path, location: str) -> Verdict:
    _open(path, location)
    return Taken("stream", "is a headerless .dat stream")


def _original(path: Path, _key: str) -> NDArray[Any]:
    return np.fromfile(path, np.uint8)


FORMAT = Format(suffixes=(".dat",), look=_look, open=_open, original=_original, headerless=True, form="raw")
