"""Draw the picture of the README: real files as they lie, and a sample of each store made of them.

Run by ``make pictures``; writes ``docs/images/overview.png``.
"""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

import unistore

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"
PICTURE = ROOT / "docs" / "images" / "overview.png"
BEFORE = {
    "point clouds, HDF5": """thin_a.h5
├ data/
│ ├ x  y  z
│ └ classification …
└ segments/
  └ segment_0000/indices""",
    "CT volume, .npy": """totalseg_a_hu.npy

  int16, 32 × 56 × 64
  Fortran order
  no window, no index""",
    "spike camera, .dat": """reds_frames_140_162.dat

  287,500 bytes
  no header
  8 pixels a byte
  bottom row first""",
    "robot episodes, HDF5": """lift_panda_demo.hdf5
└ data/
  └ demo_1/
    ├ actions   412 × 7
    └ states    412 × 32""",
}


def main() -> None:
    """Convert, read and draw."""
    figure = Figure(figsize=(10, 3.9), dpi=100, layout="constrained")
    panels = figure.subplots(2, 4, height_ratios=(1, 1.6))
    for axes, (title, tree) in zip(panels[0], BEFORE.items(), strict=True):
        axes.set_axis_off()
        axes.set_title(title, fontsize=10, loc="left", fontweight="bold")
        axes.text(0, 0.97, tree, family="monospace", fontsize=8, va="top", transform=axes.transAxes)
    with tempfile.TemporaryDirectory() as folder:
        for axes, draw in zip(panels[1], (clouds, volumes, spikes, robots), strict=True):
            axes.set_title(draw(axes, Path(folder) / f"{draw.__name__}.zarr"), fontsize=9, loc="left")
            axes.set_xticks([])
            axes.set_yticks([])
    figure.text(0.5, 0.66, "unistore convert  ↓", ha="center", fontsize=10, family="monospace", color="C0")
    drawn = io.BytesIO()
    figure.savefig(drawn)
    PICTURE.parent.mkdir(exist_ok=True)
    Image.open(drawn).convert("RGB").quantize(128).save(PICTURE, optimize=True)
    print(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size / 1000:.0f} kB")


def clouds(axes: Axes, store: Path) -> str:
    """All segments of one file, a colour each."""
    unistore.convert(DATA / "pointcloud" / "thin_a.h5", store, "point_cloud")
    batch = loaded(store, unistore.Segments(coordinates="absolute"), 12)
    xyz, offsets = batch["xyz"].numpy(), batch["offsets"].numpy()
    segment = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    axes.scatter(xyz[:, 1], xyz[:, 0], s=3, c=segment, cmap="tab20", linewidths=0)
    axes.set_aspect("equal")
    return f"Segments(): 12 a batch\nxyz {shape(xyz)}, offsets {shape(offsets)}"


def volumes(axes: Axes, store: Path) -> str:
    """A slice, and the voxels of a window, 550 to 850."""
    unistore.convert(DATA / "ct" / "totalseg_a_hu.npy", store, "ct", window=("dense:300:700",))
    image = loaded(store, unistore.Volumes(), 1)["image"].numpy()
    sparse = loaded(store, unistore.SparsePoints(window="dense"), 1)
    coords, height = sparse["coords"].numpy(), 28
    axes.imshow(image[0, :, height], cmap="gray", vmin=-100, vmax=900)
    plane = coords[coords[:, 1] == height]
    axes.scatter(plane[:, 2], plane[:, 0], s=4, color="C1", alpha=0.6, linewidths=0)
    return f'SparsePoints(window="dense")\ncoords {shape(coords)}, values {shape(sparse["values"])}'


def spikes(axes: Axes, store: Path) -> str:
    """Spikes of all frames, summed."""
    unistore.convert(DATA / "spike" / "reds_frames_140_162.dat", store, "spike", voxel_bins=(5,))
    dataset = unistore.Dataset(store, unistore.Clips(length=1, crop=None), fields=["voxel"])
    voxel = dataset[0]["voxel"].numpy()
    axes.imshow(voxel[0].sum(axis=0), cmap="gray")
    return f"Clips(length=1, crop=None)\nvoxel {shape(voxel)} {voxel.dtype}"


def robots(axes: Axes, store: Path) -> str:
    """Some of the states of the first windows."""
    unistore.convert(DATA / "trajectory" / "robosuite100_lift_panda_demo.hdf5", store, "trajectory")
    batch = loaded(store, unistore.Windows(history=2, horizon=16, pad="edge"), 256)
    axes.plot(batch["states"][:, 0, 1:10].numpy(), linewidth=1)
    return f"Windows(history=2, horizon=16)\nstates {shape(batch['states'])}"


def loaded(store: Path, samples: Any, size: int) -> Any:
    """The first batch."""
    dataset = unistore.Dataset(store, samples)
    with unistore.Loader(dataset, size, shuffle=False, num_workers=0) as loader:
        return next(iter(loader))


def shape(values: Any) -> str:
    """``"(12, 3)"``."""
    return str(tuple(values.shape))


if __name__ == "__main__":
    main()
