"""Sparse points of CT windows: masks searched with `np.nonzero` and kept in memory, and a store."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from trial import DATA, compare, rates

import unistore

BATCH, WORKERS, MIN_POINTS, MAX_POINTS = 2, 2, 100, 2000
WINDOW = "lung_w1500_l-600"
Points = tuple[torch.Tensor, torch.Tensor]


# --- before ---------------------------------------------------------------------------------------------


class CTWindowSparseSDF(Dataset[Points]):
    """Voxels of a window as points; volumes and indices stay in memory once they were read."""

    def __init__(self, root: Path, max_points: int | None) -> None:
        self.max_points = max_points
        self.indices: dict[Path, torch.Tensor] = {}
        found = sorted(root.glob(f"*/windows/{WINDOW}.npy"))
        self.paths = [path for path in found if len(self.sparse_indices(path)) >= MIN_POINTS]

    def sparse_indices(self, path: Path) -> torch.Tensor:
        """Points (N, 3) of a mask."""
        if path not in self.indices:
            places = np.stack(np.nonzero(np.load(path)), axis=1)
            self.indices[path] = torch.from_numpy(places.astype(np.int32))
        return self.indices[path]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Points:
        coords = self.sparse_indices(self.paths[index])
        if self.max_points is not None and len(coords) > self.max_points:
            coords = coords[torch.randperm(len(coords))[: self.max_points]]
        return coords, torch.ones(len(coords), 1)


def collate_fn(batch: list[Points]) -> Points:
    """Coordinates (sum N, 4) with the sample's number in front, as sparse convolutions take them."""
    numbers = [torch.full((len(coords), 1), at, dtype=torch.int32) for at, (coords, _) in enumerate(batch)]
    coords = [torch.cat([number, c], dim=1) for number, (c, _) in zip(numbers, batch, strict=True)]
    return torch.cat(coords), torch.cat([values for _, values in batch])


def before(root: Path, *, train: bool) -> DataLoader[Any]:
    """The loader of the old script."""
    dataset = CTWindowSparseSDF(root, MAX_POINTS if train else None)
    return DataLoader(
        dataset, BATCH, shuffle=train, num_workers=WORKERS, persistent_workers=True, collate_fn=collate_fn
    )


# --- after ----------------------------------------------------------------------------------------------


def after(store: Path, *, train: bool) -> unistore.Loader:
    """The loader of the new script; points were found once, at conversion."""
    dataset = unistore.Dataset(
        store,
        unistore.SparsePoints("lung", min_points=MIN_POINTS, max_points=MAX_POINTS if train else None),
    )
    collate = unistore.Collate(coords="batch-first")
    return unistore.Loader(dataset, BATCH, shuffle=train, num_workers=WORKERS, collate_fn=collate)


def pairs(loader: unistore.Loader) -> Iterator[Points]:
    """Batches as the old model takes them."""
    return ((batch["coords"], batch["values"].float()) for batch in loader)


def cases(root: Path) -> Path:
    """Case folders with masks of the window ``lung``, from the bundled volumes and their mirror images."""
    volumes = [np.load(path) for path in sorted((DATA / "ct").glob("*.npy"))]
    volumes += [np.ascontiguousarray(np.flip(each, axis)) for each in volumes for axis in range(3)]
    for number, volume in enumerate(volumes):
        path = root / f"case_{number:03d}" / "windows" / f"{WINDOW}.npy"
        path.parent.mkdir(parents=True)
        np.save(path, ((volume >= -1350) & (volume <= 150)).astype(np.uint8))
    return root


def main() -> None:
    """Convert, compare, time."""
    with tempfile.TemporaryDirectory() as folder:
        root, store = cases(Path(folder) / "processed"), Path(folder) / "ct.zarr"
        unistore.convert([root], store, "ct")
        with after(store, train=False) as whole:
            compare("all points", before(root, train=False), pairs(whole))
        old = before(root, train=True)
        with after(store, train=True) as new:
            compare("random subsets", old, pairs(new), values=False)
            rates(lambda: old, lambda: pairs(new), samples=len(new.dataset))


if __name__ == "__main__":
    main()
