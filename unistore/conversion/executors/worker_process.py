"""The parent's side of a worker process: starting it, one call at a time, and how it ended."""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import chain, islice
from multiprocessing import Pipe
from pathlib import Path
from typing import TYPE_CHECKING

from unistore.converters.families import modules_of
from unistore.converters.registry import find_family, own_families
from unistore.system.foreign import DamagedFiles, last_note, library_of

if TYPE_CHECKING:
    from unistore.conversion.executors.local import Outcome
    from unistore.system.types import PathLike


PROGRAM = "unistore.conversion.executors.worker"
# One process works on one thread
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENCV_FOR_THREADS_NUM": "1",
    # Arrow's own allocator takes a gigabyte ahead, of all that a limit of memory allows
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}
GRACE = 5  # Seconds for a process to end after its connection has
# Signals that say nothing of the file that was being read
SENT_BY_OTHERS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
OUT_OF_MEMORY = "killed by SIGKILL"  # As the kernel, or the process itself, ends one without memory
HINT = "look for a damaged file with 'unistore inspect', and skip it with --exclude"
IMPORTS = ("unistore.conversion.executors.local",)  # What every step needs
CONVERSION = "unistore.conversion.job"  # What writing shards needs, too
HDF5_LIBRARIES = ("h5py", "hdf5plugin")
IMAGE_LIBRARIES = ("cv2",)
# By the end of its name: what reading the values of a file needs, in a worker
LIBRARIES = {
    **dict.fromkeys((".h5", ".hdf5", ".hdf", ".he5"), HDF5_LIBRARIES),
    **dict.fromkeys((".png", ".jpg", ".jpeg"), IMAGE_LIBRARIES),
}
LOOKED_AT = 100  # Names below a folder that are looked at

# Idle workers for the next command of this process
_spare: list[WorkerProcess] = []
# Those of the process that this one was forked from
_of_parent: list[WorkerProcess] = []


class WorkerLostError(Exception):
    """A worker process ended before it answered."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause  # how it ended: "killed by SIGKILL"
        self.hint = HINT  # what may help, if this happens again and again
        self.note = b""  # of the file that is at fault
        self.damage = ""  # what that file does to the library


class WorkerProcess:
    """A worker process, which imports `modules` while the caller does something else."""

    def __init__(self, modules: Sequence[str] = ()) -> None:
        self._modules = (*IMPORTS, *modules)
        self._start()

    def restart(self) -> None:
        """Start another process in the place of one that ended."""
        self.end()
        self._start()

    def _start(self) -> None:
        self.was_used = False
        self._surroundings = _surroundings()
        self._note = _shared_file()
        self.connection, theirs = Pipe()
        with theirs:
            inherited = theirs.fileno(), self._note
            numbers = os.getpid(), *inherited
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", PROGRAM, *map(str, numbers), *self._modules],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # --json prints there
                env=self._surroundings[0],
                pass_fds=inherited,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Return the number of the process."""
        return self._process.pid

    @property
    def serves(self) -> bool:
        """Return whether it lives, and was started in surroundings like those of now."""
        return self._surroundings == _surroundings() and self._process.poll() is None

    def send(self, step: bytes, damaged: DamagedFiles, most_bytes: int | None) -> None:
        """Have it do a step. If it is gone, `receive` says so."""
        self.was_used = True
        with suppress(ConnectionError):
            self.connection.send((step, damaged, most_bytes))

    def receive(self) -> Outcome | int:
        """Return how many more bytes of the step are done, or its outcome, or raise what it raised.

        Raises
        ------
        WorkerLostError
            If the process ended.
        """
        try:
            answer: Outcome | int | Exception = pickle.loads(self.connection.recv_bytes())  # noqa: S301  our worker
        except (EOFError, ConnectionError) as error:
            raise self._lost() from error
        if isinstance(answer, Exception):
            raise answer
        return answer

    def kill(self) -> None:
        """Kill the process, whatever it is doing."""
        self._process.kill()

    def end(self) -> None:
        """End the process and wait for it."""
        self._process.kill()
        self._process.wait()
        self.connection.close()
        os.close(self._note)

    def _lost(self) -> WorkerLostError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE)
        self._process.kill()
        code = self._process.wait()
        lost = WorkerLostError(_how_it_ended(code))
        if -code in SENT_BY_OTHERS:
            lost.hint = "if memory ran out, use fewer --workers"
        elif (code or not _forgets_children()) and (note := last_note(self._note)):
            how = f"signal {-code}" if code < 0 else lost.cause
            fate = "hangs {}" if -code == signal.SIGXCPU else f"crashes {{}} ({how})"
            lost.note = note
            lost.damage = fate.format(library_of(note))
        return lost


def _forgets_children() -> bool:
    """Return whether the exit code of a process is 0 here, however it ended."""
    return signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def take_worker(modules: Sequence[str], memory: int | None) -> WorkerProcess:
    """Return a worker: the spare one, or a new one."""
    # What an earlier command left in a used one would count against a limit of memory
    with suppress(IndexError):
        process = _spare.pop()
        if process.serves and (memory is None or not process.was_used):
            return process
        process.end()
    return WorkerProcess(modules)


def keep_worker(process: WorkerProcess) -> None:
    """Keep an idle worker for the next command of this process, unless there is one already."""
    if _spare:
        process.end()
        return
    _spare.append(process)


def start_early(
    paths: Iterable[PathLike],
    family: str | None = None,
    modules: Sequence[str] = (),
    *,
    decodes: bool = True,
) -> None:
    """Start a worker before this process imports what it needs itself, if files look as if they need one."""
    # Images need none where they are not decoded
    names = chain.from_iterable(map(_names, paths))
    suffixes = {Path(name).suffix.lower() for name in names}
    libraries = {LIBRARIES[suffix] for suffix in suffixes & LIBRARIES.keys()}
    if not decodes:
        libraries.discard(IMAGE_LIBRARIES)
    if _spare or not libraries:
        return
    records = own_families() if family is None else filter(None, [find_family(family)])
    converters = chain.from_iterable(map(modules_of, records))
    _spare.append(WorkerProcess((*modules, *converters, *chain.from_iterable(libraries))))


def _names(path: str | os.PathLike[str]) -> Iterable[str]:
    below = chain.from_iterable(names for _, _, names in os.walk(path))
    return chain((os.fspath(path),), islice(below, LOOKED_AT))


def end_spare() -> None:
    """End the idle worker, if there is one."""
    while _spare:
        _spare.pop().end()


def _leave_spare() -> None:
    _of_parent.extend(_spare)  # not collected, as `subprocess` warns of what still runs
    _spare.clear()


atexit.register(end_spare)
os.register_at_fork(after_in_child=_leave_spare)


def _surroundings() -> tuple[dict[str, str], Path]:
    folders = os.pathsep.join(str(Path(path).absolute()) for path in sys.path)
    return {**os.environ, **ENVIRONMENT, "PYTHONPATH": folders}, Path.cwd()


def _shared_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("unistore-note")
    import tempfile

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
