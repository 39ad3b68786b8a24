"""One sample: the keys of its batch, their shapes, dtypes and ranges."""

from __future__ import annotations

from typing import Any

import numpy as np

from unistore.data.kinds.protocol import SOURCE, Picks
from unistore.data.packed import Packed
from unistore.pictures import check_sample
from unistore.report.blocks import Block, format_shape
from unistore.report.measures import sample_noun
from unistore.report.sealed_blocks import number
from unistore.report.suggestions import natural_suggestion
from unistore.report.values import finite
from unistore.store.reader import Store

_MAX_READ = 32
"""Samples that are read where a row of the sample table gives several: steps of an episode."""


def describe_sample(store: Store, sample: int) -> dict[str, Any]:
    """Shape, dtype and range of each key of the natural samples in one row of the sample table. JSON values.

    Raises
    ------
    InputError
        If there is no such sample, or the store's family is not installed.
    StoreError
        If the store is damaged.
    """
    check_sample(store, sample)
    units = np.array([sample])
    found = natural_suggestion(store, units)
    assert found.kind is not None  # natural kinds are in `unistore.data.kinds`
    reader = found.kind.bind(store, (*found.kind.select(store, None), SOURCE), units)
    count = min(len(reader), _MAX_READ)
    batch = reader.read(Picks(np.arange(count), np.zeros(count, np.int64)), np.empty) if count else {}
    source = batch.pop(SOURCE, None)
    return {
        "sample": sample,
        "of": sample_noun(store.sample_table),
        "kind": found.text,
        "samples": len(reader),
        "read": count,
        "source": "" if source is None else str(source.values[0]),
        "keys": [_describe_values(key, packed, count) for key, packed in batch.items()],
    }


def _describe_values(key: str, packed: Packed, count: int) -> dict[str, Any]:
    values = packed.values
    shape = values.shape if packed.shapes is None or count > 1 else tuple(packed.shapes[0].tolist())
    if packed.offsets is None and count == 1:
        shape = shape[1:]
    values = finite(values) if values.dtype.kind in "biuf" else values[:0]
    low, high = (values.min().item(), values.max().item()) if values.size else (None, None)
    return {"key": key, "shape": list(shape), "dtype": packed.values.dtype.name, "min": low, "max": high}


def sample_blocks(about: dict[str, Any]) -> list[Block]:
    """Blocks of `describe_sample`'s result."""
    several = "" if about["samples"] == 1 else f", the first {about['read']} of {about['samples']:,}"
    facts = [
        (about["of"], str(about["sample"])),
        ("from", about["source"]),
        ("samples", f"{about['kind']}{several}"),
    ]
    rows = [
        (
            each["key"],
            format_shape(each["shape"]),
            each["dtype"],
            number(each["min"]),
            number(each["max"]),
        )
        for each in about["keys"]
    ]
    return [
        Block(facts=[fact for fact in facts if fact[1]]),
        Block(title="keys", columns=("key", "shape", "dtype", "min", "max"), rows=rows),
    ]
