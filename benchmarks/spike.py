"""Spike cameras: clips of 5 frames with a crop of 256² image pixels, of voxels, blur and sharp frames.

    python benchmarks/spike.py [--quick] [--only PATTERN …] [--json FILE] [--markdown FILE]

The sequences are synthetic, laid out as spike data sets are: ``train/<sequence>/{blur,sharp,spike}/NNN.*``,
720 × 1280 PNG frames, and packed ``.dat`` streams of 88 × 360 × 640 spikes, bottom row first. A sample is
``voxel`` (5, 5, 128, 128), ``blur`` and ``sharp`` (5, 3, 256, 256), all uint8; batches of 4.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
from harness.ours import our_ways
from harness.peers import stacked, webdataset_feed, write_peers
from harness.plain import map_feed, open_tensorstore, write_tensorstore
from harness.script import Options, Target, parse, run_ways
from harness.ways import Way
from numpy.typing import NDArray

import unistore

BATCH = 4
LENGTH = 5
CROP = 256
BINS = 5
TIMES, HEIGHT, WIDTH = 88, 360, 640
KEYS = ("voxel", "blur", "sharp")
GENERATOR = np.random.default_rng()


def make_sequence(folder: Path, frames: int, seed: int) -> None:
    """A textured scene that moves, blurred frames of it, and the spikes that it causes."""
    rng = np.random.default_rng(seed)
    for name in ("blur", "sharp", "spike"):
        (folder / name).mkdir(parents=True)
    scene = np.zeros((2 * HEIGHT + 128, 2 * WIDTH + 256, 3), np.float32)
    for scale, strength in ((4, 12), (16, 30), (64, 60)):
        small = rng.normal(0, strength, (scene.shape[0] // scale + 1, scene.shape[1] // scale + 1, 3))
        scene += cv2.resize(small.astype(np.float32), scene.shape[1::-1], interpolation=cv2.INTER_CUBIC)
    scene = np.clip(scene + 110, 0, 255)
    phase = rng.random((HEIGHT, WIDTH), np.float32)
    time = np.arange(TIMES + 1, dtype=np.float32)[:, None, None]
    for number in range(frames):
        x, y = 7 * number % 256, 3 * number % 128
        sharp = scene[y : y + 2 * HEIGHT, x : x + 2 * WIDTH]
        blur = cv2.blur(sharp, (15, 5))
        for name, image in (("sharp", sharp), ("blur", blur)):
            noisy = image + rng.normal(0, 1.5, image.shape).astype(np.float32)
            cv2.imwrite(str(folder / name / f"{number:03d}.png"), np.clip(noisy, 0, 255).astype(np.uint8))
        light = cv2.resize(cv2.cvtColor(sharp, cv2.COLOR_RGB2GRAY), (WIDTH, HEIGHT)) / 255 * 0.6
        spikes = np.diff(np.floor(phase + time * light), axis=0) > 0
        packed = np.packbits(spikes[:, ::-1], bitorder="little")
        packed.tofile(folder / "spike" / f"{number:03d}.dat")


def voxel_of(path: Path) -> NDArray[np.uint8]:
    """Spikes of a ``.dat`` file, summed in bins."""
    raw = np.fromfile(path, np.uint8)
    spikes = np.unpackbits(raw, bitorder="little").reshape(TIMES, HEIGHT, WIDTH)[:, ::-1]
    voxel = np.zeros((BINS, HEIGHT, WIDTH), np.uint8)
    for moment in range(TIMES):
        voxel[moment * BINS // TIMES] += spikes[moment]
    return voxel


def image_of(path: Path) -> NDArray[np.uint8]:
    """RGB pixels of a PNG file."""
    return cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB)


def frame_of(folder: Path, number: int, voxels: Path | None = None) -> dict[str, NDArray[np.uint8]]:
    """Everything of one frame, decoded; voxels computed, or read from a folder."""
    name = f"{number:03d}"
    spikes = voxel_of(folder / "spike" / f"{name}.dat") if voxels is None else np.load(voxels / f"{name}.npy")
    return {
        "voxel": spikes,
        "blur": image_of(folder / "blur" / f"{name}.png"),
        "sharp": image_of(folder / "sharp" / f"{name}.png"),
    }


def corner() -> tuple[int, int]:
    """First row and column of a crop, even."""
    return (
        2 * int(GENERATOR.integers(0, HEIGHT - CROP // 2 + 1)),
        2 * int(GENERATOR.integers(0, WIDTH - CROP // 2 + 1)),
    )


def cropped(frames: Sequence[Any]) -> dict[str, NDArray[np.uint8]]:
    """A clip: the same crop of every frame's fields; images as (L, 3, h, w) views."""
    y, x = corner()
    half = CROP // 2
    clip = {"voxel": np.stack([frame["voxel"][:, y // 2 :, x // 2 :][:, :half, :half] for frame in frames])}
    for key in ("blur", "sharp"):
        clip[key] = np.stack([frame[key][y : y + CROP, x : x + CROP] for frame in frames])
    return clip


class Documents:
    """The documents' DataLoader: on the fly, precomputed voxel files, or everything in RAM."""

    def __init__(self, sequences: Sequence[Path], frames: int, mode: str, form: str = "uint8") -> None:
        self._mode = mode
        self._form = form
        self._clips = [(folder, first) for folder in sequences for first in range(frames - LENGTH + 1)]
        self._memory = {}
        if mode == "RAM":
            self._memory = {(f, n): frame_of(f, n) for f in sequences for n in range(frames)}

    def __len__(self) -> int:
        return len(self._clips)

    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]:
        folder, first = self._clips[index]
        clip = cropped([self._frame(folder, first + k) for k in range(LENGTH)])
        if self._form == "channels last":
            return clip
        for key in ("blur", "sharp"):
            clip[key] = np.ascontiguousarray(clip[key].transpose(0, 3, 1, 2))
        if self._form == "uint8":
            return clip
        return {
            key: values.astype(np.float32) / (1 if key == "voxel" else 255) for key, values in clip.items()
        }

    def _frame(self, folder: Path, number: int) -> dict[str, NDArray[np.uint8]]:
        if self._mode == "RAM":
            return self._memory[folder, number]
        voxels = None if self._mode == "on-the-fly" else folder.parents[2] / "spike_vox" / folder.name
        return frame_of(folder, number, voxels)


class Arrays:
    """Every field as one array (F, …), opened by `opened`; a clip is one box of each."""

    def __init__(self, folder: Path, how: str, frames: int) -> None:
        self._folder = folder
        self._how = how
        self._frames = frames
        self._arrays: dict[str, Any] = {}
        total = sum(1 for _ in np.load(folder / "numbers.npy", mmap_mode="r"))
        self._firsts = [at for at in range(total) if at % frames <= frames - LENGTH]

    def __len__(self) -> int:
        return len(self._firsts)

    def __getitem__(self, index: int) -> dict[str, NDArray[np.uint8]]:
        if not self._arrays:
            self._arrays = {key: self._opened(key) for key in KEYS}
        first = self._firsts[index]
        y, x = corner()
        half, rows = CROP // 2, slice(first, first + LENGTH)
        boxes = {
            "voxel": (rows, slice(None), slice(y // 2, y // 2 + half), slice(x // 2, x // 2 + half)),
            "blur": (rows, slice(y, y + CROP), slice(x, x + CROP)),
            "sharp": (rows, slice(y, y + CROP), slice(x, x + CROP)),
        }
        if self._how == "tensorstore":
            pending = {key: self._arrays[key][box].read() for key, box in boxes.items()}
            return {key: future.result() for key, future in pending.items()}
        return {key: np.ascontiguousarray(self._arrays[key][box]) for key, box in boxes.items()}

    def _opened(self, key: str) -> Any:
        if self._how == "tensorstore":
            return open_tensorstore(self._folder / key)
        if self._how == "memmap":
            return np.load(self._folder / f"{key}.npy", mmap_mode="r")
        return h5py.File(self._folder / "tiles.h5", "r")[key]


class ByFrame:
    """A peer's records of whole frames, read by their number."""

    def __init__(self, folder: Path, peer: str, total: int, frames: int) -> None:
        self._folder = folder
        self._peer = peer
        self._records: Any = self._opened() if peer == "streaming" else None  # its workers must inherit it
        self._firsts = [at for at in range(total) if at % frames <= frames - LENGTH]

    def __len__(self) -> int:
        return len(self._firsts)

    def __getitem__(self, index: int) -> dict[str, NDArray[np.uint8]]:
        if self._records is None:
            self._records = self._opened()
        first = self._firsts[index]
        return cropped([self._records[first + k] for k in range(LENGTH)])

    def _opened(self) -> Any:
        if self._peer == "litdata":
            from litdata import StreamingDataset

            return StreamingDataset(str(self._folder), batch_decode=False)
        from harness.peers import mosaic

        return mosaic().StreamingDataset(local=str(self._folder), batch_size=1)


def from_clip(stored: Any) -> dict[str, NDArray[np.uint8]]:
    """A crop of a stored clip of whole frames."""
    return cropped([{key: stored[key][k] for key in KEYS} for k in range(LENGTH)])


def make_source(folder: Path, *, quick: bool) -> tuple[list[Path], int]:
    """Sequences of the benchmark, made where they are missing, and their frames."""
    count, frames = (1, 12) if quick else (2, 16)
    sequences = [folder / "train" / f"sequence_{number}" for number in range(count)]
    for number, sequence in enumerate(sequences):
        if not sequence.exists():
            make_sequence(sequence, frames, number)
    return sequences, frames


def prepare(folder: Path, *, quick: bool) -> tuple[list[Path], int, dict[str, Path]]:
    """Source sequences, and every form of them that is raced."""
    sequences, frames = make_source(folder / "source", quick=quick)
    made = {
        "store": folder / "store.zarr",
        "kept": folder / "kept.zarr",
        "plain": folder / "plain.zarr",
        "raw": folder / "raw",
        "tensorstore": folder / "tensorstore",
        "hdf5": folder / "hdf5",
        "voxels": folder / "spike_vox",
    }
    every = functools.partial(all_frames, sequences, frames)
    if not (folder / "done").exists():
        options = {"height": HEIGHT, "width": WIDTH, "voxel_bins": (BINS,), "overwrite": True}
        unistore.convert(folder / "source", made["store"], "spike", **options)
        unistore.convert(folder / "source", made["kept"], "spike", frames="keep", **options)
        unistore.convert(folder / "source", made["plain"], "spike", codec="none", **options)
        for name in ("raw", "tensorstore", "hdf5"):
            made[name].mkdir(exist_ok=True)
            np.save(made[name] / "numbers.npy", np.arange(len(sequences) * frames))
        with h5py.File(made["hdf5"] / "tiles.h5", "w") as file:
            for key, chunk in (
                ("voxel", (1, BINS, 120, 128)),
                ("blur", (1, 128, 128, 3)),
                ("sharp", (1, 128, 128, 3)),
            ):
                values = np.stack([frame[key] for frame in every()])
                np.save(made["raw"] / f"{key}.npy", values)
                write_tensorstore(made["tensorstore"] / key, values, chunk, 1)
                file.create_dataset(key, data=values, chunks=chunk, compression="lzf")
        for sequence in sequences:
            (made["voxels"] / sequence.name).mkdir(parents=True, exist_ok=True)
            for number in range(frames):
                voxel = voxel_of(sequence / "spike" / f"{number:03d}.dat")
                np.save(made["voxels"] / sequence.name / f"{number:03d}.npy", voxel)
        (folder / "done").touch()

    def clips() -> Iterator[dict[str, NDArray[np.uint8]]]:
        held: list[dict[str, NDArray[np.uint8]]] = []
        for frame in every():
            held.append(frame)
            if len(held) == LENGTH:
                yield {key: np.stack([one[key] for one in held]) for key in KEYS}
                held.clear()

    peers = write_peers(folder, every, only=("litdata", "streaming"))
    return sequences, frames, {**made, **peers, **write_peers(folder, clips, only=("webdataset",))}


def all_frames(sequences: Sequence[Path], frames: int) -> Iterator[dict[str, NDArray[np.uint8]]]:
    """Every frame, decoded."""
    for folder in sequences:
        for number in range(frames):
            yield frame_of(folder, number)


def ways(options: Options) -> list[Way]:
    """Every contender."""
    sequences, frames, made = prepare(options.folder, quick=options.quick)
    total = frames * len(sequences)
    source = options.folder / "source"
    found: list[Way] = []

    def add(name: str, kind: Any, dataset: Any, files: Any, **more: Any) -> None:
        for workers in (0, 2):
            slow = name.startswith(("on-the-fly", "precomputed"))
            method = {"method": "spawn"} if name.startswith("tensorstore") else {}
            found.append(
                Way(
                    name=name,
                    setting=f"{workers} workers",
                    kind=kind,
                    make=map_feed,
                    arguments={
                        "dataset": dataset,
                        "batch": BATCH,
                        "workers": workers,
                        "collate": stacked,
                        **method,
                    },
                    files=files,
                    imports=("torch", "h5py", "cv2", *more.get("imports", ())),
                    slow=slow,
                )
            )

    add("on-the-fly", "documents", (Documents, (sequences, frames, "on-the-fly")), (source,))
    images = tuple(folder / name for folder in sequences for name in ("blur", "sharp"))
    add(
        "precomputed voxels",
        "documents",
        (Documents, (sequences, frames, "voxels")),
        (*images, made["voxels"]),
    )
    for form in ("float32", "uint8", "channels last"):
        label = "uint8, channels last" if form == "channels last" else form
        add(f"RAM cache, {label}", "documents", (Documents, (sequences, frames, "RAM", form)), (source,))
    add("memmap", "plain", (Arrays, (made["raw"], "memmap", frames)), (made["raw"],))
    add("h5py, 128² tiles, lzf", "plain", (Arrays, (made["hdf5"], "h5py", frames)), (made["hdf5"],))
    add(
        "tensorstore, 128² tiles, lz4",
        "peer",
        (Arrays, (made["tensorstore"], "tensorstore", frames)),
        (made["tensorstore"],),
        imports=("tensorstore",),
    )
    for name, key in (("LitData", "litdata"), ("MosaicML Streaming", "streaming")):
        dataset = (ByFrame, (made[key], key, total, frames))
        imports = (key,) if key == "litdata" else ()
        add(f"{name}, frames by number", "peer", dataset, (made[key],), imports=imports)
    clips = {"folder": made["webdataset"], "batch": BATCH, "collate": stacked, "change": from_clip}
    found += [
        Way(
            name="WebDataset, whole clips",
            setting=f"{workers} workers",
            kind="peer",
            make=webdataset_feed,
            arguments={**clips, "workers": workers},
            files=(made["webdataset"],),
            imports=("torch", "webdataset"),
        )
        for workers in (0, 2)
    ]
    kind = unistore.Clips(length=LENGTH, crop=CROP)
    found += our_ways(made["store"], BATCH, kind, KEYS)
    found += our_ways(made["plain"], BATCH, kind, KEYS, label=" (codec=none)", workers=(1, 2))
    found += our_ways(made["kept"], BATCH, kind, KEYS, label=" (frames=keep)", workers=(2,))
    return found


def main() -> None:
    """Run the benchmark."""
    options = parse(__doc__, "spike")
    disk_ways = ("memmap*", "h5py*", "tensorstore*", "LitData*", "MosaicML*", "WebDataset*")
    targets = [
        Target(
            text="DataLoader with our Dataset over on-the-fly",
            ours=("Dataset under DataLoader, *",),
            others=("on-the-fly*",),
            factor=30,
        ),
        Target(
            text="DataLoader with our Dataset over the best on-disk peer",
            ours=("Dataset under DataLoader, *",),
            others=disk_ways[2:],
            factor=2,
        ),
        Target(
            text="Loader, 2 workers, over the RAM cache as the documents have it",
            ours=("Loader, 2 workers",),
            others=("RAM cache, float32*",),
            factor=1,
        ),
        Target(
            text="Loader, 2 workers, over a RAM cache that delivers uint8 (L, 3, h, w)",
            ours=("Loader*, 2 workers",),
            others=("RAM cache, uint8, ? workers",),
            factor=1,
        ),
        Target(
            text="Loader, 2 workers, over a RAM cache that delivers uint8 as it lies",
            ours=("Loader*, 2 workers",),
            others=("RAM cache, uint8, channels last*",),
            factor=1,
        ),
    ]
    run_ways(options, "Spike clips", ways(options), BATCH, targets, "Loader, 2 workers")


if __name__ == "__main__":
    main()
