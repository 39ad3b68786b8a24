"""``unistore doctor``: what this machine lets a Loader do."""

from __future__ import annotations

import json

import click

__all__ = ["command"]

EXAMPLES = """\b
Examples:
  unistore doctor                     cores, limits, memory, and a Loader to start from
  unistore doctor train.zarr          the same for a store: file system, page cache, chunks
  unistore doctor train.zarr --json   the same for programs
"""


@click.command("doctor", epilog=EXAMPLES)
@click.argument("store", type=click.Path(), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(store: str | None, as_json: bool) -> int:
    """Look at this machine, and at STORE from it; recommend a Loader."""
    from unistore.doctor import check_up

    found = check_up(store)
    click.echo(json.dumps(found.to_json(), indent=1) if as_json else str(found))
    return 0
