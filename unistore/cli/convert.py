"""``unistore convert``: one subcommand per family; without one, the family is detected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click

from unistore.cli.families import DetectCommand, FamilyGroup
from unistore.cli.options import add_common_options
from unistore.cli.output import progress_bar, say, say_done, say_json

COMMON = (
    *("codec", "split", "split_by", "on_error"),
    *("overwrite", "restart", "work", "workers", "scheduler", "memory"),
)
"""Options of every conversion that are not passed to the converter."""
SAME = "the same options, and sources of the same names and sizes, not changed since (values were not read)"
SKIPPED = 3
"""Exit code of a conversion that left something out because of problems."""

EXAMPLES = """\b
Examples:
  unistore convert recordings/ train.zarr            the family is detected
  unistore convert recordings/ train.zarr --dry-run  what would be written
  unistore convert FAMILY --help                     what a family takes
"""


def _convert(family: str | None, **given: Any) -> int:
    """Run or preview one conversion and print the result; returns the exit code."""
    from unistore.cli.conversion_text import preview_text, report_text
    from unistore.conversion.convert import convert as run
    from unistore.conversion.convert import detect_family, make_converter, source_paths

    sources, destination = given.pop("sources"), given.pop("destination")
    as_json, dry_run = given.pop("as_json"), given.pop("dry_run")
    common = {name: given.pop(name) for name in COMMON}
    paths = source_paths([*sources, *given.pop("follow_links_to", ())])
    if family is None:
        found = detect_family(paths)
        family = found.family
        say_done(f"{family.replace('_', ' ')} ({found.layout}): {found.reason}", err=True)
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
    if _is_up_to_date(family, paths, destination, common, given):
        if as_json:
            say_json({"destination": destination, "up_to_date": True})
        else:
            say_done(f"{destination}: up to date: {SAME}")
        return 0
    with progress_bar() as bar:
        report = run(paths, destination, family, progress=bar, **common, **given)
    if as_json:
        say_json(asdict(report))
    else:
        say_done(report_text(report))
    return SKIPPED if report.skipped else 0


def _is_up_to_date(
    family: str, paths: Any, destination: str, common: Mapping[str, Any], options: Mapping[str, Any]
) -> bool:
    """Whether this very command made the store that stands there; what is wrong is told by the conversion."""
    from unistore.conversion.convert import make_converter
    from unistore.conversion.finished import is_up_to_date
    from unistore.conversion.splits import parse_shares
    from unistore.errors import UnistoreError

    if common["overwrite"] or common["restart"]:
        return False
    try:
        shares = None if common["split"] is None else parse_shares(common["split"], common["split_by"])
        converter = make_converter(family, options)
        return is_up_to_date(converter, paths, destination, codec=common["codec"], shares=shares)
    except (UnistoreError, OSError):
        return False


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

    DST is a folder, or a URL in a bucket: s3://bucket/name.zarr, gs://…, az://….

    The same command resumes an interrupted conversion. DST appears once it is complete.

    \b
    Every family takes --dry-run, --codec, --split, --split-by, --overwrite,
    --restart, --work, --workers, --scheduler, --memory, --on-error, --exclude
    and --json.
    """  # noqa: D301  an escape that keeps click from wrapping


@convert.command("detect", cls=DetectCommand, hidden=True)
@add_common_options
def detect(**given: Any) -> int:
    """Detect the family of SRC... and convert it with default options."""
    return _convert(None, **given)
