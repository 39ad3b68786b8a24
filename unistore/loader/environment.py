"""The environment of user code in a worker: one thread, ``get_worker_info()``, batches in shared memory.

Imports torch, in the parent too and before it forks: a child that is forked while another thread of the
parent imports torch would wait for that import for ever.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import torch
import torch.utils.data._utils.worker as torch_worker
from torch.utils.data._utils.collate import default_collate_fn_map

from unistore.loader.collating import STACKING
from unistore.system.machine import keep_freed_memory

_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def prepare_process() -> None:
    """Prepare a new worker process: Ctrl-C is ignored, numeric libraries use one thread."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in _ONE_THREAD:
        os.environ[name] = "1"
    torch.set_num_threads(1)
    blosc: Any = sys.modules.get("numcodecs.blosc")
    if blosc is not None:
        blosc.use_threads = False
    cv2 = sys.modules.get("cv2")
    if cv2 is not None:
        cv2.setNumThreads(0)
    keep_freed_memory()
    # in a worker, torch's own collation makes a file for every tensor
    default_collate_fn_map.update(STACKING)


def set_worker_info(worker: int, workers: int, seed: int, dataset: Any) -> None:
    """Set what ``torch.utils.data.get_worker_info()`` returns in this process."""
    info = torch_worker.WorkerInfo(id=worker, num_workers=workers, seed=seed + worker, dataset=dataset)
    torch_worker._worker_info = info  # torch has no function that sets it
