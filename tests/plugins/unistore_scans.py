"""Scans as a package of somebody else: volumes of any extent, with masks, by a schema alone."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from unistore import plugin

AXES = ("depth", "height", "width")


class Scan(plugin.Format):
    """``SCAN``, three lengths, then densities (int16) and a mask (uint8)."""

    name = "scan"
    suffixes = (".scan",)

    def recognise(self, file: plugin.SourceFile) -> plugin.Claim:
        if file.head(4) == b"SCAN":
            return plugin.sure("begins with SCAN")
        raise file.wrong_beginning("with SCAN")

    @contextmanager
    def open(self, file: plugin.SourceFile) -> Iterator[plugin.OpenFile]:
        extent = tuple(np.frombuffer(file.head(16)[4:].ljust(12, b"\0"), "<u4").tolist())
        count = int(np.prod(extent))
        if not count or file.size != 16 + 3 * count:
            raise file.problem(f"has {file.size:,} bytes, but its header states {extent}", "copy it again")
        density = np.memmap(file.path, "<i2", "r", 16, (1, *extent))
        mask = np.memmap(file.path, "u1", "r", 16 + 2 * count, (1, *extent))
        yield plugin.OpenFile({"density": plugin.Array(density), "mask": plugin.Array(mask)})

    def write(self, path: Path, arrays: Mapping[str, plugin.Array], metadata: Mapping[str, object]) -> None:
        values = [array[0:1] for array in (arrays["density"], arrays["mask"])]
        head = b"SCAN" + np.array(values[0].shape[1:], "<u4").tobytes()
        path.write_bytes(head + values[0].astype("<i2").tobytes() + values[1].tobytes())


@dataclass(frozen=True, kw_only=True)
class Scans(plugin.Family):
    """Scans with a mask each."""

    name = "scans"
    summary = "Scans: .scan."
    formats = (Scan,)
    schema = plugin.Schema(
        table="scans",
        columns={
            "density": plugin.Column(kinds="i", axes=AXES, unit="kg/m3", spatial=True),
            "mask": plugin.Column(kinds="u", axes=AXES, spatial=True),
        },
    )
