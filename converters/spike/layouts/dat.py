"""Headerless ``.dat`` streams: bits or bytes of consecutive frames."""

from __future__ import annotations

from pathlib import Path

from unistore.converters.files.formats import lfs_pointer_problem
from unistore.converters.files.libraries import open_bytes
from unistore.converters.files.raw import FileBytes
from unistore.converters.scan import Taken, Verdict
from unistore.converters.spike.source import Content, Format, StreamSource
from unistore.errors import InputError, Problem


class DatSource(StreamSource):
    """A ``.dat`` file."""

    def content(self) -> Content:
        """As in `StreamSource`."""
        return FileBytes(self.path, self.location)


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


FORMAT = Format(suffixes=(".dat",), look=_look, open=_open, arrays=open_bytes, headerless=True, form="raw")
