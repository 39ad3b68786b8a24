"""Commands for stores that grow: ``remove``, ``versions``."""

from __future__ import annotations

from dataclasses import asdict

import click

from unistore.cli.output import say, say_done, say_json
from unistore.system.sizes import count_of

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
