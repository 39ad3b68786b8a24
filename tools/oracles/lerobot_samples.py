"""Write small LeRobot datasets by LeRobot's own class, and what it returns of them.

Run by ``make oracles`` in an environment of its own. Version 3 is written by `LeRobotDataset`; version 2.1 by
the lines below, of which LeRobot's own converter lifts a copy to version 3, so that its class reads it.

    python tools/oracles/lerobot_samples.py tests/data/lerobot
"""

import json
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

# Wheels of torchvision for other builds of torch lack these; nothing here calls them.
_library = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import av  # noqa: E402
import numpy as np  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from lerobot.datasets.lerobot_dataset import LeRobotDataset  # noqa: E402
from lerobot.datasets.v30.convert_dataset_v21_to_v30 import convert_dataset  # noqa: E402

LENGTHS = (7, 5, 9)
FPS = 10
TOP, WRIST = (32, 48), (16, 24)
AXES = ["height", "width", "channels"]
FEATURES = {
    "observation.state": {"dtype": "float32", "shape": (4,), "names": ["a", "b", "c", "d"]},
    "action": {"dtype": "float32", "shape": (2,), "names": None},
    "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
    "next.done": {"dtype": "bool", "shape": (1,), "names": None},
    "observation.images.top": {"dtype": "video", "shape": (*TOP, 3), "names": AXES},
    "observation.images.wrist": {"dtype": "image", "shape": (*WRIST, 3), "names": AXES},
}


def steps():
    """Yield the steps of each episode: values by feature, and the task."""
    random = np.random.default_rng(0)
    for episode, length in enumerate(LENGTHS):
        rows = []
        for step in range(length):
            slope = np.add.outer(np.arange(TOP[0]) * 3, np.arange(TOP[1]) * 2) + step * 9 + episode * 40
            top = np.stack([slope % 256, slope // 2 % 256, 255 - slope % 256], -1).astype(np.uint8)
            grid = np.add.outer(np.arange(WRIST[0]), np.arange(WRIST[1]))[..., None]
            rows.append(
                {
                    "observation.state": random.normal(size=4).astype("f4"),
                    "action": random.normal(size=2).astype("f4"),
                    "next.reward": np.array([step / 10], "f4"),
                    "next.done": np.array([step == length - 1]),
                    "observation.images.top": top,
                    "observation.images.wrist": (grid * [3, 5, 7] + step + episode).astype(np.uint8),
                }
            )
        yield f"do task {episode % 2}", rows


def write_v3(root: Path) -> None:
    dataset = LeRobotDataset.create(
        "oracle/toy", FPS, FEATURES, root=root, robot_type="toy", use_videos=True, vcodec="h264"
    )
    for task, rows in steps():
        for row in rows:
            dataset.add_frame({**row, "task": task})
        dataset.save_episode()
    dataset.finalize()


def write_v21(root: Path, v3: Path) -> None:
    info = json.loads((v3 / "meta/info.json").read_text())
    for name in ("data_files_size_in_mb", "video_files_size_in_mb"):
        del info[name]
    info |= {
        "codebase_version": "v2.1",
        "total_chunks": 1,
        "total_videos": len(LENGTHS),
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    }
    table = pq.read_table(v3 / "data/chunk-000/file-000.parquet")
    episodes, statistics, tasks = [], [], []
    for number, (task, rows) in enumerate(steps()):
        start, stop = sum(LENGTHS[:number]), sum(LENGTHS[: number + 1])
        path = root / f"data/chunk-000/episode_{number:06d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table.slice(start, stop - start), path)
        video = root / f"videos/chunk-000/observation.images.top/episode_{number:06d}.mp4"
        video.parent.mkdir(parents=True, exist_ok=True)
        write_video(video, [row["observation.images.top"] for row in rows])
        episodes.append({"episode_index": number, "tasks": [task], "length": stop - start})
        statistics.append({"episode_index": number, "stats": statistics_of(rows)})
        if task not in tasks:
            tasks.append(task)
    (root / "meta").mkdir()
    (root / "meta/info.json").write_text(json.dumps(info, indent=4))
    write_lines(root / "meta/episodes.jsonl", episodes)
    write_lines(root / "meta/episodes_stats.jsonl", statistics)
    write_lines(
        root / "meta/tasks.jsonl", [{"task_index": at, "task": task} for at, task in enumerate(tasks)]
    )


def write_video(path: Path, frames: list) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FPS, options={"g": "2", "crf": "30"})
        stream.height, stream.width = TOP
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())


def statistics_of(rows: list) -> dict:
    found = {}
    for name, feature in FEATURES.items():
        values = np.stack([row[name] for row in rows]).astype(np.float64)
        axes, shape = 0, feature["shape"]
        if len(shape) == 3:
            axes, shape, values = (0, 1, 2), (3, 1, 1), values / 255
        found[name] = {
            "count": [len(rows)],
            **{
                kind: getattr(np, kind)(values, axis=axes).reshape(shape).tolist()
                for kind in ("min", "max", "mean", "std")
            },
        }
    return found


def write_lines(path: Path, rows: list) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def dump(root: Path, path: Path) -> None:
    """Write what LeRobot's class returns, images as the bytes that it divided by 255."""
    dataset = LeRobotDataset("oracle/toy", root=root, video_backend="torchcodec")
    found: dict = {}
    for number in range(len(dataset)):
        for name, value in dataset[number].items():
            found.setdefault(name, []).append(value if isinstance(value, str) else value.numpy())
    arrays = {name: np.array(values) for name, values in found.items()}
    for name, values in arrays.items():
        if ".images." in name:
            arrays[name] = np.round(values * 255).astype(np.uint8)
    np.savez_compressed(path, **arrays)


def main() -> None:
    folder = Path(sys.argv[1])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_v3(folder / "v3")
    write_v21(folder / "v21", folder / "v3")
    dump(folder / "v3", folder / "v3.npz")
    with TemporaryDirectory() as scratch:
        shutil.copytree(folder / "v21", Path(scratch, "oracle/toy"))
        convert_dataset("oracle/toy", root=scratch, push_to_hub=False)
        dump(Path(scratch, "oracle/toy"), folder / "v21.npz")


if __name__ == "__main__":
    main()
