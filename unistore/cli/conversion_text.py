"""Text about a conversion, or the preview of one, for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unistore.converters.verdicts import counted_scan
from unistore.report.measures import sample_noun
from unistore.report.verdicts import verdicts_line
from unistore.system.sizes import count_of, size

if TYPE_CHECKING:
    from unistore.conversion.preview import Preview
    from unistore.conversion.report import Report

MAX_REASON = 100
"""Characters of a reason in the table."""
MAX_ROWS = 50
"""Rows of the table."""


def preview_text(shown: Preview, destination: str, memory: str | None) -> str:
    """What would be written, and the memory that it takes."""
    lines = [
        f"would write {destination}: {shown.scan.family.replace('_', ' ')}",
        f"  {count_of(len(shown.scan.sources), 'source')}, {size(shown.source_bytes)}",
        f"  {verdicts_line([each.to_json() for each in counted_scan(shown.scan)])}",
    ]
    for table in shown.tables:
        rows = ("about " if table.name in shown.estimated else "") + count_of(table.rows, "row")
        shards = count_of(len(list(table.tasks())), "shard")
        lines.append(f"  {table.name}: {rows}, {shards} of {table.shard_rows:,} rows")
        lines += [
            f"    {array.column}: {array.field.dtype} {array.shape}, chunks {array.chunk}, "
            f"reads {array.amplification:.2f}× what a sample needs"
            for array in table.arrays
        ]
    lines += [f"  uncompressed {size(shown.raw_bytes)}", _memory_line(shown, memory)]
    lines += [f"  note: {note}" for note in shown.scan.notes]
    return "\n".join([*lines, *_skipped_table(shown.scan.options.get("skipped", ()))])


def _memory_line(shown: Preview, memory: str | None) -> str:
    """Peak memory of all processes, and whether workers were reduced to fit the limit."""
    peak, step = shown.peak, size(shown.estimate.step)
    processes = f"{count_of(peak.workers, 'worker')} and this process" if peak.workers else "one process"
    if peak.steps > 1:
        processes += " that reads one step while it writes the previous one"
    fewer = f" (of {peak.wanted} requested: no more fit into {memory})" if peak.workers < peak.wanted else ""
    return f"  peak memory about {size(peak.bytes)}: {processes}{fewer}, {step} for the largest step of each"


def report_text(report: Report) -> str:
    """What was written, and how often labels are."""
    from unistore.report.sealed import label_lines

    ratio = report.raw_bytes / max(1, report.stored_bytes)
    samples = count_of(report.samples, sample_noun(report.sample_table))
    sources = count_of(report.sources, "source")
    sizes, files = (size(report.source_bytes), size(report.stored_bytes)), count_of(report.files, "file")
    compression = f"{size(report.raw_bytes)} uncompressed, ratio {ratio:.2f}"
    lines = [
        f"sealed {report.destination}",
        f"  {report.family.replace('_', ' ')}: {samples} from {sources}",
        f"  {sizes[0]} of sources → {sizes[1]} in {files} ({compression})",
        f"  {verdicts_line(report.verdicts)}",
    ]
    if report.resumed:
        lines.append(f"  resumed: {report.resumed} of {report.tasks} shards were already written")
    lines += [f"  note: {note}" for note in report.notes]
    lines += [f"  labels of {line}" for line in label_lines(report.destination)]
    lines += _skipped_table(report.skipped)
    lines.append(f"next: unistore inspect {report.destination}")
    return "\n".join(lines)


def _skipped_table(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Table of what was left out, with reasons."""
    if not entries:
        return []
    left_out = len({entry["left_out"] for entry in entries})
    rows = [("file", "dataset", "reason")]
    for entry in entries[:MAX_ROWS]:
        reason = " ".join(entry["reason"].split())
        short = reason if len(reason) <= MAX_REASON else f"{reason[: MAX_REASON - 1]}…"
        rows.append((entry["file"], entry["dataset"], short))
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    lines = [f"  left out because of problems: {left_out} (listed in unistore-report.json)"]
    lines += [f"    {row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]}" for row in rows]
    if len(entries) > MAX_ROWS:
        lines.append(f"    and {len(entries) - MAX_ROWS} more problems")
    return lines
