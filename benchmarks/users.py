"""Memory of the replay buffer, hits of the Loader's cache, and disk of resized cameras.

    python benchmarks/users.py [--quick] [--work FOLDER]

Memory is what a fresh process has beyond that after ``import torch``, at most (Linux: VmHWM, reset after the
import). All data are synthetic.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np

MB = 1_000_000
CAMERAS = ("left_image", "right_image", "global_image")
BATCH, SIDE = 256, 224


def robot(path: Path, steps: int, side: int | None) -> Path:
    """A flat file of episodes of 500 steps; `side`: of the images of three cameras, None: none."""
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        file["observations/joint"] = rng.standard_normal((steps, 16), np.float32)
        file["actions"] = rng.standard_normal((steps, 4), np.float32)
        file["rewards"] = rng.random(steps, np.float32)
        file["terminals"] = (np.arange(steps) % 500 == 499).astype(np.float32)
        if side is not None:
            small = rng.integers(0, 255, (64, 30, 40, 3), np.uint8)
            scenes = np.stack([cv2.resize(each, (side * 4 // 3, side)) for each in small])
            for camera in CAMERAS:
                images = file.create_dataset(f"observations/{camera}", (steps, *scenes.shape[1:]), np.uint8)
                for lo in range(0, steps, len(scenes)):
                    images[lo : lo + len(scenes)] = scenes[: steps - lo]
    return path


def status(name: str) -> int:
    """A line of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


def replay(store: str, image_size: int | None = None, prefetch: int = 1) -> dict[str, int]:
    """Transitions of a buffer, bytes of a batch, and most bytes beyond those after ``import torch``."""
    import torch  # noqa: F401

    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    import unistore

    output: Any = "dict" if image_size is None else "tuple"
    with unistore.ReplayBuffer(store, output=output, image_size=image_size, prefetch=prefetch) as buffer:
        for _ in range(6):
            batch = buffer.sample(BATCH)  # the one before is held meanwhile
        size = sum(each.nbytes for each in (batch.values() if isinstance(batch, dict) else batch))
    return {"transitions": len(buffer), "batch": size, "peak": status("VmHWM") - before}


def alone(*arguments: str) -> dict[str, int]:
    """`replay` in a fresh process."""
    command = [sys.executable, __file__, "--replay", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def volumes(folder: Path, count: int, side: int) -> Path:
    """CT volumes, a tenth of which lies inside the window ``lung``."""
    rng = np.random.default_rng(1)
    folder.mkdir()
    for number in range(count):
        noise = cv2.GaussianBlur(rng.normal(0, 1, (side * side, side)).astype(np.float32), (0, 0), 3)
        volume = np.where(noise > np.quantile(noise, 0.9), -600, 1000).reshape(side, side, side)
        np.save(folder / f"ct_{number}.npy", volume.astype(np.int16))
    return folder


def disk(path: Path) -> int:
    """Bytes of all files."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def hits(dataset: Any, cache: str, epochs: int = 3) -> str:
    """Share of chunks found in the cache, epoch by epoch."""
    import unistore
    from unistore.zarr3.cache import CHUNKS

    found = []
    with unistore.Loader(dataset, 2, shuffle="full", num_workers=2, cache=cache) as loader:
        for _ in range(epochs):
            CHUNKS.renew()
            before = loader.stats()
            for _ in loader:
                pass
            now = loader.stats()
            hit, miss = (now[each] - before[each] for each in ("cache_hits", "cache_misses"))
            found.append(hit / max(1, hit + miss))
    return ", ".join(f"{share:.0%}" for share in found)


def main() -> None:
    """Print a table of the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the data")
    parser.add_argument("--work", type=Path, help="where sources and stores are made")
    parser.add_argument("--replay", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.replay:
        store, *numbers = given.replay
        print(json.dumps(replay(store, *map(int, numbers))))
        return
    import unistore

    scale = 10 if given.quick else 1
    with tempfile.TemporaryDirectory(prefix="unistore-users-", dir=given.work) as name:
        folder = Path(name)
        scalars = robot(folder / "scalars.hdf5", 2_000_000 // scale, None)
        unistore.convert(scalars, folder / "scalars.zarr", "trajectory")
        found = alone(str(folder / "scalars.zarr"))
        print(f"scalars of {found['transitions']:,} transitions: {found['peak'] / MB:.0f} MB at most")
        cameras = robot(folder / "cameras.hdf5", 500 // scale, 480)
        print(f"cameras of 480 × 640: source {cameras.stat().st_size / MB:.0f} MB")
        for images in ("raw", "resized"):
            store = folder / f"{images}.zarr"
            unistore.convert(cameras, store, "trajectory", image_size=SIDE, images=images)
            print(f"--images {images} --image-size {SIDE}: {disk(store) / MB:.0f} MB")
        print(f"sampling {BATCH} × {len(CAMERAS)} cameras × {SIDE}², current and next:")
        for prefetch in (0, 2):
            found = alone(str(folder / "resized.zarr"), str(SIDE), str(prefetch))
            peak = found["peak"]  # one batch is held, and one filled
            rest = (peak - 2 * found["batch"]) / MB
            told = f"2 batches of {found['batch'] / MB:.0f} MB and {rest:.0f}"
            print(f"  prefetch={prefetch}: {peak / MB:.0f} MB at most: {told}")
        unistore.convert(volumes(folder / "ct", 40 // scale, 128), folder / "ct.zarr", "ct", window=("lung",))
        samples = {
            "SparsePoints(max_points=2000)": unistore.SparsePoints("lung", max_points=2000),
            "Patches(64)": unistore.Patches(64),
        }
        for what, kind in samples.items():
            dataset = unistore.Dataset(folder / "ct.zarr", kind)
            for cache in ("all", "40MB"):
                print(f"{what}, cache={cache}, hits by epoch: {hits(dataset, cache)}")


if __name__ == "__main__":
    main()
