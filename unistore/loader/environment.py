"""What user code finds in a worker: one torch thread, seeded generators, ``get_worker_info()``."""

from __future__ import annotations

import os
import random
import signal
import sys
from typing import Any

import numpy as np

from unistore.randomness import words

__all__ = ["Seeder", "settle"]

_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Seeder:
    """Reseeds ``random``, numpy and torch before every batch, from (seed, epoch, first position) alone.

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

    def __call__(self, epoch: int, position: int) -> None:
        """Reseed for the batch that starts at a position of an epoch."""
        draws = words(self._info[2], np.array([epoch]), np.array([position]), 3)[0].tolist()
        random.seed(draws[0])
        np.random.seed(draws[1] & 0xFFFFFFFF)  # noqa: NPY002 - the generator that user code draws from
        if self._torch is None:
            self.settle_torch()
        if self._torch is not None:
            # not torch.manual_seed: it queues one more call for every accelerator each time
            self._torch.default_generator.manual_seed(draws[2] >> 1)

    def settle_torch(self) -> None:
        """One thread, and ``get_worker_info()``, as soon as torch is there; it is never imported for it."""
        torch = sys.modules.get("torch")
        data = sys.modules.get("torch.utils.data._utils.worker")
        if torch is None or data is None:
            return
        worker, workers, seed, dataset = self._info
        torch.set_num_threads(1)
        info = data.WorkerInfo(id=worker, num_workers=workers, seed=seed + worker, dataset=dataset)
        vars(data)["_worker_info"] = info
        self._torch = torch


def settle() -> None:
    """Settle a new worker process: Ctrl-C is the parent's, one thread in every numeric library."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in _ONE_THREAD:
        os.environ[name] = "1"
    blosc: Any = sys.modules.get("numcodecs.blosc")
    if blosc is not None:
        blosc.use_threads = False
    cv2 = sys.modules.get("cv2")
    if cv2 is not None:
        cv2.setNumThreads(0)
