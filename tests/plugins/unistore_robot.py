"""Robots as a package of somebody else: sensors of several rates, and a table that is computed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from unistore import plugin


@dataclass(frozen=True, kw_only=True)
class Robot(plugin.Family):
    """Robots: HDF5 with a camera, and a force sensor that is faster."""

    least: float = plugin.option(2.0, "Force of a touch.", metavar="N", least=0.0)

    name = "robot"
    summary = "Robots: HDF5 with camera/{t, image} and force/{t, value}."
    formats = ("hdf5",)
    schema = plugin.Schema(
        table="frames",
        columns={
            "t": plugin.Column(kinds="i", unit="ns", description="when", source="camera/t"),
            "image": plugin.Column(
                kinds="u", axes=("row", "column"), description="gray", source="camera/image"
            ),
        },
        tables={
            "forces": {
                "t": plugin.Column(kinds="i", unit="ns", description="when", source="force/t"),
                "value": plugin.Column(kinds="f", axes=("direction",), unit="N", source="force/value"),
            },
            "touches": {
                "t": plugin.Column(dtype="int64", unit="ns", description="when a touch begins"),
                "count": plugin.Column(dtype="int32", description="readings of the touch"),
            },
        },
    )

    def derive(self, opened: plugin.OpenFile) -> Iterator[tuple[str, Mapping[str, np.ndarray]]]:
        times = opened.arrays["force/t"]
        touched = [
            np.linalg.norm(rows, axis=1) > self.least for _, rows in opened.arrays["force/value"].blocks()
        ]
        edges = np.diff(np.concatenate([[False], *touched, [False]]).astype(int))
        begins, ends = np.flatnonzero(edges > 0), np.flatnonzero(edges < 0)
        yield "touches", {"t": times[0 : len(times)][begins], "count": (ends - begins).astype("i4")}
