"""A format that is read by a native library, which some files crash and others hang."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from unistore import plugin


class HangingRows:
    """Rows of a file on which the library goes round in circles."""

    shape = (4,)
    dtype = np.dtype("u1")

    def __getitem__(self, rows: slice) -> np.ndarray:
        while True:
            pass


class Native(plugin.Format):
    """Bytes after the word ``SOUND``, ``CRASH`` or ``HANGS``, which says what becomes of the library."""

    name = "native"
    suffixes = (".native",)
    library = "libnative"

    def recognise(self, file: plugin.SourceFile) -> plugin.Claim:
        if file.head(5) in (b"SOUND", b"CRASH", b"HANGS"):
            return plugin.sure("begins with one of the words")
        return plugin.no("begins with another word")

    @contextmanager
    def open(self, file: plugin.SourceFile) -> Iterator[plugin.Opened]:
        word = file.head(5)
        if word == b"CRASH":
            os.kill(os.getpid(), signal.SIGSEGV)
        values = HangingRows() if word == b"HANGS" else np.fromfile(file.path, "u1", offset=5)
        yield plugin.Opened({"values": plugin.Array(values)})


class Bytes(plugin.Family):
    """Bytes of native files."""

    name = "bytes"
    summary = "Bytes: .native."
    formats = (Native,)
    schema = plugin.Schema(table="values", columns={"values": plugin.Column(kinds="u")})
