"""Commands for stores that grow: ``remove``, ``versions``, ``compact``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from unistore.cli.output import progress_bar, say, say_done, say_json, version_option
from unistore.system.sizes import count_of, size

_REMOVE_EXAMPLES = """\b
Examples:
  unistore remove train.zarr bad_run.h5
  unistore remove train.zarr 'lab_a/*' 'lab_b/07*'
"""


@click.command(epilog=_REMOVE_EXAMPLES, short_help="Make a version of a store without some of its sources.")
@click.argument("store", metavar="STORE", type=click.Path())
@click.argument("patterns", metavar="PATTERN...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def remove(store: str, patterns: tuple[str, ...], as_json: bool) -> None:
    """Leave the sources of STORE whose names match PATTERN out of its next version.

    Older versions keep them, and their bytes stay until the store is compacted.
    """
    from unistore import remove

    removed = remove(store, patterns)
    if as_json:
        say_json(asdict(removed))
        return
    left = count_of(removed.samples, "sample")
    gone = count_of(len(removed.sources), "source")
    say_done(f"{removed.store}: version {removed.version} is without {gone}, {left} left")


_VERSIONS_EXAMPLES = """\b
Examples:
  unistore versions train.zarr                    all, and what changed
  unistore versions train.zarr --tag paper-v1     name the newest
  unistore versions train.zarr --tag paper-v1 --version 3
"""


@click.command(epilog=_VERSIONS_EXAMPLES, short_help="List the versions of a store, or name one.")
@click.argument("store", metavar="STORE", type=click.Path())
@click.option("--tag", metavar="NAME", help="Name a version, for ever: Dataset(STORE, version=NAME).")
@click.option("--version", type=click.IntRange(1), metavar="N", help="With --tag: the version; the newest.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a version, in a list.")
def versions(store: str, tag: str | None, version: int | None, as_json: bool) -> None:
    """List the versions of STORE: sources, samples, and what changed."""
    from unistore import versions
    from unistore.report.text import aligned

    if version is not None and tag is None:
        raise click.UsageError("--version needs --tag NAME")
    summaries = versions(store, tag=tag, version=version)
    if as_json:
        say_json([asdict(summary) for summary in summaries], indent=1)
        return
    rows: list[tuple[str, ...]] = [("version", "sources", "samples", "parts", "changed", "names")]
    for summary in summaries:
        changed = f"+{summary.added}" if summary.added else ""
        changed += f" -{summary.removed}" if summary.removed else ""
        counts = (summary.number, summary.sources, summary.samples, summary.parts)
        rows.append((*(f"{count:,}" for count in counts), changed.strip(), ", ".join(summary.tags)))
    for line in aligned(rows):
        say(line)


_COMPACT_EXAMPLES = """\b
Examples:
  unistore compact train.zarr one.zarr
  unistore compact train.zarr one.zarr --version paper-v1 --order name
  unistore compact train.zarr val.zarr --split val
  unistore compact train.zarr good.zarr --where episode.length=50:
"""


def _parse_conditions(
    context: click.Context, option: click.Parameter, texts: tuple[str, ...]
) -> dict[str, Any] | None:
    """Read ``"episode.length=50:"``."""
    conditions: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            msg = f"{text!r} is not of the form NAME=VALUE"
            raise click.BadParameter(msg, context, option)
        try:
            ends = [float(end) if end else None for end in value.split(":")]
        except ValueError:
            conditions[name] = value
            continue
        conditions[name] = ends[0] if len(ends) == 1 else tuple(ends)
    return conditions or None


@click.command(epilog=_COMPACT_EXAMPLES, short_help="Make one plain store of a version.")
@click.argument("store", metavar="STORE", type=click.Path())
@click.argument("destination", metavar="DST", type=click.Path())
@version_option
@click.option(
    "--order",
    type=click.Choice(["version", "name"]),
    default="version",
    show_default=True,
    help="name: sources as one conversion of all of them has them.",
)
@click.option("--split", metavar="NAME", help="The sources of this split alone.")
@click.option(
    "--where",
    multiple=True,
    callback=_parse_conditions,
    metavar="NAME=VALUE",
    help="The sources whose samples fulfil this: a number, a range LOW:HIGH, or a pattern.",
)
@click.option("--codec", help="As of convert; that of STORE by default.")
@click.option("--overwrite", is_flag=True, help="Replace a finished store, once the new one is sealed.")
@click.option("--restart", is_flag=True, help="Discard an unfinished one instead of resuming it.")
@click.option("--workers", type=click.IntRange(min=0), default=0, help="Worker processes; 0: this process.")
@click.option("--memory", metavar="SIZE", help="Memory limit of all processes together: 4GB.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def compact(store: str, destination: str, as_json: bool, **options: Any) -> None:
    """Make one plain store DST of a version of STORE, without what the version leaves out.

    The same command continues after a kill. STORE stays as it is.
    """
    from unistore import compact

    with progress_bar() as bar:
        report = compact(store, destination, progress=bar, **options)
    if as_json:
        say_json(asdict(report))
    else:
        say_done(f"sealed {destination}: {count_of(report.samples, 'sample')}, {size(report.stored_bytes)}")
