"""Clips of a spike camera: voxels made of `.dat` files on the fly, and a store that holds them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from trial import compare, rates, synthetic

import unistore

CLIP_LEN, CROP_SIZE, NUM_VOXEL_BINS, BATCH_SIZE, WORKERS = 3, 64, 4, 2, 2
HEIGHT, WIDTH = synthetic.HEIGHT, synthetic.WIDTH


# --- before ---------------------------------------------------------------------------------------------


def spike_to_voxel(path: Path) -> torch.Tensor:
    """A `.dat` file as (bins, height, width): spikes added up over the steps of each bin."""
    packed = np.fromfile(path, np.uint8).reshape(-1, HEIGHT, WIDTH // 8)
    spikes = np.unpackbits(packed, axis=-1, bitorder="little")[:, ::-1]  # the bottom row comes first
    bins = spikes.reshape(NUM_VOXEL_BINS, -1, HEIGHT, WIDTH).sum(axis=1)
    return torch.from_numpy(bins.astype(np.float32))


def read_image(path: Path) -> torch.Tensor:
    """A frame as (3, height, width), float32, 0…1."""
    image = cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB)
    return torch.from_numpy(image).permute(2, 0, 1).float() / 255


class GoProSpikeDataset(Dataset[tuple[torch.Tensor, ...]]):
    """Clips of `CLIP_LEN` frames under ``ROOT/split/<sequence>/{blur,sharp,spike}``."""

    def __init__(self, root: Path, split: str, *, random: bool) -> None:
        self.clips: list[list[tuple[Path, Path, Path]]] = []
        self.random = random
        for sequence in sorted((root / split).iterdir()):
            stems = sorted(path.stem for path in (sequence / "spike").iterdir())
            frames = [
                (sequence / "blur" / f"{s}.png", sequence / "sharp" / f"{s}.png", sequence / f"spike/{s}.dat")
                for s in stems
            ]
            self.clips += [frames[at : at + CLIP_LEN] for at in range(len(frames) - CLIP_LEN + 1)]

    def __len__(self) -> int:
        return len(self.clips)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        clip = self.clips[index]
        blur = torch.stack([read_image(frame[0]) for frame in clip])
        sharp = torch.stack([read_image(frame[1]) for frame in clip])
        voxel = torch.stack([spike_to_voxel(frame[2]) for frame in clip])
        room = (HEIGHT - CROP_SIZE, WIDTH - CROP_SIZE)
        top, left = (int(torch.randint(each + 1, ())) if self.random else each // 2 for each in room)
        crop = (..., slice(top, top + CROP_SIZE), slice(left, left + CROP_SIZE))
        return blur[crop], sharp[crop], voxel[crop]


def before(root: Path, *, train: bool) -> DataLoader[Any]:
    """The loader of the old script."""
    dataset = GoProSpikeDataset(root, "train", random=train)
    return DataLoader(dataset, BATCH_SIZE, shuffle=train, num_workers=WORKERS, persistent_workers=True)


# --- after ----------------------------------------------------------------------------------------------


def after(store: Path, *, train: bool) -> unistore.Loader:
    """The loader of the new script: bytes travel, and become floats on the device."""
    dataset = unistore.Dataset(
        store,
        unistore.Clips(length=CLIP_LEN, crop=CROP_SIZE, voxel_bins=NUM_VOXEL_BINS, random=train),
        fields=["blur", "sharp", "voxel"],
        split="train",
    )
    return unistore.Loader(dataset, BATCH_SIZE, shuffle=train, num_workers=WORKERS)


def on_device(loader: unistore.Loader, device: str = "cpu") -> Iterator[tuple[torch.Tensor, ...]]:
    """Batches as the old model takes them."""
    for batch in loader:
        blur, sharp, voxel = (batch[key].to(device, torch.float32) for key in ("blur", "sharp", "voxel"))
        yield blur / 255, sharp / 255, voxel


def main() -> None:
    """Convert, compare, time."""
    with tempfile.TemporaryDirectory() as folder:
        root = synthetic.spike_sequences(Path(folder) / "gopro")
        store = Path(folder) / "gopro.zarr"
        unistore.convert([root], store, "spike", height=HEIGHT, width=WIDTH, voxel_bins=(NUM_VOXEL_BINS,))
        with after(store, train=False) as centred:
            compare("centre crops", before(root, train=False), on_device(centred))
        old = before(root, train=True)
        with after(store, train=True) as new:
            compare("random crops", old, on_device(new), values=False)
            rates(lambda: old, lambda: on_device(new), samples=len(new.dataset))


if __name__ == "__main__":
    main()
