"""Patches a second from nnU-Net's blosc2 files and from a store, in turns, and the disk of both.

python speed.py          cases of 160 x 256 x 256 voxels that it makes: smooth HU with noise, two
                         ellipsoids; once of whole HU, once as after resampling
python speed.py FOLDER   a preprocessed folder with both, after `to_store.py`
"""

import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import numpy as np
from nnunetv2.training.dataloading.data_loader import nnUNetDataLoader
from nnunetv2.training.dataloading.nnunet_dataset import comp_blosc2_params, nnUNetDatasetBlosc2
from to_store import to_store
from unistore_trainer import UnistoreDataset

SHAPE = (160, 256, 256)
PATCH = (128, 128, 128)
BATCH = 2
ROUNDS = 7
BATCHES = 6  # of a round


def write_cases(folder: Path, count: int, *, is_resampled: bool) -> None:
    """Write normalised cases as nnU-Net does, in chunks for its patches: of whole HU unless resampled."""
    random = np.random.default_rng(0)
    folder.mkdir()
    blocks, chunks = comp_blosc2_params((1, *SHAPE), PATCH)
    grid = np.stack(np.meshgrid(*(np.linspace(-1, 1, size) for size in SHAPE), indexing="ij"))
    for case in range(count):
        label = np.zeros((1, *SHAPE), np.int16)
        for number in (1, 2):
            centre = random.uniform(-0.5, 0.5, (3, 1, 1, 1))
            label[0][(((grid - centre) / random.uniform(0.2, 0.4)) ** 2).sum(axis=0) < 1] = number
        smooth = 80 * np.sin(3 * grid + random.uniform(0, 6, (3, 1, 1, 1))).sum(axis=0)
        units = smooth + 200 * label + random.normal(0, 15, SHAPE)
        image = (((units if is_resampled else np.rint(units)) - 20) / 150).astype(np.float32)
        locations = {number: random.permutation(np.argwhere(label == number))[:10000] for number in (1, 2)}
        name = str(folder / f"case_{case}")
        nnUNetDatasetBlosc2.save_case(image, label, {"class_locations": locations}, name, chunks, blocks)


def size_of(paths: list[Path]) -> float:
    """Return the sizes of files together, in MB."""
    return sum(path.stat().st_size for path in paths if path.is_file()) / 1e6


def compare(folder: Path) -> None:
    """Print patches a second of both, the ratio of each round, and the disk of both."""
    labels = SimpleNamespace(all_labels=[0, 1, 2], has_ignore_label=False)
    ways = {"blosc2": nnUNetDatasetBlosc2, "unistore": UnistoreDataset}
    datasets = {name: way(str(folder)) for name, way in ways.items()}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    costs: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(ROUNDS + 1):
        for name, dataset in datasets.items():
            loader = nnUNetDataLoader(
                dataset, BATCH, PATCH, PATCH, labels, oversample_foreground_percent=0.33
            )
            np.random.seed(number)  # noqa: NPY002 (nnU-Net draws from it)
            begin, begin_cpu = time.perf_counter(), time.process_time()
            for _ in range(BATCHES):
                next(loader)
            if number:  # the first round fills caches
                rates[name].append(BATCH * BATCHES / (time.perf_counter() - begin))
                costs[name].append((time.process_time() - begin_cpu) / (BATCH * BATCHES) * 1000)
    ratios = [ours / own for own, ours in zip(*rates.values(), strict=True)]
    for name, measured in rates.items():
        cost = f"{statistics.median(costs[name]):.0f} ms of processor time a patch"
        print(f"{name}: {statistics.median(measured):.1f} patches/s, {cost}")
    print(f"unistore / blosc2: {statistics.median(ratios):.2f} ({min(ratios):.2f}…{max(ratios):.2f})")
    store = folder.parent / f"{folder.name}.zarr"
    own, ours = size_of(list(folder.glob("*.b2nd"))), size_of(list(store.rglob("*")))
    print(f"disk: blosc2 {own:.1f} MB, unistore {ours:.1f} MB")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        compare(Path(sys.argv[1]).resolve())
    else:
        for is_resampled in (False, True):
            with TemporaryDirectory() as temporary:
                made = Path(temporary, "cases")
                write_cases(made, 4, is_resampled=is_resampled)
                to_store(made)
                print("resampled" if is_resampled else "whole HU")
                compare(made)
