"""Read the texts of CT volumes: ``info.json``, tables of cases, names of the classes of a dataset."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from unistore.errors import InputError
from unistore.schemas.ct.fields import LENGTHS

_MAX_BYTES = 64 << 20
_FIX = "correct it, or remove it"


def read_info(path: Path, location: str) -> tuple[str, dict[str, list[float]]]:
    """Return the text of ``info.json``, and ``spacing``, ``origin``, ``direction`` as far as it has them."""
    try:
        text = _text(path, "utf-8")
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError.at(location, f"is not valid JSON: {error}", _FIX, "json") from error
    return text, numbers_in(content) if isinstance(content, Mapping) else {}


def numbers_in(content: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return ``spacing``, ``origin`` and ``direction`` as far as they are known, in rows or not.

    Numbers that are not finite, and a spacing that is not above 0, say nothing.
    """
    stated = {}
    for name, count in LENGTHS.items():
        try:
            numbers = np.asarray(content.get(name), np.float64).ravel()
        except (TypeError, ValueError, OverflowError):
            continue
        is_known = len(numbers) == count and np.isfinite(numbers).all()
        if is_known and (name != "spacing" or numbers.min() > 0):
            stated[name] = numbers.tolist()
    return stated


def read_classes(path: Path, location: str) -> dict[str, str]:
    """Return what ``dataset.json`` calls each value of a label, without regions of several values.

    nnU-Net lists values by name, the Medical Segmentation Decathlon lists names by value.
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
        msg = f"it is longer than {_MAX_BYTES:,} bytes"
        raise ValueError(msg)
    return raw.decode(encoding)


def read_row(path: Path, case: str, location: str) -> str:
    """Return the row of a case, in the first column with its name, as a JSON object of texts, or ``""``."""
    rows = _rows(path, path.stat().st_mtime_ns, location)
    for column in rows[0] if rows else ():
        matching = [row for row in rows if row[column] == case]
        if len(matching) > 1:
            message = f"has {len(matching)} rows for {case!r}, but one is expected"
            raise InputError.at(location, message, "keep one of them", "metadata")
        if matching:
            return json.dumps(matching[0], ensure_ascii=False)
    return ""


@lru_cache(maxsize=4)
def _rows(path: Path, time: int, location: str) -> list[dict[str, str]]:  # noqa: ARG001
    try:
        lines = csv.reader(io.StringIO(_text(path, "utf-8-sig"), newline=""), strict=True)
        header, *rows = list(lines) or [[]]
        if len(set(header)) < len(header):
            raise ValueError("two columns have the same name")
        for number, row in enumerate(rows, 2):
            if row and len(row) != len(header):
                msg = f"row {number} has {len(row)} columns, but row 1 has {len(header)}"
                raise ValueError(msg)
        # A line that is empty is no row.
        return [dict(zip(header, row, strict=True)) for row in rows if row]
    except (ValueError, csv.Error) as error:
        message = f"is not a table of comma-separated values in UTF-8: {error}"
        raise InputError.at(location, message, _FIX, "metadata") from error
