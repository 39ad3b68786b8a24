"""Errors and deaths: seen in the parent, at once, with the sample and its source; nothing left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import traceback
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from unistore.loader import Loader, SampleError, WorkerDiedError

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_sample_is_named_with_its_source_and_the_rest_goes_on(data, workers):
    with Loader(data.Broken(137), 10, shuffle=False, num_workers=workers) as loader:
        batches = iter(loader)
        for _ in range(13):
            next(batches)
        with pytest.raises(SampleError) as caught:
            next(batches)
        assert caught.value.sample == 137
        assert caught.value.source == "file_1.h5: row 37"
        assert str(caught.value) == (
            "sample 137 (file_1.h5: row 37), epoch 0: OSError: [Errno 5] the disk says no"
        )
        assert isinstance(caught.value.__cause__, OSError)
        assert caught.value.__cause__.errno == 5
        shown = "".join(traceback.format_exception(caught.value))
        assert shown.count(", in read_batch\n") == 1
        assert loader.state_dict()["delivered"] == 130
        assert next(batches)["index"].tolist() == list(range(140, 150))
        del caught, batches


@pytest.mark.parametrize("workers", [0, 1])
def test_a_collate_that_fails_names_the_batch(data, workers):
    def collate(samples):
        if len(samples) > 1:
            raise ValueError("cannot stack")
        return samples

    with Loader(data.Plain(), 4, shuffle=False, num_workers=workers, collate_fn=collate) as loader:
        with pytest.raises(SampleError, match=r"samples 0, 1, 2, 3 .*cannot stack") as caught:
            next(iter(loader))
        assert caught.value.sample is None
        del caught


def test_a_cause_that_cannot_be_sent_leaves_its_traceback(data):
    class LocalError(Exception):
        pass

    def collate(samples):
        raise LocalError("first line\nsecond line")

    with Loader(data.Plain(), 4, shuffle=False, num_workers=1, collate_fn=collate) as loader:
        with pytest.raises(SampleError) as caught:
            next(iter(loader))
        assert str(caught.value).endswith("LocalError: first line")
        assert "in collate" in str(caught.value.__cause__)
        assert "second line" in str(caught.value.__cause__)
        del caught


def test_a_worker_init_fn_that_fails_is_an_error_of_the_first_batch(data):
    def start(worker):
        raise RuntimeError(f"no licence for {worker}")

    with Loader(data.Plain(), 4, shuffle=True, num_workers=1, worker_init_fn=start) as loader:
        with pytest.raises(SampleError, match="no licence for 0") as caught:
            next(iter(loader))
        del caught


@pytest.mark.parametrize(("how", "said"), [("kill", "SIGKILL.*memory ran out"), ("exit", "exit code 3")])
def test_a_dead_worker_is_noticed(data, how, said):
    with Loader(data.Broken(50, how), 10, shuffle=False, num_workers=2) as loader:
        with pytest.raises(WorkerDiedError, match=said) as caught:
            list(loader)
        assert "samples 50, 51" in str(caught.value)
        del caught


def test_a_loader_works_again_after_an_idle_worker_was_killed(data):
    with Loader(data.Batched(), 10, shuffle=True, num_workers=2) as loader:
        list(loader)
        os.kill(loader.worker_pids[0], signal.SIGKILL)
        with pytest.raises(WorkerDiedError):
            list(loader)
        assert sum(len(batch["index"]) for batch in loader) == 200


def test_a_worker_that_hangs_does_not_hold_up_the_end(data):
    loader = Loader(data.Broken(15, "hang"), 10, shuffle=False, num_workers=1)
    next(iter(loader))
    (worker,) = loader.worker_pids
    loader.close()  # the worker would sleep for ten minutes
    assert not Path(f"/proc/{worker}").exists()


def alive(pids) -> list[int]:
    found = []
    for pid in pids:
        with suppress(FileNotFoundError):  # the process has ended
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                found.append(pid)
    return found


def train_in_a_group(dataset, pids, errors):
    os.setsid()
    sys.stderr = errors.open("w")
    os.dup2(sys.stderr.fileno(), 2)
    with Loader(dataset, 10, shuffle=True, num_workers=2) as loader:
        while True:
            for _ in loader:
                pids.send(loader.worker_pids)


def test_workers_go_with_their_parent_at_ctrl_c(data, tmp_path):
    context = multiprocessing.get_context("fork")
    received, sent = context.Pipe(duplex=False)
    errors = tmp_path / "errors"
    process = context.Process(target=train_in_a_group, args=(data.Batched(), sent, errors))
    process.start()
    pids = received.recv()
    assert len(alive(pids)) == 2
    os.killpg(process.pid, signal.SIGINT)  # it reaches the whole group
    sent.close()
    with suppress(EOFError):
        while True:
            received.recv()
    process.join()
    process.close()
    received.close()
    wait_until(lambda: not alive(pids), "workers stay")
    assert errors.read_text().count("Traceback") == 1
    assert "KeyboardInterrupt" in errors.read_text()


INTERRUPTED_AT_ITS_START = {
    "fork": """
        os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGINT))
    """,
    "spawn": """
        hook = Path(sys.argv[1], "sitecustomize.py")
        hook.write_text(
            "import os, signal, sys\\n"
            "if '--multiprocessing-fork' in sys.orig_argv:\\n"
            "    os.kill(os.getpid(), signal.SIGINT)\\n"
        )
        os.environ["PYTHONPATH"] = os.pathsep.join([sys.argv[1], os.environ.get("PYTHONPATH", "")])
    """,
}


@pytest.mark.parametrize("method", INTERRUPTED_AT_ITS_START)
def test_ctrl_c_does_not_reach_a_worker_that_is_being_started(tmp_path, method):
    script = """
        import os
        import signal
        import sys
        from pathlib import Path
        from tests.unistore.loader.conftest import *
        from unistore.loader import Loader
    """
    ending = f"""
        with Loader(Batched(), 10, num_workers=1, multiprocessing_context="{method}") as loader:
            print(sum(len(batch["index"]) for batch in loader))
        print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))
    """
    parts = (script, INTERRUPTED_AT_ITS_START[method], ending)
    command = [sys.executable, "-c", "".join(map(textwrap.dedent, parts)), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["200", "False"], "")


def test_workers_go_with_a_parent_that_is_killed(data):  # as Python ends at once by SIGTERM, too
    reader, writer = os.pipe()
    parent = os.fork()
    if parent == 0:
        loader = Loader(data.Batched(), 10, shuffle=True, num_workers=2)
        next(iter(loader))
        os.write(writer, b"%d %d" % tuple(loader.worker_pids))
        signal.pause()
    pids = [int(pid) for pid in os.read(reader, 100).split()]
    assert len(alive(pids)) == 2
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    wait_until(lambda: not alive(pids), "workers stay")
    os.close(reader)
    os.close(writer)


def test_a_script_is_interrupted_runs_out_of_shared_memory_and_leaves_without_closing():
    """An error each, after which a Loader works, and nothing at all is said at the end."""
    script = """
        from tests.unistore.loader.conftest import *
        import resource
        import signal
        from unistore.loader import Loader, LoaderError
        loader = Loader(Broken(95, "hang"), 10, shuffle=False, num_workers=1)
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        got = 0
        try:
            for batch in loader:
                got += 1
                if got == 9:
                    signal.setitimer(signal.ITIMER_REAL, 0.5)
        except KeyboardInterrupt:
            print("interrupted", got, len(children()))
        loader.dataset.bad = -1
        print(sum(len(batch["index"]) for batch in loader))

        unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, unlimited[1]))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            list(Loader(Batched(100, 100_000), 10, shuffle=True, num_workers=1))
        except LoaderError as error:
            print("no shared memory" in str(error))
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)

        loader.close()
        iterators = [iter(Loader(Batched(), 10, shuffle=True, num_workers=workers)) for workers in (0, 1, 2)]
        for iterator in iterators:
            next(iterator)
        print(*children(), flush=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    *lines, workers = done.stdout.splitlines()
    assert lines == ["interrupted 9 0", "200", "True"]
    assert len(workers.split()) == 3
    wait_until(lambda: not alive(map(int, workers.split())), "workers stay")
