"""Commands for side tables: attach, derive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from unistore.cli.convert_options import click_option
from unistore.cli.output import say_done, say_json
from unistore.converters.options import declared
from unistore.converters.registry import families

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


_DERIVE_EXAMPLES = """\b
Examples:
  unistore derive points.zarr --voxel-size 0.2
  unistore derive volumes.zarr --window lung --window mine:400:50
"""


def _add_no_value(**_: Any) -> None:
    """Hold the options that are read of the families."""


def _options_from_stores() -> Iterator[click.Parameter]:
    for family in families().values():
        options = declared(family.part("options")) if family.from_store else ()
        for option in options:
            if option.name in family.from_store:
                command = click.command()(click_option(option)(_add_no_value))
                yield command.params[0]


class DeriveCommand(click.Command):
    """Has the options of all families that can be made from a store."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return those options, then the common ones."""
        return [*_options_from_stores(), *super().get_params(ctx)]


@click.command(
    cls=DeriveCommand,
    epilog=_DERIVE_EXAMPLES,
    short_help="Precompute voxels or windows from a store, beside it.",
)
@click.argument("store", metavar="STORE", type=click.Path())
@click.option("--overwrite", is_flag=True, help="Make again what is there already.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON list.")
def derive(store: str, overwrite: bool, as_json: bool, **options: Any) -> None:
    """Make from STORE alone what a conversion with these options precomputes; its sources are not read.

    No file of STORE changes: each is a sealed side table in STORE.unistore-side, which every Dataset of the
    store reads like arrays of its own.
    """
    from unistore import derive

    sides = derive(store, overwrite=overwrite, **{name: value for name, value in options.items() if value})
    if as_json:
        say_json([{"name": side.name, "folder": str(side.folder), "arrays": side.paths} for side in sides])
        return
    for side in sides:
        say_done(f"derived {', '.join(side.paths)} of {store}; no file of the store changed")
