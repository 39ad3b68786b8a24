"""``unistore inspect``: what is at a path, and what to do with it."""

from __future__ import annotations

import click

from unistore.cli.blocks import show
from unistore.cli.output import say_json

__all__ = ["command"]

DAMAGED, BAD_INPUT = 1, 2

EXAMPLES = """\b
Examples:
  unistore inspect train.zarr    a store: what it holds, code to load it
  unistore inspect recordings/   sources: what is wrong, what converts them
  unistore inspect train.zarr --json
"""


@click.command("inspect", epilog=EXAMPLES, short_help="Say what a path is, what is wrong, what to do next.")
@click.argument("path", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(path: str, as_json: bool) -> int:
    """Say what PATH is: a store, an unfinished conversion, source files, or something else.

    Exits with 0; with 1 where a store's seal is broken; with 2 where sources have problems or nothing
    known is there.
    """
    from unistore.report.inspection import inspect

    found = inspect(path)
    if as_json:
        say_json(found.to_json(), indent=1)
    else:
        show(found.blocks)
    if found.is_good:
        return 0
    return DAMAGED if found.kind == "store" else BAD_INPUT
