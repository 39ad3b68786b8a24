"""Read exported datasets by LeRobot's and robomimic's own classes, and compare them with the stores.

Run by ``make oracles`` in LeRobot's environment, with what `exports.py` wrote.

    python tools/oracles/read_exports.py build/exports > tools/oracles/read_exports.log
"""

import importlib.metadata
import sys
from pathlib import Path

import torch

# Wheels of torchvision for other builds of torch lack these; nothing here calls them.
_library = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import h5py  # noqa: E402
import numpy as np  # noqa: E402
from lerobot.datasets.lerobot_dataset import LeRobotDataset  # noqa: E402

NAMES = {"next.reward": "reward", "next.done": "terminated", "next.truncated": "truncated"}
ROBOMIMIC = {"actions": "action", "rewards": "reward", "dones": "terminated"}


def key_in_store(name: str, expected: dict) -> str | None:
    """Return the key of a feature in the store's samples, or None for what LeRobot numbers itself."""
    candidates = (NAMES.get(name, name), name.replace(".images.", "."))
    return next((key for key in candidates if key in expected), None)


def compare(what: str, values: np.ndarray, expected: np.ndarray) -> None:
    same = values.shape == expected.shape and np.array_equal(values, expected)
    if same:
        print(f"  {what}: {values.dtype} {values.shape}, equal")
        return
    apart = np.abs(values.astype(float) - expected.astype(float))
    print(
        f"  {what}: {values.dtype} {values.shape}, mean difference {apart.mean():.3g}, most {apart.max():.3g}"
    )


def read_lerobot(root: Path, expected: dict) -> None:
    dataset = LeRobotDataset("unistore/export", root=root, video_backend="torchcodec")
    print(f"{root.name}: LeRobotDataset, {dataset.num_episodes} episodes, {len(dataset)} steps")
    steps = [dataset[step] for step in range(len(dataset))]
    for name, feature in dataset.features.items():
        key = key_in_store(name, expected)
        if key is None:
            continue
        values = np.stack([np.asarray(step[name]) for step in steps])
        if feature["dtype"] in ("image", "video"):
            values = np.round(values * 255).astype(np.uint8)
        compare(name, values, expected[key])
    print(f"  tasks: {sorted({step['task'] for step in steps})}")
    windows = LeRobotDataset(
        "unistore/export", root=root, delta_timestamps={"action": [0.0, 1 / dataset.fps]}
    )
    print(f"  windows of action: {tuple(windows[0]['action'].shape)}")
    for name in ("action", "next.reward"):
        mean = dataset.meta.stats[name]["mean"]
        values = np.stack([np.asarray(step[name]) for step in steps]).astype(np.float64)
        print(f"  mean of {name}: off by {np.abs(mean - values.mean(axis=0)).max():.2g}")


def read_robomimic(path: Path, expected: dict) -> None:
    from robomimic.utils.dataset import SequenceDataset

    with h5py.File(path) as file:
        keys = sorted(file["data/demo_0/obs"])
        has_next = "next_obs" in file["data/demo_0"]
        masks = sorted(file["mask"]) if "mask" in file else []
    dataset = SequenceDataset(
        str(path), keys, ("actions", "rewards", "dones"), load_next_obs=False, hdf5_cache_mode=None
    )
    print(
        f"{path.parent.name}: SequenceDataset, {dataset.n_demos} demos, {len(dataset)} steps, "
        f"masks {masks}, next_obs {has_next}"
    )
    steps = [dataset[step] for step in range(len(dataset))]
    for name, key in ROBOMIMIC.items():
        compare(name, np.concatenate([step[name] for step in steps]), expected[key].astype(np.float64))
    for key in keys:
        values = np.concatenate([step["obs"][key] for step in steps])
        stored = expected[f"observation.{key}"]
        if stored.ndim == 4:
            stored = stored.transpose(0, 2, 3, 1)
        compare(f"obs/{key}", values, stored)
    for mask in masks:
        part = SequenceDataset(
            str(path),
            keys,
            ("actions",),
            load_next_obs=has_next and keys == ["state"],
            hdf5_cache_mode=None,
            filter_by_attribute=mask,
        )
        print(f"  mask {mask}: {part.demos}")


def main() -> None:
    folder = Path(sys.argv[1])
    for name in ("lerobot", "robomimic", "torch", "torchcodec", "datasets"):
        print(f"{name} {importlib.metadata.version(name)}")
    for stem in ("demos", "toy"):
        expected = dict(np.load(folder / f"{stem}.npz"))
        read_lerobot(folder / f"{stem}-lerobot", expected)
        read_lerobot(folder / f"{stem}-video", expected)
        read_robomimic(folder / f"{stem}-robomimic/demo.hdf5", expected)


if __name__ == "__main__":
    main()
