"""Commands for existing stores: versions, added columns, leftovers, samples of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click

from unistore.cli.convert_options import click_option
from unistore.cli.help import HelpCommand
from unistore.cli.output import (
    json_option,
    progress_bar,
    say,
    say_done,
    say_json,
    store_argument,
    version_option,
    workers_option,
)
from unistore.converters.options import declared
from unistore.converters.registry import families
from unistore.system.sizes import count_of, size

# Commands for stores that grow: ``remove``, ``versions``, ``compact``.

_REMOVE_EXAMPLES = (
    "unistore remove train.zarr bad_run.h5  leave out one source",
    "unistore remove train.zarr 'lab_a/*' 'lab_b/07*'",
)


@click.command(
    cls=HelpCommand, examples=_REMOVE_EXAMPLES, short_help="Write a version of a store without some sources."
)
@store_argument
@click.argument("patterns", metavar="PATTERN...", nargs=-1, required=True)
@json_option
def remove(store: str, patterns: tuple[str, ...], as_json: bool) -> None:
    """Write a new version of STORE without the sources whose names match PATTERN.

    Older versions keep these sources. Their bytes stay on disk until you compact the store.
    """
    from unistore import remove

    removed = remove(store, patterns)
    if as_json:
        say_json(asdict(removed))
        return
    left = count_of(removed.samples, "sample")
    gone = count_of(len(removed.sources), "source")
    say_done(f"{removed.store}: removed {gone} in version {removed.version}, which has {left}")


_VERSIONS_EXAMPLES = (
    "unistore versions train.zarr  list all, with their changes",
    "unistore versions train.zarr --tag paper-v1  name the newest",
    "unistore versions train.zarr --tag paper-v1 --version 3",
)


@click.command(
    cls=HelpCommand, examples=_VERSIONS_EXAMPLES, short_help="List the versions of a store, or name one."
)
@store_argument
@click.option(
    "--tag", metavar="NAME", help="Name a version for good. Dataset(STORE, version=NAME) then reads it."
)
@click.option(
    "--version",
    type=click.IntRange(1),
    metavar="N",
    help="With --tag: version to name.  [default: the newest]",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list with one object per version.")
def versions(store: str, tag: str | None, version: int | None, as_json: bool) -> None:
    """List the versions of STORE with their sources, samples and changes."""
    from unistore import versions
    from unistore.report.text import aligned

    if version is not None and tag is None:
        raise click.UsageError("--version needs --tag NAME")
    summaries = versions(store, tag=tag, version=version)
    if as_json:
        say_json([asdict(summary) for summary in summaries], indent=1)
        return
    rows: list[tuple[str, ...]] = [("version", "sources", "samples", "parts", "changed", "names")]
    for summary in summaries:
        changed = f"+{summary.added}" if summary.added else ""
        changed += f" -{summary.removed}" if summary.removed else ""
        counts = (summary.number, summary.sources, summary.samples, summary.parts)
        rows.append((*(f"{count:,}" for count in counts), changed.strip(), ", ".join(summary.tags)))
    for line in aligned(rows):
        say(line)


_COMPACT_EXAMPLES = (
    "unistore compact train.zarr one.zarr  merge all versions into one store",
    "unistore compact train.zarr one.zarr --version paper-v1 --order name",
    "unistore compact train.zarr val.zarr --split val",
    "unistore compact mine.zarr yours.zarr both.zarr --columns union",
    "unistore compact train.zarr good.zarr --where episode.length=50:",
)


def _parse_conditions(
    context: click.Context, option: click.Parameter, texts: tuple[str, ...]
) -> dict[str, Any] | None:
    """Read ``"episode.length=50:"``."""
    conditions: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            msg = f"{text!r} is not of the form NAME=VALUE"
            raise click.BadParameter(msg, context, option)
        try:
            ends = [float(end) if end else None for end in value.split(":")]
        except ValueError:
            conditions[name] = value
            continue
        conditions[name] = ends[0] if len(ends) == 1 else tuple(ends)
    return conditions or None


@click.command(
    cls=HelpCommand,
    examples=_COMPACT_EXAMPLES,
    short_help="Write one single store from a version or several stores.",
)
@click.argument("stores", metavar="STORE...", nargs=-1, required=True, type=click.Path())
@click.argument("destination", metavar="DST", type=click.Path())
@version_option
@click.option(
    "--order",
    type=click.Choice(["version", "name"]),
    default="version",
    show_default=True,
    help="Order of the sources. version keeps the order in which they were added; name sorts them as one "
    "conversion of all would.",
)
@click.option(
    "--columns",
    type=click.Choice(["exact", "union"]),
    help="What to do with columns that only some sources have. exact is an error, union fills in "
    "values.  [default: as STORE was converted]",
)
@click.option("--split", metavar="NAME", help="Take only the sources of this split.")
@click.option(
    "--where",
    multiple=True,
    callback=_parse_conditions,
    metavar="NAME=VALUE",
    help="Take only sources whose samples match. VALUE is a number, a range LOW:HIGH, or a pattern. "
    "Repeat for several.",
)
@click.option(
    "--codec",
    metavar="CODEC",
    help="Compression of the arrays, as in convert.  [default: the codec of STORE]",
)
@click.option("--overwrite", is_flag=True, help="Replace a finished store once the new one is sealed.")
@click.option("--restart", is_flag=True, help="Discard an unfinished store and begin again.")
@workers_option
@click.option("--memory", metavar="SIZE", help="Limit the memory of all processes together, for example 4GB.")
@json_option
def compact(stores: tuple[str, ...], destination: str, as_json: bool, **options: Any) -> None:
    """Write one single store DST from a version of STORE, or from several stores.

    Sources that the version no longer has are not copied. STORE does not change. If the command is
    interrupted, the same command continues it.
    """
    from unistore import compact

    with progress_bar() as bar:
        report = compact(stores, destination, progress=bar, **options)
    if as_json:
        say_json(asdict(report))
    else:
        say_done(f"sealed {destination}: {count_of(report.samples, 'sample')}, {size(report.stored_bytes)}")


_CLEAN_EXAMPLES = (
    "unistore clean stores/  list unfinished conversions in a folder",
    "unistore clean stores/ --remove  remove those that no process works on",
    "unistore clean s3://bucket/train.zarr --remove",
)


@click.command(
    cls=HelpCommand,
    examples=_CLEAN_EXAMPLES,
    short_help="List or remove the files of unfinished conversions.",
)
@click.argument("path", type=click.Path())
@click.option("--remove", is_flag=True, help="Remove them. In a bucket, PATH must be the destination itself.")
@json_option
def clean(path: str, remove: bool, as_json: bool) -> None:
    """List unfinished conversions in PATH and its folders: files, objects and abandoned locks.

    Finished stores are never touched.
    """
    from unistore.conversion.clean import clean

    leftovers = clean(path, remove=remove)
    if as_json:
        say_json({"leftovers": [asdict(leftover) for leftover in leftovers]})
        return
    for leftover in leftovers:
        state = "removed" if leftover.removed else leftover.kept or "add --remove to remove it"
        say(f"{leftover.path}: {count_of(leftover.files, 'file')}, {size(leftover.bytes)}: {state}")
    if not leftovers:
        say_done(f"{path}: no unfinished conversion")


# Commands for side tables: attach, derive.

_ATTACH_EXAMPLES = (
    "unistore attach clouds.zarr prediction prediction.npy  one value per row",
    "unistore attach clouds.zarr weight weight.npy --table segments",
    "unistore attach clouds.zarr prediction better.npy --overwrite",
)


@click.command(
    cls=HelpCommand, examples=_ATTACH_EXAMPLES, short_help="Add your own column to a sealed store."
)
@store_argument
@click.argument("name", metavar="NAME")
@click.argument("file", metavar="FILE.npy", type=click.Path())
@click.option("--table", metavar="TABLE", help="Table whose rows FILE.npy has.  [default: the main table]")
@click.option("--overwrite", is_flag=True, help="Replace an added column of this name.")
@json_option
def attach(store: str, name: str, file: str, as_json: bool, **options: Any) -> None:
    """Add FILE.npy to STORE as column NAME. FILE.npy has one value for each row of a table.

    No file of STORE changes. The column is stored and sealed in the folder STORE.unistore-side, and
    belongs to the store as it is sealed now. Dataset(STORE, fields=[…, NAME]) reads it.
    """
    from unistore import attach

    side = attach(store, name, file, **options)
    if as_json:
        say_json({"name": side.name, "table": side.table, "folder": str(side.folder), "arrays": side.paths})
        return
    say_done(f"attached {side.name} to {side.table} of {store}; no file of the store changed")


_DERIVE_EXAMPLES = (
    "unistore derive points.zarr --voxel-size 0.2  add a voxel grid",
    "unistore derive volumes.zarr --window lung --window mine:400:50",
)


def _add_no_value(**_: Any) -> None:
    """Hold the options that are read of the families."""


def _options_from_stores() -> Iterator[click.Parameter]:
    for family in families().values():
        options = declared(family) if family.derives else ()
        for option in options:
            if option.name in (*family.derives, *family.derive_options):
                command = click.command()(click_option(option)(_add_no_value))
                yield command.params[0]


class DeriveCommand(HelpCommand):
    """Has the options of all families that say what can be precomputed from a store."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*_options_from_stores(), *super().get_params(ctx)]


@click.command(
    cls=DeriveCommand,
    examples=_DERIVE_EXAMPLES,
    short_help="Add precomputed voxels or CT windows to a store.",
)
@store_argument
@click.option("--overwrite", is_flag=True, help="Compute again what the store already has.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON list.")
def derive(store: str, overwrite: bool, as_json: bool, **options: Any) -> None:
    """Precompute voxels or CT windows from the values in STORE. The sources are not read.

    The result equals the arrays that a conversion with these options would write. No file of STORE changes:
    the arrays are stored and sealed in the folder STORE.unistore-side. Every Dataset of the store reads them.
    """
    from unistore import derive

    chosen = {name: value for name, value in options.items() if value}
    with progress_bar() as bar:
        sides = derive(store, overwrite=overwrite, progress=bar, **chosen)
    if as_json:
        say_json([{"name": side.name, "folder": str(side.folder), "arrays": side.paths} for side in sides])
        return
    for side in sides:
        say_done(f"derived {', '.join(side.paths)} of {store}; no file of the store changed")


# The command ``replay``.

_EXAMPLES = (
    "unistore replay train.zarr state.json  print the epoch up to that state",
    "unistore replay train.zarr state.json --epoch 0",
    "unistore replay train.zarr state.json --batch 17 --batch-size 64",
    'unistore replay train.zarr state.json --split train --samples "Patches(96)"',
)


@click.command(
    cls=HelpCommand, examples=_EXAMPLES, short_help="Print the samples that a training run was given."
)
@store_argument
@click.argument("state", metavar="STATE.json", type=click.Path())
@click.option(
    "--epoch", type=click.IntRange(0), metavar="E", help="Epoch to print.  [default: the epoch of the state]"
)
@click.option(
    "--batch", type=click.IntRange(0), metavar="B", help="Print only this batch. The first one is 0."
)
@click.option(
    "--batch-size",
    type=click.IntRange(1),
    metavar="N",
    help="With --batch: samples of a batch, over all ranks.",
)
@click.option("--samples", metavar="KIND", help="Sample kind of the run, as in Python.")
@click.option("--split", multiple=True, metavar="NAME", help="Split that the run read. Repeat for several.")
@click.option(
    "--seed", type=int, metavar="N", default=0, show_default=True, help="Seed of the Dataset of the run."
)
@json_option
def replay(store: str, state: str, as_json: bool, split: tuple[str, ...], **options: Any) -> None:
    """Print position, sample and source of each sample that a run was given before it saved STATE.json.

    Write STATE.json by json.dump(loader.state_dict(), file). If the Loader has weights, a subset or a
    sampler, call unistore.replay(loader, state) in Python.
    """
    from unistore import replay

    seen = replay(store, state, split=split or None, **options)
    if as_json:
        say_json(seen.to_json())
        return
    lines = zip(seen.index.tolist(), seen.sources.tolist(), strict=True)
    for position, (sample, source) in enumerate(lines, seen.first):
        say(f"{position} {sample} {source}")
