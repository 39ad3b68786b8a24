"""``unistore convert``: one subcommand a family, and none at all to detect it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from unistore.cli.examples import CT, POINT_CLOUD, ROWS, SPIKE, TRAJECTORY
from unistore.cli.families import Conversion, Detection, FamilyGroup
from unistore.cli.options import conversion
from unistore.cli.output import say, say_json

__all__ = ["convert"]

COMMON = (
    "codec",
    "split",
    "overwrite",
    "restart",
    "work",
    "workers",
    "scheduler",
    "memory",
    "on_error",
)
"""Options of every conversion that are no converter's."""
SKIPPED = 3
"""Exit code of a conversion that left something out because of its problems."""

EXAMPLES = """\b
Examples:
  unistore convert clouds/ clouds.zarr
  unistore convert point-cloud a.h5 b.h5 clouds.zarr --voxel-size 0.5
  unistore convert ct volumes/ ct.zarr --window lung --window mine:400:50
  unistore convert clouds/ clouds.zarr --dry-run
  unistore convert spike --help          what a family takes, with examples
"""


@click.group(
    cls=FamilyGroup,
    epilog=EXAMPLES,
    options_metavar="",
    subcommand_metavar="[FAMILY] SRC... DST [OPTIONS]",
    short_help="Convert source files into one sealed store.",
)
def convert() -> None:
    """Convert files into one sealed store: SRC... DST, the family detected or named.

    DST is a folder, or a place in a bucket: s3://bucket/name.zarr, gs://…, az://….

    An interrupted conversion is continued by the same command. Nothing appears at DST before it is whole.
    Every family takes --dry-run, --codec, --split, --overwrite, --restart, --work, --workers, --scheduler,
    --memory, --on-error, --exclude, --json.
    """


@convert.command("detect", cls=Detection, hidden=True)
@conversion
def detect(**given: Any) -> int:
    """Detect the family of SRC... and convert it with default options."""
    return _convert(None, given)


_COLUMNS = click.option(
    "--columns",
    type=click.Choice(["exact", "union", "intersection"]),
    default="exact",
    show_default=True,
    help="What to do with fields that only some files have: refuse, fill, leave out.",
)
_MAP = click.option(
    "--map",
    multiple=True,
    metavar="NAME=DATASET",
    callback=lambda _, __, pairs: _mapping(pairs),
    help="Where a field is, if its own name does not tell: x=cloud/East (several allowed).",
)


@convert.command(cls=Conversion, short_help="Plain arrays: HDF5, .npy, .npz.", epilog=ROWS)
@_COLUMNS
@_MAP
@conversion
def rows(**given: Any) -> int:
    """Plain arrays: HDF5, .npy or .npz files whose arrays share axis 0."""
    return _convert("rows", given)


@convert.command(
    "point-cloud",
    cls=Conversion,
    short_help="Point clouds in HDF5: PointSuite, PointNet family, others.",
    epilog=POINT_CLOUD,
)
@click.option(
    "--voxel-size", type=float, multiple=True, help="Precompute a voxel grid of this size (several allowed)."
)
@click.option("--segment", metavar="window:SIZE", help="Cut clouds without segments into XY windows.")
@click.option("--min-points", type=int, default=1, help="Windows with fewer points are no segments.")
@click.option("--max-points", type=int, help="Windows with more points are halved until none has more.")
@_COLUMNS
@_MAP
@conversion
def point_cloud(**given: Any) -> int:
    """Point clouds in HDF5: PointSuite, PointNet family, columns in any group."""
    return _convert("point_cloud", given)


@convert.command(cls=Conversion, short_help="CT volumes: folders of .npy, case folders.", epilog=CT)
@click.option(
    "--window",
    "windows",
    multiple=True,
    metavar="NAME[:WIDTH:LEVEL]",
    help="HU window to store: lung, bone, soft_tissue, brain, mediastinum, or name:width:level "
    "(several allowed).",
)
@click.option(
    "--sparse",
    type=click.Choice(["auto", "coords", "mask"]),
    default="auto",
    show_default=True,
    help="How a window's voxels are stored: coordinates, packed mask, or whichever is smaller.",
)
@click.option(
    "--resolution", type=int, metavar="N", help="Which ct_original_N.npy to take where a case has several."
)
@conversion
def ct(**given: Any) -> int:
    """CT volumes: folders of .npy, or case folders with windows and sparse indices."""
    return _convert("ct", given)


@convert.command(
    cls=Conversion, short_help="Spike cameras: sequences, .dat streams, .npy, .npz.", epilog=SPIKE
)
@click.option("--height", type=int, help="Rows of a .dat frame in pixels.")
@click.option("--width", type=int, help="Columns of a .dat frame in pixels.")
@click.option(
    "--layout",
    type=click.Choice(["auto", "packed", "bytes"]),
    default="auto",
    show_default=True,
    help="Eight pixels a byte, or one; auto decides from bytes and sizes, once, and says why.",
)
@click.option(
    "--flip/--no-flip", default=True, show_default=True, help="Whether .dat holds its bottom row first."
)
@click.option(
    "--voxels",
    metavar="B[,B...]",
    default="",
    callback=lambda _, __, text: _numbers("--voxels", text),
    help="Precompute voxel grids with these numbers of bins: 5,10.",
)
@click.option(
    "--frames",
    type=click.Choice(["tiles", "keep"]),
    default="tiles",
    show_default=True,
    help="Blur and sharp frames as lossless tiles (a crop reads a crop), or the files' own bytes.",
)
@click.option("--convert-images", is_flag=True, help="Accept gray, 16-bit and transparent frames.")
@click.option(
    "--columns",
    type=click.Choice(["exact", "intersection"]),
    default="exact",
    show_default=True,
    help="What to do with folders that only some sequences have: refuse, leave out.",
)
@click.option("--spike-dir", default="spike", show_default=True, help="Folder of a sequence's spikes.")
@click.option("--voxel-dir", default="spike_vox", show_default=True, help="Folder of voxels that exist.")
@click.option("--blur-dir", default="blur", show_default=True, help="Folder of blurred frames.")
@click.option("--sharp-dir", default="sharp", show_default=True, help="Folder of sharp frames.")
@conversion
def spike(**given: Any) -> int:
    """Spike cameras: <root>/{train,test}/<sequence>/{blur,sharp,spike}, .dat streams, .npy and .npz."""
    return _convert("spike", given)


@convert.command(
    cls=Conversion, short_help="Robot trajectories in HDF5: robomimic, ACT, D4RL, flat.", epilog=TRAJECTORY
)
@click.option("--image-size", type=int, metavar="N", help="Store a copy of every camera resized to N × N.")
@click.option(
    "--images",
    type=click.Choice(["raw", "keep"]),
    default="raw",
    show_default=True,
    help="Decode compressed frames, or keep them bit for bit and decode on read.",
)
@click.option(
    "--colour",
    type=click.Choice(["standard", "swapped"]),
    default="standard",
    show_default=True,
    help="swapped: the recorder encoded RGB as if it were BGR.",
)
@click.option("--ignore", multiple=True, metavar="PATTERN", help="Leave datasets out: 'obs/depth_*'.")
@_COLUMNS
@_MAP
@conversion
def trajectory(**given: Any) -> int:
    """Robot trajectories in HDF5: robomimic, LIBERO, MimicGen, robosuite, ACT/ALOHA, D4RL, flat."""
    return _convert("trajectory", given)


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        msg = f"{option} {text}: expected whole numbers separated by commas"
        raise click.UsageError(msg) from error


def _mapping(pairs: tuple[str, ...]) -> dict[str, str]:
    wrong = [pair for pair in pairs if "=" not in pair]
    if wrong:
        msg = f"--map {wrong[0]}: expected NAME=DATASET"
        raise click.UsageError(msg)
    return dict(pair.split("=", 1) for pair in pairs)


def _convert(modality: str | None, given: dict[str, Any]) -> int:
    """Run or preview one conversion and print what came of it; returns the exit code."""
    from unistore.cli.conversion_text import preview_text, report_text
    from unistore.cli.progress import Bar
    from unistore.conversion.convert import convert as run
    from unistore.conversion.convert import detect_modality, make_converter, source_paths

    sources, destination = given.pop("sources"), given.pop("destination")
    as_json, dry_run = given.pop("as_json"), given.pop("dry_run")
    common = {name: given.pop(name) for name in COMMON}
    paths = source_paths(sources)
    if modality is None:
        found = detect_modality(paths)
        modality = found.modality
        say(f"{modality.replace('_', ' ')} ({found.layout}): {found.reason}", err=True)
    if dry_run:
        from unistore.conversion.preview import preview
        from unistore.conversion.splits import parse_shares
        from unistore.system.sizes import parse_bytes

        shares = None if common["split"] is None else parse_shares(common["split"])
        limit = None if common["memory"] is None else parse_bytes(common["memory"], "--memory")
        shown = preview(
            make_converter(modality, given),
            paths,
            codec=common["codec"],
            shares=shares,
            on_error=common["on_error"],
            workers=common["workers"] if common["scheduler"] is None else None,
            memory=limit,
        )
        if as_json:
            say_json(shown.to_json(), indent=1)
        else:
            say(preview_text(shown, destination, common["memory"]))
        return SKIPPED if shown.scan.options.get("skipped") else 0
    with Bar() as bar:
        report = run(paths, destination, modality, progress=bar, **common, **given)
    if as_json:
        say_json(asdict(report))
    else:
        say(report_text(report))
    return SKIPPED if report.skipped else 0
