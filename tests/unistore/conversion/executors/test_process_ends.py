"""Worker processes of a command: lost ones, Ctrl-C, kills of any of them; nothing of them is left."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import psutil
import pytest

import unistore
from tests.support.programs import printed
from tests.support.waiting import wait_until

DATA = Path(__file__).resolve().parents[3] / "data"

SHARD = 1024
SLOW = f"""
import sys, time
import unistore.conversion.plan
from unistore.conversion.journal import Journal
from unistore.cli.main import main
unistore.conversion.plan.SHARD = {SHARD}
append = Journal.append
Journal.append = lambda *record: (append(*record), time.sleep(0.02))
main(sys.argv[1:])
"""


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    """The command line on its own terminal, so to speak, with small shards, each of which takes a while."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", SLOW, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def journal_lines(out: Path) -> int:
    journal = out.with_name(f"{out.name}.unistore-build") / "journal.jsonl"
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def workers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children()


def test_each_lost_worker_prints_one_line(tmp_path: Path) -> None:
    process = start("convert", "rows", DATA / "rows", tmp_path / "out", "--workers", "2")
    killed = 0
    for strike in (1, 2):  # a third might end a step for good
        wait_until(lambda strike=strike: journal_lines(tmp_path / "out") > 8 * strike, "nothing was written")
        for child in workers_of(process)[:strike]:
            child.kill()
            killed += 1
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    stage, *told = errors.splitlines()
    assert re.fullmatch(r"writing \d+\.\d kB", stage)
    assert 1 <= len(told) <= killed
    assert all(line.startswith("a worker process died (killed by SIGKILL)") for line in told)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_ctrl_c_and_kill_leave_no_process_and_are_resumed(
    tmp_path: Path, sent: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    process = start("convert", "rows", DATA / "rows", out, "--workers", "2")
    wait_until(lambda: journal_lines(out) > 10, "nothing was written")
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) == 2, "two workers"
    os.killpg(process.pid, sent)
    _, errors = process.communicate()
    wait_until(lambda: not any(map(alive, children)), "workers stay")
    if sent == signal.SIGINT:
        assert process.returncode == 130
        assert errors.strip().splitlines()[-1] == "interrupted; the same command continues where it stopped"
        assert "Traceback" not in errors
    done = journal_lines(out)
    assert done > 10
    assert not out.exists()
    monkeypatch.setattr("unistore.conversion.plan.SHARD", SHARD)
    report = unistore.convert(DATA / "rows", out, "rows", workers=2)
    assert report.resumed >= done - 3
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert report.digest == unistore.convert(DATA / "rows", tmp_path / "whole", "rows").digest


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_converter_that_is_killed_while_a_worker_starts_leaves_no_process(
    tmp_path: Path, workers: str
) -> None:
    process = start("convert", "rows", DATA / "rows", tmp_path / "out", "--workers", workers)
    converter = psutil.Process(process.pid)
    found: list[psutil.Process] = []
    wait_until(lambda: bool(found.extend(converter.children()) or found), "nothing was started")
    process.kill()
    process.communicate()
    wait_until(lambda: not any(map(alive, found)), "a worker stays")


def test_a_script_without_a_main_guard_is_not_run_by_its_workers(tmp_path: Path) -> None:
    """One that ignores the ends of its children, too."""
    script = tmp_path / "script.py"
    script.write_text(
        "import signal, unistore\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "print('imported', flush=True)\n"
        f"report = unistore.convert({str(DATA / 'rows')!r}, 'out', workers=2)\n"
        "print(report.digest)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", script.name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert done.stdout.count("imported") == 1, "the workers do not run the script"
    shutil.rmtree(tmp_path / "out")


IN_A_POOL = """
import multiprocessing, unistore

def work(workers):
    report = unistore.convert("a.h5", f"{workers}.zarr", workers=workers)
    assert unistore.verify(f"{workers}.zarr", against="a.h5", workers=workers).receipt
    return report.digest

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(*pool.map(work, (0, 2)))
"""


def test_conversions_in_a_pool_give_the_same_digest(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(30.0)
    (tmp_path / "script.py").write_text(IN_A_POOL)
    one, two = printed("-W", "error::ResourceWarning", "script.py", cwd=tmp_path).split()
    assert one == two
