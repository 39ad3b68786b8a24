"""DICOM series, converted by one command, beside pydicom reading the same files alone.

    python benchmarks/dicom.py [--series 12] [--slices 40] [--edge 256] [--workers N] [--rounds 3]

Synthetic: slices of CT written by pydicom under random names, three series a folder. pydicom reads and
decodes every file in one process, and in as many as there are workers; a ratio is the median over the rounds.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import pydicom
from pydicom.data import get_testdata_file
from pydicom.uid import generate_uid

SERIES_A_FOLDER = 3


def make_series(folder: Path, number: int, slices: int, edge: int) -> None:
    """Write one series under shuffled names."""
    rng = np.random.default_rng(number)
    names = random.Random(number).sample(range(10**8), slices)
    data_set = pydicom.dcmread(str(get_testdata_file("CT_small.dcm", download=False)))
    data_set.SeriesInstanceUID = generate_uid()
    data_set.PatientID = f"P{number:05d}"
    data_set.Rows = data_set.Columns = edge
    data_set.BitsStored = 12
    data_set.PixelRepresentation = 0
    del data_set.DataSetTrailingPadding
    grain = rng.integers(0, 60, (edge, edge)).astype("<u2")
    for place, name in enumerate(names):
        data_set.SOPInstanceUID = generate_uid()
        data_set.file_meta.MediaStorageSOPInstanceUID = data_set.SOPInstanceUID
        data_set.InstanceNumber = place + 1
        data_set.ImagePositionPatient = [-120, -120, 2.5 * place]
        data_set.PixelData = (grain + 1000 + place).astype("<u2").tobytes()
        data_set.save_as(folder / f"{name:08d}.dcm")


def make_folders(root: Path, series: int, slices: int, edge: int) -> None:
    """Write all series, some in each folder."""
    for number in range(series):
        folder = root / f"study-{number // SERIES_A_FOLDER:03d}"
        folder.mkdir(parents=True, exist_ok=True)
        make_series(folder, number, slices, edge)


READ = """
import sys
from multiprocessing import Pool
from pathlib import Path
import pydicom

def total(path):
    return int(pydicom.dcmread(path).pixel_array.sum())

if __name__ == "__main__":
    paths = sorted(Path(sys.argv[1]).rglob("*.dcm"))
    with Pool(int(sys.argv[2])) as pool:
        print(sum(pool.imap_unordered(total, paths, 16)))
"""
"""What reads the files by pydicom alone, in as many processes."""


def seconds(command: list[str]) -> float:
    """Return how long a command takes."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    """Measure, and print seconds of each round and the median ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--series", type=int, default=12)
    parser.add_argument("--slices", type=int, default=40)
    parser.add_argument("--edge", type=int, default=256)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    ratios: dict[int, list[float]] = {1: [], options.workers: []}
    with tempfile.TemporaryDirectory(prefix="unistore-dicom-") as folder:
        source = Path(folder, "source")
        store = Path(folder, "ct.zarr")
        make_folders(source, options.series, options.slices, options.edge)
        workers = str(options.workers)
        read = [sys.executable, "-c", READ, str(source)]
        convert = [sys.executable, "-m", "unistore", "convert", str(source), str(store), "--workers", workers]
        for _ in range(options.rounds):
            shutil.rmtree(store, ignore_errors=True)
            converting = seconds(convert)
            print(f"unistore convert with {workers} workers: {converting:.2f} s")
            for processes, of_processes in ratios.items():
                reading = seconds([*read, str(processes)])
                of_processes.append(reading / converting)
                print(f"pydicom alone in {processes} processes: {reading:.2f} s")
    print(f"{options.series * options.slices:,} files of {options.edge}²")
    for processes, of_processes in ratios.items():
        print(f"{median(of_processes):.2f} of the speed of pydicom alone in {processes} processes")


if __name__ == "__main__":
    main()
