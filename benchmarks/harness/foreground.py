"""Patches of which a third is centred on labels, as MONAI, TorchIO and nnU-Net give them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.ways import Feed, endless

SHARE = 1 / 3
"""Of the patches that are centred on a label, as nnU-Net has it."""
LOCATIONS = 10_000
"""Voxels of each class and volume, as nnU-Net keeps them."""
BLOCK = 32
"""Edge of a block that blosc2 decodes at once, that of a chunk of our stores."""

Pair = tuple[Path, Path]
"""Files of an image and of its labels."""


def _batch(samples: Sequence[Any]) -> dict[str, Any]:
    """Collate dicts of tensors with an axis of channels."""
    import torch

    return {key: torch.stack([sample[key].as_tensor() for sample in samples]) for key in ("image", "seg")}


def monai_feed(pairs: Sequence[Pair], batch: int, workers: int, size: int, *, indices: bool) -> Feed:
    """MONAI's `CacheDataset` with `RandCropByPosNegLabel`; `indices`: those of labels are cached, too."""
    from monai import data, transforms

    keys = ["image", "seg"]
    steps: list[Any] = [
        transforms.LoadImaged(keys, reader="NumpyReader"),
        transforms.EnsureChannelFirstd(keys, channel_dim="no_channel"),
    ]
    more: dict[str, Any] = {}
    if indices:
        steps.append(transforms.FgBgToIndicesd("seg"))
        more = {"fg_indices_key": "seg_fg_indices", "bg_indices_key": "seg_bg_indices"}
    crop = transforms.RandCropByPosNegLabeld(keys, "seg", (size,) * 3, pos=SHARE, neg=1 - SHARE, **more)
    steps.append(crop)
    files = [dict(zip(keys, map(str, pair), strict=True)) for pair in pairs]
    dataset = data.CacheDataset(files, transforms.Compose(steps), cache_rate=1.0, progress=False)
    # Epochs are as long as ours: a crop of every volume, again and again.
    drawn = _Repeated(dataset)

    def collated(samples: Sequence[Any]) -> dict[str, Any]:
        return _batch([sample[0] for sample in samples])

    return _loaded(drawn, batch, workers, collated)


class _Repeated:
    """Samples of a dataset, over and over in one epoch."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return 100_000 * len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index % len(self._dataset)]


def _loaded(
    dataset: Any, batch: int, workers: int, collate: Callable[[Sequence[Any]], dict[str, Any]]
) -> Feed:
    from torch.utils.data import DataLoader

    loader = DataLoader(dataset, batch, shuffle=True, num_workers=workers, collate_fn=collate)
    return Feed(endless(loader), ahead=2 * workers)


def torchio_feed(pairs: Sequence[Pair], batch: int, workers: int, size: int) -> Feed:
    """TorchIO's `Queue` of patches that a `LabelSampler` draws."""
    import torchio

    subjects = [
        torchio.Subject(image=torchio.ScalarImage(image), seg=torchio.LabelMap(labels))
        for image, labels in pairs
    ]
    sampler = torchio.LabelSampler(size, "seg", {0: 2 * (1 - SHARE), 1: SHARE, 2: SHARE})
    queue = torchio.Queue(
        torchio.SubjectsDataset(subjects),
        max_length=24,
        samples_per_volume=8,
        sampler=sampler,
        num_workers=workers,
    )
    loader = torchio.SubjectsLoader(queue, batch_size=batch, num_workers=0)

    def batches() -> Iterator[dict[str, Any]]:
        for drawn in endless(loader):
            if len(drawn["image"]["data"]) == batch:
                yield {key: drawn[key]["data"] for key in ("image", "seg")}

    # A queue is filled before its first patch.
    return Feed(batches(), ahead=24 // batch, warm_up=24 // batch)


def write_blosc2(folder: Path, pairs: Sequence[Pair]) -> None:
    """Write volumes and labels as nnU-Net's blosc2 arrays, with locations of classes beside them."""
    import blosc2

    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    for number, (image, labels) in enumerate(pairs):
        parameters = {"codec": blosc2.Codec.ZSTD, "clevel": 8, "nthreads": 1}
        for name, path in (("image", image), ("seg", labels)):
            values = np.load(path)
            chunk = tuple(min(96, extent) for extent in values.shape)
            target = str(folder / f"{number}_{name}.b2nd")
            blosc2.asarray(
                values, urlpath=target, mode="w", chunks=chunk, blocks=(BLOCK,) * 3, cparams=parameters
            )
        values = np.load(labels)
        places = {}
        for label in (1, 2):
            voxels = np.argwhere(values == label)
            chosen = rng.choice(len(voxels), min(LOCATIONS, len(voxels)), replace=False)
            places[str(label)] = voxels[chosen].astype(np.int32)
        np.savez(folder / f"{number}_locations.npz", **places)


class Blosc2Patches:
    """Patches of blosc2 arrays, each opened for each sample, as nnU-Net's loader does."""

    def __init__(self, folder: Path, count: int, size: int) -> None:
        self._folder = folder
        self._size = size
        self._locations = []
        for number in range(count):
            with np.load(folder / f"{number}_locations.npz") as archive:
                self._locations.append([archive[name] for name in archive.files])
        self._rng = np.random.default_rng()

    def __len__(self) -> int:
        return 100_000 * len(self._locations)

    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]:
        import blosc2

        blosc2.set_nthreads(1)
        number = index % len(self._locations)
        opened = {
            name: blosc2.open(str(self._folder / f"{number}_{name}.b2nd"), mode="r", mmap_mode="r")
            for name in ("image", "seg")
        }
        room = np.array(opened["image"].shape) - self._size
        corner = self._rng.integers(0, room + 1)
        if self._rng.random() < SHARE:
            classes = self._locations[number]
            voxels = classes[self._rng.integers(len(classes))]
            corner = np.clip(voxels[self._rng.integers(len(voxels))] - self._size // 2, 0, room)
        box = tuple(slice(low, low + self._size) for low in corner.tolist())
        return {name: array[box] for name, array in opened.items()}
