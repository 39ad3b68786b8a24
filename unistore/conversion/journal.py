"""The journal of a conversion: one fsynced JSON line a finished step, so that the same command continues."""

from __future__ import annotations

import json
import os
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
        self.records: list[dict[str, Any]] = []
        whole = 0
        if path.exists():
            data = path.read_bytes()
            whole = data.rfind(b"\n") + 1
            for number, line in enumerate(data[:whole].splitlines(), 1):
                try:
                    self.records.append(_record(line))
                except (ValueError, RecursionError) as error:
                    msg = f"{path}: line {number} of the journal is damaged; start over with --restart"
                    raise ConversionError(msg) from error
        self._file = path.open("ab", buffering=0)
        self._bytes = whole
        try:
            self._file.truncate(whole)
            sync_folder(path.parent)
        except BaseException:
            self._file.close()
            raise

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
        self._bytes += len(line)
        self.records.append(record)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def of(self, step: str) -> list[dict[str, Any]]:
        """Records of one kind of step, in order."""
        return [record for record in self.records if record["step"] == step]


def _record(line: bytes) -> dict[str, Any]:
    """A line of the journal.

    Raises
    ------
    ValueError
        If it is no step: an object that names its step, and its source by number.
    """
    record = json.loads(line)
    named = isinstance(record, dict) and isinstance(record.get("step"), str)
    if not named or not isinstance(record.get("source", 0), int):
        msg = "no step"
        raise ValueError(msg)
    return cast("dict[str, Any]", record)
