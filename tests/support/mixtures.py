"""Folders in which sources of all families, junk and damaged files lie beside each other."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.support.cases import DATA, MAKERS, Case

SETS: dict[str, tuple[str, ...]] = {
    "rows": ("rows_hdf5", "rows_npz", "rows_npy", "rows_side_by_side", "rows_structured"),
    "point_cloud": ("cloud_indices", "cloud_in_segments", "cloud_batches", "cloud_mixed"),
    "ct": ("ct_cases", "ct_sparse", "ct_real"),
    "spike": ("spike_keep", "spike_arrays", "spike_bytes"),
    "trajectory": ("robot_robomimic", "robot_flat", "robot_d4rl", "robot_act"),
}
"""Makers of sources by family, see `tests.support.cases`."""

JUNK: dict[str, bytes] = {
    "README.md": b"about\n",
    "notes.txt": b"text\n",
    ".hidden.npy": b"hidden",
    ".cache/a.h5": b"hidden",
    "scan.nii.gz": b"\x1f\x8bNIfTI",
    "slice.dcm": bytes(128) + b"DICM",
    "tile.las": b"LASF" + bytes(40),
    "mesh.ply": b"ply\nformat ascii 1.0\n",
    "table.csv": b"a,b\n1,2\n",
    "photo.png": b"\x89PNG\r\n\x1a\n",
    "video.mp4": bytes(64),
    "train_files.txt": b"nothing.h5\n",
    "array.zarr/.zgroup": b'{"zarr_format": 2}',
    "array.zarr/a/0.0": bytes(16),
    "store.zarr/zarr.json": b"{}",
    "store.zarr/x.npy": b"not looked into",
    "gone.zarr.unistore-build/x.h5": b"not looked into",
    "data.xyz.bin": bytes(10),
    "cut.npy": b"\x93NUMPY\x01\x00\x10\x00{'descr'",
    "cut.h5": b"\x89HDF\r\n\x1a\n" + bytes(40),
    "cut.npz": b"PK\x03\x04" + bytes(30),
    "empty.dat": b"",
}
"""Files that are no sources: texts, hidden ones, formats that are not read, Zarr, and damaged ones."""


class Shelf:
    """Sources of every maker, made once in a folder and linked from there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, tuple[Case, Path]] = {}

    def get(self, maker: str) -> tuple[Case, Path]:
        """How the sources of a maker are converted, and the folder that holds them."""
        if maker not in self._made:
            folder = self._folder / maker
            folder.mkdir(parents=True)
            case = MAKERS[maker](folder)
            for source in case.sources:
                if source.is_relative_to(DATA):
                    copy = shutil.copytree if source.is_dir() else shutil.copy
                    copy(source, folder / source.name)
            self._made[maker] = case, folder
        return self._made[maker]


@dataclass
class Mixture:
    """A folder, and which of its files belong to one set of sources.

    Attributes
    ----------
    folder
        Where they lie.
    sets
        Files of each set, by the name of its maker.
    cases
        How the sets are converted.
    junk
        Files that are no sources.
    """

    folder: Path
    sets: dict[str, list[Path]] = field(default_factory=dict)
    cases: dict[str, Case] = field(default_factory=dict)
    junk: list[Path] = field(default_factory=list)

    def add(self, shelf: Shelf, maker: str, inside: str) -> None:
        """Link the sources of a maker into a folder inside."""
        case, source = shelf.get(maker)
        self.cases[maker] = case
        self.sets[maker] = []
        for path in sorted(source.rglob("*")):
            target = self.folder / inside / path.relative_to(source)
            if path.is_file() and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                os.link(path, target)
                self.sets[maker].append(target)

    def add_junk(self, name: str, inside: str) -> Path:
        """Write a file that is no source."""
        path = self.folder / inside / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(JUNK[name])
        self.junk.append(path)
        return path

    def partners(self, path: Path) -> set[Path]:
        """Files whose verdicts may depend on one: those of its case or recording."""
        for maker, files in self.sets.items():
            if path in files and maker.startswith(("ct_cases", "ct_sparse", "spike_")):
                return set(files)
        return {path}


def damage(path: Path, rng: Random) -> None:
    """Cut a file, change bytes of it, or write something else in its place; links to it stay whole."""
    data = bytearray(path.read_bytes())
    path.unlink()
    how = rng.randrange(4)
    if how == 0:
        data = data[: rng.randrange(len(data) or 1)]
    elif how == 1 and data:
        for _ in range(8):
            data[rng.randrange(min(len(data), 256))] = rng.randrange(256)
    elif how == 2:
        data = bytearray(rng.randbytes(rng.randrange(1, 400)))
    else:
        data = bytearray(JUNK[rng.choice(("cut.npy", "cut.h5", "cut.npz"))])
    path.write_bytes(data)
