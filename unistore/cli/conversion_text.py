"""What a conversion did, or would do, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unistore.converters.verdicts import counted_scan
from unistore.report.blocks import count_of
from unistore.report.measures import noun
from unistore.report.verdicts import verdicts_line
from unistore.system.sizes import size

if TYPE_CHECKING:
    from unistore.conversion.preview import Preview
    from unistore.conversion.report import Report

__all__ = ["preview_text", "report_text"]

LONGEST = 100
"""Characters of a reason that the table shows."""
MOST = 50
"""Lines of the table."""


def preview_text(shown: Preview, destination: str, memory: str | None) -> str:
    """What would be written, and how much of the memory that may be taken it takes."""
    lines = [f"would write {destination}: {shown.scan.family.replace('_', ' ')}"]
    lines += [f"  {count_of(len(shown.scan.sources), 'source')}, {size(shown.source_bytes)}"]
    lines.append(f"  {verdicts_line([each.to_json() for each in counted_scan(shown.scan)])}")
    for table in shown.tables:
        about = "about " if table.name in shown.estimated else ""
        shards = count_of(len(list(table.tasks())), "shard")
        lines.append(f"  {table.name}: {about}{table.rows:,} rows, {shards} of {table.shard_rows:,} rows")
        for array in table.arrays:
            lines.append(
                f"    {array.column}: {array.field.dtype} {array.shape}, chunks {array.chunk}, "
                f"reads {array.amplification:.2f}× what a sample needs"
            )
    lines.append(f"  uncompressed {size(shown.raw_bytes)}")
    lines.append(_memory(shown, memory))
    lines += [f"  note: {note}" for note in shown.scan.notes]
    return "\n".join([*lines, *_skipped(shown.scan.options.get("skipped", ()))])


def _memory(shown: Preview, memory: str | None) -> str:
    """Peak of all processes: fewer workers where all would be too many, and two steps in one process."""
    peak, step = shown.peak, size(shown.estimate.step)
    processes = f"{peak.workers} worker(s) and this process" if peak.workers else "one process"
    if peak.steps > 1:
        processes += " that reads a step while it writes the one before"
    fewer = f" (of {peak.wanted} wanted: no more fit into {memory})" if peak.workers < peak.wanted else ""
    return f"  peak memory about {size(peak.bytes)}: {processes}{fewer}, {step} for the largest step of each"


def report_text(report: Report) -> str:
    """What was written."""
    ratio = report.raw_bytes / max(1, report.stored_bytes)
    samples = count_of(report.samples, noun(report.sample_table))
    sources = count_of(report.sources, "source")
    lines = [
        f"sealed {report.destination}",
        f"  {report.family.replace('_', ' ')}: {samples} from {sources}",
        (
            f"  {size(report.source_bytes)} of sources → {size(report.stored_bytes)} in {report.files:,} "
            f"files ({size(report.raw_bytes)} uncompressed, ratio {ratio:.2f})"
        ),
    ]
    lines.append(f"  {verdicts_line(report.verdicts)}")
    if report.resumed:
        lines.append(f"  continued: {report.resumed} of {report.tasks} shards were there")
    lines += [f"  note: {note}" for note in report.notes]
    lines += _skipped(report.skipped)
    lines.append(f"next: unistore inspect {report.destination}")
    return "\n".join(lines)


def _skipped(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Table of what was left out, and why."""
    if not entries:
        return []
    left_out = len({entry["left_out"] for entry in entries})
    rows = [("file", "dataset", "reason")]
    for entry in entries[:MOST]:
        reason = " ".join(entry["reason"].split())
        short = reason if len(reason) <= LONGEST else f"{reason[: LONGEST - 1]}…"
        rows.append((entry["file"], entry["dataset"], short))
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    lines = [f"  left out because of problems: {left_out} (listed in unistore-report.json)"]
    lines += [f"    {row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]}" for row in rows]
    if len(entries) > MOST:
        lines.append(f"    and {len(entries) - MOST} more problems")
    return lines
