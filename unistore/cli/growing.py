"""Commands for stores that grow: ``convert --append``, ``remove``, ``versions``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from unistore.cli.output import progress_bar, say, say_done, say_json
from unistore.system.sizes import count_of

if TYPE_CHECKING:
    from unistore import Appended

# Options of a conversion that an append has, too; all others are the store's own
_OF_APPEND = (
    *("sources", "destination", "append", "replace", "check", "exclude"),
    *("restart", "workers", "scheduler", "memory", "on_error", "as_json"),
)


def append_sources(family: str | None, arguments: Mapping[str, Any]) -> int:
    """Run ``unistore convert SRC... STORE --append``."""
    from unistore import append
    from unistore.cli.convert import SKIPPED
    from unistore.store.versions import open_stores

    context = click.get_current_context()
    given = click.core.ParameterSource.COMMANDLINE
    others = [name for name in arguments if context.get_parameter_source(name) is given]
    if foreign := [f"--{name.replace('_', '-')}" for name in others if name not in _OF_APPEND]:
        msg = f"{', '.join(foreign)}: with --append, options are those of the store"
        raise click.UsageError(msg)
    store = arguments["destination"]
    own_family = open_stores(store).stores[0].family
    if family not in (None, own_family):
        msg = f"{store} is {own_family.replace('_', ' ')}; leave the family out"
        raise click.UsageError(msg)
    with progress_bar() as bar:
        appended = append(
            arguments["sources"],
            store,
            replace=arguments["replace"],
            check=arguments["check"],
            exclude=arguments["exclude"],
            restart=arguments["restart"],
            workers=arguments["workers"],
            scheduler=arguments["scheduler"],
            memory=arguments["memory"],
            on_error=arguments["on_error"],
            progress=bar,
        )
    if arguments["as_json"]:
        say_json(asdict(appended))
    else:
        say_done(_appended_text(appended))
    return SKIPPED if appended.report is not None and appended.report.skipped else 0


def _appended_text(appended: Appended) -> str:
    from unistore.cli.convert import report_text

    skipped = f"skipped, as the store has or removed them: {count_of(len(appended.skipped), 'source')}"
    lines = [f"{appended.store}: up to date: version {appended.version}"]
    if appended.report is not None:
        lines = [f"appended to {appended.store}: version {appended.version}"]
        lines += report_text(appended.report).splitlines()[1:-1]
    if appended.replaced:
        lines.append(f"  in the place of old ones: {count_of(len(appended.replaced), 'source')}")
    return "\n".join([*lines, *([f"  {skipped}"] if appended.skipped else [])])


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
