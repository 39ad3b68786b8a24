"""Convert the bundled samples of every family, inspect the stores, load batches with 0 and 2 workers.

Run by ``make demo``; everything it writes goes to ``demo-out/``, which is made anew.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

import unistore

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"
OUT = ROOT / "demo-out"


@dataclass(frozen=True)
class Family:
    """One conversion of the demo: sources below tests/data, and what they are."""

    name: str
    about: str
    sources: list[str]
    modality: str
    options: dict[str, Any] = field(default_factory=dict)
    samples: Any = None


def families() -> list[Family]:
    """Conversions that the demo shows, in order."""
    return [
        Family(
            "pointcloud",
            "real airborne lidar (PDAL test data, BSD-3)",
            ["pointcloud/derived_pointsuite_thin-1.h5"],
            "point_cloud",
            {"voxel_size": (50.0,)},
        ),
    ]


def show(family: Family) -> None:
    """Convert, inspect and load one family."""
    store = OUT / f"{family.name}.zarr"
    print(f"\n=== {family.name}: {family.about}")
    began = time.perf_counter()
    report = unistore.convert(
        [DATA / source for source in family.sources], store, family.modality, **family.options
    )
    print(
        f"converted {report.sources} sources ({report.source_bytes:,} B) into {report.samples} samples, "
        f"{report.stored_bytes:,} B, in {time.perf_counter() - began:.2f} s"
    )
    print(unistore.inspect(store))
    dataset = unistore.Dataset(store, samples=family.samples)
    batches: list[dict[str, torch.Tensor]] = []
    for workers in (0, 2):
        loader = DataLoader(dataset, batch_size=2, num_workers=workers, collate_fn=unistore.collate)
        began = time.perf_counter()
        loaded = list(loader)
        print(f"DataLoader, {workers} workers: {len(loaded)} batches in {time.perf_counter() - began:.2f} s")
        batches.append(loaded[0])
    for key, value in batches[0].items():
        if isinstance(value, torch.Tensor):
            same = "equal with 0 and 2 workers" if torch.equal(value, batches[1][key]) else "DIFFERS"
            print(f"  {key}: {tuple(value.shape)} {value.dtype}, {same}")


def main() -> None:
    """Run the demo."""
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    for family in families():
        show(family)
    print(f"\nStores are in {OUT.name}/; look at one: .venv/bin/unistore inspect {OUT.name}/pointcloud.zarr")


if __name__ == "__main__":
    main()
