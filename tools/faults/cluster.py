"""A dask cluster whose workers are killed and replaced."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

WORKERS = 2
TIMEOUT = 60
"""Seconds for the scheduler to start."""


class Cluster:
    """A scheduler and two workers on this machine; `folder` is for their files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        file = folder / "scheduler.json"
        self._scheduler = self._dask(
            "scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file)
        )
        deadline = time.monotonic() + TIMEOUT
        while not file.exists() or not file.read_text().endswith("}"):
            if time.monotonic() > deadline:
                sys.exit("FAILED: the dask scheduler did not start")
            time.sleep(0.05)
        self.address = str(json.loads(file.read_text())["address"])
        self._workers = [self._worker() for _ in range(WORKERS)]

    def kill_worker(self, rng: random.Random) -> None:
        """Kill a worker, and start another in its place."""
        number = rng.randrange(WORKERS)
        self._workers[number].kill()
        self._workers[number].wait()
        self._workers[number] = self._worker()

    def stop(self) -> None:
        """End everything."""
        for process in (*self._workers, self._scheduler):
            process.kill()
            process.wait()

    def _worker(self) -> subprocess.Popen[bytes]:
        return self._dask(
            "worker", self.address, "--nthreads", "1", "--no-nanny", "--local-directory", str(self._folder)
        )

    def _dask(self, command: str, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "dask", command, *arguments, "--no-dashboard"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
