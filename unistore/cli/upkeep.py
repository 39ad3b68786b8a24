"""Commands for what lies around stores: ``unistore clean`` and ``unistore cache warm``."""

from __future__ import annotations

from dataclasses import asdict

import click

from unistore.cli.output import progress_bar, say, say_done, say_json, version_option
from unistore.system.sizes import count_of, size

_CLEAN_EXAMPLES = """\b
Examples:
  unistore clean stores/             unfinished conversions below a folder
  unistore clean stores/ --remove    remove those that are not at work
  unistore clean s3://bucket/train.zarr --remove
"""


@click.command(epilog=_CLEAN_EXAMPLES, short_help="List and remove what unfinished conversions left.")
@click.argument("path", type=click.Path())
@click.option("--remove", is_flag=True, help="Remove them. In a bucket, name the destination itself.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def clean(path: str, remove: bool, as_json: bool) -> None:
    """List unfinished conversions to PATH and below it: folders, objects, abandoned locks.

    Finished stores are never touched.
    """
    from unistore.conversion.clean import clean

    leftovers = clean(path, remove=remove)
    if as_json:
        say_json({"leftovers": [asdict(leftover) for leftover in leftovers]})
        return
    for leftover in leftovers:
        state = "removed" if leftover.removed else leftover.kept or "--remove removes it"
        say(f"{leftover.path}: {count_of(leftover.files, 'file')}, {size(leftover.bytes)}: {state}")
    if not leftovers:
        say_done(f"{path}: no unfinished conversion")


_WARM_EXAMPLES = """\b
Examples:
  unistore cache warm s3://bucket/train.zarr /local/cache
  unistore cache warm s3://bucket/train.zarr /local/cache --split train
"""


@click.group(short_help="Copy a store to this machine before a training begins.")
def cache() -> None:
    """Work with the folder that Dataset(cache_dir=…) reads from."""


@cache.command(epilog=_WARM_EXAMPLES, short_help="Copy the objects of a store to a folder.")
@click.argument("store", type=click.Path())
@click.argument("cache_dir", metavar="DIR", type=click.Path(file_okay=False))
@click.option("--split", metavar="NAME", help="Only shards with samples of this split.")
@version_option
@click.option("--limit", metavar="SIZE", default="20GB", show_default=True, help="As cache_limit=….")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def warm(
    store: str, cache_dir: str, split: str | None, version: str | None, limit: str, as_json: bool
) -> None:
    """Copy the objects of STORE to DIR, many at once, each verified: what Dataset(cache_dir=DIR) reads."""
    from unistore.store.warming import warm_cache

    with progress_bar() as bar:
        warmed = warm_cache(store, cache_dir, cache_limit=limit, split=split, version=version, progress=bar)
    if as_json:
        say_json(asdict(warmed))
    else:
        say_done(f"{cache_dir}: {count_of(warmed.files, 'file')}, {size(warmed.bytes)} of {warmed.store}")
