"""A worker process: ``python -P -m …executors.worker PARENT CONNECTION NOTE MODULE...``."""

# A program of its own, since foreign libraries may crash it, and since a worker of `concurrent.futures` or
# `multiprocessing` would import the user's ``__main__`` again and cannot be started by a daemonic process.
# Its session of its own is not reached by Ctrl-C

from __future__ import annotations

import os
import pickle
import resource
import select
import signal
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from multiprocessing.connection import Connection

from unistore.errors import UnistoreError
from unistore.system.foreign import DamagedFiles, become_worker, set_damaged_files
from unistore.system.machine import keep_freed_memory
from unistore.system.progress import COUNTS, StepBytes, listening

PDEATHSIG = 1  # ``PR_SET_PDEATHSIG`` of prctl(2)


def work(connection: Connection) -> None:
    """Do the steps that come through the connection, until the other side hangs up.

    A message is the pickled step (job, item, threads), the damaged files, and the limit of memory in
    bytes (None: no limit). The answers are pickled: any number of integers, each the bytes that are done
    since the one before, and then the outcome or exception.
    """
    with suppress(EOFError, ConnectionError):
        while True:
            message = connection.recv_bytes()
            done = StepBytes(lambda nbytes: connection.send_bytes(pickle.dumps(nbytes)))
            with listening(done):
                answer = _answer(*pickle.loads(message))  # noqa: S301  from our parent
            connection.send_bytes(answer)


def _answer(step: bytes, damaged: DamagedFiles, most_bytes: int | None) -> bytes:
    # The job is a local value, so that its memory is free before the next one is there.
    set_damaged_files(damaged)
    _limit(resource.RLIMIT_DATA, most_bytes)  # not RLIMIT_AS, which counts mapped files
    try:
        job, item, threads = pickle.loads(step)  # noqa: S301  from our parent
        counts = COUNTS.copy()
        outcome = job.threaded(item, threads)
        return pickle.dumps(replace(outcome, counts=COUNTS - counts))
    except BaseException as error:  # noqa: BLE001  the parent raises it
        return _pickled_error(error)


def _pickled_error(error: BaseException) -> bytes:
    # An exception that cannot be unpickled is replaced by its text
    import cloudpickle

    trace = f"in a worker process:\n{''.join(traceback.format_exception(error))}"
    if not isinstance(error, UnistoreError):
        error.add_note(trace)
    try:
        pickled: bytes = cloudpickle.dumps(error)  # type: ignore[no-untyped-call]
        if not isinstance(pickle.loads(pickled), Exception):  # noqa: S301  our own
            raise TypeError("no Exception")
    except Exception:  # noqa: BLE001  it may be of any kind
        return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}\n{trace}"))
    return pickled


def _die_with(parent: int) -> None:
    # The kernel kills this process when its parent ends, however it ends (on Linux, which alone has prctl)
    with suppress(AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _exit_at_hangup(descriptor: int) -> None:
    # The process ends whatever it is doing
    poll = select.poll()
    poll.register(descriptor, 0)
    poll.poll()
    os._exit(1)


def _end_without_memory(unraisable: sys.UnraisableHookArgs) -> None:
    # A thread that finds no memory to start in leaves the one that starts it waiting for ever
    if issubclass(unraisable.exc_type, MemoryError):
        os.kill(os.getpid(), signal.SIGKILL)
    sys.__unraisablehook__(unraisable)


def _silence_libraries() -> None:
    # What native code writes to standard error (Rust the backtrace of a panic, decoders warnings) is told as
    # the problem of a file; what Python writes is shown
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def _limit(kind: int, value: int | None) -> None:
    hard = resource.getrlimit(kind)[1]
    if value is None or (hard != resource.RLIM_INFINITY and hard < value):
        value = hard
    resource.setrlimit(kind, (value, hard))


def main(numbers: list[int], modules: list[str]) -> None:
    """Become a worker: `numbers` are those of the parent, the connection and the note."""
    parent, descriptor, note = numbers
    for number in (signal.SIGINT, signal.SIGUSR1):  # as schedulers send them to all processes
        signal.signal(number, signal.SIG_IGN)
    _die_with(parent)
    _limit(resource.RLIMIT_CORE, 0)
    _silence_libraries()
    sys.unraisablehook = _end_without_memory
    keep_freed_memory()
    become_worker(note)
    threading.Thread(target=_exit_at_hangup, args=(descriptor,), daemon=True).start()
    for module in modules:
        with suppress(Exception):  # raised again by the first step that needs it
            import_module(module)
    work(Connection(descriptor))
    os._exit(0)  # nothing is left to do, and somebody waits


if __name__ == "__main__":
    main([int(number) for number in sys.argv[1:4]], sys.argv[4:])
