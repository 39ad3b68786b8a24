"""Two versions of unistore in interleaved pairs: the engine, conversion, reading, loading.

    python benchmarks/versions.py OTHER [--pairs 20] [--only WORK …] [--megabytes 150]

OTHER is a checkout of another version (``git worktree add ../before COMMIT``). Every run is a new process
that has imported what it needs; the two versions take turns, and which begins changes from pair to pair. The
ratio is other / this: above 1, this version is faster. Its interval is that of the median at 95 %, from the
order of the pairs' ratios, without any assumption about their spread.

Times are processor seconds of the process and its children, which other load on the machine changes least;
the ratios of wall times and of the most resident memory stand beside it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve()
WORK = HERE.parent / "harness" / "version_work.py"
FAMILIES = ("rows", "point_cloud", "ct", "spike", "trajectory")
CONVERSIONS = (*FAMILIES, "tiny", "gzip", "chunked", "contiguous", "events", "files")
WORKERS = (*FAMILIES, "files")
KINDS = ("rows", "segments", "patches", "sparse", "clips", "documents", "events", "transitions")
WORKS = [
    "engine read",
    "engine write",
    *(f"convert {what}" for what in CONVERSIONS),
    *(f"convert {what} 2 workers" for what in WORKERS),
    *(f"{action} {kind}" for action in ("read", "load") for kind in KINDS),
]


def main() -> None:
    """Run the pairs and print a line a workload."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path, help="checkout of the other version")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--only", nargs="*", default=WORKS)
    parser.add_argument("--megabytes", type=int, default=150, help="of each family's sources")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "unistore-versions")
    given = parser.parse_args()
    versions = {"this": HERE.parents[1], "other": given.other.resolve()}
    for work in given.only:
        for version in versions.values():
            make_data(work, given.folder, given.megabytes, version)
        seconds: dict[str, list[tuple[float, float, float]]] = {"this": [], "other": []}
        for pair in range(-1, given.pairs):
            for name in ("this", "other") if pair % 2 else ("other", "this"):
                found = run_once(work, given.folder, given.megabytes, versions[name])
                if pair >= 0:  # the first pair warms up
                    seconds[name].append(found)
        pairs = list(zip(seconds["other"], seconds["this"], strict=True))
        ratios = [other[0] / this[0] for other, this in pairs]
        low, high = median_interval(ratios)
        wall, memory = (statistics.median(other[at] / this[at] for other, this in pairs) for at in (1, 2))
        cpu = statistics.median(this[0] for _, this in pairs)
        print(
            f"{work:30} {statistics.median(ratios):6.3f}  [{low:.3f}, {high:.3f}]  wall {wall:.3f}  "
            f"memory {memory:.3f}  ({cpu:.2f} s, {len(pairs)} pairs)",
            flush=True,
        )


def make_data(work: str, folder: Path, megabytes: int, version: Path) -> None:
    """Make sources and, for reads, a store of the version's own."""
    run_once(f"make {work}", folder, megabytes, version)


def run_once(work: str, folder: Path, megabytes: int, version: Path) -> tuple[float, float, float]:
    """Processor and wall seconds of one run in a new process, and its most resident MiB."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(version), str(HERE.parent)])}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # every process would compile all modules
    done = subprocess.run(
        [sys.executable, str(WORK), work, str(folder), str(megabytes)],
        env=environment,
        cwd=version,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{work} with {version} failed:\n{done.stderr}")
    cpu, wall, memory = json.loads(done.stdout.splitlines()[-1])
    return cpu, wall, memory


def median_interval(values: list[float]) -> tuple[float, float]:
    """Interval that holds the median with at least 95 %, from order statistics (binomial)."""
    ordered, count = sorted(values), len(values)
    outside, rank = 0.0, 0
    while rank < count // 2:
        outside += math.comb(count, rank) / 2**count
        if outside > 0.025:
            break
        rank += 1
    lowest = max(0, rank - 1)
    return ordered[lowest], ordered[count - 1 - lowest]


if __name__ == "__main__":
    main()
