"""Train nnU-Net from a unistore store: a dataset class, and a trainer that uses it.

nnU-Net finds the trainer in the folder that the environment variable ``nnUNet_extTrainer`` names::

    nnUNetv2_train 1 3d_fullres 0 -tr nnUNetTrainerUnistore

Voxels come from ``<configuration>.zarr`` next to the preprocessed folder ``<configuration>``, which
`to_store.py` makes. That folder then only needs its ``.pkl`` files.
"""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from batchgenerators.utilities.file_and_folder_operations import load_pickle
from nnunetv2.training.dataloading.nnunet_dataset import nnUNetBaseDataset
from nnunetv2.training.nnUNetTrainer import nnUNetTrainer as trainer_module  # noqa: N813 (a module)

import unistore

IMAGE = "volumes/image"
LABEL = "labels/label/label"
BITS = "labels/label/mask"  # instead of `LABEL` if all labels are 0 and 1: eight voxels per byte


class StoredVolume:
    """An array (C, D, H, W) of a store. Slices of it are read when they are taken, as numpy arrays.

    Parameters
    ----------
    store : unistore.Store
        A CT store.
    path : str
        Path of the array in the store.
    rows : list of int
        Row of the array for each channel.
    extent : sequence of int
        Depth, height and width of the volume.
    """

    def __init__(self, store: unistore.Store, path: str, rows: list[int], extent: Any) -> None:
        self._array = store.array(path)
        self._is_bits = path == BITS
        self._rows = rows
        self.shape = (len(rows), *map(int, extent))
        self.dtype = np.dtype(np.int8) if self._is_bits else self._array.dtype

    def __getitem__(self, key: slice | tuple[slice, ...]) -> np.ndarray:
        slices = (key,) if isinstance(key, slice) else key
        slices += (slice(None),) * (len(self.shape) - len(slices))
        spans = [part.indices(size) for part, size in zip(slices, self.shape, strict=True)]
        if any(step != 1 for _, _, step in spans):
            msg = f"{slices}: steps other than 1 are not supported"
            raise IndexError(msg)
        channels, *box = spans
        low = [start for start, _, _ in box]
        high = [max(start, stop) for start, stop, _ in box]
        return np.stack([self._read(row, low, high) for row in self._rows[slice(*channels)]])

    def _read(self, row: int, low: list[int], high: list[int]) -> np.ndarray:
        if not self._is_bits:
            return self._array.read_box((row, *low), (row + 1, *high))[0]
        start, stop = low[2] // 8, -(-high[2] // 8)
        packed = self._array.read_box((row, *low[:2], start), (row + 1, *high[:2], stop))[0]
        bits = np.unpackbits(packed, axis=-1, bitorder="little").astype(np.int8)
        return bits[..., low[2] - 8 * start : high[2] - 8 * start]


class UnistoreDataset(nnUNetBaseDataset):
    """Cases of a preprocessed folder, whose voxels are read from the store next to it."""

    def __init__(
        self,
        folder: str,
        identifiers: list[str] | None = None,
        folder_with_segs_from_previous_stage: str | None = None,
    ) -> None:
        if folder_with_segs_from_previous_stage is not None:
            msg = "UnistoreDataset: 3d_cascade_fullres is not read from a store. fix: -tr nnUNetTrainer"
            raise NotImplementedError(msg)
        super().__init__(folder, identifiers)
        self._store = open_store(folder)
        self._label = BITS if self._store.has(BITS) else LABEL
        self._extents = self._store.array("volumes/extent").read()
        self._rows = rows_of_cases(self._store)

    def load_case(self, identifier: str) -> tuple[StoredVolume, StoredVolume, None, dict[str, Any]]:
        """Return image (C, D, H, W), label (1, D, H, W), None, and the properties that nnU-Net computed."""
        rows = self._rows[identifier]
        extent = self._extents[rows[0]]
        image = StoredVolume(self._store, IMAGE, rows, extent)
        label = StoredVolume(self._store, self._label, rows[:1], extent)
        return image, label, None, load_pickle(f"{self.source_folder}/{identifier}.pkl")

    @staticmethod
    def get_identifiers(folder: str) -> list[str]:
        """Return the names of all cases of the store."""
        return list(rows_of_cases(open_store(folder)))

    @staticmethod
    def save_case(*_arguments: Any, **_options: Any) -> None:
        """Raise: `to_store.py` writes the store from the cases that nnU-Net preprocessed."""
        msg = "UnistoreDataset: a store cannot be written case by case. fix: python to_store.py FOLDER"
        raise NotImplementedError(msg)


def open_store(folder: str) -> unistore.Store:
    """Open the store next to a preprocessed folder."""
    if not Path(f"{folder}.zarr").exists():
        msg = f"{folder}.zarr: is not there. fix: python to_store.py {folder}"
        raise FileNotFoundError(msg)
    return unistore.Store(f"{folder}.zarr")


def rows_of_cases(store: unistore.Store) -> dict[str, list[int]]:
    """Return the rows of each case in the store, one for each channel, in their order."""
    names = store.text("volumes/name")
    rows: dict[str, list[int]] = {}
    for row in sorted(range(len(names)), key=names.__getitem__):
        rows.setdefault(names[row][: -len("_0000")], []).append(row)
    return rows


class nnUNetTrainerUnistore(trainer_module.nnUNetTrainer):  # noqa: N801 (nnU-Net finds trainers by their names)
    """nnU-Net's trainer, reading voxels from a store."""

    def initialize(self) -> None:
        """Set up the network, without looking for voxels in the preprocessed folder."""
        if not self.was_initialized:
            with patch.object(trainer_module, "infer_dataset_class", return_value=UnistoreDataset):
                super().initialize()
            self.print_to_log_file(f"Voxels are read from {self.preprocessed_dataset_folder}.zarr")
