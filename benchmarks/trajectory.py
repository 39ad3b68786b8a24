"""Robot trajectories: batches of 256 transitions with three cameras, resized to 224 × 224.

    python benchmarks/trajectory.py [--quick] [--only PATTERN …] [--json FILE] [--markdown FILE]

The episodes are synthetic, in the flat layout: ``observations/{left,right,global}_image``, (N, 240, 320, 3)
uint8, ``observations/joint`` (N, 16), ``actions``, ``rewards``, ``terminals``; once as contiguous datasets,
once appended to (h5py's own chunks). A sample is a transition: three images (3, 224, 224) of a step and of
the next one, joints, action, reward, and whether it goes on.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
from harness.ours import keep_no_chunks, our_ways
from harness.peers import mosaic, stacked, webdataset_feed, write_peers
from harness.plain import map_feed, open_tensorstore, write_tensorstore
from harness.script import Options, Target, parse, run_ways
from harness.ways import Feed, Way
from numpy.typing import NDArray

import unistore

BATCH = 256
SIDE = 224
HEIGHT, WIDTH = 240, 320
EPISODE = 50
CAMERAS = ("left_image", "right_image", "global_image")
GENERATOR = np.random.default_rng()


def make_images(steps: int, seed: int) -> NDArray[np.uint8]:
    """A camera over a textured table, with an arm that moves, and sensor noise."""
    rng = np.random.default_rng(seed)
    table = np.zeros((2 * HEIGHT, 2 * WIDTH, 3), np.float32)
    for scale, strength in ((2, 6), (4, 10), (24, 30), (80, 50)):
        small = rng.normal(0, strength, (table.shape[0] // scale, table.shape[1] // scale, 3))
        table += cv2.resize(small.astype(np.float32), table.shape[1::-1], interpolation=cv2.INTER_CUBIC)
    images = np.empty((steps, HEIGHT, WIDTH, 3), np.uint8)
    for step in range(steps):
        episode, moment = divmod(step, EPISODE)
        y, x = 17 * episode % HEIGHT, 29 * episode % WIDTH
        view = table[y : y + HEIGHT, x : x + WIDTH] + 120
        cv2.circle(view, (40 + 4 * moment, 120 + episode % 9), 36, (200, 60, 40), -1)
        noise = rng.integers(-3, 4, view.shape, dtype=np.int8)
        images[step] = np.clip(view + noise, 0, 255)
    return images


def make_file(path: Path, steps: int, *, appended: bool) -> None:
    """One HDF5 file in the flat layout."""
    rng = np.random.default_rng(0)
    columns: dict[str, NDArray[Any]] = {
        f"observations/{name}": make_images(steps, number) for number, name in enumerate(CAMERAS)
    }
    columns["observations/joint"] = rng.normal(size=(steps, 16)).astype(np.float32)
    columns["actions"] = rng.normal(size=(steps, 4)).astype(np.float32)
    columns["rewards"] = rng.normal(size=steps).astype(np.float32)
    columns["terminals"] = (np.arange(1, steps + 1) % EPISODE == 0).astype(np.float32)
    with h5py.File(path, "w") as file:
        for name, values in columns.items():
            if not appended:
                file.create_dataset(name, data=values)
                continue
            empty = file.create_dataset(
                name, (0, *values.shape[1:]), values.dtype, maxshape=(None, *values.shape[1:]), chunks=True
            )
            for lo in range(0, steps, EPISODE):
                empty.resize(lo + len(values[lo : lo + EPISODE]), axis=0)
                empty[lo : lo + EPISODE] = values[lo : lo + EPISODE]


class Scalars:
    """Everything but images, in RAM, and the tuple of a batch."""

    def __init__(self, path: Path) -> None:
        with h5py.File(path, "r") as file:
            self.joint = file["observations/joint"][:]
            self.action = file["actions"][:]
            self.reward = file["rewards"][:].reshape(-1, 1)
            ended = file["terminals"][:].reshape(-1, 1)
        self.not_done = 1 - ended
        self.valid = np.flatnonzero(ended[:-1, 0] == 0)

    def draw(self, count: int) -> NDArray[np.int64]:
        """Steps of a batch."""
        return self.valid[GENERATOR.integers(0, len(self.valid), count)]

    def batch(
        self, rows: NDArray[np.int64], images: Sequence[Any], following: Sequence[Any]
    ) -> tuple[Any, ...]:
        """The documents' tuple: images (B, 3, H, W) of the steps and of the next ones, and the rest."""
        import torch

        parts = (self.joint[rows], self.action[rows])
        rest = (self.joint[rows + 1], self.reward[rows], self.not_done[rows])
        return tuple(torch.from_numpy(part) for part in (*images, *parts, *following, *rest))


class LazyBuffer:
    """The documents' MultimodalReplayBuffer: images are read and resized one by one in ``sample()``."""

    def __init__(self, path: Path) -> None:
        self._scalars = Scalars(path)
        self._file = h5py.File(path, "r")

    def sample(self, count: int) -> tuple[Any, ...]:
        """Random transitions."""
        rows = self._scalars.draw(count)
        images = [np.stack([self._image(name, row) for row in rows]) for name in CAMERAS]
        following = [np.stack([self._image(name, row + 1) for row in rows]) for name in CAMERAS]
        return self._scalars.batch(rows, images, following)

    def _image(self, name: str, row: int) -> NDArray[np.uint8]:
        image = self._file[f"observations/{name}"][row]
        return cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR).transpose(2, 0, 1)


class Threaded:
    """The documents' AsyncSampleBuffer: a thread samples ahead, up to four batches."""

    def __init__(self, buffer: LazyBuffer) -> None:
        self._buffer = buffer
        self._queue: queue.Queue[Any] = queue.Queue(maxsize=4)
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            self._queue.put(self._buffer.sample(BATCH))

    def sample(self, count: int) -> tuple[Any, ...]:  # noqa: ARG002
        """Next batch."""
        return self._queue.get()  # type: ignore[no-any-return]


class ArrayBuffer:
    """Resized images as arrays (N, 3, 224, 224), in RAM or mapped: one fancy index a camera."""

    def __init__(self, path: Path, folder: Path, mode: str | None) -> None:
        self._scalars = Scalars(path)
        self._images = [np.load(folder / f"{name}.npy", mmap_mode=mode) for name in CAMERAS]  # type: ignore[call-overload]

    def sample(self, count: int) -> tuple[Any, ...]:
        """Random transitions."""
        rows = self._scalars.draw(count)
        images = [images[rows] for images in self._images]
        return self._scalars.batch(rows, images, [each[rows + 1] for each in self._images])


class Hdf5Sorted:
    """Resized images in HDF5, a chunk an image with lzf; a batch's rows are read once each, in order."""

    def __init__(self, path: Path, images: Path) -> None:
        self._scalars = Scalars(path)
        self._file = h5py.File(images, "r")

    def sample(self, count: int) -> tuple[Any, ...]:
        """Random transitions."""
        rows = self._scalars.draw(count)
        wanted, places = np.unique(np.concatenate((rows, rows + 1)), return_inverse=True)
        found = []
        for name in CAMERAS:
            read = np.empty((len(wanted), SIDE, SIDE, 3), np.uint8)
            for at, row in enumerate(wanted.tolist()):
                self._file[name].read_direct(read, np.s_[row], np.s_[at])
            found.append((read[places[:count]], read[places[count:]]))
        return self._scalars.batch(rows, [a for a, _ in found], [b for _, b in found])


class Tensorstore:
    """Resized images in tensorstore, a blosc-lz4 chunk an image; one index array a camera."""

    def __init__(self, path: Path, folder: Path) -> None:
        self._scalars = Scalars(path)
        self._images = [open_tensorstore(folder / name) for name in CAMERAS]

    def sample(self, count: int) -> tuple[Any, ...]:
        """Random transitions."""
        rows = self._scalars.draw(count)
        pending = [[images[at].read() for images in self._images] for at in (rows, rows + 1)]
        images, following = ([future.result() for future in futures] for futures in pending)
        return self._scalars.batch(rows, images, following)


class ByStep:
    """A peer's records of steps, two for a transition, read by their number."""

    def __init__(self, path: Path, folder: Path, peer: str) -> None:
        self._rows = Scalars(path).valid
        self._folder = folder
        self._peer = peer
        self._records: Any = self._opened() if peer == "streaming" else None  # its workers must inherit it

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]:
        if self._records is None:
            self._records = self._opened()
        step, after = self._records[int(self._rows[index])], self._records[int(self._rows[index]) + 1]
        following = {f"next.{name}": after[name] for name in (*CAMERAS, "joint")}
        return {
            **{key: step[key] for key in (*CAMERAS, "joint", "action", "reward", "not_done")},
            **following,
        }

    def _opened(self) -> Any:
        if self._peer == "litdata":
            from litdata import StreamingDataset

            return StreamingDataset(str(self._folder), batch_decode=False)
        return mosaic().StreamingDataset(local=str(self._folder), batch_size=BATCH)


def buffer_feed(buffer: Any, *arguments: Any, threaded: bool = False) -> Feed:
    """Batches of something with a ``sample()``."""
    made = buffer(*arguments)
    if threaded:
        made = Threaded(made)

    def batches() -> Iterator[Any]:
        while True:
            yield made.sample(BATCH)

    return Feed(batches(), ahead=5 * threaded)


def replay_feed(store: Path) -> Feed:
    """`unistore.ReplayBuffer`."""
    keep_no_chunks()
    buffer = unistore.ReplayBuffer(store, image_size=SIDE)

    def batches() -> Iterator[Any]:
        while True:
            yield buffer.sample(BATCH)

    return Feed(batches(), ahead=3, close=buffer.close)


def buffer_way_feed(kind: str, arguments: tuple[Any, ...], threaded: bool = False) -> Feed:
    """A buffer by the name of its class."""
    return buffer_feed(globals()[kind], *arguments, threaded=threaded)


def make_source(folder: Path, *, quick: bool) -> Path:
    """File of the benchmark, made where it is missing."""
    path = folder / "contiguous.hdf5"
    folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        make_file(path.with_suffix(".part"), 300 if quick else 1200, appended=False)
        path.with_suffix(".part").rename(path)
    return path


def prepare(folder: Path, *, quick: bool) -> dict[str, Path]:
    """Source files, and every form of them that is raced."""
    source = make_source(folder / "source", quick=quick)
    with h5py.File(source, "r") as file:
        steps = len(file["rewards"])
    made = {
        "contiguous": source,
        "appended": folder / "appended.hdf5",
        "store": folder / "store.zarr",
        "raw": folder / "raw",
        "hdf5": folder / "resized.h5",
        "tensorstore": folder / "tensorstore",
    }
    if not (folder / "done").exists():
        make_file(made["appended"], steps, appended=True)
        unistore.convert(folder / "source", made["store"], "trajectory", image_size=SIDE, overwrite=True)
        made["raw"].mkdir(exist_ok=True)
        with h5py.File(made["contiguous"], "r") as file, h5py.File(made["hdf5"], "w") as resized:
            for name in CAMERAS:
                images = np.empty((steps, SIDE, SIDE, 3), np.uint8)
                for step in range(steps):
                    cv2.resize(file[f"observations/{name}"][step], (SIDE, SIDE), dst=images[step])
                np.save(made["raw"] / f"{name}.npy", np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
                write_tensorstore(made["tensorstore"] / name, images, (1, SIDE, SIDE, 3), 200)
                resized.create_dataset(
                    name, data=images, chunks=(1, SIDE, SIDE, 3), compression="lzf", shuffle=False
                )
        (folder / "done").touch()

    def records() -> Iterator[dict[str, NDArray[Any]]]:
        scalars = Scalars(made["contiguous"])
        images = {name: np.load(made["raw"] / f"{name}.npy", mmap_mode="r") for name in CAMERAS}
        for step in range(steps):
            yield {
                **{name: np.array(images[name][step]) for name in CAMERAS},
                "joint": scalars.joint[step],
                "action": scalars.action[step],
                "reward": scalars.reward[step],
                "not_done": scalars.not_done[step],
            }

    def transitions() -> Iterator[dict[str, NDArray[Any]]]:
        before: dict[str, NDArray[Any]] | None = None
        for step, record in enumerate(records()):
            if step == steps // 2:  # a transition holds both steps: twice the bytes
                return
            if before is not None and before["not_done"][0]:
                yield {**before, **{f"next.{name}": record[name] for name in (*CAMERAS, "joint")}}
            before = record

    peers = write_peers(folder, records, only=("litdata", "streaming"))
    return {**made, **peers, **write_peers(folder, transitions, only=("webdataset",))}


def ways(options: Options) -> list[Way]:
    """Every contender."""
    made = prepare(options.folder, quick=options.quick)
    source = made["contiguous"]
    found: list[Way] = []

    def add(name: str, kind: Any, buffer: str, arguments: Any, files: Any, **more: Any) -> None:
        slow = name.startswith("lazy") and "appended" in name
        passed = {"kind": buffer, "arguments": arguments, **more}
        found.append(
            Way(
                name=name,
                setting="thread" if more.get("threaded") else "",
                kind=kind,
                make=buffer_way_feed,
                arguments=passed,
                files=files,
                imports=("torch", "h5py", "cv2", "tensorstore")
                if name == "tensorstore"
                else ("torch", "h5py"),
                slow=slow,
            )
        )

    for name in ("contiguous", "appended"):
        for threaded in (False, True):
            if not (threaded and name == "appended"):
                label = f"lazy sample(), {name} file"
                add(label, "documents", "LazyBuffer", (made[name],), (made[name],), threaded=threaded)
    add("arrays in RAM", "documents", "ArrayBuffer", (source, made["raw"], None), (made["raw"],))
    add("memmap", "plain", "ArrayBuffer", (source, made["raw"], "r"), (made["raw"],))
    add("h5py sorted, a chunk an image, lzf", "plain", "Hdf5Sorted", (source, made["hdf5"]), (made["hdf5"],))
    add("tensorstore", "peer", "Tensorstore", (source, made["tensorstore"]), (made["tensorstore"],))
    for name, key in (("MosaicML Streaming", "streaming"), ("LitData", "litdata")):
        found += [
            Way(
                name=f"{name}, steps by number",
                setting=f"{workers} workers",
                kind="peer",
                make=map_feed,
                arguments={
                    "dataset": (ByStep, (source, made[key], key)),
                    "batch": BATCH,
                    "workers": workers,
                    "collate": stacked,
                },
                files=(made[key],),
                imports=("torch", "h5py", "litdata") if key == "litdata" else ("torch", "h5py"),
            )
            for workers in (0, 2)
        ]
    found += [
        Way(
            name="WebDataset, transitions",
            setting=f"{workers} workers",
            kind="peer",
            make=webdataset_feed,
            arguments={
                "folder": made["webdataset"],
                "batch": BATCH,
                "workers": workers,
                "collate": stacked,
            },
            files=(made["webdataset"],),
            imports=("torch", "webdataset"),
        )
        for workers in (0, 2)
    ]
    found.append(
        Way(
            name="ReplayBuffer",
            kind="unistore",
            make=replay_feed,
            arguments={"store": made["store"]},
            files=(made["store"],),
        )
    )
    images = [f"observation.{name}_{SIDE}" for name in CAMERAS]
    observed = [*images, "observation.joint"]
    fields = (*observed, "action", "reward", "terminated", *(f"next.{key}" for key in observed))
    return found + our_ways(made["store"], BATCH, unistore.Transitions(only_valid=True), fields)


def main() -> None:
    """Run the benchmark."""
    options = parse(__doc__, "trajectory")
    lazy, streaming = ("lazy sample()*",), ("MosaicML*",)
    replay, loader = ("ReplayBuffer",), ("Loader, 2 workers",)
    targets = [
        Target(text="ReplayBuffer over lazy sample()", ours=replay, others=lazy, factor=6),
        Target(text="ReplayBuffer over MosaicML", ours=replay, others=streaming, factor=1),
        Target(text="Loader over lazy sample()", ours=loader, others=lazy, factor=10),
        Target(text="Loader over MosaicML", ours=loader, others=streaming, factor=2),
        Target(text="Loader over arrays in RAM", ours=loader, others=("arrays in RAM",), factor=0.5),
    ]
    run_ways(options, "Transitions with three cameras", ways(options), BATCH, targets, "Loader, 2 workers")


if __name__ == "__main__":
    main()
