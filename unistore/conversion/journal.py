"""The journal of a conversion: one fsynced JSON line for each finished step, to continue after a kill."""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from unistore.errors import ConversionError, writing_failed
from unistore.system.types import JsonObject
from unistore.zarr3.durable import is_there, sync_folder

BEGIN = "begin"  # Step of the journal


class Journal:
    """Append-only record of finished steps.

    Opening it removes the unfinished last line of a process that was killed.
    """

    def __init__(
        self,
        path: Path,  # the file; created if absent
    ) -> None:
        self.path = path
        self._lines: dict[str, list[tuple[int, int]]] = {}
        self._bytes = 0
        for record, length in _records(path):
            self._index(record, length)
        with _naming(path):
            self._file = path.open("a+b", buffering=0)
        try:
            with _naming(path):
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
        """Whether the journal is empty."""
        return not self._bytes

    def append(self, record: JsonObject) -> None:
        """Write and fsync one record. A partly written record is removed before the error is raised."""
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        left = memoryview(line)
        try:
            while left:
                left = left[self._file.write(left) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            with suppress(OSError):  # a line that is not finished is left out by whoever reads it
                self._file.truncate(self._bytes)
            raise writing_failed(error, self.path) from error
        self._index(record, len(line))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def of(self, step: str) -> list[JsonObject]:
        """Return all records of one kind of step, in order."""
        return list(self.each(step))

    def each(self, step: str) -> Iterator[JsonObject]:
        """Iterate over the records of one kind of step, reading one at a time: together they may be large."""
        if step not in self._lines:
            return
        with _naming(self.path), self.path.open("rb") as file:
            for position, length in list(self._lines[step]):
                file.seek(position)
                yield json.loads(file.read(length))


class PartJournal(Journal):
    """Journal of a part. It also gives the steps in the journals of the others."""

    def each(self, step: str) -> Iterator[JsonObject]:
        """Iterate over the records of all parts."""
        yield from super().each(step)
        for path in journals(self.path.parent):
            if path != self.path:
                yield from (record for record, _ in _records(path) if record["step"] == step)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Make an error of the system the failure of a file that has a name."""
    try:
        yield
    except OSError as error:
        raise writing_failed(error, path) from error


def journals(folder: Path) -> list[Path]:
    """Return the journals in a folder. A folder that cannot be listed is not one without journals."""
    with _naming(folder):
        paths = list(folder.iterdir()) if is_there(folder) else []
    return sorted(path for path in paths if fnmatch.fnmatch(path.name, "journal*.jsonl"))


def _records(path: Path) -> Iterator[tuple[JsonObject, int]]:
    # With their lengths in bytes, without a last line that is not finished
    with _naming(path), suppress(FileNotFoundError), path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                record = _record(line)
            except (ValueError, RecursionError) as error:
                msg = f"{path}: line {number} of the journal is damaged. Fix: add --restart to start over"
                raise ConversionError(msg) from error
            yield record, len(line)


def _record(line: bytes) -> JsonObject:
    record = json.loads(line)
    if not isinstance(record, dict) or not isinstance(record.get("step"), str):
        raise ValueError("not a step")
    for key in ("batch", "round"):
        if not isinstance(record.get(key, 0), int):
            raise ValueError("not the number of a step")
    return cast("JsonObject", record)


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginRecord:
    """The record of the journal with which a conversion begins.

    Attributes
    ----------
    identity : mapping
        Options and versions that must be the same to continue.
    paths : list of str
        The sources as they were given, for the report on unfinished conversions.
    scanned : int
        When the first scan of the sources began, in ns since 1970. 0: unknown.
    """

    identity: JsonObject
    paths: list[str]
    scanned: int

    @classmethod
    def from_json(cls, record: JsonObject) -> BeginRecord:
        """Return the record of its JSON object."""
        scanned = record.get("scanned")
        return cls(
            identity=record["identity"],
            paths=record.get("paths", []),
            scanned=scanned if isinstance(scanned, int) else 0,
        )

    def to_json(self) -> JsonObject:
        """Return the JSON object for the journal."""
        return {"step": BEGIN, "identity": self.identity, "paths": self.paths, "scanned": self.scanned}
