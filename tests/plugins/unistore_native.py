"""A format that is read by a native library, which some files crash and others hang."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from unistore import plugin


class PanicException(BaseException):
    """As PyO3 raises it where Rust panics: no `Exception`."""


def panic() -> None:
    """Tell it as Rust does, behind Python's back, and raise."""
    os.write(2, b"thread '<unnamed>' panicked at src/lib.rs:158:25\nstack backtrace:\n")
    raise PanicException("range end index 65587 out of range")


FATES = {
    b"CRASH": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    b"ABORT": os.abort,
    b"GONE0": lambda: os._exit(0),
    b"GONE3": lambda: os._exit(3),
    b"EXITS": lambda: sys.exit("no licence"),
    b"PANIC": panic,
}


class FatefulRows:
    """Rows at which the library comes to its end."""

    shape = (4,)
    dtype = np.dtype("u1")

    def __init__(self, word: bytes) -> None:
        self.word = word

    def __getitem__(self, rows: slice) -> np.ndarray:
        FATES[self.word]()
        raise AssertionError


class HangingRows:
    """Rows of a file on which the library goes round in circles."""

    shape = (4,)
    dtype = np.dtype("u1")

    def __getitem__(self, rows: slice) -> np.ndarray:
        while True:
            pass


class Native(plugin.Format):
    """Bytes after a word of five letters, which says what becomes of the library: see `FATES`.

    In small letters, when rows are read.
    """

    name = "native"
    suffixes = (".native",)
    library = "libnative"

    def recognise(self, file: plugin.SourceFile) -> plugin.Claim:
        if file.head(5).upper() in (b"SOUND", b"HANGS", *FATES):
            return plugin.sure("begins with one of the words")
        return plugin.no("begins with another word")

    @contextmanager
    def open(self, file: plugin.SourceFile) -> Iterator[plugin.OpenFile]:
        word = file.head(5)
        if word in FATES:
            FATES[word]()
        values = HangingRows() if word == b"HANGS" else np.fromfile(file.path, "u1", offset=5)
        if word.islower():
            values = FatefulRows(word.upper())
        yield plugin.OpenFile({"values": plugin.Array(values)})


class Bytes(plugin.Family):
    """Bytes of native files."""

    name = "bytes"
    summary = "Bytes: .native."
    formats = (Native,)
    schema = plugin.Schema(table="values", columns={"values": plugin.Column(kinds="u")})
