"""``unistore convert``: one subcommand a family of the registry, and none at all to detect it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from unistore.cli.families import Detection, FamilyGroup
from unistore.cli.options import conversion
from unistore.cli.output import say, say_json

__all__ = ["convert"]

COMMON = (
    "codec",
    "split",
    "split_by",
    "overwrite",
    "restart",
    "work",
    "workers",
    "scheduler",
    "memory",
    "on_error",
)
"""Options of every conversion that are no converter's."""
SKIPPED = 3
"""Exit code of a conversion that left something out because of its problems."""

EXAMPLES = """\b
Examples:
  unistore convert recordings/ train.zarr            the family is detected
  unistore convert recordings/ train.zarr --dry-run  what would be written
  unistore convert FAMILY --help                     what a family takes
"""


def _convert(family: str | None, **given: Any) -> int:
    """Run or preview one conversion and print what came of it; returns the exit code."""
    from unistore.cli.conversion_text import preview_text, report_text
    from unistore.cli.progress import Bar
    from unistore.conversion.convert import convert as run
    from unistore.conversion.convert import detect_family, make_converter, source_paths

    sources, destination = given.pop("sources"), given.pop("destination")
    as_json, dry_run = given.pop("as_json"), given.pop("dry_run")
    common = {name: given.pop(name) for name in COMMON}
    paths = source_paths([*sources, *given.pop("follow_links_to", ())])
    if family is None:
        found = detect_family(paths)
        family = found.family
        say(f"{family.replace('_', ' ')} ({found.layout}): {found.reason}", err=True)
    if dry_run:
        from unistore.conversion.preview import preview
        from unistore.conversion.splits import parse_shares
        from unistore.system.sizes import parse_bytes

        shares = None if common["split"] is None else parse_shares(common["split"], common["split_by"])
        limit = None if common["memory"] is None else parse_bytes(common["memory"], "--memory")
        shown = preview(
            make_converter(family, given),
            paths,
            codec=common["codec"],
            shares=shares,
            on_error=common["on_error"],
            workers=common["workers"] if common["scheduler"] is None else None,
            memory=limit,
        )
        if as_json:
            say_json(shown.to_json(), indent=1)
        else:
            say(preview_text(shown, destination, common["memory"]))
        return SKIPPED if shown.scan.options.get("skipped") else 0
    with Bar() as bar:
        report = run(paths, destination, family, progress=bar, **common, **given)
    if as_json:
        say_json(asdict(report))
    else:
        say(report_text(report))
    return SKIPPED if report.skipped else 0


@click.group(
    cls=FamilyGroup,
    convert=_convert,
    epilog=EXAMPLES,
    options_metavar="",
    subcommand_metavar="[FAMILY] SRC... DST [OPTIONS]",
    short_help="Convert source files into one sealed store.",
)
def convert() -> None:
    """Convert files into one sealed store: SRC... DST, the family detected or named.

    DST is a folder, or a place in a bucket: s3://bucket/name.zarr, gs://…, az://….

    An interrupted conversion is continued by the same command. Nothing appears at DST before it is whole.
    Every family takes --dry-run, --codec, --split, --split-by, --overwrite, --restart, --work, --workers,
    --scheduler, --memory, --on-error, --exclude, --json.
    """


@convert.command("detect", cls=Detection, hidden=True)
@conversion
def detect(**given: Any) -> int:
    """Detect the family of SRC... and convert it with default options."""
    return _convert(None, **given)
