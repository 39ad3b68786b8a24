"""Patches a second of MONAI's CacheDataset and of a Loader with a cache, in turns, and the disk of both.

``python compare.py FOLDER [ROUNDS]``. Files and the store are made in FOLDER. Both deliver patches of an
image and a label, 64³ voxels, a third of them centred on the label, in batches of 4 made by two workers.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import nibabel
import numpy as np
import torch
from monai import transforms
from monai.data import CacheDataset, DataLoader, list_data_collate
from monai.utils import set_determinism

import unistore

VOLUMES, EDGE, PATCH, BATCH, SECONDS = 6, 192, 64, 4, 4.0
KEYS = ["image", "tumour"]


def make_files(folder: Path) -> list[dict[str, str]]:
    """Write smooth volumes with noise, and labels, as NIfTI. Return their paths."""
    generator = np.random.default_rng(0)
    files = []
    for number in range(VOLUMES):
        case = folder / "cases" / f"case{number}"
        (case / "segmentations").mkdir(parents=True, exist_ok=True)
        coarse = torch.from_numpy(generator.normal(0, 400, (1, 1, 8, 8, 8)))
        smooth = torch.nn.functional.interpolate(coarse, (EDGE,) * 3, mode="trilinear")[0, 0].numpy()
        volume = (smooth + generator.normal(0, 20, smooth.shape)).astype(np.int16)
        paths = {"image": case / "ct.nii.gz", "tumour": case / "segmentations" / "tumour.nii.gz"}
        for key, values in (("image", volume), ("tumour", (smooth > 500).astype(np.uint8))):
            nibabel.save(nibabel.Nifti1Image(values, np.diag([0.8, 0.8, 1.5, 1.0])), paths[key])
        files.append({key: str(path) for key, path in paths.items()})
    return files


def of_cache_dataset(files: list[dict[str, str]]) -> DataLoader:
    """Return batches of MONAI, with volumes and the indices of labels in memory."""
    crop = transforms.RandCropByPosNegLabeld(
        KEYS,
        "tumour",
        (PATCH,) * 3,
        pos=1 / 3,
        neg=2 / 3,
        num_samples=BATCH,
        fg_indices_key="tumour_fg_indices",
        bg_indices_key="tumour_bg_indices",
    )
    steps = [
        transforms.LoadImaged(KEYS, ensure_channel_first=True, dtype=None),
        transforms.FgBgToIndicesd("tumour"),
    ]
    dataset = CacheDataset(files, transforms.Compose([*steps, crop]), cache_rate=1.0, progress=False)
    order = torch.utils.data.RandomSampler(dataset, replacement=True, num_samples=1_000_000)
    return DataLoader(dataset, batch_size=1, sampler=order, num_workers=2, collate_fn=list_data_collate)


def of_store(path: Path) -> Iterator[Any]:
    """Return batches of a Loader, epoch after epoch."""
    kind = unistore.Patches(PATCH, per_volume=40, foreground={"tumour": 1 / 3})
    dataset = unistore.Dataset(path, kind, KEYS)
    with unistore.Loader(dataset, BATCH, shuffle=True, num_workers=2, cache="all") as loader:
        while True:
            yield from loader


def rate(batches: Iterator[Any]) -> float:
    """Return patches a second."""
    started = time.perf_counter()
    count = 0
    while (seconds := time.perf_counter() - started) < SECONDS:
        batch = next(batches)
        assert batch["image"].shape[-3:] == (PATCH,) * 3
        count += len(batch["image"])
    return count / seconds


def megabytes(folder: Path) -> float:
    """Return the size of the files in a folder, in MB."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def main(folder: Path, rounds: int) -> None:
    """Measure in turns, and print the medians."""
    set_determinism(0)
    files = make_files(folder)
    unistore.convert(folder / "cases", folder / "ct.zarr", "ct", foreground_locations=10_000, overwrite=True)
    started = time.perf_counter()
    theirs = iter(of_cache_dataset(files))
    next(theirs)
    begun = time.perf_counter()
    ours = of_store(folder / "ct.zarr")
    next(ours)
    print(
        f"first batch after: CacheDataset {begun - started:.1f} s, Loader {time.perf_counter() - begun:.1f} s"
    )
    rate(theirs), rate(ours)  # fills the cache of the Loader
    rates = [(rate(theirs), rate(ours)) for _ in range(rounds)]
    for their, our in rates:
        print(f"CacheDataset {their:.0f} patches/s, Loader {our:.0f} patches/s, {our / their:.1f}×")
    print(f"median of the ratios: {median(our / their for their, our in rates):.1f}×")
    print(f"disk: files {megabytes(folder / 'cases'):.1f} MB, store {megabytes(folder / 'ct.zarr'):.1f} MB")
    ours.close()  # type: ignore[attr-defined]


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 5)
