"""Commands beside ``unistore convert``: inspect, verify, statistics, export, doctor."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

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

_INSPECT_EXAMPLES = """\b
Examples:
  unistore inspect train.zarr    a store: its content, code to load it
  unistore inspect recordings/   sources: problems, and the command
  unistore inspect train.zarr --html     a page of samples, train.html
  unistore inspect train.zarr --sample 17 --plot sample.png
  unistore inspect train.zarr --json
"""


_NAMED_LIKE_PATH = " "  # no file is called so


def _parse_numbers(context: click.Context, option: click.Parameter, text: str | None) -> tuple[int, ...]:
    """Read ``"3,17,2040"``."""
    try:
        return tuple(map(int, text.split(","))) if text is not None else ()
    except ValueError:
        msg = f"{text!r} is not a list of numbers, as in 3,17,2040"
        raise click.BadParameter(msg, context, option) from None


@click.command(
    "inspect", epilog=_INSPECT_EXAMPLES, short_help="Describe a path, its problems, and what to do next."
)
@click.argument("path", type=click.Path())
@json_option
@click.option("--all", "show_all", is_flag=True, help="Show bookkeeping arrays, chunks, shards, codecs, too.")
@click.option(
    "--html",
    metavar="[FILE]",
    is_flag=False,
    flag_value=_NAMED_LIKE_PATH,
    help="Write a page to look at samples; without FILE, PATH.html here.",
)
@click.option(
    "--samples", callback=_parse_numbers, metavar="N,N,…", help="Show these samples in the page, too."
)
@click.option("--sample", type=int, metavar="N", help="Show one sample: keys, shapes, dtypes, ranges.")
@click.option("--plot", metavar="FILE.png", help="Write a picture of --sample.")
@click.option("--overwrite", is_flag=True, help="Replace a file that is not a report.")
@version_option
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
    """Describe PATH: a store, an unfinished conversion, source files, or something else.

    Samples are rows of the store's sample table: segments, volumes, frames, episodes, rows.

    Exit codes: 0 if all is well, 1 if the seal of a store is broken, 2 if sources have problems or PATH is
    nothing known.
    """
    if plot is not None and sample is None:
        raise click.UsageError("--plot needs --sample N")
    if samples and html is None:
        raise click.UsageError("--samples needs --html FILE; --sample N shows one here")
    if sample is not None and html is not None:
        raise click.UsageError("--sample shows one sample here, --html takes --samples N,N,…")
    if plot is not None and not plot.lower().endswith(".png"):
        raise click.UsageError("--plot takes the name of a PNG file, as in sample.png")
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
    from unistore.report.sealed import describe_sample
    from unistore.store.versions import open_stores

    opened = open_stores(path, version)
    check_sample(path, sum(opened.counts), sample)
    store, row = opened.row_of(sample)
    about = {**describe_sample(store, row), "sample": sample}
    if plot is not None:
        write_report(plot, sample_picture(store, row))
    if as_json:
        say_json(about, indent=1)
    else:
        show(sample_blocks(about))
    return 0


_VIEW_EXAMPLES = """\b
Examples:
  unistore view train.zarr               opens a browser; Ctrl-C ends it
  unistore view train.zarr --no-browser  prints the address alone
"""


@click.command("view", epilog=_VIEW_EXAMPLES, short_help="Look at any sample of a store, in a browser.")
@store_argument
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of 127.0.0.1. 0: a free one.")
@click.option(
    "--browser/--no-browser", "open_browser", default=True, help="Open a browser.  [default: browser]"
)
@version_option
def view(store: str, **options: Any) -> None:
    """Serve the page of STORE to this machine, with any sample in full resolution, until Ctrl-C.

    It reads the store and nothing else, and changes nothing. Only who knows the printed address sees it.

    Exit codes: 0 when it is ended, 1 if the store is damaged, 2 if there is none or the port is taken.
    """
    from unistore.report.serve import view

    view(store, **options)


_VERIFY_EXAMPLES = """\b
Examples:
  unistore verify a.zarr                     all bytes and value rules
  unistore verify a.zarr --against clouds/   and all values of the sources
  unistore verify a.zarr --against clouds/ --sample 1%
  unistore verify a.zarr --against clouds/ --workers 4
  unistore verify a.zarr --repair clouds/    repair what is damaged
"""
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
        msg = f"{text!r} is not a share: expected one above 0 and up to 100%, as in 1% or 0.01"
        raise click.BadParameter(msg, context, option)
    return share


@click.command(
    "verify", epilog=_VERIFY_EXAMPLES, short_help="Check a store, against its sources too, and repair it."
)
@store_argument
@click.argument("sources", metavar="[SRC...]", nargs=-1, type=click.Path())
@click.option("--against", is_flag=True, help="Compare with SRC..., the sources of the conversion.")
@click.option(
    "--sample", callback=_parse_share, metavar="SHARE", help="With --against: compare a part, as in 1%."
)
@version_option
@click.option("--repair", "repairing", is_flag=True, help="Re-make damaged and missing files from SRC....")
@workers_option
@click.option("--scheduler", metavar="ADDRESS", help="Check on an existing dask cluster.")
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
    """Check all files of STORE against its manifest, and all documents and values against their rules.

    Exit codes: 0 if nothing is wrong, else 1 with a table of all problems.
    """
    start_early(sources)
    from unistore import repair, verify

    if (against or repairing) != bool(sources) or (against and repairing):
        message = "give sources with one of --against and --repair: unistore verify STORE --against SRC..."
        raise click.UsageError(message)
    if sample < 1 and not against:
        raise click.UsageError("--sample is a part of --against")
    if sources and scheduler:
        raise click.UsageError("--scheduler checks a store alone; with SRC... give --workers N")
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
    lines += [f"→ {fix}" for fix in dict.fromkeys(problem.advice for problem in problems if problem.fix)]
    if verified.unchecked:
        unchecked = ", ".join(verified.unchecked)
        lines.append(f"not checked, as arrays are damaged or contradict each other: {unchecked}")
    about = f"{verified.path}: {count_of(verified.files, 'file')}, {size(verified.bytes)}"
    good = "as they were sealed; documents and values follow their rules"
    lines.append(f"{about}: {good if verified.ok else 'damaged'}")
    if verified.ok and verified.receipt is not None:
        lines.append(verified.receipt.line)
    return "\n".join(lines)


_STATISTICS_EXAMPLES = """\b
Examples:
  unistore statistics train.zarr          compute, keep and show them
  unistore statistics train.zarr --json
"""


@click.command(epilog=_STATISTICS_EXAMPLES, short_help="Keep means, deviations and quantiles with a store.")
@store_argument
@version_option
@click.option("--json", "as_json", is_flag=True, help="Print the statistics as one JSON object.")
def statistics(store: str, version: str | None, as_json: bool) -> None:
    """Read all samples of STORE once, and keep statistics of each key in its folder.

    They are in unistore-statistics.npz, which Dataset.statistics, inspect and verify read. The sealed files
    do not change.
    """
    from unistore import keep_statistics
    from unistore.report.blocks import statistics_table

    kept = keep_statistics(store, version=version)
    by_key = {key: values.to_json() for key, values in kept.items()}
    if as_json:
        say_json(by_key, indent=1)
    else:
        show([statistics_table(by_key)])


_EXPORT_EXAMPLES = """\b
Examples:
  unistore export train.zarr files/            the layout of the sources
  unistore export s3://bucket/a.zarr files/    from a bucket
  unistore export scans.zarr images/ --to ome-zarr
  unistore export demos.zarr dataset/ --to lerobot --fps 20
  unistore export demos.zarr demos/ --to robomimic
"""


@click.command(epilog=_EXPORT_EXAMPLES, short_help="Write a store as files of its source family.")
@store_argument
@click.argument("destination", metavar="DST", type=click.Path())
@click.option(
    "--to",
    metavar="FORMAT",
    help="Another format than that of the sources; ome-zarr: each volume as an OME-NGFF 0.5 image; "
    "lerobot, robomimic: trajectories of any layout.",
)
@click.option("--fps", type=float, metavar="N", help="Of lerobot: steps a second, if the sources do not say.")
@click.option("--video", is_flag=True, help="Of lerobot: encode cameras as H.264, with loss.")
@version_option
@json_option
def export(store: str, destination: str, as_json: bool, **options: Any) -> None:
    """Write STORE as files to DST: HDF5, .dat and PNG frames, or .npy, with the exact values of the sources.

    DST must not exist; it appears once everything is written.
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


_DOCTOR_EXAMPLES = """\b
Examples:
  unistore doctor              cores, memory, limits, a Loader to start with
  unistore doctor train.zarr   also of a store: location, page cache, speed
  unistore doctor train.zarr --measure
  unistore doctor train.zarr --measure --samples "Windows(history=2)"
  unistore doctor train.zarr --json
"""


@click.command(
    "doctor", epilog=_DOCTOR_EXAMPLES, short_help="Check this machine and a store; recommend a Loader."
)
@click.argument("store", type=click.Path(), required=False)
@click.option("--samples", metavar="KIND", help="Kind of samples to read, as in Python; the natural one.")
@click.option("--measure", is_flag=True, help="Try workers, batch sizes and a cache; recommend the fastest.")
@click.option("--seconds", type=float, help="With --measure: time for each setting.  [default: 2.0]")
@version_option
@json_option
def doctor(store: str | None, as_json: bool, **options: Any) -> None:
    """Check this machine, and STORE from it; recommend a Loader, with reasons.

    Shows cores, memory, shared memory and their limits; of a store also its location, whether it fits into
    the page cache, and how fast it is read (about a second of short random reads). With --measure numbers
    of workers, batch sizes and a cache are tried for --seconds each: samples/s, what a batch is waited for
    (mean, longest, the first one), memory.
    """
    from unistore import doctor

    with progress_bar() as bar:
        checkup = doctor(store, progress=bar, **options)
    if as_json:
        say_json(checkup.to_json(), indent=1)
    else:
        show(checkup.blocks)
