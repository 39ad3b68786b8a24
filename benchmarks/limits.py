"""Convert one source larger than ``--memory`` of every kind: below the limit, or refused before data is read.

Each command runs as users run it, ``unistore convert … --memory``, as a dry run, in one process and on
workers. Its anonymous memory, that of all its processes together, is sampled from /proc. Memory of mapped
files and of the page cache is not counted, as the kernel takes it back. With ``--cgroup`` the command also
runs in a cgroup (version 1) of so much memory, where one that holds more is killed.

    python benchmarks/limits.py                                       # 1 GB under 400 MB
    python benchmarks/limits.py --cgroup 500MB --only spike_stream
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import prod
from pathlib import Path
from typing import IO, Any, NamedTuple

import h5py
import numpy as np
import psutil
from memory import FAMILIES, MB, RNG

from unistore.system.sizes import parse_bytes, size

GROUPS = Path("/sys/fs/cgroup/memory")
STEP = 16 << 20
"""Bytes made at a time."""
PIXELS = (360, 640)
PACKED_STEP = 360 * 640 // 8
"""Bytes of one time step of packed bits."""


def write_random(file: IO[bytes], nbytes: int, most: int) -> None:
    """Write random bytes below `most`."""
    for start in range(0, nbytes, STEP):
        count = min(STEP, nbytes - start)
        file.write(RNG.integers(0, most, count, "u1").tobytes())


def write_array(
    file: IO[bytes], shape: tuple[int, ...], dtype: str = "<f4", *, most: int = 255, fortran: bool = False
) -> None:
    """Write the bytes of a ``.npy`` file of random values."""
    form = {"descr": dtype, "fortran_order": fortran, "shape": shape}
    np.lib.format.write_array_header_2_0(file, form)
    nbytes = prod(shape) * np.dtype(dtype).itemsize
    write_random(file, nbytes, most)


def rows_shape(nbytes: int) -> tuple[int, int]:
    """Shape of rows of 100 floats."""
    return nbytes // 400, 100


def rows_npy(folder: Path, nbytes: int, *, fortran: bool) -> None:
    """Make many rows, uncompressed."""
    with (folder / "a.npy").open("wb") as file:
        write_array(file, rows_shape(nbytes), fortran=fortran)


@contextmanager
def compressed_member(path: Path, name: str) -> Iterator[IO[bytes]]:
    """Open the only member of a new compressed archive."""
    archive = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
    with archive, archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        yield file


def rows_npz(folder: Path, nbytes: int, *, fortran: bool) -> None:
    """Make many rows in a compressed archive."""
    with compressed_member(folder / "a.npz", "x") as file:
        write_array(file, rows_shape(nbytes), fortran=fortran)


def one_row(folder: Path, nbytes: int) -> None:
    """Make rows that are larger than the limit."""
    width = nbytes // 8
    with h5py.File(folder / "a.h5", "w") as file:
        data = file.create_dataset("data", (2, width), "f4")
        for start in range(0, width, STEP):
            data[:, start : start + STEP] = 1.5


def one_chunk(folder: Path, nbytes: int) -> None:
    """Make a compressed chunk that is larger than the limit."""
    values = np.ones(rows_shape(nbytes), "f4")
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("data", data=values, chunks=values.shape, compression="gzip")


def points_npz(folder: Path, nbytes: int) -> None:
    """Make a point cloud in a compressed archive."""
    with compressed_member(folder / "a.npz", "points") as file:
        write_array(file, (nbytes // 12, 3), most=60)


def sparse_ct(folder: Path, nbytes: int) -> None:
    """Make a case whose windows are lists of points."""
    windows = folder / "case/windows"
    windows.mkdir(parents=True)
    points = nbytes // 14
    index = np.unravel_index(np.arange(points), (1024, 1024, 1024))
    coordinates = np.stack(index, axis=1).astype("i4")
    values = np.zeros(points, "i2")
    np.savez(windows / "lung_w1500_l-600_sparse.npz", indices=coordinates, values=values)


def spike_stream(folder: Path, nbytes: int) -> None:
    """Make one recording of packed bits."""
    with (folder / "recording.dat").open("wb") as file:
        write_random(file, nbytes // PACKED_STEP * PACKED_STEP, 255)


def spike_npz(folder: Path, nbytes: int, *, fortran: bool) -> None:
    """Make one recording of pixels in a compressed archive."""
    shape = (nbytes // prod(PIXELS), *PIXELS)
    with compressed_member(folder / "a.npz", "spk") as file:
        write_array(file, shape, "|u1", most=2, fortran=fortran)


def spike_npy(folder: Path, nbytes: int) -> None:
    """Make one recording of pixels in the folder of a sequence."""
    (folder / "seq/spike").mkdir(parents=True)
    shape = (nbytes // prod(PIXELS), *PIXELS)
    with (folder / "seq/spike/000.npy").open("wb") as file:
        write_array(file, shape, "|u1", most=2)


def d4rl(folder: Path, nbytes: int) -> None:
    """Make joined episodes in one file."""
    steps = nbytes // 160
    with h5py.File(folder / "a.hdf5", "w") as file:
        file["rewards"] = np.zeros(steps, "f4")
        file["terminals"] = np.arange(steps) % 1000 == 999
        for name, width in (("observations", 30), ("actions", 9)):
            data = file.create_dataset(name, (steps, width), "f4")
            for start in range(0, steps, 100_000):
                count = min(100_000, steps - start)
                data[start : start + count] = RNG.random((count, width), "f4")


class Case(NamedTuple):
    """A source that is converted."""

    family: str  # as the command line names it
    make: Callable[[Path, int], None]  # makes the source in a folder, of so many bytes
    options: str = ""


CASES = {
    "rows": Case("rows", FAMILIES["rows"][1]),
    "rows_npy": Case("rows", partial(rows_npy, fortran=False)),
    "rows_npy_fortran": Case("rows", partial(rows_npy, fortran=True)),
    "rows_npz": Case("rows", partial(rows_npz, fortran=False)),
    "rows_npz_fortran": Case("rows", partial(rows_npz, fortran=True)),
    "one_row": Case("rows", one_row),
    "one_chunk": Case("rows", one_chunk),
    "point_cloud": Case("point-cloud", FAMILIES["point_cloud"][1], "--voxel-size 0.5"),
    "tiles": Case("point-cloud", FAMILIES["windows"][1], "--segment window:100 --max-points 1500000"),
    "points_npz": Case("point-cloud", points_npz),
    "ct": Case("ct", FAMILIES["ct"][1], "--window lung --sparse coords"),
    "sparse_ct": Case("ct", sparse_ct),
    "spike": Case("spike", FAMILIES["spike"][1], "--height 360 --width 640 --voxel-bins 5"),
    "spike_stream": Case("spike", spike_stream, "--height 360 --width 640"),
    "spike_npz": Case("spike", partial(spike_npz, fortran=False)),
    "spike_npz_fortran": Case("spike", partial(spike_npz, fortran=True)),
    "spike_npy": Case("spike", spike_npy),
    "trajectory": Case("trajectory", FAMILIES["trajectory"][1]),
    "d4rl": Case("trajectory", d4rl),
    "bag": Case("trajectory", FAMILIES["bag"][1]),
}


class Outcome(NamedTuple):
    """What came of a command."""

    code: int
    peak: int  # bytes of anonymous memory
    seconds: float
    said: str  # the line about memory, else the last one

    def fits(self, limit: int) -> bool:
        """Return whether the limit held, and the command ended well or was refused for it."""
        is_refused = self.code == 2 and "--memory" in self.said
        return self.peak <= limit and (self.code == 0 or is_refused)


def anonymous(process: psutil.Process) -> int:
    """Return the anonymous memory of a process, in bytes; 0 once it has ended."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return 0
    lines = [line.split() for line in status.splitlines()]
    return sum(int(words[1]) << 10 for words in lines if words[0] in ("RssAnon:", "RssShmem:"))


def peak_of(started: subprocess.Popen[Any]) -> int:
    """Wait for a command and return the peak of what all its processes hold together."""
    peak = 0
    process = psutil.Process(started.pid)
    while started.poll() is None:
        try:
            processes = [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            break
        peak = max(peak, sum(map(anonymous, processes)))
        time.sleep(0.01)
    return peak


def run(command: list[str], group: Path | None) -> Outcome:
    """Run a command, in a cgroup if there is one, and sample its memory."""

    def enter() -> None:
        if group is not None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as output:
        started = subprocess.Popen(command, stdout=output, stderr=output, preexec_fn=enter)  # noqa: PLW1509
        peak = peak_of(started)
        code = started.wait()
        output.seek(0)
        lines = output.read().strip().splitlines() or [""]
    about_memory = [line for line in lines if "--memory" in line]
    said = about_memory[0] if about_memory else lines[-1]
    return Outcome(code, peak, time.perf_counter() - began, said)


@contextmanager
def cgroup(limit: int | None) -> Iterator[Path | None]:
    """Make a cgroup of so many bytes, and remove it."""
    if limit is None:
        yield None
        return
    group = GROUPS / f"unistore-limits-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(limit))
        yield group
    finally:
        group.rmdir()


def outcomes(case: Case, folder: Path, options: argparse.Namespace) -> Iterator[tuple[str, Outcome]]:
    """Make a source and convert it in every way."""
    sources = folder / "in"
    sources.mkdir()
    case.make(sources, options.megabytes * MB)
    ways = ["--dry-run", *(f"--workers {count}" for count in options.workers)]
    group_limit = parse_bytes(options.cgroup, "--cgroup") if options.cgroup else None
    for number, way in enumerate(ways):
        store = folder / f"out{number}.zarr"
        command = [sys.executable, "-m", "unistore", "convert", case.family, str(sources), str(store)]
        words = f"{case.options} {way} --memory {options.memory}".split()
        with cgroup(group_limit) as group:
            yield way, run([*command, *words], group)


def main() -> None:
    """Print a table; exit code 1 if a command held more than its limit, or failed in another way."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=1100)
    parser.add_argument("--memory", default="400MB")
    parser.add_argument("--cgroup", help="also limit the command by a cgroup of so much memory")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--work", type=Path, help="where sources and stores are made: on a disk")
    options = parser.parse_args()
    limit = parse_bytes(options.memory, "--memory")
    all_fit = True
    print("| source | command | exit code | peak of anonymous memory | seconds | |")
    print("|---|---|--:|--:|--:|---|")
    for name in options.only:
        with tempfile.TemporaryDirectory(prefix="unistore-limits-", dir=options.work) as folder:
            for way, outcome in outcomes(CASES[name], Path(folder), options):
                fits = outcome.fits(limit)
                all_fit = all_fit and fits
                cells = [name, way, str(outcome.code), size(outcome.peak), f"{outcome.seconds:.0f}"]
                said = outcome.said[:160] if outcome.code else ""
                mark = "" if fits else "**FAILED** "
                print(f"| {' | '.join(cells)} | {mark}{said} |", flush=True)
    print(f"every limit held: {all_fit}")
    sys.exit(not all_fit)


if __name__ == "__main__":
    main()
