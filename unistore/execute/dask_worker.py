"""One worker process of ``--workers N``: ``python -m unistore.execute.dask_worker ADDRESS NAME``.

A program of its own, neither forked nor spawned by multiprocessing: the user's script is not run again in it
(so it needs no ``if __name__ == "__main__"``), and no thread, lock or descriptor of the user's process comes
along. It lives in a session of its own, which Ctrl-C does not reach, and never longer than its starter.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from tempfile import TemporaryDirectory

from unistore.execute.dask_logs import silent

__all__ = ["ENVIRONMENT", "serve"]

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_TRIM_THRESHOLD_": "33554432",
    "MALLOC_MMAP_THRESHOLD_": "33554432",
}
"""One process works on one thread; memory of rows and chunks is used again instead of faulted in anew."""
PDEATHSIG = 1
"""``PR_SET_PDEATHSIG`` of prctl(2)."""
SIGKILL = 9


async def serve(address: str, name: str) -> None:
    """Work for a scheduler until it goes away.

    Parameters
    ----------
    address, name
        Of the scheduler, and what it calls this worker.
    """
    import dask
    from distributed import Worker

    quiet = {"distributed.worker.profile.enabled": False, "distributed.worker.memory.monitor-interval": "1s"}
    with dask.config.set(quiet), silent():
        with TemporaryDirectory(prefix="unistore-dask-") as folder:  # wanted by dask, and never used:
            worker = await Worker(
                address,
                name=name,
                nthreads=1,
                memory_limit=0,  # nothing is spilled, so that a kill finds nothing to leave behind
                dashboard=False,
                dashboard_address=None,
                local_directory=folder,
            )
        await worker.finished()


def _die_with_starter() -> None:
    """End at once when the starter ends, however it ends: by the kernel where it can, else by its pipe."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PDEATHSIG, SIGKILL, 0, 0, 0)

    def watch() -> None:
        sys.stdin.buffer.read()
        os._exit(1)

    threading.Thread(target=watch, name="unistore-starter", daemon=True).start()


if __name__ == "__main__":
    _die_with_starter()
    asyncio.run(serve(*sys.argv[1:]))
