"""What `inspect` says of a grown store: its version, parts, and older versions."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from unistore.growing.history import versions
from unistore.report.text import Block
from unistore.report.values import sample_noun
from unistore.store.versions import open_stores
from unistore.system.sizes import count_of, size

# From so many parts on a compacted store is suggested: the first sample of a process opens all of them
MANY_PARTS = 100
_SHOWN = 20


@dataclass(slots=True, kw_only=True)
class GrownReport:
    """A version of a grown store, from its document."""

    family: str
    version: int
    sample_table: str
    samples: int
    sources: int
    splits: dict[str, int]
    stored_bytes: int
    parts: list[dict[str, Any]]  # path, sources, samples and bytes, and what is left out
    versions: list[dict[str, Any]]


def describe_grown(path: str, number: int | str | None = None) -> GrownReport:
    """Describe a version of a grown store, the newest by default, or raise `StoreError`."""
    opened = open_stores(path, number)
    version = opened.version
    assert version is not None
    splits: dict[str, int] = {}
    parts = []
    for part in version.parts:
        for name, count in part.splits.items():
            splits[name] = splits.get(name, 0) + count
        counts = {"sources": part.sources, "samples": part.samples, "bytes": part.seal["bytes"]}
        parts.append({"path": part.key, **counts, "removed": len(part.removed), "left": part.left})
    return GrownReport(
        family=opened.stores[0].family,
        version=version.number,
        sample_table=opened.stores[0].sample_table,
        samples=version.samples,
        sources=version.sources,
        splits=splits,
        stored_bytes=sum(part.seal["bytes"] for part in version.parts),
        parts=parts,
        versions=[asdict(summary) for summary in versions(path)],
    )


def grown_blocks(path: str, report: GrownReport) -> list[Block]:
    """Show a grown store."""
    samples = count_of(report.samples, sample_noun(report.sample_table))
    facts = [
        ("grown store", path),
        ("family", report.family.replace("_", " ")),
        ("version", f"{report.version} of {len(report.versions)}: unistore versions {path}"),
        ("samples", f"{samples} from {count_of(report.sources, 'source')}"),
        ("splits", ", ".join(f"{name} {count:,}" for name, count in report.splits.items())),
        ("stored", f"{size(report.stored_bytes)} in {count_of(len(report.parts), 'part')}"),
    ]
    lines = []
    if len(report.parts) >= MANY_PARTS or any(part["removed"] for part in report.parts):
        lines.append(f"one store reads faster and holds what is left alone: unistore compact {path} DST")
    rows = []
    for part in report.parts[-_SHOWN:]:
        left_out = f"{part['removed']:,}" if part["removed"] else ""
        rows.append(
            (part["path"], f"{part['sources']:,}", left_out, f"{part['left']:,}", size(part["bytes"]))
        )
    columns = ("newest parts", "sources", "left out", "samples", "stored")
    code = f'dataset = unistore.Dataset("{path}", version={report.version})'
    return [
        Block(facts=facts, lines=lines),
        Block("parts, each a sealed store: unistore inspect PART", columns=columns, rows=rows),
        Block("load it", code=f"import unistore\n\n{code}"),
    ]
