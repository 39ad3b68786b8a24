"""Commands of caches: stores that were made of source files, copies of stores from a bucket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from unistore.cli.help import HelpCommand, HelpGroup, HelpOption
from unistore.cli.output import (
    json_option,
    progress_bar,
    say,
    say_done,
    say_json,
    store_argument,
    version_option,
)
from unistore.errors import first_few
from unistore.system.sizes import count_of, parse_bytes, size

if TYPE_CHECKING:
    from unistore.growing.cached_stores import CachedStore

_SHOWN_SOURCES = 4


@click.group(cls=HelpGroup, short_help="Manage stores made of source files, and copies of stores.")
def cache() -> None:
    """Manage the stores that Dataset(FILES) made, and the folder that Dataset(cache_dir=…) reads from.

    The stores of source files are in the folder $UNISTORE_CACHE/stores, by default ~/.cache/unistore/stores.
    """


_WARM_EXAMPLES = (
    "unistore cache warm s3://bucket/train.zarr /local/cache",
    "unistore cache warm s3://bucket/train.zarr /local/cache --split train",
)


@cache.command(cls=HelpCommand, examples=_WARM_EXAMPLES, short_help="Copy a store to a local folder.")
@store_argument
@click.argument("cache_dir", metavar="DIR", type=click.Path(file_okay=False))
@click.option("--split", metavar="NAME", help="Copy only shards with samples of this split.")
@version_option
@click.option(
    "--limit",
    "cache_limit",
    metavar="SIZE",
    default="20GB",
    show_default=True,
    help="Size of the cache: the oldest shards are removed above it. Same as Dataset(cache_limit=…).",
)
@json_option
def warm(store: str, cache_dir: str, as_json: bool, **options: Any) -> None:
    """Copy STORE from a bucket to the folder DIR, so that Dataset(STORE, cache_dir=DIR) downloads nothing.

    Files are copied many at once, and each is verified.
    """
    from unistore.store.warming import warm_cache

    with progress_bar() as bar:
        report = warm_cache(store, cache_dir, progress=bar, **options)
    if as_json:
        say_json(asdict(report))
    else:
        say_done(f"{cache_dir}: {count_of(report.files, 'file')}, {size(report.bytes)} of {report.store}")


_LIST_EXAMPLES = ("unistore cache list", "unistore cache list --json")


@cache.command(
    "list",
    cls=HelpCommand,
    examples=_LIST_EXAMPLES,
    short_help="List the stores that were made of source files.",
)
@json_option
def list_stores(as_json: bool) -> None:
    """List the stores that Dataset(FILES) made, the last opened first.

    Of each, the name, the number of segments, frames, episodes or rows, the size on disk, when it was last
    opened, and the sources are printed.
    """
    from unistore.growing.cached_stores import cache_folder, cached_stores

    stores = cached_stores()
    if as_json:
        say_json({"folder": str(cache_folder()), "stores": list(map(_to_json, stores))})
        return
    for store in stores:
        say(f"{store.name}: {', '.join(_facts(store))}")
        say(f"    {first_few(store.sources, _SHOWN_SOURCES) or 'sources are not recorded'}")
    _say_left(stores)


def _facts(store: CachedStore) -> list[str]:
    from unistore.report.values import sample_noun

    opened = datetime.fromtimestamp(store.opened, UTC).astimezone()
    facts = [] if store.samples is None else [count_of(store.samples, sample_noun(store.sample_table))]
    facts += [size(store.bytes), f"opened {opened:%Y-%m-%d %H:%M}"]
    if store.state != "finished":
        facts.append(store.state)
    if store.in_use:
        facts.append(f"in use by {store.in_use}")
    if store.pinned:
        facts.append("pinned")
    return facts


def _to_json(store: CachedStore) -> dict[str, Any]:
    opened = datetime.fromtimestamp(store.opened, UTC)
    return {**asdict(store), "opened": opened.isoformat(timespec="seconds")}


def _say_left(stores: Sequence[CachedStore]) -> None:
    from unistore.growing.cached_stores import cache_folder

    total = size(sum(store.bytes for store in stores))
    say_done(
        f"{cache_folder()}: {count_of(len(stores), 'store')}, {total}"
        if stores
        else f"{cache_folder()}: no stores"
    )


_REMOVE_EXAMPLES = (
    "unistore cache remove recordings-0123456789abcdef-1.zarr",
    "unistore cache remove --older-than 30  not opened for 30 days",
    "unistore cache remove --limit 200GB  until the rest fits",
)


@cache.command(
    "remove", cls=HelpCommand, examples=_REMOVE_EXAMPLES, short_help="Remove stores from the cache."
)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option(
    "--older-than",
    cls=HelpOption,
    type=click.FloatRange(0),
    metavar="DAYS",
    help="Remove the stores that were not opened for this many days.",
)
@click.option(
    "--limit",
    metavar="SIZE",
    help="Remove the stores that were not opened for the longest time, until the rest fits.",
)
@json_option
def remove_cached(names: tuple[str, ...], older_than: float | None, limit: str | None, as_json: bool) -> None:
    """Remove the stores NAME from the cache, with their added columns and unfinished conversions.

    A store that is pinned, or that a process is converting, is never removed. A program that has a store
    open may fail once it is removed. The next Dataset of its files converts them again.
    """
    from unistore.growing.cached_stores import cached_stores, remove_least_recent, remove_stores

    has_options = older_than is not None or limit is not None
    if bool(names) == has_options:
        raise click.UsageError("give names of stores, or --older-than DAYS, --limit SIZE, or both")
    most = None if limit is None else parse_bytes(limit, "--limit")
    removed = remove_stores(names) if names else remove_least_recent(older_than=older_than, limit=most)
    left = cached_stores()
    above = 0 if most is None else max(0, sum(store.bytes for store in left) - most)
    if as_json:
        stores = {"removed": list(map(_to_json, removed)), "left": list(map(_to_json, left))}
        say_json({**stores, "above_limit": above})
        return
    for store in removed:
        say_done(f"{store.name}: removed, {size(store.bytes)}")
    _say_left(left)
    if above:
        say_done(f"{size(above)} above --limit: the stores that are left are pinned, or a process uses them")


_PIN_EXAMPLES = (
    "unistore cache pin recordings-0123456789abcdef-1.zarr",
    "unistore cache pin recordings-0123456789abcdef-1.zarr --unpin",
)


@cache.command(cls=HelpCommand, examples=_PIN_EXAMPLES, short_help="Keep stores from being removed.")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--unpin", is_flag=True, help="Allow the stores to be removed again.")
@json_option
def pin(names: tuple[str, ...], unpin: bool, as_json: bool) -> None:
    """Keep the stores NAME in the cache until you unpin them. `unistore cache remove` keeps pinned stores."""
    from unistore.growing.cached_stores import pin_stores

    stores = pin_stores(names, pinned=not unpin)
    word = "unpinned" if unpin else "pinned"
    if as_json:
        say_json({word: [store.name for store in stores]})
        return
    for store in stores:
        say_done(f"{store.name}: {word}")
