"""The journal of a conversion: one fsynced JSON line a finished step, so that the same command continues."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from unistore.errors import ConversionError
from unistore.zarr3.durable import sync_folder

__all__ = ["Journal"]


class Journal:
    """Append-only record of finished steps.

    A line that a killed process left unfinished is cut off when the journal is opened; every other line was
    on disk before the step after it began.

    Parameters
    ----------
    path
        The file; made with the first record.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: dict[str, list[tuple[int, int]]] = {}
        self._bytes = 0
        if path.exists():
            with path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    if not line.endswith(b"\n"):
                        break
                    try:
                        self._note(_record(line), len(line))
                    except (ValueError, RecursionError) as error:
                        msg = f"{path}: line {number} of the journal is damaged; start over with --restart"
                        raise ConversionError(msg) from error
        self._file = path.open("a+b", buffering=0)
        try:
            self._file.truncate(self._bytes)
            sync_folder(path.parent)
        except BaseException:
            self._file.close()
            raise

    def _note(self, record: Mapping[str, Any], length: int) -> None:
        self._lines.setdefault(record["step"], []).append((self._bytes, length))
        self._bytes += length

    @property
    def is_empty(self) -> bool:
        """Whether there is no record."""
        return not self._bytes

    def append(self, record: dict[str, Any]) -> None:
        """Write one record and wait until it is on disk; a record that does not fit is cut off again."""
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        left = memoryview(line)
        try:
            while left:
                left = left[self._file.write(left) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            error.filename = str(self.path)
            self._file.truncate(self._bytes)
            raise
        self._note(record, len(line))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def of(self, step: str) -> list[dict[str, Any]]:
        """Records of one kind of step, in order."""
        return list(self.each(step))

    def each(self, step: str) -> Iterator[dict[str, Any]]:
        """The same one by one, read as they are taken: those of all shards name every source."""
        if step not in self._lines:
            return
        with self.path.open("rb") as file:
            for at, length in list(self._lines[step]):
                file.seek(at)
                yield json.loads(file.read(length))


def _record(line: bytes) -> dict[str, Any]:
    """A line of the journal.

    Raises
    ------
    ValueError
        If it is no step: an object that names its step, and what it did by numbers.
    """
    record = json.loads(line)
    named = isinstance(record, dict) and isinstance(record.get("step"), str)
    if not named or not all(isinstance(record.get(key, 0), int) for key in ("batch", "round")):
        msg = "no step"
        raise ValueError(msg)
    return cast("dict[str, Any]", record)
