"""``unistore doctor``: recommends Loader settings for this machine."""

from __future__ import annotations

import click

from unistore.cli.blocks import show
from unistore.cli.output import say_json

__all__ = ["command"]

EXAMPLES = """\b
Examples:
  unistore doctor              cores, memory, limits, a Loader to start with
  unistore doctor train.zarr   also of a store: location, page cache, speed
  unistore doctor train.zarr --json
"""


@click.command("doctor", epilog=EXAMPLES, short_help="Check this machine and a store; recommend a Loader.")
@click.argument("store", type=click.Path(), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(store: str | None, as_json: bool) -> None:
    """Check this machine, and STORE from it; recommend a Loader, with reasons.

    Shows cores, memory, shared memory and their limits; of a store also its location, whether it fits into
    the page cache, and how fast it is read (about two seconds of short random reads).
    """
    from unistore import doctor

    found = doctor(store)
    if as_json:
        say_json(found.to_json(), indent=1)
    else:
        show(found.blocks)
