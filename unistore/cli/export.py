"""``unistore export``: writes a store as files of its source family."""

from __future__ import annotations

from dataclasses import asdict

import click

from unistore.cli.output import progress_bar, say, say_done, say_json
from unistore.system.sizes import count_of, size

EXAMPLES = """\b
Examples:
  unistore export train.zarr files/            the layout of the sources
  unistore export s3://bucket/a.zarr files/    from a bucket
  unistore export scans.zarr images/ --to ome-zarr
"""


@click.command("export", epilog=EXAMPLES, short_help="Write a store as files of its source family.")
@click.argument("store", metavar="STORE", type=click.Path())
@click.argument("destination", metavar="DST", type=click.Path())
@click.option(
    "--to",
    metavar="FORMAT",
    help="Another format than that of the sources; ome-zarr: each volume as an OME-NGFF 0.5 image.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def command(store: str, destination: str, to: str | None, as_json: bool) -> None:
    """Write STORE as files to DST: HDF5, .dat and PNG frames, or .npy, with the exact values of the sources.

    DST must not exist; it appears once everything is written.
    """
    from unistore import export

    with progress_bar() as bar:
        done = export(store, destination, to=to, progress=bar)
    if as_json:
        say_json(asdict(done))
        return
    for note in done.notes:
        say(note)
    say_done(
        f"exported {done.destination}: {count_of(done.files, 'file')}, {size(done.bytes)}, "
        f"from {count_of(done.sources, 'source')} ({done.family.replace('_', ' ')})"
    )
