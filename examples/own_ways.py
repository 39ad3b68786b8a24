"""The samples of the demo as programs without unistore read them from the sources, for torch's DataLoader."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import h5py
import nibabel
import numpy as np
import torch
from torch.utils.data import Dataset

SIDE = 64  # voxels of a box along an axis
WINDOW = 40  # time steps of a window of spikes
STRIDE = 10  # time steps from one window to the next
HEIGHT = 250
WIDTH = 400


class OwnWay(Dataset[torch.Tensor], ABC):
    """Samples of a folder of sources, one key of each."""

    key: str
    reader: str
    samples: str
    collate: Any

    @abstractmethod
    def __init__(self, folder: Path) -> None: ...

    @abstractmethod
    def __len__(self) -> int: ...


class SegmentsByH5py(OwnWay):
    """Segments of point clouds: a segment's rows, then its points, (N, 3) float64."""

    key = "xyz"
    reader = "h5py"
    samples = "cloud segments"
    collate = staticmethod(torch.cat)

    def __init__(self, folder: Path) -> None:
        self.segments: list[tuple[Path, str]] = []
        for path in sorted(folder.iterdir()):
            with h5py.File(path) as file:
                self.segments += [(path, name) for name in file["segments"]]

    def __len__(self) -> int:
        return len(self.segments)

    def __getitem__(self, number: int) -> torch.Tensor:
        path, name = self.segments[number]
        with h5py.File(path) as file:
            rows = file[f"segments/{name}/indices"][:]
            columns = [file[f"data/{axis}"][:][rows] for axis in "xyz"]
        return torch.from_numpy(np.stack(columns, axis=1))


class BoxesByNibabel(OwnWay):
    """Boxes of a volume: the file is decompressed for each, (64, 64, 64) int16."""

    key = "image"
    reader = "nibabel"
    samples = "CT boxes of 64³"
    collate = staticmethod(torch.stack)

    def __init__(self, folder: Path) -> None:
        (self.path,) = folder.iterdir()
        lasts = [extent - SIDE for extent in nibabel.load(self.path).shape[::-1]]
        starts = [[*range(0, last, SIDE), last] for last in lasts]
        self.corners = list(itertools.product(*starts))

    def __len__(self) -> int:
        return len(self.corners)

    def __getitem__(self, number: int) -> torch.Tensor:
        z, y, x = self.corners[number]
        volume = np.asarray(nibabel.load(self.path).dataobj).T
        box = volume[z : z + SIDE, y : y + SIDE, x : x + SIDE]
        return torch.from_numpy(np.ascontiguousarray(box))


class WindowsByNumpy(OwnWay):
    """Windows of a stream of packed spikes, lowest bit first, bottom row first, (T, h, w) uint8."""

    key = "spike"
    reader = "numpy"
    samples = "windows of 40 spike frames"
    collate = staticmethod(torch.stack)

    def __init__(self, folder: Path) -> None:
        (self.path,) = folder.iterdir()
        self.frame = HEIGHT * WIDTH // 8
        self.steps = self.path.stat().st_size // self.frame

    def __len__(self) -> int:
        return (self.steps - WINDOW) // STRIDE + 1

    def __getitem__(self, number: int) -> torch.Tensor:
        start = number * STRIDE * self.frame
        packed = np.fromfile(self.path, np.uint8, WINDOW * self.frame, offset=start)
        bits = np.unpackbits(packed, bitorder="little").reshape(WINDOW, HEIGHT, WIDTH)
        return torch.from_numpy(bits[:, ::-1].copy())
