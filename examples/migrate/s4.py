"""Rows of many HDF5 files under one index: a file opened for each sample, and a store."""

from __future__ import annotations

import bisect
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from trial import compare, rates

import unistore

BATCH, WORKERS = 16, 2
Pair = tuple[torch.Tensor, torch.Tensor]


# --- before ---------------------------------------------------------------------------------------------


class MultiH5Dataset(Dataset[Pair]):
    """Rows of all files; no handle outlives a sample, so that workers may be forked."""

    def __init__(self, h5_paths: list[Path]) -> None:
        self.paths = h5_paths
        self.ends: list[int] = []
        for path in h5_paths:
            with h5py.File(path, "r") as file:
                self.ends.append(len(file["data"]) + (self.ends[-1] if self.ends else 0))

    def __len__(self) -> int:
        return self.ends[-1]

    def __getitem__(self, index: int) -> Pair:
        number = bisect.bisect_right(self.ends, index)
        row = index - (self.ends[number - 1] if number else 0)
        with h5py.File(self.paths[number], "r") as file:
            return torch.from_numpy(file["data"][row]), torch.tensor(file["label"][row])


def before(h5_paths: list[Path], *, shuffle: bool) -> DataLoader[Any]:
    """The loader of the old script."""
    dataset = MultiH5Dataset(h5_paths)
    return DataLoader(dataset, BATCH, shuffle=shuffle, num_workers=WORKERS, persistent_workers=True)


# --- after ----------------------------------------------------------------------------------------------


def after(store: Path, *, shuffle: bool) -> unistore.Loader:
    """The loader of the new script."""
    return unistore.Loader(
        unistore.Dataset(store, fields=["data", "label"]), BATCH, shuffle=shuffle, num_workers=WORKERS
    )


def pairs(loader: unistore.Loader) -> Iterator[Pair]:
    """Batches as the old training loop unpacks them."""
    return ((batch["data"], batch["label"]) for batch in loader)


def files(folder: Path) -> list[Path]:
    """Three files of different lengths."""
    rng, paths = np.random.default_rng(0), []
    for number, rows in enumerate((120, 75, 205)):
        paths.append(folder / f"part_{number}.h5")
        with h5py.File(paths[-1], "w") as file:
            file["data"] = rng.standard_normal((rows, 64)).astype(np.float32)
            file["label"] = rng.integers(0, 10, rows)
    return paths


def main() -> None:
    """Convert, compare, time."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        h5_paths, store = files(folder), folder / "train.zarr"
        unistore.convert(h5_paths, store, "rows")
        with after(store, shuffle=False) as ordered:
            compare("rows in order", before(h5_paths, shuffle=False), pairs(ordered))
        old = before(h5_paths, shuffle=True)
        with after(store, shuffle=True) as new:
            rates(lambda: old, lambda: pairs(new), samples=len(new.dataset))


if __name__ == "__main__":
    main()
