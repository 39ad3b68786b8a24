"""Every start method, whatever the parent was doing; nothing hangs and nothing stays behind."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
import types

import numpy as np
import pytest

from tests.support.needs_torch import needs_torch
from tests.unistore.loader.conftest import Batched
from unistore.loader import Loader, LoaderError, SampleError, WorkerDiedError

STATES = ("idle", "has read", "reading in a thread")

SCRIPT = """
    import sys, threading
    from tests.unistore.loader.conftest import Batched, Plain
    from unistore.loader import Loader

    def read(dataset, stop):
        while not stop.wait(0.0005):
            dataset[1]

    def fork_while_torch_is_imported():
        # else workers would inherit the lock of the module, held by a thread that they do not have
        assert "torch" not in sys.modules
        thread = threading.Thread(target=__import__, args=("torch",))
        thread.start()
        while "torch" not in sys.modules:
            pass
        with Loader(Plain(), 10, num_workers=2, multiprocessing_context="fork") as loader:
            assert sum(len(batch["label"]) for batch in loader) == 200
        thread.join()

    def main(method, state, repetitions):
        import torch
        for repetition in range(repetitions):
            dataset = (Batched, Plain)[(repetition + len(state)) % 2]()
            stop = threading.Event()
            if state != "idle":
                dataset[0]
                torch.ones(1000, 1000).sum()
            if state == "reading in a thread":
                thread = threading.Thread(target=read, args=(dataset, stop))
                thread.start()
            workers = 2 if method == "fork" else 1
            with Loader(
                dataset, 10, shuffle=True, num_workers=workers, multiprocessing_context=method
            ) as loader:
                for epoch in range(2):
                    assert sum(len(next(iter(batch.values()))) for batch in loader) == 200
            stop.set()
        print(f"{method}, {state}: {repetitions}")

    if __name__ == "__main__":
        fork_while_torch_is_imported()
        for words in sys.argv[1:]:
            method, state, repetitions = words.split(", ")
            main(method, state, int(repetitions))
"""


@needs_torch
def test_every_start_method_works_whatever_the_parent_was_doing(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    # what is forked inherits the parent's state, what starts anew does not: the worst state says all
    runs = [*(f"fork, {state}, 2" for state in STATES), f"spawn, {STATES[-1]}, 1"]
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script), *runs],
        env={"PYTHONPATH": ".", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [": ".join(run.rsplit(", ", 1)) for run in runs]


class Importing(Batched):
    """Imports a module in a thread of the worker."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def read_batch(self, indices, allocate=np.empty):
        thread = threading.Thread(target=importlib.import_module, args=(self.module,))
        thread.start()
        thread.join()
        return super().read_batch(indices, allocate)


def test_workers_that_are_not_forked_do_not_wait_for_imports_of_the_parent(
    servers, tmp_path, monkeypatch, nothing_left
):
    name = f"slow_{os.getpid()}"
    (tmp_path / f"{name}.py").write_text("import time\nfor _ in range(30): time.sleep(0.01)\n")
    monkeypatch.syspath_prepend(tmp_path)
    thread = threading.Thread(target=importlib.import_module, args=(name,))
    thread.start()
    while name not in sys.modules:
        pass
    with Loader(Importing(name), 10, num_workers=1, multiprocessing_context="forkserver") as loader:
        assert len(list(loader)) == 20
    thread.join()


def test_a_worker_that_cannot_even_begin_is_an_error_and_not_a_hang(data, tmp_path, monkeypatch):
    """A script without a main guard: its workers run the script again, and die of that."""
    main = types.ModuleType("__main__")
    main.__file__ = str(tmp_path / "train.py")
    (tmp_path / "train.py").write_text("raise RuntimeError('before the dataset has arrived')")
    monkeypatch.setitem(sys.modules, "__main__", main)
    dataset = data.Batched()
    dataset.ballast = np.ones(10_000_000)
    with (
        Loader(dataset, 10, shuffle=True, num_workers=1, multiprocessing_context="spawn") as loader,
        pytest.raises(WorkerDiedError, match=r"worker 0(.|\n)*see what it printed"),
    ):
        list(loader)


def test_a_dataset_that_cannot_be_unpickled_works_only_by_fork(servers, data, nothing_left):
    class Hidden(data.Batched):
        def __reduce__(self):
            return eval, ("1 / 0",)

    with Loader(Hidden(), 10, shuffle=True, num_workers=1, multiprocessing_context="fork") as loader:
        assert len(list(loader)) == 20
    with Loader(Hidden(), 10, shuffle=True, num_workers=1, multiprocessing_context="forkserver") as loader:
        with pytest.raises(SampleError, match="worker 0 could not start: ZeroDivisionError") as caught:
            list(loader)
        del caught


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_dataset_with_a_lock_is_inherited_by_its_workers(servers, data, method, nothing_left):
    dataset = data.Batched()
    dataset.lock = multiprocessing.get_context(method).Lock()
    with Loader(dataset, 10, shuffle=True, num_workers=2, multiprocessing_context=method) as loader:
        assert len(list(loader)) == 20


def test_a_dataset_that_cannot_be_pickled_is_an_error_that_names_the_lambda(servers, data, nothing_left):
    dataset = data.Batched()
    dataset.function = lambda: None
    with pytest.raises(LoaderError, match=r"lambda.*at the top level of a module"):
        list(Loader(dataset, 10, shuffle=True, num_workers=2, multiprocessing_context="forkserver"))


def mine(samples):
    return samples


def test_a_function_of_a_notebook_is_an_error_that_says_what_to_do(servers, data, monkeypatch, nothing_left):
    """No worker that is not forked could import it."""
    monkeypatch.setattr(mine, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "mine", mine, raising=False)
    options = {"collate_fn": mine, "multiprocessing_context": "forkserver"}
    told = r"'mine'.*a notebook or an interactive session"
    with Loader(data.Plain(), 2, num_workers=1, **options) as loader, pytest.raises(LoaderError, match=told):
        next(iter(loader))
