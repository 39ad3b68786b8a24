"""``unistore convert``: one subcommand per family, or a detected one."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unistore.cli.convert_options import DETECT, ConvertCommand, FamilyGroup, add_common_options
from unistore.cli.output import progress_bar, progress_log, say, say_done, say_json
from unistore.conversion.executors.worker_process import CONVERSION, start_early
from unistore.errors import UnistoreError, first_few
from unistore.system.sizes import count_of, size

if TYPE_CHECKING:
    from unistore import Appended
    from unistore.conversion.cost import Cost
    from unistore.conversion.dry_run import DryRun
    from unistore.conversion.report import Report
    from unistore.conversion.settings import Settings
    from unistore.converters.detection import Claims, Detection
    from unistore.converters.families import Offer
    from unistore.schemas.recorded_rules import SkippedEntry


SAME = "same options, and names, sizes and times of the sources have not changed (values were not read)"
SKIPPED = 3  # Exit code of a conversion that left something out because of problems
# Options of a conversion that an append has, too; all others are the store's own
_OF_APPEND = ("replace", "check", "exclude", "restart", "work", "workers", "scheduler", "memory", "on_error")
_BESIDE = ("sources", "destination", "append", "as_json")
MAX_REASON = 100  # Characters of a reason in the table of what was left out
MAX_ROWS = 50  # Rows of that table

EXAMPLES = (
    "unistore convert recordings/ train.zarr  detect the family",
    "unistore convert recordings/ train.zarr --dry-run  preview",
    "unistore convert recordings/ train.zarr --append  add new recordings",
    "unistore convert FAMILY --help  options of a family",
    r"unistore convert scans/ new.zarr --split train=0.8,val=0.2 --group-by 'patient_\d+'",
    "unistore convert scans/ new.zarr --split train=0.8,val=0.2 --split-from old.zarr",
    "unistore convert scans/ new.zarr --part $SLURM_ARRAY_TASK_ID/8",
)


def _detect(
    paths: Sequence[Path], build_folder: Path | None = None, *, log: str = "text", destination: str = ""
) -> Detection:
    from unistore.conversion.convert import detect_family

    with progress_log(log, destination) as bar:
        detection = detect_family(paths, build_folder, bar)
    family = detection.family.replace("_", " ")
    say_done(f"{family} ({detection.layout}): {detection.reason}", err=True)
    return detection


def _detect_command(sources: Sequence[str]) -> str:
    from unistore.conversion.convert import source_paths
    from unistore.converters.registry import get_family

    return get_family(_detect(source_paths(sources)).family).command()


def _convert(family: str | None, **arguments: Any) -> int:
    if arguments["append"]:
        return _append(family, arguments)
    of_append = [arguments.pop(name) for name in ("append", "replace", "check")]
    if any(of_append):
        raise click.UsageError("--replace and --check need --append")
    given_paths = [*arguments["sources"], *arguments.get("follow_links_to", ())]
    start_early(given_paths, family, [CONVERSION], decodes=not arguments["dry_run"])
    from unistore.conversion.convert import forget_copies, local_sources, shared_folder
    from unistore.conversion.settings import Settings

    sources = arguments.pop("sources")
    destination = arguments.pop("destination")
    by_shape = arguments.pop("one_store_per_shape")
    as_json = arguments.pop("as_json")
    log = arguments.pop("log")
    dry_run = arguments.pop("dry_run")
    settings = Settings(**{field.name: arguments.pop(field.name) for field in fields(Settings)})
    with progress_log(log, destination) as bar, _stopped_by_signals():
        paths = local_sources([*sources, *arguments.pop("follow_links_to", ())], destination, settings, bar)
    shared = None if by_shape or dry_run else shared_folder(settings, destination)
    chosen: str | Detection = family or _detect(paths, shared, log=log, destination=destination)
    destinations = {destination: arguments}
    if by_shape:
        from unistore.conversion.convert import destinations_by_shape

        destinations = destinations_by_shape(settings, paths, destination, chosen, arguments)
    codes = [
        _convert_into(place, chosen, paths, settings, options, log=log, as_json=as_json, dry_run=dry_run)
        for place, options in destinations.items()
    ]
    if by_shape and not dry_run:
        forget_copies(destination, settings)
    return max(codes)


def _convert_into(
    destination: str,
    chosen: str | Detection,
    paths: Sequence[Path],
    settings: Settings,
    options: Mapping[str, Any],
    *,
    log: str,
    as_json: bool,
    dry_run: bool,
) -> int:
    from unistore.conversion.convert import convert_with, make_converter

    claims = None if isinstance(chosen, str) else chosen.claims
    family = chosen if isinstance(chosen, str) else chosen.family
    if dry_run:
        from unistore.conversion.cost import cost_of
        from unistore.conversion.dry_run import dry_run as plan_only

        converter = make_converter(family, options)
        shown = plan_only(converter, paths, settings, is_named=claims is None, claims=claims)
        cost = cost_of(shown, settings, options)
        if as_json:
            say_json({**shown.to_json(), "cost": asdict(cost)}, indent=1)
        else:
            say(preview_text(shown, cost, destination, settings))
        return SKIPPED if shown.scan.options.get("skipped") else 0
    again = settings.overwrite or settings.restart
    if not again and _is_up_to_date(family, options, paths, destination, settings, claims, log=log):
        if as_json:
            say_json({"destination": destination, "up_to_date": True})
        else:
            say_done(f"{destination}: up to date: {SAME}")
        return 0
    with progress_log(log, destination) as bar, _stopped_by_signals():
        report = convert_with(settings, paths, destination, chosen, options, bar)
    if as_json:
        offers = [offer._asdict() for offer in _offers(report)]
        say_json({**asdict(report), "offers": offers})
    else:
        say_done(report_text(report))
    return SKIPPED if report.skipped else 0


def _append(family: str | None, arguments: Mapping[str, Any]) -> int:
    """Run ``unistore convert SRC... STORE --append``."""
    from unistore import append
    from unistore.store.versions import open_stores

    context = click.get_current_context()
    command_line = click.core.ParameterSource.COMMANDLINE
    further = sorted(arguments.keys() - {*_OF_APPEND, *_BESIDE})
    if foreign := [name for name in further if context.get_parameter_source(name) is command_line]:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in foreign)
        fix = "remove it" if len(foreign) == 1 else "remove them"
        if "codec" in foreign:
            fix += f"; to change the codec, run unistore compact {arguments['destination']} NEW --codec CODEC"
        msg = f"{flags}: cannot be set with --append, which uses the options of the store. Fix: {fix}"
        raise click.UsageError(msg)
    store = arguments["destination"]
    if family is not None:
        own_family = open_stores(store).stores[0].family
        if family != own_family:
            msg = f"{store}: this is a {own_family.replace('_', ' ')} store. Fix: leave the family out"
            raise click.UsageError(msg)
    with progress_bar() as bar:
        options = {name: arguments[name] for name in _OF_APPEND}
        appended = append(arguments["sources"], store, progress=bar, **options)
    if arguments["as_json"]:
        say_json(asdict(appended))
    else:
        say_done(_appended_text(appended))
    return SKIPPED if appended.report is not None and appended.report.skipped else 0


def _appended_text(appended: Appended) -> str:
    count = count_of(len(appended.skipped), "source")
    skipped = f"skipped, because the store has them or removed them: {count} ({first_few(appended.skipped)})"
    lines = [f"{appended.store}: up to date: version {appended.version}"]
    if appended.report is not None:
        lines = [f"appended to {appended.store}: version {appended.version}"]
        lines += report_text(appended.report).splitlines()[1:-1]
    if appended.replaced:
        lines.append(f"  replaced: {count_of(len(appended.replaced), 'source')}")
    return "\n".join([*lines, *([f"  {skipped}"] if appended.skipped else [])])


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    # SIGTERM and SIGUSR1 end the conversion after the steps at work, a second one at once
    from unistore.conversion.executors.local import STOP

    def stop(number: int, _frame: object) -> None:
        STOP.set()
        signal.signal(number, before[number])

    numbers = (signal.SIGTERM, signal.SIGUSR1)
    before: dict[int, Any] = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        STOP.clear()
        for number in numbers:
            signal.signal(number, before[number])


def _is_up_to_date(
    family: str,
    options: Any,
    paths: Sequence[Path],
    destination: str,
    settings: Settings,
    claims: Claims | None,
    *,
    log: str,
) -> bool:
    # What is wrong is told by the conversion
    from unistore.conversion.convert import make_converter
    from unistore.conversion.finished import is_up_to_date

    try:
        with progress_log(log, destination) as bar:
            converter = make_converter(family, options)
            return is_up_to_date(converter, paths, destination, settings, claims, bar)
    except (UnistoreError, OSError):
        return False


@click.group(
    cls=FamilyGroup,
    convert=_convert,
    detect=_detect_command,
    examples=EXAMPLES,
    options_metavar="",
    subcommand_metavar="[FAMILY] SRC... DST [OPTIONS]",
    short_help="Convert source files into one sealed store.",
)
def convert() -> None:
    """Convert files into one sealed store.

    SRC are files, folders or URLs (s3://, gs://, az://, hf://, https://). DST is a folder, or a URL in a
    bucket: s3://bucket/name.zarr. unistore detects the FAMILY of the files, a kind of data such as point
    clouds, unless you name it. Each family has options of its own, which `unistore convert FAMILY --help`
    lists, such as --follow-links-to of spike for folders of links. They also work without FAMILY if unistore
    detects it.

    DST appears once it is complete. If a conversion is interrupted, the same command continues it.

    Exit codes: 0 if everything is converted or up to date, 1 if writing failed, 2 if sources or options have
    problems or DST exists, 3 if DST lacks what --on-error skip left out, 75 if a signal stopped it, 130 if
    you pressed Ctrl-C. After 1, 75 or 130 the same command continues.
    """


@convert.command(DETECT, cls=ConvertCommand, hidden=True)
@add_common_options
def detect(**arguments: Any) -> int:
    """Detect the family of SRC... and convert it with default options."""
    return _convert(None, **arguments)


def preview_text(shown: DryRun, cost: Cost, destination: str, settings: Settings) -> str:
    """Return what would be written, and the memory and time that it takes."""
    from unistore.converters.detection import counted_scan, verdict_counts
    from unistore.report.text import aligned, terminal_width
    from unistore.schemas.recorded_rules import skipped_entries

    lines = [
        f"would write {destination}: {shown.scan.family.replace('_', ' ')}",
        f"  {count_of(len(shown.scan.sources), 'source')}, {size(shown.source_bytes)}",
        f"  files: {verdict_counts([count.to_json() for count in counted_scan(shown.scan)])}",
    ]
    for table in shown.plan.tables:
        rows = ("about " if table.name in shown.estimated else "") + count_of(table.rows, "row")
        shards = count_of(len(list(table.tasks())), "shard")
        lines.append(f"  {table.name}: {rows}, {shards} of {table.shard_rows:,} rows")
        rows_shown = [("array", "dtype", "shape", "chunks", "read amplification")]
        for array in table.arrays:
            form = (str(array.field.dtype), str(array.shape), str(array.chunk))
            rows_shown.append((array.column, *form, f"{array.amplification:.2f}×"))
        lines += [f"    {line}" for line in aligned(rows_shown, terminal_width() - 4)]
    peak = shown.peak
    step = size(shown.estimate.step)
    processes = f"{count_of(peak.workers, 'worker')} and this process" if peak.workers else "one process"
    if peak.workers < peak.wanted:
        processes += f" (you asked for {peak.wanted}, but no more fit into {settings.memory})"
    lines.append(f"  uncompressed {size(shown.plan.raw_bytes)}")
    lines.append(f"  peak memory about {size(peak.bytes)}: {processes}, {step} for the largest task of each")
    lines += _cost_lines(cost, destination, max(1, peak.workers))
    lines += [f"  note: {note}" for note in shown.scan.notes]
    lines += [f"  {offer}" for offer in shown.offers]
    return "\n".join([*lines, *_skipped_table(skipped_entries(shown.scan.options))])


def _cost_lines(cost: Cost, destination: str, processes: int) -> list[str]:
    from unistore.progress import duration
    from unistore.remote.url import local_path

    files = f"  about {count_of(cost.files, 'file')}"
    if local_path(destination) is None:
        files += ", each a PUT and a HEAD request"
    if cost.spilled_bytes:
        files += f"; meanwhile, the staging folder holds {size(cost.spilled_bytes)} of uncompressed rows"
    if cost.trial is None:
        return [files, f"  time unknown: {cost.no_trial}"]
    trial = cost.trial
    whole = duration(trial.total_seconds / processes)
    by = count_of(processes, "process")
    trial_sources = f"{count_of(trial.sources, 'source')} of {size(trial.bytes)}"
    tried = f"a trial of {trial_sources} took {trial.seconds:.1f} s and wrote {size(trial.stored_bytes)}"
    return [files, f"  about {whole} with {by}: {tried}"]


def _offers(report: Report) -> Sequence[Offer]:
    # A store in a bucket would be opened for it
    from unistore.converters.families import offers_of_store
    from unistore.remote.url import local_path
    from unistore.store.reader import Store

    if report.unfinished_parts or local_path(report.destination) is None:
        return ()
    return offers_of_store(Store(report.destination))


def report_text(report: Report) -> str:
    """Return what was written, and how often labels are."""
    from unistore.converters.detection import verdict_counts
    from unistore.report.values import label_lines, sample_noun
    from unistore.schemas.recorded_rules import SkippedEntry

    samples = count_of(report.samples, sample_noun(report.sample_table))
    written = f"{size(report.stored_bytes)} in {count_of(report.files, 'file')}"
    ratio = f"ratio {report.raw_bytes / max(1, report.stored_bytes):.2f}"
    compression = f"{size(report.raw_bytes)} uncompressed, {ratio}"
    if report.unfinished_parts:
        missing = first_few([str(number) for number in report.unfinished_parts], 20)
        done = f"{report.destination}: this job is done"
        return f"{done}; the last job to finish seals the store. Jobs that are not finished: {missing}"
    family = report.family.replace("_", " ")
    lines = [
        f"sealed {report.destination}",
        f"  {family}: {samples} from {count_of(report.sources, 'source')}",
        f"  {size(report.source_bytes)} of sources → {written} ({compression})",
        f"  files: {verdict_counts(report.verdicts)}",
    ]
    if report.resumed:
        lines.append(f"  resumed: {report.resumed} of {report.tasks} shards were already written")
    lines += [f"  note: {note}" for note in report.notes]
    lines += [f"  labels of {line}" for line in label_lines(report.destination)]
    lines += [f"  {offer}" for offer in _offers(report)]
    skipped = list(map(SkippedEntry.from_json, report.skipped))
    return "\n".join([*lines, *_skipped_table(skipped), f"next: unistore inspect {report.destination}"])


def _place_in_file(entry: SkippedEntry) -> str:
    row = "" if entry.row is None else f" row {entry.row}"
    return f"{entry.dataset}{row}"


def _skipped_table(entries: Sequence[SkippedEntry]) -> list[str]:
    """Return the table of what was left out, with reasons."""
    if not entries:
        return []
    from unistore.report.text import aligned, shortened, terminal_width

    left_out = len({entry.left_out for entry in entries})
    rows = [
        (entry.file, _place_in_file(entry), shortened(entry.reason, MAX_REASON))
        for entry in entries[:MAX_ROWS]
    ]
    lines = [f"  skipped because of problems: {left_out} (listed in unistore-report.json)"]
    table = aligned([("file", "dataset", "reason"), *rows], terminal_width() - 4)
    lines += [f"    {line}" for line in table]
    more = len(entries) - len(rows)
    return [*lines, *([f"    and {more} more problems"] if more else [])]
