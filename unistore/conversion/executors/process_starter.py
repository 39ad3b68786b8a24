"""The starter of ``--workers N``: ``python -P -m …process_starter CONVERTER MODULE...``.

Imports once what all workers need, and forks itself for each of them: a worker is there within milliseconds.
It is a program of its own, neither forked nor spawned from the converter: the user's script is not run again
in it (so it needs no ``if __name__ == "__main__"``), and no thread, lock or descriptor of the user's process
comes along. It has one thread and never works itself, so that it can be forked at any time. It lives in a
session of its own, which Ctrl-C does not reach, and no longer than the converter; workers no longer than it.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle

from unistore.system.malloc import keep_freed_memory

FORK = 0
"""What is asked for a new worker; the number of a worker: end it."""
PDEATHSIG = 1
"""``PR_SET_PDEATHSIG`` of prctl(2)."""


def serve(connection: Connection, modules: list[str]) -> None:
    """Import modules, then start and end workers as asked, until the converter hangs up.

    Every answer is a number, or text that says why not: the first 0 once all is imported, then the number of
    each new worker and the wait status of each that was ended.

    Parameters
    ----------
    connection
        To the converter. After each `FORK` comes the descriptor of the worker's own connection to it.
    modules
        What workers need; they must start no thread.
    """
    workers: set[int] = set()
    try:
        _import(connection, modules)
        while True:
            asked = connection.recv()
            if asked == FORK:
                _fork(connection, workers)
            else:
                workers.discard(asked)
                connection.send(_end(asked))
    except (EOFError, ConnectionError):
        for worker in workers:
            _end(worker)


def die_with(parent: int) -> None:
    """Be killed by the kernel when the parent ends, however it ends (on Linux).

    Parameters
    ----------
    parent
        Number of the parent, which may have ended already.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _import(connection: Connection, modules: list[str]) -> None:
    try:
        for module in modules:
            import_module(module)
    except Exception as error:  # noqa: BLE001  a library may fail in any way, and the converter tells it
        connection.send(f"{type(error).__name__}: {error}")
    else:
        connection.send(0)


def _fork(connection: Connection, workers: set[int]) -> None:
    """Start a worker, or say why none can be."""
    descriptor = recv_handle(connection)
    starter = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        connection.send(str(error))
    else:
        if pid == 0:
            _become_worker(descriptor, starter)
        workers.add(pid)
        connection.send(pid)
    os.close(descriptor)


def _become_worker(descriptor: int, starter: int) -> None:
    """Work, and never return."""
    try:
        die_with(starter)
        os.setsid()  # kernels share the processor out by session (autogroup): each worker has its own share
        from unistore.conversion.executors.process_worker import work

        with open(os.devnull, "rb") as nothing:  # noqa: PTH123  the starter's own connection is not for workers
            os.dup2(nothing.fileno(), 0)
        work(Connection(descriptor))
    except BaseException:  # noqa: BLE001  nothing of the starter may go on in a worker
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def _end(worker: int) -> int:
    """Wait status of a worker, which is killed if it lives."""
    with suppress(ProcessLookupError):
        os.kill(worker, signal.SIGKILL)  # not waited for yet, so that the number is its own
    return os.waitpid(worker, 0)[1]


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # inherited where the converter ignores it
    die_with(int(sys.argv[1]))
    keep_freed_memory()  # workers inherit it
    serve(Connection(0), sys.argv[2:])
    os._exit(0)  # nothing is left to do, and somebody waits
