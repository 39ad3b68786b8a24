"""Connections of the converter to the starter of ``--workers N``, and to the workers that it forks."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any

from unistore.conversion.executors.flow import Step
from unistore.conversion.executors.process_starter import FORK
from unistore.conversion.job import Outcome
from unistore.errors import ConversionError

PROGRAM = "unistore.conversion.executors.process_starter"
WORKER_IMPORTS = ("unistore.conversion.executors.process_worker",)
"""What every worker needs, whatever it works on."""
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENCV_FOR_THREADS_NUM": "1",
}
"""One process works on one thread."""
GRACE = 5
"""Seconds for processes to end that were told to, or whose starter ended."""


class StarterLostError(ConnectionError):
    """The starter is gone, and its workers with it."""


class Worker:
    """One worker process: it does the steps that it is sent one at a time, in their order.

    Its connection is readable once a step is answered, or the worker is gone. `steps` are sent and not
    answered: the first is at work.
    """

    def __init__(self, pid: int, connection: Connection) -> None:
        self.pid = pid
        self.connection = connection
        self.steps: deque[Step[Any]] = deque()
        self._job: bytes | None = None

    def send(self, job: bytes, step: Step[Any], item: Any) -> None:
        """Send a step's item, and its pickled job if that is another one; see `receive` for a loss."""
        self.steps.append(step)
        with suppress(ConnectionError):
            self.connection.send((None if job is self._job else job, item))
        self._job = job

    def receive(self) -> Outcome | Exception:
        """What came of the first step; raises EOFError or ConnectionError if the worker is gone."""
        answer: Outcome | Exception = pickle.loads(self.connection.recv_bytes())  # noqa: S301  our own worker
        return answer

    def wait_for_end(self) -> None:
        """Wait until the worker, whose starter has ended, has ended too: then it writes nothing any more."""
        _wait_for_end(self.connection)


class Starter:
    """The starter's process (`process_starter`): it imports while the caller does something else.

    `fork` and `end` raise `StarterLostError` if it is gone, `ConversionError` if it cannot start workers.
    """

    def __init__(self, imports: Sequence[str]) -> None:
        paths = [str(Path(path).absolute()) for path in sys.path]
        self._connection, theirs = Pipe()
        self._imported = False
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", PROGRAM, str(os.getpid()), *WORKER_IMPORTS, *imports],
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

    def end(self, worker: Worker) -> str:
        """End a worker, if it has not ended already; returns how it ended: ``"killed by SIGKILL"``."""
        status = self._ask(worker.pid)
        worker.connection.close()
        return _how_it_ended(os.waitstatus_to_exitcode(status))

    def stop(self) -> str:
        """Hang up: it ends its workers and itself. Returns how it ended."""
        if self._imported:
            with socket.socket(fileno=os.dup(self._connection.fileno())) as half, suppress(OSError):
                half.shutdown(socket.SHUT_WR)
        else:  # nobody waits until it has
            self._process.kill()
        if not _wait_for_end(self._connection):
            self._process.kill()
        return _how_it_ended(self._process.wait())

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


def _wait_for_end(connection: Connection) -> bool:
    """Wait until the other side has ended, whatever it still says; False if it does not."""
    with connection:
        try:
            while connection.poll(GRACE):
                connection.recv_bytes()
        except (EOFError, OSError):
            return True
    return False


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
