"""Commands for side tables: attach."""

from __future__ import annotations

import click

from unistore.cli.output import say_done, say_json

_ATTACH_EXAMPLES = """\b
Examples:
  unistore attach clouds.zarr prediction prediction.npy
  unistore attach clouds.zarr weight weight.npy --table segments
  unistore attach clouds.zarr prediction better.npy --overwrite
"""


@click.command(epilog=_ATTACH_EXAMPLES, short_help="Put a column of yours beside a sealed store.")
@click.argument("store", metavar="STORE", type=click.Path())
@click.argument("name", metavar="NAME")
@click.argument("file", metavar="FILE.npy", type=click.Path())
@click.option("--table", metavar="TABLE", help="Table whose rows FILE.npy has; the main table.")
@click.option("--overwrite", is_flag=True, help="Replace a side table of this name.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def attach(store: str, name: str, file: str, table: str | None, overwrite: bool, as_json: bool) -> None:
    """Write FILE.npy, a value for each row of a table, beside STORE as column NAME.

    No file of STORE changes: the column is a sealed side table in STORE.unistore-side, and belongs to the
    store as it is sealed now. Dataset(STORE, fields=[…, NAME]) reads it.
    """
    from unistore import attach

    side = attach(store, name, file, table, overwrite=overwrite)
    if as_json:
        say_json({"name": side.name, "table": side.table, "folder": str(side.folder), "arrays": side.paths})
        return
    say_done(f"attached {side.name} to {side.table} of {store}; no file of the store changed")
