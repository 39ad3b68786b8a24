"""A sealed store for people: facts, remarks, samples, arrays that matter, and what is folded away."""

from __future__ import annotations

from typing import Any

from unistore.errors import printable
from unistore.report.blocks import Block, dimensions
from unistore.report.commands import spelled_options
from unistore.report.measures import QUANTILES, noun
from unistore.report.values import how_often, spark
from unistore.system.sizes import count_of, size

__all__ = ["number", "store_blocks"]

SHOWN_ATTRIBUTES = 8


def store_blocks(path: str, about: dict[str, Any]) -> list[Block]:
    """What `describe_store` gave, for people."""
    sources, seal = about["sources"], about["seal"]
    named = ", ".join(source["path"] for source in sources["first"])
    rest = sources["count"] - len(sources["first"])
    more = f" and {rest:,} more" if rest else ""
    splits = ", ".join(f"{name} {count:,}" for name, count in about["splits"].items())
    ratio = "" if about["ratio"] is None else f", ratio {about['ratio']:.2f}"
    facts = [
        ("store", path),
        ("family", about["family"].replace("_", " ")),
        (about["samples"]["table"].rpartition("/")[2], f"{about['samples']['count']:,}"),
        ("splits", splits or "none"),
        ("sources", f"{count_of(sources['count'], 'source')}, {size(sources['bytes'])}: {named}{more}"),
        ("attributes", _attributes_text(sources["attributes"])),
        ("size", f"{size(about['stored_bytes'])} in shards, {size(about['raw_bytes'])} uncompressed{ratio}"),
        ("seal", _seal_text(seal)),
        ("made with", ", ".join(f"{name} {version}" for name, version in about["created_with"].items())),
        ("options", spelled_options(about["family"], about["options"])),
    ]
    found = [
        Block(facts=[fact for fact in facts if fact[1]]),
        Block(title="remarks", lines=about["remarks"]),
        _measure_table(about["measures"], about["samples"]["table"]),
        _array_table([array for array in about["arrays"] if not array["bookkeeping"]], about["main_table"]),
        _label_table(about["arrays"]),
        _storage_table(about["arrays"]),
        Block(title="load it", code=about["snippet"]),
    ]
    return [block for block in found if block.facts or block.lines or block.rows or block.code]


def number(value: float | None) -> str:
    """A value for people: ``"1,200"``, ``"0.125"``."""
    if value is None:
        return "-"
    whole = isinstance(value, int) or 1e4 <= abs(value) < 1e9
    return f"{value:,.0f}" if whole else f"{value:.4g}"


def _measure_table(measures: list[dict[str, Any]], table: str) -> Block:
    rows = [
        (
            each["name"],
            *(number(each[name]) for name in QUANTILES),
            spark(each["histogram"]),
            f"{each['samples']:,}",
        )
        for each in measures
    ]
    columns = (f"per {noun(table)}", *QUANTILES, "spread", "of")
    return Block(title=table, columns=columns, rows=rows, spare=("spread", "5%", "95%"))


def _array_table(arrays: list[dict[str, Any]], main: str) -> Block:
    """Arrays that matter: those of the main table first, the largest ones first."""
    arrays = sorted(arrays, key=lambda array: (not array["path"].startswith(f"{main}/"), -array["raw_bytes"]))
    rows = [
        (
            array["path"],
            _shape(array["shape"]),
            array["dtype"],
            *_value_cells(array["values"]),
            *_size_cells(array),
        )
        for array in arrays
    ]
    columns = ("array", "shape", "dtype", "min", "mean", "max", "spread", "stored", "ratio")
    told = any("~" in row[3] for row in rows)
    lines = ["~: of some chunks, evenly spread; padding of rows counts too"] if told else []
    return Block(
        title="arrays", columns=columns, rows=rows, spare=("ratio", "spread", "stored", "mean"), lines=lines
    )


def _value_cells(values: dict[str, Any] | None) -> tuple[str, ...]:
    """Smallest, mean and largest value, ``~`` where only a part was read, and how they are spread."""
    if values is None:
        return "-", "-", "-", ""
    part = "~" if values["read"] < values["of"] else ""
    range_ = (values[name] for name in ("min", "mean", "max"))
    shown = ("-" if value is None else f"{part}{number(value)}" for value in range_)
    return *shown, spark(values["histogram"] or [])


def _size_cells(array: dict[str, Any]) -> tuple[str, str]:
    return size(array["stored_bytes"]), "-" if array["ratio"] is None else f"{array['ratio']:.2f}"


def _label_table(arrays: list[dict[str, Any]]) -> Block:
    counted = [array for array in arrays if array["values"] is not None]
    rows = [(array["path"], how_often(array["values"])) for array in counted]
    return Block(title="labels", columns=("array", "how often"), rows=[row for row in rows if row[1]])


def _storage_table(arrays: list[dict[str, Any]]) -> Block:
    rows = [
        (
            array["path"],
            _shape(array["shape"]),
            array["dtype"],
            _shape(array["chunks"]),
            _shape(array["shards"]),
            array["codec"].removeprefix("bytes, "),
            size(array["raw_bytes"]),
            *_size_cells(array),
        )
        for array in arrays
    ]
    columns = ("array", "shape", "dtype", "chunks", "shards", "codec", "raw", "stored", "ratio")
    spare = ("codec", "shards", "raw", "chunks", "ratio")
    title = f"storage of all {count_of(len(arrays), 'array')}"
    return Block(title=title, columns=columns, rows=rows, spare=spare, folded=True)


def _seal_text(seal: dict[str, Any]) -> str:
    """What was checked: the files themselves are not read."""
    said = f"{seal.get('digest')} over {count_of(seal.get('files', 0), 'file')}: "
    if not seal["agrees"]:
        return said + "DAMAGED: seal, manifest and root disagree"
    return said + "agrees with manifest and root; files not read: unistore verify"


def _attributes_text(names: list[str]) -> str:
    shown = [printable(name) for name in names[:SHOWN_ATTRIBUTES]]
    return ", ".join([*shown, *(["…"] if len(names) > SHOWN_ATTRIBUTES else [])])


def _shape(shape: list[int] | None) -> str:
    return "-" if shape is None else dimensions(shape)
