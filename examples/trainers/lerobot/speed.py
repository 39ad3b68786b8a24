"""Items a second from LeRobot's videos and from stores, in turns, and the disk of each.

python speed.py             a dataset that it makes: 6 episodes of 120 frames, two videos of 240 x 320
python speed.py FOLDER      a LeRobot dataset of version 3
"""

import random
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import unistore_lerobot
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from synthetic import write
from to_store import to_store

ROUNDS = 7
ITEMS = 48  # of a round
BATCH = 8


def size_of(*folders: Path) -> float:
    """Return the sizes of all files in folders together, in MB."""
    files = [path for folder in folders for path in folder.rglob("*")]
    return sum(path.stat().st_size for path in files if path.is_file()) / 1e6


def compare(own: Path, folder: Path) -> None:
    """Print items a second of each way, its ratio to LeRobot's default in the same round, and its disk.

    An item is a frame of each camera and 16 actions, as ACT draws them: in any order, in batches.
    """
    torch.set_num_threads(1)
    kept, frames = folder / "kept", folder / "frames"
    to_store(own, kept, video="keep", images="keep")
    to_store(own, frames, video="frames", images="raw")
    unistore_lerobot.register()
    ways = {
        "LeRobot, torchcodec": (own, "torchcodec"),
        "LeRobot, pyav": (own, "pyav"),
        "unistore, --video keep": (kept, "pyav"),
        "unistore, frames": (frames, "pyav"),
    }
    datasets, rates, costs = {}, {}, {}
    for name, (root, decoder) in ways.items():
        fps = LeRobotDataset("local/speed", root=root, video_backend=decoder).fps
        around = {"action": [step / fps for step in range(16)]}
        options = {"delta_timestamps": around, "return_uint8": True}
        datasets[name] = LeRobotDataset("local/speed", root=root, video_backend=decoder, **options)
        rates[name], costs[name] = [], []
    for number in range(ROUNDS + 1):
        for name, dataset in datasets.items():
            order = random.Random(number).sample(range(len(dataset)), ITEMS)
            begin, begin_cpu = time.perf_counter(), time.process_time()
            for start in range(0, ITEMS, BATCH):
                batch = order[start : start + BATCH]
                items = [dataset[item] for item in batch]
                torch.utils.data.default_collate(items)
            if number:  # the first round fills caches
                rates[name].append(ITEMS / (time.perf_counter() - begin))
                costs[name].append((time.process_time() - begin_cpu) / ITEMS * 1000)
    base = next(iter(rates.values()))
    for name, measured in rates.items():
        ratios = [rate / reference for rate, reference in zip(measured, base, strict=True)]
        root = ways[name][0]
        disk = size_of(root / "unistore.zarr") if root != own else size_of(own / "data", own / "videos")
        print(
            f"{name}: {statistics.median(measured):.0f} items/s, "
            f"{statistics.median(ratios):.2f} of the first ({min(ratios):.2f}…{max(ratios):.2f}), "
            f"{statistics.median(costs[name]):.1f} ms of processor time an item, {disk:.2f} MB"
        )


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        if len(sys.argv) > 1:
            source = Path(sys.argv[1]).resolve()
        else:
            source = Path(temporary, "own")
            write(source, (120,) * 6, (240, 320), ("video", "video"))
        compare(source, Path(temporary))
