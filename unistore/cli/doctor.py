"""``unistore doctor``: what this machine lets a Loader do."""

from __future__ import annotations

import click

from unistore.cli.blocks import show
from unistore.cli.output import say_json

__all__ = ["command"]

EXAMPLES = """\b
Examples:
  unistore doctor              cores, memory, limits, a Loader to start from
  unistore doctor train.zarr   of a store too: place, page cache, speed
  unistore doctor train.zarr --json
"""


@click.command("doctor", epilog=EXAMPLES, short_help="Look at this machine and a store; recommend a Loader.")
@click.argument("store", type=click.Path(), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(store: str | None, as_json: bool) -> None:
    """Look at this machine, and at STORE from it; recommend a Loader, with reasons.

    Cores, memory, shared memory and their limits; of a store also where it lies, whether it fits into the
    page cache, and how fast it reads (about two seconds of short random reads).
    """
    from unistore import doctor

    found = doctor(store)
    if as_json:
        say_json(found.to_json(), indent=1)
    else:
        show(found.blocks)
