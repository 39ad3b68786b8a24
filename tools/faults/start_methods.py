"""Every start method, whatever the parent was doing: batches equal serial ones, and nothing hangs.

Every repetition makes its loader anew, 2 workers each, and compares an epoch of batches with serial reads.
The parent before that: has only opened the store (idle; each repetition is then a process of its own, forked
from one that has done nothing but import); has read from it and computed with torch (has read); is reading
from it in a thread all the while (reading). What is not through after its time is reported as hung, with the
tracebacks of its threads. Seconds are those of a whole epoch, start of the workers included, and grow with
whatever else the machine does.

    python tools/faults/start_methods.py                       # the table of docs/loader.md, 20 repetitions
    python tools/faults/start_methods.py --repetitions 1 --method fork --state reading
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

import unistore

DATA = Path(__file__).parents[2] / "tests" / "data"
METHODS = ("fork", "forkserver", "spawn")
STATES = ("idle", "has read", "reading")
LOADERS = ("DataLoader", "Loader")
TIMEOUT = 120
"""Seconds that one repetition may take, start of the interpreters included."""
SEED, BATCH, WORKERS = 3, 8, 2


FAMILIES: dict[str, tuple[tuple[str, ...], Any]] = {
    "point_cloud": (("pointcloud/thin_a.h5", "pointcloud/thin_b.h5"), unistore.Segments(max_points=64)),
    "spike": (("spike/reds_frames_140_162.dat",), unistore.Clips(length=1, crop=64)),
    "trajectory": (
        ("trajectory/robosuite100_lift_panda_demo.hdf5",),
        unistore.Windows(history=2, horizon=4, pad="edge"),
    ),
    "ct": (("ct/totalseg_a_hu.npy", "ct/totalseg_b_hu.npy"), unistore.Patches(16, per_volume=8)),
}
"""Real files, and the kind of sample for each; repetitions use them in turn."""


def batches(dataset: unistore.Dataset, loader: str | None, method: str = "fork") -> list[dict[str, Any]]:
    """An epoch, read serially, by torch's DataLoader, or by Loader."""
    if loader == "Loader":
        with unistore.Loader(
            dataset, BATCH, shuffle=True, seed=SEED, num_workers=WORKERS, multiprocessing_context=method
        ) as made:
            return [dict(batch) for batch in made]
    order = unistore.Shuffle(dataset, SEED)
    options: dict[str, Any] = {"batch_size": BATCH, "sampler": order, "collate_fn": unistore.collate}
    if loader is not None:
        options |= {"num_workers": WORKERS, "multiprocessing_context": method}
    return list(DataLoader(dataset, **options))


def equal(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> bool:
    """Whether two epochs are the same, key by key."""
    return len(found) == len(expected) and all(
        one.keys() == other.keys()
        and all(
            torch.equal(one[key], other[key])
            if isinstance(one[key], torch.Tensor)
            else one[key] == other[key]
            for key in one
        )
        for one, other in zip(found, expected, strict=True)
    )


@contextmanager
def parent(state: str, dataset: unistore.Dataset) -> Iterator[None]:
    """Put this process into a state."""
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            dataset.read_batch(range(min(4, len(dataset))))

    if state != "idle":
        dataset.read_batch(range(len(dataset)))
        torch.ones(1000, 1000).sum()  # torch's own threads are there
    thread = threading.Thread(target=read) if state == "reading" else None
    if thread is not None:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        if thread is not None:
            thread.join()


def repetition(folder: Path, loader: str, method: str, state: str, family: str) -> float:
    """Seconds of one epoch.

    Raises
    ------
    AssertionError
        If a batch differs from a serial read.
    """
    faulthandler.dump_traceback_later(TIMEOUT, exit=True)
    dataset = unistore.Dataset(folder / f"{family}.zarr", FAMILIES[family][1], seed=SEED)
    with parent(state, dataset):
        began = time.perf_counter()
        found = batches(dataset, loader, method)
        seconds = time.perf_counter() - began
    # serial reads come last: an idle parent has not read before its workers start
    assert equal(found, batches(dataset, None)), f"{family}: batches differ from serial reads"
    faulthandler.cancel_dump_traceback_later()
    return seconds


def run_cell(folder: Path, loader: str, method: str, state: str, repetitions: int) -> list[float]:
    """Seconds of every repetition: in this process, or, for an idle parent, each in a process of its own."""
    taken = []
    for number in range(repetitions):
        cell = folder, loader, method, state, list(FAMILIES)[number % len(FAMILIES)]
        taken.append(in_child(*cell) if state == "idle" else repetition(*cell))
    return taken


def in_child(*cell: Any) -> float:
    """A repetition in a forked process.

    Raises
    ------
    RuntimeError
        If it ended with an error, which it has printed.
    """
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.write(send, json.dumps(repetition(*cell)).encode())
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
            sys.stderr.flush()
        finally:
            os._exit(code)
    os.close(send)
    with os.fdopen(receive) as pipe:
        text = pipe.read()
    if os.waitpid(pid, 0)[1]:
        msg = "a repetition failed"
        raise RuntimeError(msg)
    return float(text)


def table(found: list[dict[str, Any]], repetitions: int) -> str:
    """Markdown."""
    lines = [
        f"| parent | loader | {' | '.join(METHODS)} |",
        f"|---|---|{'---|' * len(METHODS)}",
    ]
    for state in STATES:
        for loader in LOADERS:
            cells = {
                cell["method"]: cell for cell in found if (cell["state"], cell["loader"]) == (state, loader)
            }
            if cells:
                shown = " | ".join(_cell(cells.get(method), repetitions) for method in METHODS)
                lines.append(f"| {state} | {loader} | {shown} |")
    return "\n".join(lines)


def _cell(cell: dict[str, Any] | None, repetitions: int) -> str:
    if cell is None:
        return ""
    if cell["problem"]:
        return cell["problem"]
    return f"{len(cell['seconds'])}/{repetitions}, {statistics.median(cell['seconds']):.2f} s"


def main() -> int:
    """Run cells, print the table; 1 if a cell hung or differed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--method", choices=METHODS, action="append")
    parser.add_argument("--state", choices=STATES, action="append")
    parser.add_argument("--loader", choices=LOADERS, action="append")
    parser.add_argument("--cell", metavar="FOLDER", type=Path, help="(one cell, in this process)")
    options = parser.parse_args()
    if options.cell is not None:
        print(
            json.dumps(
                run_cell(
                    options.cell, options.loader[0], options.method[0], options.state[0], options.repetitions
                )
            )
        )
        return 0
    found = []
    with tempfile.TemporaryDirectory(prefix="start-methods-") as name:
        folder = Path(name)
        for family, (names, _) in list(FAMILIES.items())[: options.repetitions]:
            unistore.convert([DATA / each for each in names], folder / f"{family}.zarr", family)
        for state in options.state or STATES:
            for loader in options.loader or LOADERS:
                for method in options.method or METHODS:
                    command = [
                        sys.executable,
                        __file__,
                        "--cell",
                        name,
                        "--repetitions",
                        str(options.repetitions),
                    ]
                    command += ["--state", state, "--loader", loader, "--method", method]
                    done = subprocess.run(command, capture_output=True, text=True, check=False)
                    ended = done.stdout.strip()
                    problem = (
                        "" if done.returncode == 0 else "HUNG" if "Timeout (" in done.stderr else "FAILED"
                    )
                    found.append(
                        {
                            "state": state,
                            "loader": loader,
                            "method": method,
                            "problem": problem,
                            "seconds": json.loads(ended) if not problem else [],
                        }
                    )
                    print(
                        f"{state}, {loader}, {method}: {_cell(found[-1], options.repetitions)}",
                        file=sys.stderr,
                    )
                    if problem:
                        print(done.stderr, file=sys.stderr)
    print(table(found, options.repetitions))
    return int(any(cell["problem"] for cell in found))


if __name__ == "__main__":
    sys.exit(main())
