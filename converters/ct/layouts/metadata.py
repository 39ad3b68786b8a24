"""``metadata.csv`` of a set of cases: a row a case, kept as JSON text."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from unistore.converters.ct.names import METADATA
from unistore.converters.ct.survey import State, state_of
from unistore.errors import InputError, Problem

_LIMIT = 64 << 20


def tables_of(case: Path) -> list[Path]:
    """Where the table of a case folder may lie: beside it, or beside the folder ``processed/`` it lies in."""
    beside = [case.parent / METADATA]
    return [*beside, case.parent.parent / METADATA] if case.parent.name == "processed" else beside


def read_row(path: Path, case: str, location: str) -> str:
    """The row of a case as a JSON object of texts: its name stands in the first column that has it; else "".

    Raises
    ------
    InputError
        The file is no table, or has several rows of the case.
    """
    columns = _rows(path, state_of([path]), location)
    found = next((rows[case] for rows in columns if case in rows), [])
    if len(found) > 1:
        raise InputError(
            Problem(location, f"has {len(found)} rows of {case}", "keep one of them", "metadata")
        )
    return json.dumps(found[0], ensure_ascii=False) if found else ""


@lru_cache(maxsize=4)
def _rows(
    path: Path,
    state: State,  # noqa: ARG001
    location: str,
) -> list[dict[str, list[Mapping[str, str]]]]:
    """Of each column, rows by value."""
    try:
        with path.open("rb") as file:
            raw = file.read(_LIMIT + 1)
        if len(raw) > _LIMIT:
            msg = f"longer than {_LIMIT} bytes"
            raise ValueError(msg)
        header, *rows = list(csv.reader(io.StringIO(raw.decode("utf-8-sig"), newline=""), strict=True)) or [
            []
        ]
        if len(set(header)) < len(header):
            raise ValueError("two columns have one name")
        wrong = next((number for number, row in enumerate(rows, 2) if row and len(row) != len(header)), None)
        if wrong is not None:
            msg = f"row {wrong} has other columns than row 1"
            raise ValueError(msg)
    except (OSError, ValueError, csv.Error) as error:
        message = f"is no table of comma-separated values in UTF-8: {error}"
        raise InputError(Problem(location, message, "correct it or leave it out", "metadata")) from error
    found: list[dict[str, list[Mapping[str, str]]]] = [{} for _ in header]
    for row in rows:
        entry = dict(zip(header, row, strict=False))
        for by_value, value in zip(found, row, strict=False):
            by_value.setdefault(value, []).append(entry)
    return found
