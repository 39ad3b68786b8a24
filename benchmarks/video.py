"""Frames a second of episodes with video: unistore, LeRobot, Lance, and the disk that each takes.

A dataset of two cameras is made once, as LeRobot v3.0 with H.264 (a key frame every second frame), and
converted: to frames, and with its packets kept. Then all read random windows of two steps, two workers each,
in turns: some batches after the files were dropped from the page cache (cold), then for some seconds (warm).
LeRobot and Lance run in environments of their own: ``make oracles`` makes the one (torchcodec needs FFmpeg's
libraries), ``pip install pylance==14.0.2 av==18.1.0 torch==2.13.0`` the other.

    python benchmarks/video.py FOLDER --lerobot build/lerobot/bin/python --lance build/lance/bin/python
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from harness.memory import disk, evict, warm

FPS, STEPS, EPISODES, SIZE = 30, 150, 8, (240, 320)
CAMERAS = ("front", "wrist")
BATCH, WORKERS, HISTORY = 16, 2, 2
WARM_BATCHES = 3
COLD_BATCHES = 20


def make(folder: Path) -> None:
    """Write demonstrations, export them as a LeRobot dataset with video, and convert that."""
    import h5py

    import unistore

    random = np.random.default_rng(0)
    rows, columns = np.arange(SIZE[0])[:, None], np.arange(SIZE[1])
    textures = [random.integers(0, 40, (*SIZE, 3)).astype(np.uint8) for _ in CAMERAS]
    with h5py.File(folder / "demo.hdf5", "w") as file:
        for episode in range(EPISODES):
            demo = file.create_group(f"data/demo_{episode}")
            demo["actions"] = random.normal(size=(STEPS, 7)).astype("f4")
            for camera, texture in zip(CAMERAS, textures, strict=True):
                slopes = [(rows + columns // 2 + step + 20 * episode) % 200 for step in range(STEPS)]
                demo[f"obs/{camera}"] = np.stack(slopes)[..., None].astype(np.uint8) + texture
    unistore.convert(folder / "demo.hdf5", folder / "demo.zarr", family="trajectory")
    unistore.export(folder / "demo.zarr", folder / "lerobot", to="lerobot", fps=FPS, video=True)
    for video in ("frames", "keep"):
        unistore.convert(folder / "lerobot", folder / f"{video}.zarr", family="trajectory", video=video)


def make_lance(folder: Path) -> None:
    """Write Lance's tables: frames of a step as pixels in a row, and the video of a camera as a blob."""
    import av
    import lance
    import pyarrow as pa

    schema = pa.schema([(camera, pa.large_binary()) for camera in CAMERAS])
    paths = [
        next((folder / f"lerobot/videos/observation.images.{camera}").rglob("*.mp4")) for camera in CAMERAS
    ]

    def batches() -> Iterator[Any]:
        for frames in zip(*(av.open(str(path)).decode(video=0) for path in paths), strict=True):
            images = [[frame.to_ndarray(format="rgb24").tobytes()] for frame in frames]
            yield pa.record_batch(images, schema)

    reader = pa.RecordBatchReader.from_batches(schema, batches())
    lance.write_dataset(reader, folder / "frames.lance", max_rows_per_group=64)
    blob = pa.field("video", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    table = pa.table([[path.read_bytes() for path in paths]], pa.schema([blob]))
    lance.write_dataset(table, folder / "video.lance", data_storage_version="2.1")


def ours(folder: Path) -> Iterator[Any]:
    """Read windows by Loader."""
    import unistore

    dataset = unistore.Dataset(folder, unistore.Windows(history=HISTORY, horizon=1, pad="edge"))
    with unistore.Loader(dataset, batch_size=BATCH, shuffle=True, seed=0, num_workers=WORKERS) as loader:
        yield from _endless(loader)


def lerobot(folder: Path) -> Iterator[Any]:
    """Read windows by LeRobotDataset under DataLoader."""
    import torch

    library = torch.library.Library("torchvision", "DEF")  # as in tools/oracles/lerobot_samples.py
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    keys = [f"observation.images.{camera}" for camera in CAMERAS]
    times = {key: [step / FPS for step in range(1 - HISTORY, 1)] for key in keys}
    dataset = LeRobotDataset("a/b", root=folder, delta_timestamps=times, video_backend="torchcodec")
    return _loaded(dataset)


class LanceFrames:
    """Windows of frames that Lance keeps as pixels."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._table: Any = None

    def __len__(self) -> int:
        return EPISODES * STEPS

    def __getitems__(self, steps: list[int]) -> list[Any]:
        import lance

        if self._table is None:
            self._table = lance.dataset(self._folder)
        table = self._table.take([row for step in steps for row in window(step)])
        shape = len(steps), HISTORY, *SIZE, 3
        pixels = [b"".join(table[camera].to_pylist()) for camera in CAMERAS]
        return [np.frombuffer(bytearray(one), np.uint8).reshape(shape) for one in pixels]


class LanceVideo(LanceFrames):
    """Windows of frames of videos that Lance keeps as blobs, decoded by PyAV from the key frame before."""

    def __getitems__(self, steps: list[int]) -> list[Any]:
        import av
        import lance

        if self._table is None:
            blobs = lance.dataset(self._folder).take_blobs("video", indices=list(range(len(CAMERAS))))
            self._table = [av.open(BlobReader(blob)) for blob in blobs]
            for container in self._table:
                container.streams.video[0].codec_context.thread_count = 1
        return [np.stack([self._images(container, step) for step in steps]) for container in self._table]

    def _images(self, container: Any, step: int) -> Any:
        stream = container.streams.video[0]
        rows = window(step)
        container.seek(round(rows[0] / FPS / stream.time_base), stream=stream)
        images = {}
        for frame in container.decode(stream):
            row = round(frame.time * FPS)
            if row in rows:
                images[row] = frame.to_ndarray(format="rgb24")
            if row >= rows[-1]:
                break
        return np.stack([images[row] for row in rows])


class BlobReader:
    """A blob of Lance as a file that PyAV reads."""

    def __init__(self, blob: Any) -> None:
        self.read, self.seek, self.tell = blob.read, blob.seek, blob.tell


def window(step: int) -> list[int]:
    """List the rows of the window that ends with a step, inside its episode."""
    return [max(step // STEPS * STEPS, step - back) for back in reversed(range(HISTORY))]


def _loaded(dataset: Any, **options: Any) -> Iterator[Any]:
    import torch

    loader = torch.utils.data.DataLoader(
        dataset, batch_size=BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True, **options
    )
    return _endless(loader)


def _first(batch: Any) -> Any:
    return batch


def _spawned(dataset: Any) -> Iterator[Any]:
    return _loaded(dataset, multiprocessing_context="spawn", collate_fn=_first)


def _endless(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from loader


READERS: dict[str, tuple[str, str, Callable[[Path], Iterator[Any]]]] = {
    "frames": ("unistore", "frames.zarr", ours),
    "keep": ("unistore", "keep.zarr", ours),
    "lerobot": ("lerobot", "lerobot", lerobot),
    "lance frames": ("lance", "frames.lance", lambda folder: _spawned(LanceFrames(folder))),
    "lance video": ("lance", "video.lance", lambda folder: _spawned(LanceVideo(folder))),
}


def measure(name: str, folder: Path, seconds: float) -> None:
    """Print the frames a second of one reader, cold and warm."""
    _, place, read = READERS[name]
    batches = read(folder / place)
    for _ in islice(batches, WARM_BATCHES):
        pass
    rates = []
    for count, least in ((COLD_BATCHES, 0.0), (1, seconds)):
        (warm if least else evict)([folder / place])
        started = time.perf_counter()
        read_batches = 0
        while read_batches < count or time.perf_counter() - started < least:
            next(batches)
            read_batches += 1
        rates.append(read_batches * BATCH * HISTORY * len(CAMERAS) / (time.perf_counter() - started))
    print(*rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lerobot", help="Python of LeRobot's environment")
    parser.add_argument("--lance", help="Python of Lance's environment")
    parser.add_argument("--only", choices=[*READERS, "make lance"], help="do one thing, in this process")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.only == "make lance":
        make_lance(options.folder)
        return
    if options.only:
        measure(options.only, options.folder, options.seconds)
        return

    def run(python: str, only: str) -> str:
        command = [python, __file__, str(options.folder), "--only", only, "--seconds", str(options.seconds)]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    pythons = {"unistore": sys.executable, "lerobot": options.lerobot, "lance": options.lance}
    if not (options.folder / "keep.zarr").exists():
        options.folder.mkdir(parents=True, exist_ok=True)
        make(options.folder)
    if options.lance and not (options.folder / "video.lance").exists():
        run(options.lance, "make lance")
    names = [name for name, (environment, *_) in READERS.items() if pythons[environment]]
    rates: dict[str, list[list[float]]] = {name: [] for name in names}
    for _ in range(options.rounds):
        for name in names:
            rates[name].append([float(rate) for rate in run(pythons[READERS[name][0]], name).split()[-2:]])
    for name, turns in rates.items():
        medians = np.median(turns, axis=0)
        every = ", ".join(f"{one:.0f}/{other:.0f}" for one, other in turns)
        size = disk([options.folder / READERS[name][1]]) / 1e6
        print(f"{name:13} cold {medians[0]:7.0f}, warm {medians[1]:7.0f} frames/s ({every}), {size:7.1f} MB")


if __name__ == "__main__":
    main()
