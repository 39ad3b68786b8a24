"""``unistore inspect``: describes a store or source files, and suggests what to do next."""

from __future__ import annotations

import click

from unistore.cli.output import check_target, say, say_json, show, write_report
from unistore.conversion.executors.worker_process import start_early

DAMAGED = 1
BAD_INPUT = 2

EXAMPLES = """\b
Examples:
  unistore inspect train.zarr    a store: its content, code to load it
  unistore inspect recordings/   sources: problems, and the command
  unistore inspect train.zarr --html report.html
  unistore inspect train.zarr --sample 17 --plot sample.png
  unistore inspect train.zarr --json
"""


def _parse_numbers(context: click.Context, option: click.Parameter, text: str | None) -> tuple[int, ...]:
    """Read ``"3,17,2040"``."""
    try:
        return tuple(map(int, text.split(","))) if text is not None else ()
    except ValueError:
        msg = f"{text!r} is not a list of numbers, as in 3,17,2040"
        raise click.BadParameter(msg, context, option) from None


@click.command("inspect", epilog=EXAMPLES, short_help="Describe a path, its problems, and what to do next.")
@click.argument("path", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--all", "show_all", is_flag=True, help="Show bookkeeping arrays, chunks, shards, codecs, too.")
@click.option("--html", metavar="FILE", help="Write a page with pictures of samples.")
@click.option(
    "--samples", callback=_parse_numbers, metavar="N,N,…", help="Show these samples in the page, too."
)
@click.option("--sample", type=int, metavar="N", help="Show one sample: keys, shapes, dtypes, ranges.")
@click.option("--plot", metavar="FILE.png", help="Write a picture of --sample.")
@click.option("--overwrite", is_flag=True, help="Replace a file that is not a report.")
def command(
    path: str,
    as_json: bool,
    show_all: bool,
    html: str | None,
    samples: tuple[int, ...],
    sample: int | None,
    plot: str | None,
    overwrite: bool,
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
    if (target := plot if html is None else html) is not None:
        check_target(target, overwrite=overwrite)
    if sample is not None:
        return _sample(path, sample, plot, as_json=as_json)
    start_early([path], decodes=False)
    from unistore.report.inspection import inspect

    inspection = inspect(path)
    if html is not None:
        write_report(html, inspection.to_html(samples).encode())
    if as_json:
        say_json(inspection.to_json(), indent=1)
    elif html is None:
        show(inspection.blocks, show_all=show_all)
    else:
        say(f"{html}: written; open it in a browser")
    return 0 if inspection.is_good else DAMAGED if inspection.kind == "store" else BAD_INPUT


def _sample(path: str, sample: int, plot: str | None, *, as_json: bool) -> int:
    from unistore.pictures import sample_picture
    from unistore.report.blocks import sample_blocks
    from unistore.report.sealed import describe_sample
    from unistore.store.reader import Store

    store = Store(path)
    about = describe_sample(store, sample)
    if plot is not None:
        write_report(plot, sample_picture(store, sample))
    if as_json:
        say_json(about, indent=1)
    else:
        show(sample_blocks(about))
    return 0
