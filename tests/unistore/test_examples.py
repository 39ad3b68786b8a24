"""The training examples learn: each runs a few steps on a store like the demo's, and its loss falls."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch

import unistore

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def converted(name: str, folder: Path) -> Path:
    """The store that an example names, with the options of the demo."""
    sources: Path
    match name:
        case "train_pointnet":
            sources, options = DATA / "pointcloud" / "thin_a.h5", {}
        case "train_deblur":
            sources, options = folder / "recordings", {"height": 96, "width": 160, "voxel_bins": (4,)}
            example("synthetic").spike_sequences(sources)
        case "train_ct_autoencoder":
            sources, options = DATA / "ct", {"window": ("bone",)}
        case _:
            sources, options = DATA / "trajectory" / "robosuite100_lift_panda_demo.hdf5", {}
    unistore.convert(sources, folder / "train.zarr", **options)
    return folder / "train.zarr"


@pytest.mark.parametrize(
    "name", ["train_pointnet", "train_deblur", "train_ct_autoencoder", "train_behaviour_cloning"]
)
def test_the_loss_of_an_example_falls(name: str, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    try:
        losses = example(name).train(str(converted(name, tmp_path)), steps=24, workers=0)
    finally:
        torch.set_num_threads(threads)
    assert len(losses) >= 24
    assert mean(losses[-6:]) < 0.9 * mean(losses[:6])


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("train_*.py")), ids=lambda path: path.stem)
def test_an_example_is_short_and_needs_nothing_else(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) < 80
    imported = {line.split()[1] for line in lines if line.startswith(("import ", "from "))}
    assert imported <= {"__future__", "sys", "torch", "unistore"}
