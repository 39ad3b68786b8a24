"""The environment of user code in a worker: one thread, ``get_worker_info()``, memory of the slab."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import numpy as np

from unistore.data.packed import Allocate
from unistore.system.malloc import keep_freed_memory

_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Environment:
    """Prepares torch for user code in a worker.

    That happens once user code has imported it: one thread, ``get_worker_info()``, and shared memory
    that collation functions allocate, as torch's ``default_collate`` does in a worker, is memory of the slab.

    Parameters
    ----------
    worker
        This worker's number.
    workers
        Number of workers.
    seed
        Seed of the loader.
    dataset
        The worker's copy of the dataset, for ``torch.utils.data.get_worker_info()``.
    """

    def __init__(self, worker: int, workers: int, seed: int, dataset: Any) -> None:
        self._info = worker, workers, seed, dataset
        self._torch: Any = None
        self._allocate: Allocate = np.empty

    def lend(self, allocate: Allocate) -> None:
        """Allocate the shared memory of torch with `allocate` from now on."""
        self._allocate = allocate
        if self._torch is None:
            self.prepare_torch()

    def prepare_torch(self) -> None:
        """Prepare torch, if it has been imported."""
        torch = sys.modules.get("torch")
        data = sys.modules.get("torch.utils.data._utils.worker")
        if torch is None or data is None:
            return
        worker, workers, seed, dataset = self._info
        torch.set_num_threads(1)
        info = data.WorkerInfo(id=worker, num_workers=workers, seed=seed + worker, dataset=dataset)
        vars(data)["_worker_info"] = info
        torch.UntypedStorage._new_shared = self._new_shared
        self._torch = torch

    def _new_shared(self, size: int, *, device: Any = "cpu") -> Any:
        """Replace ``torch.UntypedStorage._new_shared``, which makes a file in ``/dev/shm``."""
        del device
        return self._torch.from_numpy(self._allocate((size,), np.dtype(np.uint8))).untyped_storage()


def prepare_process() -> None:
    """Prepare a new worker process: Ctrl-C is ignored, numeric libraries use one thread."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in _ONE_THREAD:
        os.environ[name] = "1"
    blosc: Any = sys.modules.get("numcodecs.blosc")
    if blosc is not None:
        blosc.use_threads = False
    cv2 = sys.modules.get("cv2")
    if cv2 is not None:
        cv2.setNumThreads(0)
    keep_freed_memory()
