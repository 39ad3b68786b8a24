"""``unistore inspect``: describes a store or source files, and suggests what to do next."""

from __future__ import annotations

import click

from unistore.cli.blocks import show
from unistore.cli.output import say_json

__all__ = ["command"]

DAMAGED, BAD_INPUT = 1, 2

EXAMPLES = """\b
Examples:
  unistore inspect train.zarr    a store: its content, code to load it
  unistore inspect recordings/   sources: problems, the command to convert them
  unistore inspect train.zarr --json
"""


@click.command("inspect", epilog=EXAMPLES, short_help="Describe a path, its problems, and what to do next.")
@click.argument("path", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(path: str, as_json: bool) -> int:
    """Describe PATH: a store, an unfinished conversion, source files, or something else.

    Exit codes: 0 if all is well, 1 if the seal of a store is broken, 2 if sources have problems or PATH is
    nothing known.
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
