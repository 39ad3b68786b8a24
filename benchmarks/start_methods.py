"""Every start method in every state of the parent, many times: none may hang, none may leave anything.

    python benchmarks/start_methods.py --repetitions 20

Each repetition is a parent process of its own: it opens a store, does what the state says, reads two epochs
with two workers, and must end by itself. Printed as a Markdown table: how many ended, and the median seconds
from the start of the parent's loader to its first batch.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

METHODS = ("fork", "forkserver", "spawn")
STATES = ("idle", "has read", "reading in a thread")

PARENT = """
    import sys, threading, time
    import unistore

    def read(dataset, stop):
        while not stop.is_set():
            dataset[1]

    def main(store, method, state):
        dataset = unistore.Dataset(store)
        stop = threading.Event()
        reader = threading.Thread(target=read, args=(dataset, stop))
        if state != "idle":
            dataset[0]
        if state == "reading in a thread":
            reader.start()
        started = time.perf_counter()
        samples = 0
        try:
            with unistore.Loader(dataset, 16, workers=2, start_method=method) as loader:
                for epoch in range(2):
                    for batch in loader:
                        if not samples:
                            first = time.perf_counter() - started
                        samples += len(batch["index"])
        finally:
            stop.set()
            if reader.is_alive():
                reader.join()
        assert samples == 2 * len(dataset)
        print(first)

    if __name__ == "__main__":
        main(*sys.argv[1:])
"""


def make_store(folder: Path) -> Path:
    import numpy as np

    import unistore

    (folder / "source").mkdir()
    data = np.random.default_rng(0).integers(0, 50, (512, 32, 32), dtype=np.uint16)
    np.savez(folder / "source" / "data.npz", data=data, label=np.arange(512))
    unistore.convert(folder / "source", folder / "store.zarr")
    return folder / "store.zarr"


def run(script: Path, store: Path, method: str, state: str, limit: float) -> float | None:
    command = [sys.executable, "-W", "error", str(script), str(store), method, state]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode or done.stderr:
        print(done.stderr, file=sys.stderr)
        return None
    return float(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument(
        "--limit", type=float, default=120.0, help="seconds after which a parent counts as hung"
    )
    options = parser.parse_args()
    good = True
    print("| start method | " + " | ".join(STATES) + " |")
    print("|---|" + "---|" * len(STATES))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = make_store(folder)
        script = folder / "train.py"
        script.write_text(textwrap.dedent(PARENT))
        for method in METHODS:
            cells = []
            for state in STATES:
                times = [run(script, store, method, state, options.limit) for _ in range(options.repetitions)]
                ended = [seconds for seconds in times if seconds is not None]
                good &= len(ended) == len(times)
                median = f", {statistics.median(ended):.2f} s" if ended else ""
                cells.append(f"{len(ended)} of {len(times)}{median}")
            print(f"| `{method}` | " + " | ".join(cells) + " |", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
