"""What ``--dry-run`` and ``inspect`` say a conversion will hold, against what it does.

Sources of each family are made, the peak is predicted, and a fresh process converts them: without workers,
with two, and each under the least ``--memory`` that is not refused. Measured is the peak of the resident
memory of the converting process (VmHWM of /proc/self/status, which unlike ru_maxrss holds nothing of whoever
started it) and, for every worker, that of the largest one (ru_maxrss of the children), without sampling.

A prediction has to be at least what was measured, and at most 3 times as much: interpreter and libraries take
60 MB of the 134 MB of each process, and a step may read a copy of its largest column in another dtype, or
encode to as many bytes as it read, which these sources mostly do not.

    python benchmarks/prediction.py                                    # 100 MB of each family
    python benchmarks/prediction.py --families bytes --megabytes 268   # rows of one byte
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from memory import FAMILIES, MB, status

from unistore.conversion.convert import make_converter
from unistore.conversion.dry_run import dry_run
from unistore.conversion.executors.worker_process import end_spare
from unistore.conversion.memory import PROCESS, estimate
from unistore.conversion.settings import Settings
from unistore.conversion.signatures import convert
from unistore.converters.source_scan import scan_sources
from unistore.system.sizes import size

MOST = 3.0
"""Times the measured peak that a prediction may be."""


def single_bytes(folder: Path, count: int) -> None:
    """One file of rows of a byte, all zero: takes no space on disk."""
    np.lib.format.open_memmap(folder / "a.npy", "w+", "u1", (count,)).flush()


def single_files(folder: Path, count: int) -> None:
    """Files of ten rows, one for every 20 kB asked for."""
    for number in range(count // 20_000):
        np.save(folder / f"part_{number}.npy", np.zeros(10, "u1"))


SOURCES = {**FAMILIES, "bytes": ("rows", single_bytes, {}), "files": ("rows", single_files, {})}


def measure(family: str, sources: Path, out: Path, workers: int, memory: int) -> None:
    """Convert in this process, and print its peak and that of its largest child."""
    family, _, options = SOURCES[family]
    convert(sources, out, family, overwrite=True, workers=workers, memory=memory or None, **options)
    end_spare()  # children count once they are waited for
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print(json.dumps({"own": status("VmHWM"), "largest": children}))


def cases(family: str, megabytes: int, settings: list[tuple[int, bool]], work: Path | None) -> Iterator[Any]:
    """Every setting of one family: predicted and measured."""
    family, make, options = SOURCES[family]
    with tempfile.TemporaryDirectory(prefix="unistore-prediction-", dir=work) as folder:
        sources, out = Path(folder, "in"), Path(folder, "out")
        sources.mkdir()
        make(sources, megabytes * MB)
        converter = make_converter(family, options)
        least = PROCESS + estimate(converter, scan_sources(converter, [sources]), 0).step
        for workers, tight in settings:
            limit = (PROCESS + workers * least if workers else least) if tight else None
            peak = dry_run(converter, [sources], Settings(workers=workers, memory=limit)).peak
            given = [family, str(sources), str(out), str(workers), str(limit or 0)]
            began = time.perf_counter()
            done = subprocess.run(
                [sys.executable, __file__, "--measure", *given],
                capture_output=True,
                text=True,
                check=True,
            )
            found = json.loads(done.stdout)
            yield {
                "family": family,
                "workers": peak.workers,
                "memory": limit,
                "predicted": peak.bytes,
                "measured": found["own"] + max(1, peak.workers) * found["largest"],
                "seconds": round(time.perf_counter() - began, 1),
            }


def main() -> None:
    """Print a table; exit code 1 if a prediction does not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--families", nargs="+", choices=list(SOURCES), default=list(SOURCES))
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--json", action="store_true", help="print what was measured instead of a table")
    parser.add_argument("--work", type=Path, help="where sources and stores are made")
    parser.add_argument("--measure", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        family, sources, out, workers, memory = given.measure
        measure(family, Path(sources), Path(out), int(workers), int(memory))
        return
    settings = [(workers, tight) for workers in given.workers for tight in (False, True)]
    if not given.json:
        print("| family | workers | --memory | predicted | measured | × | s |")
        print("|---|--:|--:|--:|--:|--:|--:|")
    found, held = [], True
    for family in given.families:
        for case in cases(family, given.megabytes, settings, given.work):
            found.append(case)
            ratio = case["predicted"] / case["measured"]
            held &= 1 <= ratio <= MOST and case["measured"] <= (case["memory"] or sys.maxsize)
            if not given.json:
                memory = "" if case["memory"] is None else size(case["memory"])
                sizes = f"{size(case['predicted'])} | {size(case['measured'])}"
                seconds = case["seconds"]
                print(
                    f"| {family} | {case['workers']} | {memory} | {sizes} | {ratio:.2f} | {seconds} |",
                    flush=True,
                )
    if given.json:
        print(json.dumps(found))
    else:
        print(f"every prediction held on {os.cpu_count()} cores: {held}")
    sys.exit(not held)


if __name__ == "__main__":
    main()
