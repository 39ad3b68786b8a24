"""The worker processes of ``--workers N``, as the converter sees them: started, lost, ended."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any

from unistore.conversion.executors.process_starter import FORK
from unistore.conversion.job import Outcome
from unistore.errors import ConversionError

__all__ = ["Crew", "Worker"]

NEEDED = ("unistore.conversion.executors.process_worker",)
"""What every worker needs, whatever it works on."""
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENCV_FOR_THREADS_NUM": "1",
}
"""One process works on one thread."""
STARTERS = 3
"""So many starters that end by themselves, or are killed, mean that none will ever stay."""
GRACE = 5
"""Seconds for processes to end that were told to, or whose starter ended."""


class StarterLostError(ConnectionError):
    """The starter is gone, and its workers with it."""


class Worker:
    """One worker process, and the connection to it."""

    def __init__(self, pid: int, connection: Connection) -> None:
        self.pid = pid
        self.connection = connection
        self._job: bytes | None = None

    def do(self, job: bytes, item: object) -> None:
        """Send a step; a worker that is gone answers with its loss.

        Parameters
        ----------
        job
            Pickled; sent along only if it is another one than before.
        """
        with suppress(ConnectionError):
            self.connection.send((None if job is self._job else job, item))
        self._job = job

    def answer(self) -> Outcome | Exception:
        """What came of a step, once there is an answer.

        Raises
        ------
        EOFError, ConnectionError
            If the worker is gone.
        """
        answer: Outcome | Exception = pickle.loads(self.connection.recv_bytes())  # noqa: S301  our own worker
        return answer


class Crew:
    """Worker processes of this machine, forked from a starter that has imported what they need.

    Parameters
    ----------
    imports
        Modules that the starter imports besides those that every worker needs.
    tell
        Told, in a line, of every loss.

    Attributes
    ----------
    workers
        Those there are.
    """

    def __init__(self, imports: Sequence[str], tell: Callable[[str], None]) -> None:
        self._imports = imports
        self._tell = tell
        self._starter: _Starter | None = None
        self._lost = 0
        self.workers: list[Worker] = []

    def begin(self) -> None:
        """Start the starter unless there is one; it imports while the caller does something else."""
        if self._starter is None:
            self._starter = _Starter(self._imports)

    def keep(self, count: int) -> None:
        """Have so many workers from now on; those too many, the last ones, are ended.

        Raises
        ------
        ConversionError
            If none can be started.
        """
        while len(self.workers) > count:
            self.end(self.workers[-1])
        while len(self.workers) < count:
            self.begin()
            assert self._starter is not None
            try:
                self.workers.append(self._starter.fork())
            except StarterLostError:
                self._lose_starter()

    def next(self) -> Worker:
        """Wait for a worker that has answered, or is gone."""
        ready: list[Any] = wait([worker.connection for worker in self.workers])
        return next(worker for worker in self.workers if worker.connection is ready[0])

    def end(self, worker: Worker) -> str | None:
        """End a worker, if it has not ended already.

        Returns
        -------
        str or None
            How it ended: ``"killed by SIGKILL"``; None if the starter is lost and all workers with it.
        """
        assert self._starter is not None
        try:
            status = self._starter.end(worker)
        except StarterLostError:
            self._lose_starter()
            return None
        self.workers.remove(worker)
        return _cause(os.waitstatus_to_exitcode(status))

    def stop(self) -> None:
        """End everything, whatever it is doing."""
        workers, starter = self.workers, self._starter
        self.workers, self._starter = [], None
        for worker in workers:
            worker.connection.close()
        if starter is not None:
            starter.stop()

    @property
    def pids(self) -> list[int]:
        """Process numbers of the workers."""
        return [worker.pid for worker in self.workers]

    def _lose_starter(self) -> None:
        """Clear away after a starter that is gone; `keep` starts another."""
        workers, starter = self.workers, self._starter
        assert starter is not None
        self.workers, self._starter = [], None
        for worker in workers:  # none writes any more once its end of the connection is closed
            _await_end(worker.connection)
        cause = _cause(starter.stop())
        self._lost += 1
        if self._lost >= STARTERS:
            msg = (
                f"the process that starts workers ended {STARTERS} times ({cause}); what was done is kept: "
                "--workers 0 does without"
            )
            raise ConversionError(msg)
        self._tell(f"the process that starts workers was lost ({cause}); all are started anew")


class _Starter:
    """The starter's process; see `unistore.conversion.executors.process_starter`."""

    def __init__(self, imports: Sequence[str]) -> None:
        paths = [str(Path(path).absolute()) for path in sys.path]
        self._connection, theirs = Pipe()
        self._imported = False
        program = [sys.executable, "-P", "-m", "unistore.conversion.executors.process_starter"]
        with theirs:
            self._process = subprocess.Popen(
                [*program, str(os.getpid()), *NEEDED, *imports],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,  # --json prints there
                env={**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,
            )

    def fork(self) -> Worker:
        """Start a worker."""
        ours, theirs = Pipe()
        with theirs:
            pid = self._ask(FORK, theirs)
        return Worker(pid, ours)

    def end(self, worker: Worker) -> int:
        """End a worker; returns its wait status."""
        status = self._ask(worker.pid)
        worker.connection.close()
        return status

    def stop(self) -> int:
        """Hang up: it ends its workers and itself. Returns its exit code, negative if it was killed."""
        if self._imported:
            with socket.socket(fileno=os.dup(self._connection.fileno())) as half, suppress(OSError):
                half.shutdown(socket.SHUT_WR)
        else:  # nobody waits until it has
            self._process.kill()
        if not _await_end(self._connection):
            self._process.kill()
        return self._process.wait()

    def _ask(self, what: int, theirs: Connection | None = None) -> int:
        try:
            if not self._imported:
                self._number(self._connection.recv())
                self._imported = True
            self._connection.send(what)
            if theirs is not None:
                send_handle(self._connection, theirs.fileno(), self._process.pid)
            return self._number(self._connection.recv())
        except (EOFError, ConnectionError) as error:
            raise StarterLostError from error

    def _number(self, answer: int | str) -> int:
        if isinstance(answer, str):
            msg = f"worker processes cannot start: {answer}; what was done is kept: --workers 0 does without"
            raise ConversionError(msg)
        return answer


def _await_end(connection: Connection) -> bool:
    """Wait until the other side has ended, whatever it still says; False if it does not."""
    with connection:
        try:
            while connection.poll(GRACE):
                connection.recv_bytes()
        except (EOFError, OSError):
            return True
    return False


def _cause(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
