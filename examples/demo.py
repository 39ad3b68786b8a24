"""Convert samples of every family, load batches by DataLoader and by Loader, write a page about each store.

Run by ``make demo``; everything it writes goes to ``demo-out/``, which is made anew.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from synthetic import robot_episodes, spike_sequences
from torch.utils.data import DataLoader

import unistore

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"
OUT = ROOT / "demo-out"
UNISTORE = Path(sys.executable).with_name("unistore")


@dataclass(frozen=True)
class Conversion:
    """One conversion: its sources, the command's options, and the samples to load."""

    name: str
    about: str
    family: str
    sources: Sequence[Path]
    options: Sequence[str] = ()
    samples: Any = None


def conversions() -> list[Conversion]:
    """What the demo shows, in order."""
    return [
        Conversion(
            "clouds",
            "REAL airborne lidar (PDAL test data)",
            "point-cloud",
            [DATA / "pointcloud" / "thin_a.h5", DATA / "pointcloud" / "thin_b.h5"],
            ["--voxel-size", "50"],
            unistore.Segments(voxel=50),
        ),
        Conversion(
            "ct",
            "REAL computed tomography (crops of a TotalSegmentator test volume)",
            "ct",
            [DATA / "ct"],
            ["--window", "lung", "--window", "bone"],
            unistore.SparsePoints(window="bone", max_points=5000),
        ),
        Conversion(
            "spike",
            "REAL spike-camera stream (Spike-Zoo, scene from REDS)",
            "spike",
            [DATA / "spike" / "reds_frames_140_162.dat"],
            ["--voxel-bins", "5"],
            unistore.Clips(length=1, crop=128),
        ),
        Conversion(
            "spike-sequences",
            "SYNTHETIC spike sequences with blurred and sharp frames",
            "spike",
            [spike_sequences(OUT / "sources" / "spike")],
            ["--height", "96", "--width", "160", "--voxel-bins", "4"],
            unistore.Clips(length=3, crop=64),
        ),
        Conversion(
            "robot",
            "REAL human teleoperation in simulation (robosuite)",
            "trajectory",
            [DATA / "trajectory" / "robosuite100_lift_panda_demo.hdf5"],
            samples=unistore.Windows(history=2, horizon=8, pad="edge"),
        ),
        Conversion(
            "robot-cameras",
            "SYNTHETIC episodes with three cameras",
            "trajectory",
            [robot_episodes(OUT / "sources" / "episodes.hdf5")],
            samples=unistore.Transitions(),
        ),
        Conversion(
            "rows",
            "REAL plain arrays (PDAL test data)",
            "rows",
            [DATA / "rows" / "autzen_returns.h5"],
        ),
    ]


def convert(conversion: Conversion, store: Path) -> None:
    """Show the command, run it, and say what it wrote."""
    words = ["convert", conversion.family, *map(str, conversion.sources), str(store), *conversion.options]
    print("$ unistore " + " ".join(word.removeprefix(f"{ROOT}/") for word in words), flush=True)
    done = subprocess.run([str(UNISTORE), *words, "--json"], cwd=ROOT, capture_output=True, check=False)
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
    (OUT / "sources").mkdir(parents=True)
    pages = []
    for conversion in conversions():
        store = OUT / f"{conversion.name}.zarr"
        print(f"\n{conversion.name}: {conversion.about}", flush=True)
        convert(conversion, store)
        load(conversion, store)
        pages.append(store.with_suffix(".html"))
        pages[-1].write_text(unistore.inspect(store).to_html(), encoding="utf-8")
    print("\nPages with pictures of samples, to open in a browser:")
    print("\n".join(f"  {page.relative_to(ROOT)}" for page in pages))


if __name__ == "__main__":
    main()
