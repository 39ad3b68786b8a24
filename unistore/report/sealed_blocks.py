"""How a sealed store, or one sample of it, is shown."""

from __future__ import annotations

from typing import Any

import numpy as np

from unistore.data.kinds.protocol import SOURCE, Picks
from unistore.data.packed import Packed
from unistore.errors import printable
from unistore.report.blocks import Block, format_shape, sources_fact
from unistore.report.labels import label_shares
from unistore.report.measures import QUANTILES
from unistore.report.suggestions import format_options, natural_suggestion
from unistore.report.values import finite, sample_noun, sparkline
from unistore.store.reader import Store
from unistore.system.sizes import count_of, size

SHOWN_ATTRIBUTES = 8


def store_blocks(path: str, about: dict[str, Any]) -> list[Block]:
    """Blocks of `describe_store`'s result."""
    sources, seal = about["sources"], about["seal"]
    samples = max(1, about["samples"]["count"])
    splits = ", ".join(
        f"{name} {count:,} ({100 * count / samples:.3g} %)" for name, count in about["splits"].items()
    )
    ratio = "" if about["ratio"] is None else f", ratio {about['ratio']:.2f}"
    attributes = [printable(name) for name in sources["attributes"][:SHOWN_ATTRIBUTES]]
    attributes += ["…"] if len(sources["attributes"]) > SHOWN_ATTRIBUTES else []
    agrees = "agrees with manifest and root; files not read: unistore verify"
    if not seal["agrees"]:
        agrees = "DAMAGED: seal, manifest and root disagree"
    facts = [
        ("store", path),
        ("family", about["family"].replace("_", " ")),
        (about["samples"]["table"].rpartition("/")[2], f"{about['samples']['count']:,}"),
        ("splits", splits or "none"),
        sources_fact(sources, [source["path"] for source in sources["first"]]),
        ("attributes", ", ".join(attributes)),
        ("size", f"{size(about['stored_bytes'])} in shards, {size(about['raw_bytes'])} uncompressed{ratio}"),
        ("seal", f"{seal.get('digest')} over {count_of(seal.get('files', 0), 'file')}: {agrees}"),
        ("made with", ", ".join(f"{name} {version}" for name, version in about["created_with"].items())),
        ("options", format_options(about["family"], about["options"])),
    ]
    labels = [(each["path"], label_shares(each["values"])) for each in about["arrays"] if each["values"]]
    found = [
        Block(facts=[fact for fact in facts if fact[1]]),
        Block(title="remarks", lines=about["remarks"]),
        _measure_table(about["measures"], about["samples"]["table"]),
        _array_table([array for array in about["arrays"] if not array["bookkeeping"]], about["main_table"]),
        Block(title="labels", columns=("array", "how often"), rows=[row for row in labels if row[1]]),
        _storage_table(about["arrays"]),
        Block(title="load it", code=about["snippet"]),
    ]
    return [block for block in found if block.facts or block.lines or block.rows or block.code]


def number(value: float | None) -> str:
    """Format a value: ``"1,200"``, ``"0.125"``, ``"-"`` for None."""
    if value is None:
        return "-"
    whole = isinstance(value, int) or 1e4 <= abs(value) < 1e9
    return f"{value:,.0f}" if whole else f"{value:.4g}"


def _measure_table(measures: list[dict[str, Any]], table: str) -> Block:
    rows = []
    for each in measures:
        quantiles = (number(each[name]) for name in QUANTILES)
        rows.append((each["name"], *quantiles, sparkline(each["histogram"]), f"{each['samples']:,}"))
    columns = (f"per {sample_noun(table)}", *QUANTILES, "spread", "of")
    return Block(title=table, columns=columns, rows=rows, optional_columns=("spread", "5%", "95%"))


def _array_table(arrays: list[dict[str, Any]], main: str) -> Block:
    """Arrays of the main table first, large ones before small ones."""
    first = f"{main}/"
    arrays = sorted(arrays, key=lambda array: (not array["path"].startswith(first), -array["raw_bytes"]))
    rows = [(*_name_cells(each), *_value_cells(each["values"]), *_size_cells(each)) for each in arrays]
    columns = ("array", "shape", "dtype", "min", "mean", "max", "spread", "stored", "ratio")
    sampled = any("~" in row[3] for row in rows)
    lines = ["~: of some chunks, evenly spread; padding of rows counts too"] if sampled else []
    spare = ("ratio", "spread", "stored", "mean")
    return Block(title="arrays", columns=columns, rows=rows, optional_columns=spare, lines=lines)


def _value_cells(values: dict[str, Any] | None) -> tuple[str, ...]:
    """Smallest, mean and largest value, with ``~`` where only a part was read, and a sparkline."""
    if values is None:
        return "-", "-", "-", ""
    part = "~" if values["read"] < values["of"] else ""
    range_ = (values[name] for name in ("min", "mean", "max"))
    shown = ("-" if value is None else f"{part}{number(value)}" for value in range_)
    return *shown, sparkline(values["histogram"] or [])


def _name_cells(array: dict[str, Any]) -> tuple[str, str, str]:
    return array["path"], format_shape(array["shape"]), array["dtype"]


def _size_cells(array: dict[str, Any]) -> tuple[str, str]:
    return size(array["stored_bytes"]), "-" if array["ratio"] is None else f"{array['ratio']:.2f}"


def _storage_table(arrays: list[dict[str, Any]]) -> Block:
    rows = [
        (
            *_name_cells(array),
            format_shape(array["chunks"]),
            format_shape(array["shards"]),
            array["codec"].removeprefix("bytes, "),
            size(array["raw_bytes"]),
            *_size_cells(array),
        )
        for array in arrays
    ]
    columns = ("array", "shape", "dtype", "chunks", "shards", "codec", "raw", "stored", "ratio")
    spare = ("codec", "shards", "raw", "chunks", "ratio")
    title = f"storage of all {count_of(len(arrays), 'array')}"
    return Block(title=title, columns=columns, rows=rows, optional_columns=spare, collapsed=True)


_MAX_READ = 32
"""Samples that are read where a row of the sample table gives several: steps of an episode."""


def describe_sample(store: Store, sample: int) -> dict[str, Any]:
    """Shape, dtype and range of each key of the natural samples in one row of the sample table. JSON values.

    Raises `InputError` if there is no such sample, or the store's family is not installed; `StoreError` if
    the store is damaged.
    """
    from unistore.pictures import check_sample

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
        (each["key"], format_shape(each["shape"]), each["dtype"], number(each["min"]), number(each["max"]))
        for each in about["keys"]
    ]
    return [
        Block(facts=[fact for fact in facts if fact[1]]),
        Block(title="keys", columns=("key", "shape", "dtype", "min", "max"), rows=rows),
    ]
