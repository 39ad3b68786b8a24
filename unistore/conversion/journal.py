"""The journal of a conversion: one fsynced JSON line for each finished step, to continue after a kill."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from unistore.errors import ConversionError
from unistore.zarr3.durable import sync_folder


class Journal:
    """Append-only record of finished steps.

    An unfinished last line of a killed process is removed when the journal is opened.

    Parameters
    ----------
    path
        The file; created if absent.
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
                        self._index(_record(line), len(line))
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

    def _index(self, record: Mapping[str, Any], length: int) -> None:
        self._lines.setdefault(record["step"], []).append((self._bytes, length))
        self._bytes += length

    @property
    def is_empty(self) -> bool:
        """Whether there is no record."""
        return not self._bytes

    def append(self, record: dict[str, Any]) -> None:
        """Write and fsync one record; a partly written record is removed before the error is raised."""
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
        self._index(record, len(line))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def of(self, step: str) -> list[dict[str, Any]]:
        """All records of one kind of step, in order."""
        return list(self.each(step))

    def each(self, step: str) -> Iterator[dict[str, Any]]:
        """Iterate over the records of one kind of step, reading one at a time: together they may be large."""
        if step not in self._lines:
            return
        with self.path.open("rb") as file:
            for at, length in list(self._lines[step]):
                file.seek(at)
                yield json.loads(file.read(length))


def _record(line: bytes) -> dict[str, Any]:
    """Parse a line; ValueError unless it is an object with a step, and batch and round are integers."""
    record = json.loads(line)
    named = isinstance(record, dict) and isinstance(record.get("step"), str)
    if not named or not all(isinstance(record.get(key, 0), int) for key in ("batch", "round")):
        msg = "not a step"
        raise ValueError(msg)
    return cast("dict[str, Any]", record)
