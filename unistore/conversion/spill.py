"""Spilled rows: what a source contributes to tables whose length is known only after reading it.

One folder a source: a flat binary file a column, the index facts, and a description of both. Local scratch
of one conversion, never part of a store.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from unistore.conversion.failure import writing_failed
from unistore.converters.protocol import Facts
from unistore.errors import ConversionError
from unistore.zarr3.durable import sync_files, sync_folders

__all__ = ["Spill", "SpillWriter"]

DESCRIPTION = "spill.json"
FACTS = "facts.npz"


class SpillWriter:
    """Receives the rows that a converter emits for one source.

    Parameters
    ----------
    folder
        The source's folder; emptied first, so that a killed attempt leaves nothing behind.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[tuple[str, str], IO[bytes]] = {}
        self._columns: dict[tuple[str, str], dict[str, Any]] = {}

    def __enter__(self) -> Self:
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(*([OSError] if error is not None else [])):  # the first failure is the one to tell
            for file in self._files.values():
                file.close()

    def emit(self, table: str, column: str, rows: NDArray[Any]) -> None:
        """Append rows (axis 0) to a column; their dtype may be another than that of the rows before.

        Raises
        ------
        ValueError
            If the row shape differs from what was emitted before: a fault of the converter.
        ConversionError
            If the rows cannot be written.
        """
        key = (table, column)
        known = self._columns.get(key)
        if known is None:
            known = {
                "table": table,
                "column": column,
                "row_shape": list(rows.shape[1:]),
                "runs": [],
                "file": f"{len(self._columns)}.bin",
            }
        if known["row_shape"] != list(rows.shape[1:]):
            msg = f"{table}/{column}: emitted {rows.shape[1:]} after {known}"
            raise ValueError(msg)
        try:
            if key not in self._files:
                self._files[key] = (self.folder / known["file"]).open("wb")
                self._columns[key] = known
            self._files[key].write(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)
        except OSError as error:
            raise writing_failed(error, self.folder) from error
        runs: list[list[Any]] = known["runs"]
        if not runs or runs[-1][0] != rows.dtype.str:
            runs.append([rows.dtype.str, 0])
        runs[-1][1] += len(rows)

    def finish(self, facts: Facts) -> None:
        """Write facts, wait until everything is on disk, then the same with the description.

        Raises
        ------
        ConversionError
            If they cannot be written.
        """
        try:
            self._finish(facts)
        except OSError as error:
            raise writing_failed(error, self.folder) from error

    def _finish(self, facts: Facts) -> None:
        with (self.folder / FACTS).open("wb") as values:
            np.savez(values, *(np.asarray(value) for value in facts.values()))
            sync_files([*self._files.values(), values])
        with (self.folder / DESCRIPTION).open("wb") as file:
            columns = list(self._columns.values())
            file.write(json.dumps({"columns": columns, "facts": list(facts)}).encode())
            sync_files([file])
        sync_folders([self.folder, self.folder.parent])


class Spill:
    """What one source spilled, for reading."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        described = json.loads((folder / DESCRIPTION).read_text())
        self._columns = {(c["table"], c["column"]): c for c in described["columns"]}
        self._facts: list[str] = described["facts"]

    @staticmethod
    def stands(folder: Path) -> bool:
        """Whether a source has spilled everything into a folder."""
        return (folder / DESCRIPTION).exists()

    def facts(self) -> Facts:
        """The index facts."""
        with np.load(self._folder / FACTS, allow_pickle=False) as members:
            return {name: members[f"arr_{number}"] for number, name in enumerate(self._facts)}

    def rows(self, table: str) -> int:
        """Rows spilled for a table.

        Raises
        ------
        ConversionError
            If columns of the table have different lengths: a fault of the converter.
        """
        lengths = {
            c["column"]: sum(rows for _, rows in c["runs"])
            for (name, _), c in self._columns.items()
            if name == table
        }
        if len(set(lengths.values())) > 1:
            msg = f"{self._folder}: spilled columns of table {table!r} differ in length: {lengths}"
            raise ConversionError(msg)
        return next(iter(lengths.values()), 0)

    def read(self, table: str, column: str, lo: int, hi: int) -> Iterator[NDArray[Any]]:
        """Rows ``lo:hi`` of a column, one run of the same dtype after the other, (n, *row_shape) each."""
        known = self._columns[table, column]
        row_shape = tuple(known["row_shape"])
        items = int(np.prod(row_shape, dtype=np.int64))
        start = offset = 0
        for form, rows in known["runs"]:
            row_bytes = items * np.dtype(form).itemsize
            first, last = max(lo, start), min(hi, start + rows)
            if first < last:
                place = offset + (first - start) * row_bytes
                file = self._folder / known["file"]
                try:
                    flat = np.fromfile(file, dtype=form, count=(last - first) * items, offset=place)
                except OSError as error:
                    msg = f"{file}: spilled rows cannot be read ({error.strerror}); start over with --restart"
                    raise ConversionError(msg) from error
                if flat.size != (last - first) * items:
                    msg = f"{file}: spilled rows are missing; start over with --restart"
                    raise ConversionError(msg)
                yield flat.reshape(last - first, *row_shape)
            start += rows
            offset += rows * row_bytes
