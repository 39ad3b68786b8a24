"""Options of robot trajectories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Literal

from unistore.errors import AddOptions, InputError, Problem
from unistore.plugin import Columns, Options, option

Colour = Literal["standard", "swapped"]
TimeUnit = Literal["s", "ms", "us", "ns"]


@dataclass(frozen=True, kw_only=True)
class TrajectoryOptions(Options):
    """Options of robot trajectories, for `unistore.convert` and for the command line.

    ``unistore convert trajectory --help`` describes each of them.

    Examples
    --------
    >>> unistore.convert("demos/", "demos.zarr", columns="union", image_size=96)  # doctest: +SKIP
    """

    image_size: int | None = option(None, "Also store every camera resized to N × N.", metavar="N", least=1)
    images: Literal["raw", "keep", "resized"] = option(
        "raw",
        "How to store compressed frames. raw decodes them, keep stores them bit for bit and decodes when you "
        "read, resized stores only the size of --image-size.",
    )
    video: Literal["frames", "keep"] = option(
        "frames",
        "How to store video. frames decodes it, keep stores its packets bit for bit and decodes when "
        "you read.",
        late=True,
    )
    colour: Colour = option(
        "standard", "Colour order of compressed frames. swapped is for recorders that encoded RGB as BGR."
    )
    map: Mapping[str, str] = option({}, metavar="NAME=DATASET")
    ignore: tuple[str, ...] = option(
        (),
        "Leave out datasets whose names match PATTERN, unless --map names them. Example: 'obs/depth_*'.",
        metavar="PATTERN",
    )
    columns: Columns = option("exact")
    rate: Mapping[str, str] = option(
        {},
        "Rows per second of a dataset, group or clock. Example: --rate obs/force=500.",
        metavar="NAME=HZ",
        late=True,
    )
    time_unit: TimeUnit | None = option(
        None, "Unit of all timestamps, if the files do not state it or state it wrongly.", late=True
    )
    keep_stats: bool = option(
        False, "Keep the text of LeRobot's meta/stats.json, in sources/attributes.", late=True
    )
    stamps: Literal["header", "log"] = option(
        "header",
        "Which times of the messages in a bag to read. header is the time in the message, log the "
        "time at which "
        "it was recorded.",
        late=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.images == "resized" and self.image_size is None:
            fix = AddOptions(("--image-size", "224"), "or another size")
            raise InputError.at("--images", "resized needs the size of the images", fix, "option")
        if self.images == "resized" and self.video == "keep":
            message = "cannot be used with --images resized, which stores only resized images"
            raise InputError.at("--video keep", message, "remove one of them", "option")
        wrong = [name for name, rate in self.rate.items() if not _is_rate(rate)]
        if wrong:
            name = wrong[0]
            message = f"is {self.rate[name]!r}, but must be a number of rows per second"
            example = f"for example --rate {name}=30"
            raise InputError(Problem(f"--rate {name}", message, example, "option"))

    @property
    def rates(self) -> Mapping[str, float]:
        """The option `rate` as numbers: rows per second, by name of the clock."""
        return {name.strip("/"): float(rate) for name, rate in self.rate.items()}


def _is_rate(text: str) -> bool:
    try:
        return 0 < float(text) < inf
    except ValueError:
        return False
