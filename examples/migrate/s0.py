"""Point cloud segments of many HDF5 files: a dataset that loads all files into memory, and a store."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from trial import compare, rates, synthetic

import unistore

BATCH = 8
COLUMNS = ("x", "y", "z", "classification")


# --- before ---------------------------------------------------------------------------------------------


class MultiH5Dataset(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Segments of all files under one index, all files in memory."""

    def __init__(self, h5_paths: list[Path]) -> None:
        self.files: list[dict[str, np.ndarray]] = []
        self.segments: list[tuple[int, np.ndarray]] = []
        for number, path in enumerate(h5_paths):
            with h5py.File(path, "r") as file:
                self.files.append({name: file[f"data/{name}"][:] for name in COLUMNS})
                self.segments += [(number, each["indices"][:]) for each in file["segments"].values()]

    def __len__(self) -> int:
        return len(self.segments)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        number, rows = self.segments[index]
        x, y, z, labels = (self.files[number][name][rows] for name in COLUMNS)
        return torch.from_numpy(np.stack([x, y, z], axis=1)).float(), torch.from_numpy(labels).long()


def collate_fn(batch: list[Any]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Lists, since segments differ in length."""
    return [xyz for xyz, _ in batch], [labels for _, labels in batch]


def before(h5_paths: list[Path], *, shuffle: bool) -> DataLoader[Any]:
    """The loader of the old script."""
    dataset = MultiH5Dataset(h5_paths)
    return DataLoader(dataset, batch_size=BATCH, shuffle=shuffle, num_workers=0, collate_fn=collate_fn)


# --- after ----------------------------------------------------------------------------------------------


def after(store: Path, *, shuffle: bool) -> unistore.Loader:
    """The loader of the new script; no file is read before its first batch."""
    dataset = unistore.Dataset(
        store, unistore.Segments(coordinates="absolute"), fields=["xyz", "classification"]
    )
    collate = unistore.Collate("list", as_tuple=("xyz", "classification"))
    options = {"batch_size": BATCH, "shuffle": shuffle, "num_workers": 0, "collate_fn": collate}
    return unistore.Loader(dataset, cache="all", **options)


def pairs(loader: unistore.Loader) -> Iterator[tuple[list[torch.Tensor], list[torch.Tensor]]]:
    """Batches as the old training loop unpacks them, in the dtypes that its model takes."""
    for batch_xyz, batch_labels in loader:
        yield [xyz.float() for xyz in batch_xyz], [labels.long() for labels in batch_labels]


def main() -> None:
    """Convert, compare, time."""
    with tempfile.TemporaryDirectory() as folder:
        h5_paths = synthetic.point_clouds(Path(folder) / "train")
        store = Path(folder) / "train.zarr"
        unistore.convert(h5_paths, store, "point_cloud")
        compare("segments in order", before(h5_paths, shuffle=False), pairs(after(store, shuffle=False)))
        old = before(h5_paths, shuffle=True)
        with after(store, shuffle=True) as new:
            rates(lambda: old, lambda: pairs(new), samples=len(new.dataset))


if __name__ == "__main__":
    main()
