"""Files without a header, whose shape a family knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from unistore.converters.plugin import Array, Claim, Facts, Format, Opened, SourceFile, maybe, no

# Bytes in which the first line of such a header ends
_LINE = 256


def begins_with_text(file: SourceFile) -> bool:
    """Return whether a file begins with a line of text that has a percent sign at its start."""
    line, end, _ = file.head(_LINE).partition(b"\n")
    is_text = line.isascii() and line.decode("ascii", "replace").rstrip("\r").isprintable()
    return bool(end) and line.startswith(b"% ") and is_text


class Raw(Format):
    """A file as it stands: one array, called ``bytes``."""

    name: ClassVar[str] = "raw"
    suffixes: ClassVar[tuple[str, ...]] = (".dat", ".bin")
    offered: ClassVar[bool] = False

    def recognise(self, file: SourceFile) -> Claim:
        """Take no file for sure: nothing in it says what it is. Lines of text with ``%`` are a header."""
        if begins_with_text(file):
            return no("begins with a header of lines with %")
        return maybe(f"is a {file.path.suffix.lower()} file without a known header")

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[Opened]:
        """Open the file. Its bytes are read when they are sliced."""
        if not file.size:
            raise file.problem("is empty (0 bytes)", "copy or record it again", "empty")
        file.check_whole()
        yield Opened({"bytes": file.bytes()})

    def write(self, path: Path, arrays: Mapping[str, Array], facts: Facts) -> None:
        """Write the bytes, in blocks."""
        with path.open("wb") as file:
            for _, block in arrays["bytes"].blocks():
                file.write(block.tobytes())
