"""Convert samples of every family, load batches by DataLoader and by Loader, write a page about each store.

Run by ``make demo``; everything it writes goes to ``demo-out/``, which is made anew: the sources, and the
stores that the guides and the training scripts open.
"""

from __future__ import annotations

import html
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from synthetic import event_recordings, plain_arrays, robot_episodes, spike_sequences
from torch.utils.data import DataLoader

import unistore

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"
OUT = ROOT / "demo-out"
UNISTORE = Path(sys.executable).with_name("unistore")
INDEX = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>unistore: the demo</title>
<style>body {{ font: 16px/1.6 system-ui; max-width: 46em; margin: 2em auto; padding: 0 1em }}</style>
<h1>Stores of the demo</h1>
<ul>
{}
</ul>
</html>
"""


@dataclass(frozen=True)
class Conversion:
    """One conversion in the folder of the demo: sources, options of the command, and the samples to load."""

    name: str
    about: str
    family: str
    sources: str
    options: Sequence[str] = ()
    samples: Any = None

    @property
    def words(self) -> list[str]:
        """Arguments of ``unistore``."""
        return ["convert", self.family, self.sources, f"{self.name}.zarr", *self.options]


REAL = {
    "clouds": ["pointcloud/thin_a.h5", "pointcloud/thin_b.h5"],
    "volumes": ["ct/totalseg_a_hu.npy", "ct/totalseg_b_hu.npy"],
    "stream": ["spike/reds_frames_140_162.dat"],
    "demos": ["trajectory/robosuite100_lift_panda_demo.hdf5"],
    "returns": ["rows/autzen_returns.h5"],
    "bags": ["mcap/robot.mcap"],
}
"""Files of tests/data by folder."""
CONVERSIONS = [
    Conversion(
        "clouds",
        "REAL airborne lidar (PDAL test data)",
        "point-cloud",
        "clouds/",
        ["--voxel-size", "20"],
        unistore.Segments(voxel=20),
    ),
    Conversion(
        "more-clouds",
        "one of these files again, to be joined with the others",
        "point-cloud",
        "clouds/thin_b.h5",
        ["--voxel-size", "20"],
    ),
    Conversion(
        "volumes",
        "REAL computed tomography (crops of a TotalSegmentator test volume)",
        "ct",
        "volumes/",
        ["--window", "lung", "--window", "bone"],
        unistore.SparsePoints(window="bone", max_points=5000),
    ),
    Conversion(
        "stream",
        "REAL spike-camera stream (Spike-Zoo, scene from REDS)",
        "spike",
        "stream/",
        ["--voxel-bins", "5"],
        unistore.Clips(length=1, crop=128),
    ),
    Conversion(
        "recordings",
        "SYNTHETIC spike sequences with blurred and sharp frames",
        "spike",
        "recordings/",
        ["--height", "96", "--width", "160", "--voxel-bins", "5"],
        unistore.Clips(length=3, crop=64),
    ),
    Conversion(
        "flights",
        "SYNTHETIC recordings of an event camera",
        "events",
        "flights/",
        ["--sensor", "64", "48"],
        unistore.Events("10ms", voxel=5),
    ),
    Conversion(
        "demos",
        "REAL human teleoperation in simulation (robosuite)",
        "trajectory",
        "demos/",
        samples=unistore.Windows(history=2, horizon=8, pad="edge"),
    ),
    Conversion(
        "episodes",
        "SYNTHETIC episodes with three cameras",
        "trajectory",
        "episodes/",
        samples=unistore.Transitions(),
    ),
    Conversion("returns", "REAL plain arrays (PDAL test data)", "rows", "returns/"),
    Conversion(
        "arrays",
        "SYNTHETIC plain arrays",
        "rows",
        "arrays/",
        ["--split", "train=0.5,val=0.5", "--split-by", "row"],
    ),
]
"""What the demo shows, in order; the guides open these stores."""


def lay_out(folder: Path) -> None:
    """Put the sources of all conversions into a folder."""
    for name, files in REAL.items():
        (folder / name).mkdir(parents=True)
        for file in files:
            shutil.copy(DATA / file, folder / name)
    spike_sequences(folder / "recordings")
    event_recordings(folder / "flights")
    (folder / "episodes").mkdir()
    robot_episodes(folder / "episodes" / "run.hdf5")
    plain_arrays(folder / "arrays")


def convert(conversion: Conversion) -> None:
    """Show the command, run it, and say what it wrote."""
    print("$ unistore " + " ".join(conversion.words), flush=True)
    command = [str(UNISTORE), *conversion.words, "--json"]
    done = subprocess.run(command, cwd=OUT, capture_output=True, check=False)
    if done.returncode:
        sys.exit(done.stdout.decode() + done.stderr.decode())
    report = json.loads(done.stdout)
    kilobytes = [report[name] / 1000 for name in ("source_bytes", "stored_bytes")]
    print(
        "  samples: {:,}, {:,.0f} kB of sources → {:,.0f} kB".format(report["samples"], *kilobytes),
        flush=True,
    )


def load(conversion: Conversion, store: Path) -> None:
    """Load all batches by torch's DataLoader with 0 and 2 workers and by Loader; compare them."""
    dataset = unistore.Dataset(store, samples=conversion.samples)
    size = min(4, len(dataset))
    with unistore.Loader(dataset, size, shuffle=False, num_workers=2) as loader:
        ways = {
            "DataLoader": DataLoader(dataset, size, collate_fn=unistore.collate),
            "DataLoader with workers": DataLoader(dataset, size, num_workers=2, collate_fn=unistore.collate),
            "Loader": loader,
        }
        first, *others = [list(batches) for batches in ways.values()]
    for other in others:
        for batch, same in zip(first, other, strict=True):
            differ = [key for key, value in tensors(batch).items() if not torch.equal(value, same[key])]
            if differ:
                sys.exit(f"{store}: {', '.join(differ)} differs between loaders")
    shapes = [f"{key} {tuple(value.shape)}" for key, value in tensors(first[0]).items() if key != "index"]
    print(f"  batches: {len(first)}, equal from {', '.join(ways)}: {', '.join(shapes[:3])}, …", flush=True)


def tensors(batch: dict[str, Any]) -> dict[str, torch.Tensor]:
    """What of a batch is no text."""
    return {key: value for key, value in batch.items() if isinstance(value, torch.Tensor)}


def main() -> None:
    """Run the demo."""
    shutil.rmtree(OUT, ignore_errors=True)
    lay_out(OUT)
    items = []
    for conversion in CONVERSIONS:
        store = OUT / f"{conversion.name}.zarr"
        print(f"\n{conversion.name}: {conversion.about}", flush=True)
        convert(conversion)
        load(conversion, store)
        page = store.with_suffix(".html")
        page.write_text(unistore.inspect(store).to_html(), encoding="utf-8")
        link = f'<a href="{page.name}">{conversion.name}</a>'
        items.append(f"<li>{link}: {html.escape(conversion.about)}</li>")
    index = OUT / "index.html"
    index.write_text(INDEX.format("\n".join(items)), encoding="utf-8")
    print(f"\nEvery example of the guides runs in {OUT.name}/. Open in a browser: {index.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
