"""Event cameras as a package of somebody else: a family of ragged samples over HDF5."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from unistore import plugin

BLOCK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Events(plugin.Family):
    """Recordings of event cameras, cut into windows of time."""

    window: int = plugin.option(50_000, "Microseconds of a window.", metavar="US", least=1)

    name = "dvs"
    summary = "Event cameras: HDF5 with dvs/{x, y, t, p}."
    formats = ("hdf5",)
    schema = plugin.Schema(
        table="events",
        columns={
            "x": plugin.Column(kinds="u", unit="px", description="column", source="dvs/x"),
            "y": plugin.Column(kinds="u", unit="px", description="row", source="dvs/y"),
            "t": plugin.Column(kinds="iu", unit="us", description="time since t_offset", source="dvs/t"),
            "p": plugin.Column(kinds="bu", description="polarity", source="dvs/p"),
        },
        samples="windows",
        per_sample={"start": plugin.Column(kinds="i", unit="us", description="when the window begins")},
        per_source={"t_offset": plugin.Column(kinds="i", unit="us", description="added to t: its clock")},
    )

    def cut(self, opened: plugin.OpenFile) -> Iterator[plugin.Cut]:
        times = opened.arrays["dvs/t"]
        counts = np.zeros(0, np.int64)
        first = last = int(times[0:1].sum())
        for lo in range(0, len(times), BLOCK):
            block = times[lo : lo + BLOCK].astype(np.int64)
            if (np.diff(block, prepend=last) < 0).any():
                raise plugin.InputError(plugin.Problem("dvs/t", "falls", "sort the events by time", "order"))
            last = int(block[-1])
            here = np.bincount((block - first) // self.window)
            counts = np.pad(counts, (0, max(0, len(here) - len(counts))))
            counts[: len(here)] += here
        for number, count in enumerate(counts.tolist()):
            yield plugin.Cut(count, {"start": first + number * self.window})

    def typical_rows(self, head: plugin.FileSummary) -> int:
        return 20_000

    def view(self, sample: Mapping[str, np.ndarray], detail: plugin.ViewLimits) -> plugin.View:
        height = int(sample["y"].max(initial=0)) + 1
        width = int(sample["x"].max(initial=0)) + 1
        image = np.zeros((height, width))
        np.add.at(image, (sample["y"].astype(int), sample["x"].astype(int)), 2.0 * sample["p"] - 1)
        return super().view({"balance of polarities": image[None]}, detail)
