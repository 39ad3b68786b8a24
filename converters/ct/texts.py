"""Texts of CT volumes: ``info.json`` of a case, tables of cases, names of the classes of a dataset.

All functions raise an `InputError` if the file is too long or not what it should be.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from unistore.converters.ct.names import METADATA
from unistore.errors import InputError, Problem
from unistore.schemas.ct.geometry import LENGTHS

_MAX_BYTES = 64 << 20
_CURE = "correct it or leave it out"


def read_info(path: Path, location: str) -> tuple[str, dict[str, list[float]]]:
    """Return the text of ``info.json``, and ``spacing``, ``origin``, ``direction`` as far as it has them."""
    try:
        text = _text(path, "utf-8")
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(Problem(location, f"is no JSON: {error}", _CURE, "json")) from error
    return text, numbers_in(content) if isinstance(content, Mapping) else {}


def numbers_in(content: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return ``spacing``, ``origin`` and ``direction`` as far as they are stated."""
    stated = {name: _numbers(content.get(name), count) for name, count in LENGTHS.items()}
    return {name: numbers for name, numbers in stated.items() if numbers is not None}


def read_classes(path: Path, location: str) -> dict[str, str]:
    """Return what ``dataset.json`` calls each value of a label, by value; regions of several are left out.

    nnU-Net has values by name, the Medical Segmentation Decathlon names by value.
    """
    text, _ = read_info(path, location)
    content = json.loads(text)
    labels = content.get("labels") if isinstance(content, Mapping) else None
    classes: dict[str, str] = {}
    if not isinstance(labels, Mapping):
        return classes
    for key, value in labels.items():
        if isinstance(value, int):
            classes[str(value)] = key
        elif isinstance(value, str) and key.isdigit():
            classes[key] = value
    return dict(sorted(classes.items(), key=lambda pair: int(pair[0])))


def _text(path: Path, encoding: str) -> str:
    with path.open("rb") as file:
        raw = file.read(_MAX_BYTES + 1)
    if len(raw) > _MAX_BYTES:
        msg = f"it is longer than {_MAX_BYTES} bytes"
        raise ValueError(msg)
    return raw.decode(encoding)


def _numbers(value: Any, count: int) -> list[float] | None:
    """Flat list of `count` finite numbers, or None."""
    if isinstance(value, list | tuple) and all(isinstance(row, list) for row in value):
        value = list(chain.from_iterable(value))
    if not isinstance(value, list | tuple) or len(value) != count:
        return None
    if not all(isinstance(number, int | float) and not isinstance(number, bool) for number in value):
        return None
    numbers = [float(number) for number in value]
    return numbers if all(map(math.isfinite, numbers)) else None


def metadata_paths(case: Path) -> list[Path]:
    """Where the table of a case folder may lie: beside it, or beside the folder ``processed/`` it lies in."""
    beside = [case.parent / METADATA]
    return [*beside, case.parent.parent / METADATA] if case.parent.name == "processed" else beside


def read_row(path: Path, case: str, location: str) -> str:
    """The row of a case as a JSON object of texts, or ``""``; the first column with its name says which."""
    columns = _rows(path, path.stat().st_mtime_ns, location)
    matching_rows = next((rows[case] for rows in columns if case in rows), [])
    if len(matching_rows) > 1:
        message = f"has {len(matching_rows)} rows of {case}"
        raise InputError(Problem(location, message, "keep one of them", "metadata"))
    return json.dumps(matching_rows[0], ensure_ascii=False) if matching_rows else ""


@lru_cache(maxsize=4)
def _rows(path: Path, time: int, location: str) -> list[dict[str, list[Mapping[str, str]]]]:  # noqa: ARG001
    """Of each column, rows by value."""
    try:
        lines = csv.reader(io.StringIO(_text(path, "utf-8-sig"), newline=""), strict=True)
        header, *rows = list(lines) or [[]]
        if len(set(header)) < len(header):
            raise ValueError("two columns have one name")
        wrong = next((number for number, row in enumerate(rows, 2) if row and len(row) != len(header)), None)
        if wrong is not None:
            msg = f"row {wrong} has other columns than row 1"
            raise ValueError(msg)
    except (ValueError, csv.Error) as error:
        message = f"is no table of comma-separated values in UTF-8: {error}"
        raise InputError(Problem(location, message, _CURE, "metadata")) from error
    rows_by_column: list[dict[str, list[Mapping[str, str]]]] = [{} for _ in header]
    for row in rows:
        entry = dict(zip(header, row, strict=False))
        for by_value, value in zip(rows_by_column, row, strict=False):
            by_value.setdefault(value, []).append(entry)
    return rows_by_column
