"""What a conversion holds: every kind of step against its estimate, and all processes against ``--memory``.

Synthetic sources of each family are converted step by step in a fresh process whose peak is reset before each
step (Linux: /proc/self/clear_refs), then once more by worker processes under a limit, sampled as a whole.

    python benchmarks/memory.py                                    # 100 MB of each family
    python benchmarks/memory.py --megabytes 100 1000 --workers 2   # is the peak flat?
    python benchmarks/memory.py --workers 0 --json                 # steps only, in bytes
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import psutil

from unistore.conversion.convert import make_converter
from unistore.conversion.executors.local import Serial
from unistore.conversion.memory import PROCESS
from unistore.conversion.run import run
from unistore.conversion.signatures import convert
from unistore.system.sizes import size

MB = 1_000_000
RNG = np.random.default_rng(0)


def rows(folder: Path, size: int) -> None:
    """One HDF5 file of small point sets with labels."""
    count = size // (64 * 3 * 4)
    with h5py.File(folder / "a.h5", "w") as file:
        data = file.create_dataset("data", (count, 64, 3), "f4")
        for lo in range(0, count, 50_000):
            data[lo : lo + 50_000] = RNG.integers(0, 1000, (min(50_000, count - lo), 64, 3))
        file["label"] = np.arange(count) % 10


STEP = 1 << 20
"""Points made at a time."""


def points(file: h5py.File, count: int) -> None:
    """Columns of points scattered over a square of 10 km, in centimetres, class and intensity."""
    header = file.create_group("header")
    for axis in "xyz":
        header.attrs[f"{axis}_scale"], header.attrs[f"{axis}_offset"] = 0.01, 0.0
    forms = {**dict.fromkeys("xyz", "f8"), "classification": "i4", "intensity": "u2"}
    columns = {key: file.create_dataset(f"data/{key}", (count,), form) for key, form in forms.items()}
    for lo in range(0, count, STEP):
        hi = min(lo + STEP, count)
        for axis in "xyz":
            columns[axis][lo:hi] = RNG.integers(0, 1_000_000, hi - lo) * 0.01
        columns["classification"][lo:hi] = RNG.integers(0, 9, hi - lo)
        columns["intensity"][lo:hi] = RNG.integers(0, 60_000, hi - lo)


def clouds(folder: Path, size: int) -> None:
    """One PointSuite file of segments of 20,000 points, each scattered over the whole file."""
    count = size // 38
    with h5py.File(folder / "a.h5", "w") as file:
        points(file, count)
        segments = max(1, count // 20_000)
        for number in range(segments):
            file[f"segments/segment_{number:04d}/indices"] = np.arange(number, count, segments)


def tiles(folder: Path, size: int) -> None:
    """One file without segments: half of its points in one window, one of them far from all others."""
    count = size // 30
    with h5py.File(folder / "a.h5", "w") as file:
        points(file, count)
        for lo in range(0, count, STEP):
            hi = min(lo + STEP, count) - (min(lo + STEP, count) - lo) // 2
            for axis in "xyz":
                file[f"data/{axis}"][lo:hi] = RNG.integers(0, 10_000, hi - lo) * 0.01
        file["data/x"][-1] = 10_000_000.0


def volumes(folder: Path, size: int) -> None:
    """One volume of planes of 512², a quarter of which is no air."""
    depth = max(1, size // (512 * 512 * 2))
    (folder / "case").mkdir()
    path = folder / "case/ct_original.npy"
    volume = np.lib.format.open_memmap(path, "w+", "i2", (depth, 512, 512))
    for lo in range(0, depth, 64):
        hi = min(lo + 64, depth)
        volume[lo:hi] = -1000
        volume[lo:hi, 128:384, 128:384] = RNG.integers(-1000, 1500, (hi - lo, 256, 256), "i2")


def streams(folder: Path, size: int) -> None:
    """A sequence of spike streams of 88 × 360 × 640 packed bits."""
    (folder / "seq/spike").mkdir(parents=True)
    for number in range(max(1, size // 2_534_400)):
        stream = RNG.integers(1, 255, 2_534_400, "u1")
        (folder / f"seq/spike/{number:05d}.dat").write_bytes(stream.tobytes())


def episodes(folder: Path, size: int) -> None:
    """One robomimic file: episodes of 200 steps, two cameras, recorded next observations."""
    steps, side = 200, 84
    with h5py.File(folder / "a.hdf5", "w") as file:
        for number in range(max(1, size // (4 * steps * side * side * 3))):
            group = file.create_group(f"data/demo_{number}")
            group["actions"] = RNG.random((steps, 7))
            for camera in ("left", "right"):
                frames = RNG.integers(0, 255, (steps + 1, side, side, 3), "u1")
                group[f"obs/{camera}_image"], group[f"next_obs/{camera}_image"] = frames[:-1], frames[1:]


def bag(folder: Path, size: int) -> None:
    """One MCAP bag of ROS 2: a camera of 640 × 480 pixels, and joints ten times as often."""
    from rosbags import rosbag2
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.ROS2_HUMBLE)
    types = store.types
    writer = rosbag2.Writer(folder / "bag", version=9, storage_plugin=rosbag2.StoragePlugin.MCAP)
    kinds = {"camera": "sensor_msgs/msg/Image", "joints": "sensor_msgs/msg/JointState"}
    with writer:
        topics = {}
        for name, kind in kinds.items():
            topics[name] = writer.add_connection(f"/{name}", kind, typestore=store)
        for number in range(10 * max(1, size // (640 * 480 * 3))):
            time_logged = number * 10_000_000
            clock = {"sec": time_logged // 10**9, "nanosec": time_logged % 10**9}
            stamp = types["builtin_interfaces/msg/Time"](**clock)
            header = types["std_msgs/msg/Header"](stamp=stamp, frame_id="base")
            values = {name: RNG.random(2) for name in ("position", "velocity", "effort")}
            messages = {"joints": types[kinds["joints"]](header=header, name=["a", "b"], **values)}
            if number % 10 == 0:
                pixels = RNG.integers(0, 255, 640 * 480 * 3, "u1")
                form = {"height": 480, "width": 640, "encoding": "rgb8", "is_bigendian": 0, "step": 1920}
                messages["camera"] = types[kinds["camera"]](header=header, data=pixels, **form)
            for name, message in messages.items():
                writer.write(topics[name], time_logged, store.serialize_cdr(message, kinds[name]))


FAMILIES: dict[str, tuple[str, Callable[[Path, int], None], dict[str, Any]]] = {
    "rows": ("rows", rows, {}),
    "point_cloud": ("point_cloud", clouds, {"voxel_size": [0.5]}),
    "windows": (
        "point_cloud",
        tiles,
        {"segment": "window:100", "max_points": 1_500_000, "voxel_size": [0.5]},
    ),
    "segment": ("point_cloud", tiles, {"voxel_size": [0.5]}),
    "ct": ("ct", volumes, {"window": ["lung", "bone"], "sparse": "coords"}),
    "spike": ("spike", streams, {"height": 360, "width": 640, "voxel_bins": [5]}),
    "trajectory": ("trajectory", episodes, {}),
    "bag": ("trajectory", bag, {}),
}
"""Family, what makes its source, options; ``windows`` and ``segment``: clouds cut into windows, and not."""


def status(name: str) -> int:
    """A line of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise KeyError(name)


class Measuring(Serial):
    """Measures what each step holds beyond what the process held before it."""

    def __init__(self) -> None:
        self.steps: dict[str, list[tuple[int, int]]] = {}
        self.peak = 0

    def run(self, job: Any, items: Iterable[Any]) -> Generator[tuple[Any, Any], None, None]:
        """As of `Serial`."""
        trim = ctypes.CDLL(None).malloc_trim
        for item in items:
            if not job.need(item):  # of a scan
                yield item, job(item)
                continue
            alone = pickle.loads(pickle.dumps(job))  # without the rows of the step before
            trim(0)  # or what that has freed hides what this one takes
            Path("/proc/self/clear_refs").write_text("5")
            before = status("VmRSS")
            outcome = alone(item)
            del alone
            kind = getattr(item, "table", "(reading a source)")
            self.peak = max(self.peak, status("VmHWM"))
            self.steps.setdefault(kind, []).append((status("VmHWM") - before, job.need(item)))
            yield item, outcome


def measure(family: str, sources: Path, out: Path) -> None:
    """Convert in this process and print what was measured, as JSON."""
    executor = Measuring()
    report = run(make_converter(FAMILIES[family][0], FAMILIES[family][2]), [sources], out, executor=executor)
    largest = max(need for steps in executor.steps.values() for _, need in steps)
    print(
        json.dumps(
            {
                "bytes": report.source_bytes,
                "steps": executor.steps,
                "peak": executor.peak,
                "bound": PROCESS + largest,
                "digest": report.digest,
            }
        )
    )


def peak_of_all(
    limit: int, family: str, sources: Path, out: Path, workers: int
) -> tuple[int, str, list[str]]:
    """Peak of the resident memory of this process and its workers together, the digest, what was told."""
    peak, stop = 0, threading.Event()
    told: list[str] = []

    def sample() -> None:
        nonlocal peak
        me = psutil.Process()
        while not stop.wait(0.01):
            total = 0
            for process in (me, *me.children(recursive=True)):
                try:
                    total += process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            peak = max(peak, total)

    class Telling:
        def begin(self, stage: str, total: int) -> None:
            """Do nothing."""

        def advance(self, amount: int) -> None:
            """Do nothing."""

        def tell(self, line: str) -> None:
            """Keep it."""
            told.append(line)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        family, _, options = FAMILIES[family]
        report = convert(sources, out, family, workers=workers, memory=limit, progress=Telling(), **options)
    finally:
        stop.set()
        thread.join()
    return peak, report.digest, told


def child(*arguments: str) -> dict[str, Any]:
    """Run this script on its own and read what it prints."""
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Print both tables; exit code 1 if an estimate or a limit does not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, nargs="+", default=[100])
    parser.add_argument("--families", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--workers", type=int, default=2, help="0: steps only")
    parser.add_argument("--json", action="store_true", help="print what was measured instead of tables")
    parser.add_argument("--work", type=Path, help="where sources and stores are made")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--limited", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        family, sources, out = given.measure
        measure(family, Path(sources), Path(out))
        return
    if given.limited:
        limit, family, sources, out, workers = given.limited
        peak, digest, told = peak_of_all(int(limit), family, Path(sources), Path(out), int(workers))
        print(json.dumps({"peak": peak, "digest": digest, "told": told}))
        return
    sys.exit(not compare(given))


def compare(given: argparse.Namespace) -> bool:
    """Measure every family at every size; whether all estimates and limits held."""
    held, measured = True, []
    if not given.json:
        print("| family | sources | step | n | measured | estimated | × | all processes | --memory |")
        print("|---|---|---|---|---|---|---|---|---|")
    for family in given.families:
        for megabytes in given.megabytes:
            with tempfile.TemporaryDirectory(prefix="unistore-memory-", dir=given.work) as folder:
                place = Path(folder)
                (place / "in").mkdir()
                FAMILIES[family][1](place / "in", megabytes * MB)
                alone = child("--measure", family, str(place / "in"), str(place / "alone"))
                shutil.rmtree(place / "alone")
                both = limited(family, place, alone["bound"], given.workers) if given.workers else None
            held &= all(most <= need for steps in alone["steps"].values() for most, need in steps)
            held &= alone["peak"] <= alone["bound"]
            if both:
                held &= both["peak"] <= both["limit"] and both["digest"] == alone["digest"]
            measured.append({"family": family, **alone})
            if not given.json:
                print(table(family, alone, both, given.workers), flush=True)
    print(json.dumps(measured) if given.json else f"every estimate and every limit held: {held}")
    return held


def limited(family: str, place: Path, bound: int, workers: int) -> dict[str, Any]:
    """Convert once more by workers, under the limit that just lets all of them work."""
    limit = PROCESS + workers * bound
    found = child("--limited", str(limit), family, str(place / "in"), str(place / "both"), str(workers))
    return {**found, "limit": limit}


def table(family: str, alone: dict[str, Any], both: dict[str, Any] | None, workers: int) -> str:
    """Lines of the table: each kind of step, the process, and all processes."""
    begin = f"| {family} | {size(alone['bytes'])} |"
    lines = []
    for kind, steps in alone["steps"].items():
        most, need = (max(values) for values in zip(*steps, strict=True))
        ratio = need / max(1, most)
        lines.append(f"{begin} {kind} | {len(steps)} | {size(most)} | {size(need)} | {ratio:.2f} | | |")
    peak, bound = alone["peak"], alone["bound"]
    lines.append(f"{begin} in one process | | {size(peak)} | {size(bound)} | {bound / peak:.2f} | | |")
    if both:
        what = f"{workers} workers of {size(bound - PROCESS)}"
        lines.append(f"{begin} {what} | | | | | {size(both['peak'])} | {size(both['limit'])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    began = time.perf_counter()
    main()
    if "--measure" not in sys.argv and "--limited" not in sys.argv:
        print(f"{time.perf_counter() - began:.0f} s on {os.cpu_count()} cores")
