"""Rows with any number of values: texts, and numbers of variable length."""

# Texts are kept byte for byte: bytes that are not UTF-8 too.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from unistore.converters.common.columns import SourceColumn, is_text
from unistore.converters.opened import BLOCK_BYTES, Array
from unistore.errors import InputError, Location, Problem
from unistore.system.hints import AnyArray, Int64s

_TEXTS_TOGETHER = 64  # rows of texts that are read together


class RaggedItems(NamedTuple):
    """Values of some rows, one after the other, and how many each row has."""

    values: AnyArray
    counts: Int64s


def items_in(array: Array, lo: int, hi: int, form: SourceColumn, location: Location) -> Iterator[RaggedItems]:
    """Yield the values of rows ``lo:hi``, about `BLOCK_BYTES` at a time."""
    pending: list[AnyArray] = []
    size = 0
    step = _TEXTS_TOGETHER if is_text(array.dtype) else 1
    for first in range(lo, hi, step):
        for row, value in enumerate(array.objects(first, min(hi, first + step)), first):
            values = _values(value, form)
            if values.shape[1:] != form.row_shape:
                message = f"has values of shape {values.shape[1:]}, expected {form.row_shape}"
                raise InputError(Problem.at(location._replace(row=row), message, kind="shape"))
            pending.append(values)
            size += values.nbytes
        if size >= BLOCK_BYTES:
            yield _joined(pending)
            pending, size = [], 0
    if pending:
        yield _joined(pending)


def _values(value: Any, form: SourceColumn) -> AnyArray:
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogateescape")
    if isinstance(value, bytes):
        return np.frombuffer(value, np.uint8)
    return np.asarray(value, form.dtype)


def _joined(rows: Sequence[AnyArray]) -> RaggedItems:
    counts = np.array([len(row) for row in rows], np.int64)
    return RaggedItems(np.concatenate(rows), counts)
