"""Convert samples of every family, inspect the stores, load batches by DataLoader and by Loader.

Run by ``make demo``; everything it writes goes to ``demo-out/``, which is made anew.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
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


def run(*command: object) -> None:
    """Show a command and run it."""
    words = [str(word) for word in command]
    print("$ unistore " + " ".join(word.removeprefix(f"{ROOT}/") for word in words), flush=True)
    subprocess.run([str(UNISTORE), *words], check=True, cwd=ROOT)


def load(conversion: Conversion, store: Path) -> None:
    """Load all batches by torch's DataLoader with 0 and 2 workers and by Loader; compare the first ones."""
    dataset = unistore.Dataset(store, samples=conversion.samples)
    size = min(4, len(dataset))
    first = [
        timed("DataLoader, 0 workers", DataLoader(dataset, size, collate_fn=unistore.collate)),
        timed("DataLoader, 2 workers", DataLoader(dataset, size, num_workers=2, collate_fn=unistore.collate)),
    ]
    with unistore.Loader(dataset, size, shuffle=False, num_workers=2) as loader:
        first.append(timed("unistore.Loader, 2 workers", loader))
    for key, value in first[0].items():
        if isinstance(value, torch.Tensor):
            if not all(torch.equal(value, other[key]) for other in first[1:]):
                sys.exit(f"{store}: {key} differs between loaders")
            dtype = str(value.dtype).removeprefix("torch.")
            print(f"  {key}: {tuple(value.shape)} {dtype}, equal in all three")


def timed(name: str, batches: Iterable[Any]) -> Any:
    """Go through all batches, say how long it took, and return the first one."""
    began = time.perf_counter()
    loaded = list(batches)
    plural = "es" if len(loaded) > 1 else ""
    print(f"{name}: {len(loaded):,} batch{plural} in {time.perf_counter() - began:.2f} s")
    return loaded[0]


def main() -> None:
    """Run the demo."""
    shutil.rmtree(OUT, ignore_errors=True)
    (OUT / "sources").mkdir(parents=True)
    for conversion in conversions():
        store = OUT / f"{conversion.name}.zarr"
        print(f"\n=== {conversion.name}: {conversion.about}", flush=True)
        run("convert", conversion.family, *conversion.sources, store, *conversion.options)
        run("inspect", store)
        load(conversion, store)
    print(f"\nThe stores are in {OUT.name}/. Try: .venv/bin/unistore inspect {OUT.name}/clouds.zarr")


if __name__ == "__main__":
    main()
