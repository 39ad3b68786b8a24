"""``unistore doctor``: recommends Loader settings for this machine."""

from __future__ import annotations

import click

from unistore.cli.output import progress_bar, say_json, show

EXAMPLES = """\b
Examples:
  unistore doctor              cores, memory, limits, a Loader to start with
  unistore doctor train.zarr   also of a store: location, page cache, speed
  unistore doctor train.zarr --measure
  unistore doctor train.zarr --measure --samples "Windows(16)"
  unistore doctor train.zarr --json
"""


@click.command("doctor", epilog=EXAMPLES, short_help="Check this machine and a store; recommend a Loader.")
@click.argument("store", type=click.Path(), required=False)
@click.option("--samples", metavar="KIND", help="Kind of samples to read, as in Python; the natural one.")
@click.option("--measure", is_flag=True, help="Try workers, batch sizes and a cache; recommend the fastest.")
@click.option("--seconds", type=float, help="With --measure: time for each setting.  [default: 2.0]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    store: str | None, samples: str | None, measure: bool, seconds: float | None, as_json: bool
) -> None:
    """Check this machine, and STORE from it; recommend a Loader, with reasons.

    Shows cores, memory, shared memory and their limits; of a store also its location, whether it fits into
    the page cache, and how fast it is read (about a second of short random reads). With --measure numbers
    of workers, batch sizes and a cache are tried for --seconds each: samples/s, what a batch is waited for
    (mean, longest, the first one), memory.
    """
    from unistore import doctor

    with progress_bar() as bar:
        checkup = doctor(store, samples=samples, measure=measure, seconds=seconds, progress=bar)
    if as_json:
        say_json(checkup.to_json(), indent=1)
    else:
        show(checkup.blocks)
