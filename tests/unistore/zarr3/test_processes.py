"""Child processes read after the parent has read, whatever way they are started: no hang, equal values."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.programs import printed
from tests.waiting import patience

ROOT = Path(__file__).parents[3]

SCRIPT = """
import multiprocessing, sys, threading
import numpy as np
from unistore.zarr3 import LocalStorage, StoredArray


def digest(array, start=0):
    rows = np.arange(start, 64)[::-1]
    weighed = array.read_rows(rows) * np.arange(1, 1 + len(rows))[:, None]
    return int(weighed.sum()), int(array.read_box([3, 5], [60, 90]).sum())


def child(array, pipe):
    pipe.send(digest(array))
    pipe.close()


if __name__ == "__main__":
    method, root, patience = sys.argv[1:]
    arrays = [StoredArray.open(LocalStorage(root), path) for path in ("rows", "tiles")]
    expected = [digest(array) for array in arrays]
    stop = threading.Event()

    def read_on():
        while not stop.is_set():
            for array in arrays:
                digest(array, 32)

    threads = [threading.Thread(target=read_on) for _ in range(3)]
    for thread in threads:
        thread.start()
    context = multiprocessing.get_context(method)
    try:
        for _ in range(8 if method == "fork" else 1):
            for array, wanted in zip(arrays, expected):
                here, there = context.Pipe()
                process = context.Process(target=child, args=(array, there), daemon=True)
                process.start()
                there.close()
                assert here.poll(float(patience)), "the child hangs"
                assert here.recv() == wanted
                process.join()
                assert process.exitcode == 0
                assert digest(array) == wanted, "the parent reads on"
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    print("equal")
"""


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_children_read_after_the_parent_has(tmp_path: Path, write: Any, method: str) -> None:
    """The parent's other threads go on reading while it forks, so that locks are held at the time."""
    if method != "spawn" and sys.platform == "win32":
        pytest.skip(f"no {method} on Windows")
    values = np.random.default_rng(0).integers(0, 99, (64, 300))
    write(tmp_path, values, (1, 300), (8, 300), path="rows")
    write(tmp_path, values, (4, 100), (16, 300), path="tiles")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [
        sys.executable,
        "-W",
        "ignore::DeprecationWarning",
        str(script),
        method,
        str(tmp_path),
        str(patience(20)),
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "equal", done.stderr


def test_blosc_threads_are_off() -> None:
    code = "import unistore.zarr3, numcodecs.blosc; print(numcodecs.blosc.use_threads)"
    output = printed("-c", code, cwd=ROOT)
    assert output.strip() == "False"
