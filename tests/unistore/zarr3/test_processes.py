"""Child processes read after the parent has read, whatever way they are started: no hang, equal values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.support.programs import printed
from tests.support.waiting import patience

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
    root, patience = sys.argv[1:]
    arrays = [StoredArray.open(LocalStorage(root), path) for path in ("rows", "tiles")]
    expected = [digest(array) for array in arrays]
    stop = threading.Event()

    def read_on():
        while not stop.is_set():
            for array in arrays:
                digest(array, 32)

    def check(method):
        context = multiprocessing.get_context(method)
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
        print(method)

    check("forkserver")
    check("spawn")
    threads = [threading.Thread(target=read_on) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(8):
            check("fork")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
"""


def test_children_read_after_the_parent_has(tmp_path: Path, write: Any) -> None:
    """The parent's other threads go on reading while it forks, so that locks are held at the time."""
    values = np.random.default_rng(0).integers(0, 99, (64, 300))
    write(tmp_path, values, (1, 300), (8, 300), path="rows")
    write(tmp_path, values, (4, 100), (16, 300), path="tiles")
    (tmp_path / "script.py").write_text(SCRIPT)
    words = ["-W", "ignore::DeprecationWarning", tmp_path / "script.py", tmp_path, patience(20)]
    output = printed(*words, cwd=ROOT, env={"PYTHONPATH": str(ROOT), "PATH": ""})
    assert output.split() == ["forkserver", "spawn", *["fork"] * 8]


def test_importing_the_engine_turns_blosc_threads_off() -> None:
    code = "import unistore.zarr3, numcodecs.blosc; print(numcodecs.blosc.use_threads)"
    output = printed("-c", code, cwd=ROOT)
    assert output.strip() == "False"
