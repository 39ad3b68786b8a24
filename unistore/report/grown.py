"""What `inspect` says of a version of a grown store: parts, their arrays together, code that loads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np

from unistore.data.statistics import kept_of_version
from unistore.errors import InputError, StoreError
from unistore.growing.history import VersionSummary, versions
from unistore.remote.url import local_path
from unistore.report.blocks import array_table, statistics_table, storage_table
from unistore.report.sealed import ArrayReport, describe_arrays, value_remarks
from unistore.report.suggestions import snippet_of_version
from unistore.report.text import Block
from unistore.report.values import ValueReport, rebinned, sample_noun
from unistore.store.reader import Store
from unistore.store.versions import OpenedStores, open_stores
from unistore.system.sizes import count_of, size
from unistore.system.types import JsonObject

# From so many parts on a compacted store is suggested: the first sample of a process opens all of them
MANY_PARTS = 100
_SHOWN = 20
_READ_PARTS = 8  # Newest parts whose arrays are read
_READ_PARTS_REMOTE = 1  # The same of an object store, where each array takes several requests


class PartReport(TypedDict):
    """A part of a version: what its store has, and the sources that the version left out."""

    path: str
    sources: int
    samples: int
    bytes: int
    removed: int
    left: int


@dataclass(slots=True, kw_only=True)
class GrownReport:
    """A version of a grown store, from its document, and from the arrays of its newest parts."""

    family: str
    version: int
    sample_table: str
    samples: int
    sources: int
    splits: dict[str, int]
    stored_bytes: int
    parts: list[PartReport]
    versions: list[VersionSummary]
    read_parts: int  # how many of the newest parts the arrays are of
    arrays: list[ArrayReport]  # of these parts together; rows that the version leaves out are among them
    samples_statistics: JsonObject  # by key, of all samples; empty unless every part keeps them
    remarks: list[str]
    snippet: str


def describe_grown(path: str, number: int | str | None = None) -> GrownReport:
    """Describe a version of a grown store, the newest by default, or raise `StoreError`."""
    opened = open_stores(path, number)
    version = opened.version
    assert version is not None
    splits: dict[str, int] = {}
    parts: list[PartReport] = []
    for part in version.parts:
        for name, count in part.splits.items():
            splits[name] = splits.get(name, 0) + count
        parts.append(
            {
                "path": part.key,
                "sources": part.sources,
                "samples": part.samples,
                "bytes": part.seal.bytes,
                "removed": len(part.removed),
                "left": part.left,
            }
        )
    history = versions(path)
    is_newest = version.number == max(summary.number for summary in history)
    most = _READ_PARTS if local_path(path) is not None else _READ_PARTS_REMOTE
    read = opened.stores[-most:]
    arrays, remarks = _arrays_of(read)
    statistics, problems = _statistics(opened)
    return GrownReport(
        family=opened.stores[0].family,
        version=version.number,
        sample_table=opened.stores[0].sample_table,
        samples=version.samples,
        sources=version.sources,
        splits=splits,
        stored_bytes=sum(part.seal.bytes for part in version.parts),
        parts=parts,
        versions=list(history),
        read_parts=len(read),
        arrays=arrays,
        samples_statistics=statistics,
        remarks=[*remarks, *problems],
        snippet=snippet_of_version(opened, splits, None if is_newest else version.number),
    )


def _statistics(opened: OpenedStores) -> tuple[JsonObject, list[str]]:
    try:
        kept = kept_of_version(opened)
    except InputError:  # the family is not installed
        return {}, []
    except StoreError as error:
        return {}, [str(error)]
    return {key: values.to_json() for key, values in kept.items()}, []


def _arrays_of(stores: Sequence[Store]) -> tuple[list[ArrayReport], list[str]]:
    """Return the arrays of parts, with the rows of all of them, and remarks on their values."""
    joined: dict[str, ArrayReport] = {}
    remarks: dict[str, None] = {}
    for store in stores:
        try:
            arrays, damages = describe_arrays(store)
        except StoreError as error:
            remarks[str(error)] = None
            continue
        remarks |= dict.fromkeys(damages)
        for array in arrays:
            before = joined.get(array.path)
            joined[array.path] = array if before is None else _together(before, array)
    arrays = list(joined.values())
    return arrays, [*remarks, *value_remarks(arrays)]


def _together(one: ArrayReport, other: ArrayReport) -> ArrayReport:
    stored = None
    if one.stored_bytes is not None and other.stored_bytes is not None:
        stored = one.stored_bytes + other.stored_bytes
    raw = one.raw_bytes + other.raw_bytes
    files = None if one.files is None or other.files is None else one.files + other.files
    rows = [one.shape[0] + other.shape[0]] if one.shape and other.shape else []
    return replace(
        other,
        shape=[*rows, *map(max, one.shape[1:], other.shape[1:])],
        stored_bytes=stored,
        raw_bytes=raw,
        ratio=round(raw / stored, 3) if stored else None,
        files=files,
        codec=other.codec if other.codec in one.codec else f"{one.codec}; {other.codec}",
        only_fill=one.only_fill and other.only_fill,
        bookkeeping=one.bookkeeping or other.bookkeeping,
        values=_values_together(one.values, other.values),
    )


def _values_together(one: ValueReport | None, other: ValueReport | None) -> ValueReport | None:
    if one is None or other is None:
        return one or other
    if one.min is None or other.min is None:  # only one of them has finite values
        finite = one if other.min is None else other
        read, of = one.read + other.read, one.of + other.of
        return replace(finite, read=read, of=of, nan=one.nan + other.nan)
    assert one.max is not None
    assert other.max is not None
    finite_counts = [one.read - one.nan, other.read - other.nan]
    mean = None
    if one.mean is not None and other.mean is not None:
        mean = float(np.average([one.mean, other.mean], weights=finite_counts))
    bounds = (min(one.min, other.min), max(one.max, other.max))
    together = ValueReport(
        read=one.read + other.read,
        of=one.of + other.of,
        nan=one.nan + other.nan,
        min=bounds[0],
        max=bounds[1],
        mean=mean,
    )
    if one.labels is not None and other.labels is not None:
        counts: dict[int, int] = {}
        for label, count in (*one.labels, *other.labels):
            counts[label] = counts.get(label, 0) + count
        together.labels = [
            [label, counts[label]] for label in sorted(counts, key=lambda label: -counts[label])
        ]
    elif one.histogram is not None and other.histogram is not None:
        histograms = [(one.histogram, one.min, one.max), (other.histogram, other.min, other.max)]
        together.histogram = rebinned(histograms, bounds)
    return together


def grown_blocks(path: str, report: GrownReport) -> list[Block]:
    """Show a grown store."""
    samples = count_of(report.samples, sample_noun(report.sample_table))
    splits = [f"{name} {count:,}" for name, count in report.splits.items()]
    facts = [
        ("grown store", path),
        ("family", report.family.replace("_", " ")),
        ("version", f"{report.version} of {len(report.versions)}: unistore versions {path}"),
        ("samples", f"{samples} from {count_of(report.sources, 'source')}"),
        ("splits", ", ".join(splits)),
        ("stored", f"{size(report.stored_bytes)} in {count_of(len(report.parts), 'part')}"),
    ]
    lines = []
    if len(report.parts) >= MANY_PARTS or any(part["removed"] for part in report.parts):
        lines.append(f"a single store is smaller and reads faster: unistore compact {path} DST")
    rows = []
    for part in report.parts[-_SHOWN:]:
        left_out = f"{part['removed']:,}" if part["removed"] else ""
        counts = f"{part['sources']:,}", left_out, f"{part['left']:,}"
        rows.append((part["path"], *counts, size(part["bytes"])))
    columns = ("newest parts", "sources", "left out", "samples", "stored")
    main = [array for array in report.arrays if not array.bookkeeping]
    of_parts = []
    if report.read_parts < len(report.parts):
        of_parts.append(f"of the newest {report.read_parts} of {len(report.parts)} parts")
    if any(part["removed"] for part in report.parts[-report.read_parts :]):
        of_parts.append("includes rows of sources that this version does not have any more")
    arrays = array_table(main, "")
    blocks = [
        Block(facts=facts, lines=lines),
        Block("parts, each a sealed store: unistore inspect PART", columns=columns, rows=rows),
        Block("remarks", lines=report.remarks),
        arrays._replace(title="arrays of all parts together", lines=[*of_parts, *arrays.lines]),
        statistics_table(report.samples_statistics),
        storage_table(report.arrays),
        Block("load it", code=report.snippet),
    ]
    return [block for block in blocks if block.has_content]
