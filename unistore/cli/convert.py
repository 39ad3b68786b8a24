"""``unistore convert``: one subcommand per family; without one, the family is detected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import click

from unistore.cli.convert_options import DETECT, ConvertCommand, FamilyGroup, add_common_options
from unistore.cli.output import progress_bar, say, say_done, say_json
from unistore.conversion.executors.worker_process import CONVERSION, start_early
from unistore.errors import UnistoreError
from unistore.system.sizes import count_of, size

if TYPE_CHECKING:
    from unistore.conversion.dry_run import DryRun
    from unistore.conversion.run import Report
    from unistore.conversion.settings import Settings
    from unistore.converters.survey import Detection


SAME = "the same options, and sources of the same names and sizes, not changed since (values were not read)"
SKIPPED = 3
"""Exit code of a conversion that left something out because of problems."""
MAX_REASON = 100
MAX_ROWS = 50
"""Characters of a reason in the table of what was left out, and rows of the table."""

EXAMPLES = r"""\b
Examples:
  unistore convert recordings/ train.zarr            the family is detected
  unistore convert recordings/ train.zarr --dry-run  what would be written
  unistore convert FAMILY --help                     what a family takes
  unistore convert scans/ new.zarr --split train=0.8,val=0.2 --group-by 'patient_\d+'
  unistore convert scans/ new.zarr --split train=0.8,val=0.2 --split-from old.zarr
"""


def _detect(sources: Sequence[str]) -> Detection:
    """Detect the family of sources, and say it."""
    from unistore.conversion.convert import detect_family, source_paths

    detection = detect_family(source_paths(sources))
    say_done(f"{detection.family.replace('_', ' ')} ({detection.layout}): {detection.reason}", err=True)
    return detection


def _detect_command(sources: Sequence[str]) -> str:
    """Detect the family of sources; returns its command."""
    from unistore.converters.registry import get_family

    return get_family(_detect(sources).family).command


def _convert(family: str | None, **arguments: Any) -> int:
    """Run or preview one conversion and print the result; returns the exit code."""
    given_paths = [*arguments["sources"], *arguments.get("follow_links_to", ())]
    start_early(given_paths, family, [CONVERSION], decodes=not arguments["dry_run"])
    from unistore.conversion.convert import convert_with, make_converter, source_paths
    from unistore.conversion.settings import Settings

    sources = arguments.pop("sources")
    destination = arguments.pop("destination")
    as_json = arguments.pop("as_json")
    dry_run = arguments.pop("dry_run")
    settings = Settings(**{field.name: arguments.pop(field.name) for field in fields(Settings)})
    paths = source_paths([*sources, *arguments.pop("follow_links_to", ())])
    chosen: str | Detection = family or _detect(sources)
    claims = None if isinstance(chosen, str) else chosen.claims
    family = chosen if isinstance(chosen, str) else chosen.family
    if dry_run:
        from unistore.conversion.dry_run import dry_run

        converter = make_converter(family, arguments)
        shown = dry_run(converter, paths, settings, is_named=claims is None, claims=claims)
        if as_json:
            say_json(shown.to_json(), indent=1)
        else:
            say(preview_text(shown, destination, settings))
        return SKIPPED if shown.scan.options.get("skipped") else 0
    again = settings.overwrite or settings.restart
    if not again and _is_up_to_date(family, arguments, paths, destination, settings, claims):
        if as_json:
            say_json({"destination": destination, "up_to_date": True})
        else:
            say_done(f"{destination}: up to date: {SAME}")
        return 0
    with progress_bar() as bar:
        report = convert_with(settings, paths, destination, chosen, arguments, bar)
    if as_json:
        say_json(asdict(report))
    else:
        say_done(report_text(report))
    return SKIPPED if report.skipped else 0


def _is_up_to_date(family: str, options: Any, *arguments: Any) -> bool:
    """Whether this very command made the store that stands there; what is wrong is told by the conversion."""
    from unistore.conversion.convert import make_converter
    from unistore.conversion.run import is_up_to_date

    try:
        return is_up_to_date(make_converter(family, options), *arguments)
    except (UnistoreError, OSError):
        return False


@click.group(
    cls=FamilyGroup,
    convert=_convert,
    detect=_detect_command,
    epilog=EXAMPLES,
    options_metavar="",
    subcommand_metavar="[FAMILY] SRC... DST [OPTIONS]",
    short_help="Convert source files into one sealed store.",
)
def convert() -> None:
    """Convert files into one sealed store: SRC... DST, the family detected or named.

    DST is a folder, or a URL in a bucket: s3://bucket/name.zarr, gs://…, az://….

    The same command resumes an interrupted conversion. DST appears once it is complete.

    \b
    Every family takes --dry-run, --codec, --split, --split-by, --split-seed,
    --split-from, --group-by, --overwrite, --restart, --work, --workers,
    --scheduler, --memory, --on-error, --exclude and --json.
    """  # noqa: D301  an escape that keeps click from wrapping


@convert.command(DETECT, cls=ConvertCommand, hidden=True)
@add_common_options
def detect(**arguments: Any) -> int:
    """Detect the family of SRC... and convert it with default options."""
    return _convert(None, **arguments)


def preview_text(shown: DryRun, destination: str, settings: Settings) -> str:
    """Return what would be written, and the memory that it takes."""
    from unistore.converters.survey import counted_scan, verdict_counts

    lines = [
        f"would write {destination}: {shown.scan.family.replace('_', ' ')}",
        f"  {count_of(len(shown.scan.sources), 'source')}, {size(shown.source_bytes)}",
        f"  files: {verdict_counts([count.to_json() for count in counted_scan(shown.scan)])}",
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
    peak = shown.peak
    step = size(shown.estimate.step)
    processes = f"{count_of(peak.workers, 'worker')} and this process" if peak.workers else "one process"
    if peak.workers < peak.wanted:
        processes += f" (of {peak.wanted} requested: no more fit into {settings.memory})"
    lines.append(f"  uncompressed {size(shown.raw_bytes)}")
    lines.append(f"  peak memory about {size(peak.bytes)}: {processes}, {step} for the largest step of each")
    lines += [f"  note: {note}" for note in shown.scan.notes]
    return "\n".join([*lines, *_skipped_table(shown.scan.options.get("skipped", ()))])


def report_text(report: Report) -> str:
    """Return what was written, and how often labels are."""
    from unistore.converters.survey import verdict_counts
    from unistore.report.values import label_lines, sample_noun

    samples = count_of(report.samples, sample_noun(report.sample_table))
    written = f"{size(report.stored_bytes)} in {count_of(report.files, 'file')}"
    ratio = f"ratio {report.raw_bytes / max(1, report.stored_bytes):.2f}"
    compression = f"{size(report.raw_bytes)} uncompressed, {ratio}"
    lines = [
        f"sealed {report.destination}",
        f"  {report.family.replace('_', ' ')}: {samples} from {count_of(report.sources, 'source')}",
        f"  {size(report.source_bytes)} of sources → {written} ({compression})",
        f"  files: {verdict_counts(report.verdicts)}",
    ]
    if report.resumed:
        lines.append(f"  resumed: {report.resumed} of {report.tasks} shards were already written")
    lines += [f"  note: {note}" for note in report.notes]
    lines += [f"  labels of {line}" for line in label_lines(report.destination)]
    return "\n".join(
        [*lines, *_skipped_table(report.skipped), f"next: unistore inspect {report.destination}"]
    )


def _place_in_file(entry: Mapping[str, Any]) -> str:
    row = f" row {entry['row']}" if "row" in entry else ""
    return f"{entry['dataset']}{row}"


def _skipped_table(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of what was left out, with reasons."""
    if not entries:
        return []
    from unistore.report.text import aligned, shortened

    left_out = len({entry["left_out"] for entry in entries})
    rows = [
        (entry["file"], _place_in_file(entry), shortened(entry["reason"], MAX_REASON))
        for entry in entries[:MAX_ROWS]
    ]
    lines = [f"  left out because of problems: {left_out} (listed in unistore-report.json)"]
    lines += [f"    {row}" for row in aligned([("file", "dataset", "reason"), *rows])]
    more = len(entries) - len(rows)
    return [*lines, *([f"    and {more} more problems"] if more else [])]
