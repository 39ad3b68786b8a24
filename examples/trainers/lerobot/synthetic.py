"""Write a LeRobot dataset by its own class: cameras of moving gradients, states and actions of noise."""

from pathlib import Path

import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset

FPS = 10
CAMERAS = ("observation.images.top", "observation.images.wrist")


def write(
    root: Path, lengths: tuple[int, ...], size: tuple[int, int], forms: tuple[str, str] = ("video", "image")
) -> None:
    """Write a dataset.

    Parameters
    ----------
    root : Path
        Folder to write.
    lengths : tuple of int
        Frames of each episode.
    size : (int, int)
        Height and width of the images.
    forms : (str, str), default ("video", "image")
        How each of the two cameras is stored.
    """
    axes = ["height", "width", "channels"]
    features = {
        "observation.state": {"dtype": "float32", "shape": (4,), "names": ["a", "b", "c", "d"]},
        "action": {"dtype": "float32", "shape": (2,), "names": None},
        "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
        "next.done": {"dtype": "bool", "shape": (1,), "names": None},
        CAMERAS[0]: {"dtype": forms[0], "shape": (*size, 3), "names": axes},
        CAMERAS[1]: {"dtype": forms[1], "shape": (*size, 3), "names": axes},
    }
    options = {"root": root, "fps": FPS, "features": features, "use_videos": "video" in forms}
    dataset = LeRobotDataset.create("local/synthetic", **options)
    random = np.random.default_rng(0)
    grid = np.add.outer(np.arange(size[0]) * 3, np.arange(size[1]) * 2)[..., None]
    for episode, length in enumerate(lengths):
        for step in range(length):
            image = grid * [1, 2, -1] // 2 + 9 * step + 40 * episode
            frame = {
                "observation.state": random.normal(size=4).astype("f4"),
                "action": random.normal(size=2).astype("f4"),
                "next.reward": np.array([step / 10], "f4"),
                "next.done": np.array([step == length - 1]),
                "task": f"task {episode % 2}",
            }
            frame |= {camera: (image + 90 * number).astype(np.uint8) for number, camera in enumerate(CAMERAS)}
            dataset.add_frame(frame)
        dataset.save_episode()
    dataset.finalize()
