"""Commands beside ``unistore convert``: inspect, verify, statistics, export, doctor."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unistore.cli.help import HelpCommand, HelpOption
from unistore.cli.output import (
    check_target,
    json_option,
    progress_bar,
    say,
    say_done,
    say_json,
    show,
    store_argument,
    version_option,
    workers_option,
    write_report,
)
from unistore.conversion.executors.worker_process import start_early
from unistore.errors import merged
from unistore.system.sizes import count_of, size

if TYPE_CHECKING:
    from unistore import Verified

DAMAGED = 1
BAD_INPUT = 2

_INSPECT_EXAMPLES = (
    "unistore inspect train.zarr  list the content of a store, and code that loads it",
    "unistore inspect recordings/  name the format of source files",
    "unistore inspect train.zarr --html  write train.html",
    "unistore inspect train.zarr --sample 17 --plot 17.png  draw one sample",
    "unistore inspect train.zarr --json  for scripts",
)


_NAMED_LIKE_PATH = " "  # no file is called so


def _parse_numbers(context: click.Context, option: click.Parameter, text: str | None) -> tuple[int, ...]:
    """Read ``"3,17,2040"``."""
    try:
        return tuple(map(int, text.split(","))) if text is not None else ()
    except ValueError:
        msg = f"{text!r} is not a list of numbers such as 3,17,2040"
        raise click.BadParameter(msg, context, option) from None


class InspectCommand(HelpCommand):
    """``inspect``, whose usage shows PATH before the options: --html would take PATH as its FILE."""

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return super().collect_usage_pieces(ctx)[::-1]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Say to give PATH first if --html has taken it."""
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.MissingParameter as error:
            if "--html" not in words[:-1]:
                raise
            path = words[words.index("--html") + 1]
            msg = f"PATH is missing, because --html took it as its FILE. Fix: unistore inspect {path} --html"
            raise click.UsageError(msg, ctx) from error


@click.command(
    "inspect",
    cls=InspectCommand,
    examples=_INSPECT_EXAMPLES,
    short_help="Describe a path, its problems, and what to do next.",
)
@click.argument("path", type=click.Path())
@click.option(
    "--html",
    cls=HelpOption,
    group="Look at samples",
    metavar="[FILE]",
    is_flag=False,
    flag_value=_NAMED_LIKE_PATH,
    help="Write a page with samples that opens in any browser. Without FILE: the name of PATH with .html, in "
    "the current folder (train.html for train.zarr).",
)
@click.option(
    "--samples",
    cls=HelpOption,
    group="Look at samples",
    callback=_parse_numbers,
    metavar="N,N,…",
    help="With --html: numbers of further samples for the page, for example 5,17.",
)
@click.option(
    "--sample",
    cls=HelpOption,
    group="Look at samples",
    type=int,
    metavar="N",
    help="Show one sample: keys, shapes, dtypes and ranges.",
)
@click.option(
    "--plot",
    cls=HelpOption,
    group="Look at samples",
    metavar="FILE.png",
    help="With --sample: write a picture of it.",
)
@click.option(
    "--overwrite",
    cls=HelpOption,
    group="Look at samples",
    is_flag=True,
    help="With --html or --plot: replace FILE even if unistore did not write it.",
)
@click.option(
    "--all", "show_all", is_flag=True, help="Also show bookkeeping arrays, chunks, shards and codecs."
)
@version_option
@json_option
def inspect(
    path: str,
    as_json: bool,
    show_all: bool,
    html: str | None,
    samples: tuple[int, ...],
    sample: int | None,
    plot: str | None,
    overwrite: bool,
    version: str | None,
) -> int:
    """Describe PATH and print what to do next.

    PATH may be source files, a store, an unfinished conversion, or anything else. It is never changed.

    For sources: the family, the problems, and the command that converts them. For a store: arrays, labels,
    notes, and the code that loads it. N counts its samples from 0: segments, volumes, frames, episodes or
    rows, in the order of the store.

    Exit codes: 0 if all is well, 1 if the seal of a store is broken, 2 if sources have problems or PATH is
    not recognised.
    """
    if plot is not None and sample is None:
        raise click.UsageError("--plot needs --sample N")
    if samples and html is None:
        raise click.UsageError("--samples needs --html; to print one sample, use --sample N")
    if sample is not None and html is not None:
        raise click.UsageError("--sample does not work with --html; use --samples N,N,… for the page")
    if plot is not None and not plot.lower().endswith(".png"):
        raise click.UsageError("--plot needs the name of a PNG file, such as sample.png")
    if html == _NAMED_LIKE_PATH:
        html = f"{Path(path).absolute().stem or 'page'}.html"
    if (target := plot if html is None else html) is not None:
        check_target(target, overwrite=overwrite)
    if sample is not None:
        return _sample(path, sample, plot, version, as_json=as_json)
    start_early([path], decodes=False)
    from unistore.report.inspection import inspect

    inspection = inspect(path, version=version)
    if html is not None:
        write_report(html, inspection.to_html(samples).encode())
    if as_json:
        say_json(inspection.to_json(), indent=1)
    elif html is None:
        show(inspection.blocks, show_all=show_all)
    else:
        say(f"{html}: written; open it in a browser")
    return 0 if inspection.is_good else DAMAGED if inspection.kind == "store" else BAD_INPUT


def _sample(path: str, sample: int, plot: str | None, version: str | None, *, as_json: bool) -> int:
    from unistore.html import check_sample, sample_picture
    from unistore.report.blocks import sample_blocks
    from unistore.report.sealed import SampleReport, describe_sample
    from unistore.store.versions import open_stores

    opened = open_stores(path, version)
    check_sample(path, sum(opened.counts), sample)
    store, row = opened.row_of(sample)
    about: SampleReport = {**describe_sample(store, row), "sample": sample}
    if plot is not None:
        write_report(plot, sample_picture(store, row))
    if as_json:
        say_json(about, indent=1)
    else:
        show(sample_blocks(about))
    return 0


_VIEW_EXAMPLES = (
    "unistore view train.zarr  open a browser; Ctrl-C stops the server",
    "unistore view train.zarr --no-browser  only print the address",
)


@click.command(
    "view", cls=HelpCommand, examples=_VIEW_EXAMPLES, short_help="Look at any sample of a store in a browser."
)
@store_argument
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="N",
    help="Port on 127.0.0.1.  [default: a free one]",
)
@click.option(
    "--browser/--no-browser",
    "open_browser",
    default=True,
    help="Open a browser, or only print the address.  [default: browser]",
)
@version_option
def view(store: str, **options: Any) -> None:
    """Serve a page of STORE to this machine until you press Ctrl-C. It shows any sample in full resolution.

    The server only reads the store. You need the printed address to see the page.

    Exit codes: 0 if you stop it, 1 if the store is damaged, 2 if there is no store or the port is in use.
    """
    from unistore.report.serve import view

    view(store, **options)


_VERIFY_EXAMPLES = (
    "unistore verify a.zarr  check all bytes and value rules",
    "unistore verify a.zarr --against clouds/  also compare all values with the sources",
    "unistore verify a.zarr --against clouds/ --sample 1%  compare a part",
    "unistore verify a.zarr --against clouds/ --workers 4",
    "unistore verify a.zarr --repair clouds/  write damaged files again",
)
_MAX_SHOWN = 200


def _parse_share(context: click.Context, option: click.Parameter, text: str | None) -> float:
    """Read ``"1%"`` or ``"0.01"``."""
    if text is None:
        return 1.0
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        msg = f"{text!r} is not a share above 0 and up to 100%, such as 1% or 0.01"
        raise click.BadParameter(msg, context, option)
    return share


@click.command(
    "verify",
    cls=HelpCommand,
    examples=_VERIFY_EXAMPLES,
    short_help="Check a store, compare it with its sources, or repair it.",
)
@store_argument
@click.argument("sources", metavar="[SRC...]", nargs=-1, type=click.Path())
@click.option(
    "--against",
    is_flag=True,
    help="Also compare all values with SRC, the files that STORE was converted from.",
)
@click.option(
    "--sample",
    callback=_parse_share,
    metavar="SHARE",
    help="With --against: compare a random part, for example 1%.",
)
@version_option
@click.option(
    "--repair", "repairing", is_flag=True, help="Write damaged and missing files of STORE again, from SRC."
)
@workers_option
@click.option("--scheduler", metavar="ADDRESS", help="Run on an existing dask cluster.")
@json_option
def verify(
    store: str,
    sources: tuple[str, ...],
    against: bool,
    sample: float,
    repairing: bool,
    scheduler: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Check that STORE is as it was sealed, and that its values follow the rules of its family.

    Every file is compared with its checksum in the manifest. Rules are, for example, that offsets never fall.

    Exit codes: 0 if nothing is wrong, 1 if files are damaged, values break a rule, or values differ from SRC,
    with a table of all problems, 2 if there is no store.
    """
    start_early(sources)
    from unistore import repair, verify

    if (against or repairing) != bool(sources) or (against and repairing):
        message = "give SRC with one of --against and --repair: unistore verify STORE --against SRC..."
        raise click.UsageError(message)
    if sample < 1 and not against:
        raise click.UsageError("--sample needs --against")
    if sources and scheduler:
        raise click.UsageError("--scheduler does not work with SRC...; use --workers N")
    with progress_bar() as bar:
        if repairing:
            verified: Verified = repair(store, sources, progress=bar, **options)
        else:
            options |= {"sample": sample, "scheduler": scheduler}
            verified = verify(store, against=sources, progress=bar, **options)
    if as_json:
        say_json(verified.to_json())
    else:
        (say_done if verified.ok else say)(_text(verified))
    return 0 if verified.ok else 1


def _text(verified: Verified) -> str:
    from unistore import Repaired
    from unistore.report.text import aligned

    repaired = verified.repaired if isinstance(verified, Repaired) else ()
    problems = merged(verified.problems)
    lines = [f"repaired {count_of(len(repaired), 'file')}"] if repaired else []
    lines += [f"  {key}" for key in repaired[:_MAX_SHOWN]]
    rows = [(problem.kind, problem.location, problem.message) for problem in problems[:_MAX_SHOWN]]
    lines += aligned(rows)
    if len(problems) > _MAX_SHOWN:
        lines.append(f"and {len(problems) - _MAX_SHOWN} more (all of them with --json)")
    lines += [f"fix: {fix}" for fix in dict.fromkeys(problem.advice for problem in problems if problem.fix)]
    if verified.unchecked:
        unchecked = ", ".join(verified.unchecked)
        lines.append(f"not checked, because arrays are damaged or contradict each other: {unchecked}")
    about = f"{verified.path}: {count_of(verified.files, 'file')}, {size(verified.bytes)}"
    good = "unchanged since the store was sealed; all metadata and values follow their rules"
    lines.append(f"{about}: {good if verified.ok else 'damaged'}")
    if verified.ok and verified.receipt is not None:
        lines.append(verified.receipt.line)
    return "\n".join(lines)


_STATISTICS_EXAMPLES = (
    "unistore statistics train.zarr  compute, save and print them",
    "unistore statistics train.zarr --json  for scripts",
)


@click.command(
    cls=HelpCommand,
    examples=_STATISTICS_EXAMPLES,
    short_help="Save means, deviations and quantiles with a store.",
)
@store_argument
@version_option
@click.option("--json", "as_json", is_flag=True, help="Print the statistics as one JSON object.")
def statistics(store: str, version: str | None, as_json: bool) -> None:
    """Read all samples of STORE once, and save statistics of each key in its folder.

    The file is unistore-statistics.npz. Dataset.statistics, inspect and verify read it. The sealed files do
    not change.
    """
    from unistore import keep_statistics
    from unistore.report.blocks import statistics_table

    with warnings.catch_warnings(record=True) as notes, progress_bar() as bar:
        warnings.simplefilter("always")
        kept = keep_statistics(store, version=version, progress=bar)
    for note in notes:
        say(f"note: {note.message}", err=True)
    by_key = {key: values.to_json() for key, values in kept.items()}
    if as_json:
        say_json(by_key, indent=1)
    else:
        show([statistics_table(by_key)])


_EXPORT_EXAMPLES = (
    "unistore export train.zarr files/  write the files of the sources",
    "unistore export s3://bucket/a.zarr files/  read from a bucket",
    "unistore export scans.zarr images/ --to ome-zarr",
    "unistore export demos.zarr dataset/ --to lerobot --fps 20",
    "unistore export demos.zarr demos/ --to robomimic",
)


@click.command(
    cls=HelpCommand,
    examples=_EXPORT_EXAMPLES,
    short_help="Write the files of a store again, or another format.",
)
@store_argument
@click.argument("destination", metavar="DST", type=click.Path())
@click.option(
    "--to",
    metavar="FORMAT",
    help="Format to write. ome-zarr writes each volume as an OME-NGFF 0.5 image; lerobot and robomimic write "
    "trajectories of any layout.  [default: the format of the sources]",
)
@click.option(
    "--fps",
    type=float,
    metavar="N",
    help="With --to lerobot: steps per second, if the sources do not state them.",
)
@click.option("--video", is_flag=True, help="With --to lerobot: encode cameras as H.264, which loses detail.")
@version_option
@json_option
def export(store: str, destination: str, as_json: bool, **options: Any) -> None:
    """Write STORE as files to the folder DST, with the exact values of the sources.

    The files have the layout of the sources: HDF5, .dat and PNG frames, or .npy. DST must not exist. It
    appears once everything is written.
    """
    from unistore import export

    with progress_bar() as bar:
        done = export(store, destination, progress=bar, **options)
    if as_json:
        say_json(asdict(done))
        return
    for note in done.notes:
        say(note)
    say_done(
        f"exported {done.destination}: {count_of(done.files, 'file')}, {size(done.bytes)}, "
        f"from {count_of(done.sources, 'source')} ({done.family.replace('_', ' ')})"
    )


_DOCTOR_EXAMPLES = (
    "unistore doctor  check cores, memory and limits",
    "unistore doctor train.zarr  also check how fast a store is read",
    "unistore doctor train.zarr --measure  try settings of the Loader",
    'unistore doctor train.zarr --measure --samples "Windows(history=2)"',
    "unistore doctor train.zarr --json",
)


@click.command(
    "doctor",
    cls=HelpCommand,
    examples=_DOCTOR_EXAMPLES,
    short_help="Check this machine and a store; recommend a Loader.",
)
@click.argument("store", type=click.Path(), required=False)
@click.option(
    "--samples",
    metavar="KIND",
    help="Sample kind to read, as in Python.  [default: the default kind of STORE]",
)
@click.option(
    "--measure",
    is_flag=True,
    help="Try numbers of workers, batch sizes and a cache, and recommend the fastest.",
)
@click.option(
    "--seconds", type=float, metavar="N", help="With --measure: time for each setting.  [default: 2.0]"
)
@version_option
@json_option
def doctor(store: str | None, as_json: bool, **options: Any) -> None:
    """Check this machine and STORE, and recommend a Loader with reasons.

    It shows cores, memory, shared memory and their limits. For a store it also shows the location, whether
    the store fits into the page cache, and how fast it is read, by about a second of short random reads.

    With --measure it tries numbers of workers, batch sizes and a cache for --seconds each. It shows samples
    per second, the time that you wait for a batch (mean, longest, first), and memory.
    """
    from unistore import doctor

    with progress_bar() as bar:
        report = doctor(store, progress=bar, **options)
    if as_json:
        say_json(report.to_json(), indent=1)
    else:
        show(report.blocks)
