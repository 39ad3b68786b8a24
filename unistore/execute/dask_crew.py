"""The worker processes of ``--workers N``: started, replaced when they are lost, stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from unistore.errors import ConversionError
from unistore.execute.dask_worker import ENVIRONMENT

__all__ = ["Crew"]

BROKEN = 3
"""So many workers that end by themselves (not killed) mean that none will ever stay."""

MEMORY = ": out of memory? --memory bounds it"
"""Said of SIGKILL: it is how the kernel ends a process when memory runs out."""


class Crew:
    """Worker processes of this machine, kept at a number: one that is lost is replaced.

    Parameters
    ----------
    address
        Of the scheduler that they work for.
    tell
        Told, in a line, of every loss.

    Attributes
    ----------
    cause
        How the worker ended that was lost last: ``"killed by SIGKILL"``; None as long as none was.
    """

    def __init__(self, address: str, tell: Callable[[str], None]) -> None:
        self._address = address
        self._tell = tell
        self.cause: str | None = None
        self._processes: list[subprocess.Popen[bytes]] = []
        self._started = 0
        self._broken = 0

    def keep(self, count: int) -> None:
        """Have so many workers from now on; those too many are ended (between two stages they are idle)."""
        while len(self._processes) > count:
            _end(self._processes.pop())
        while len(self._processes) < count:
            self._processes.append(self._start())

    def tend(self) -> None:
        """Replace workers that were lost.

        Raises
        ------
        ConversionError
            If they end by themselves again and again.
        """
        for number, process in enumerate(self._processes):
            if process.poll() is None:
                continue
            _end(process)
            self.cause = _cause(process)
            hint = MEMORY if process.returncode == -signal.SIGKILL else ""
            self._tell(f"a worker process was lost ({self.cause}{hint}); its step runs again in a new one")
            self._broken += process.returncode > 0
            if self._broken >= BROKEN:
                msg = f"worker processes end by themselves, {self.cause}; what was done is kept"
                raise ConversionError(msg)
            self._processes[number] = self._start()

    def stop(self) -> None:
        """End every worker, whatever it is doing."""
        self.keep(0)

    @property
    def pids(self) -> list[int]:
        """Process numbers of the workers."""
        return [process.pid for process in self._processes]

    def _start(self) -> subprocess.Popen[bytes]:
        self._started += 1
        name = f"unistore-{self._started}"
        paths = [str(Path(path).absolute()) for path in sys.path]
        return subprocess.Popen(
            [sys.executable, "-m", "unistore.execute.dask_worker", self._address, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # --json prints there
            env={**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _cause(process: subprocess.Popen[bytes]) -> str:
    code = process.returncode
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
