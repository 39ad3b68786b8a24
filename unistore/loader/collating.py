"""Work that needs torch: collate into the memory of a batch, prepare workers, copy to a device."""

# Imports torch, in the parent too and before it forks: a child that is forked while another thread of the
# parent imports torch would wait for that import for ever

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import torch
import torch.utils.data._utils.worker as torch_worker
from torch.utils._pytree import tree_map_only
from torch.utils.data._utils.collate import (
    collate,
    collate_tensor_fn,
    default_collate_fn_map,
)

from unistore.data.collate import empty_tensor, pin
from unistore.system.machine import keep_freed_memory


def collate_samples(samples: Sequence[Any]) -> Any:
    """Collate samples as ``torch.utils.data.default_collate`` does, with the same types and errors."""
    return collate(samples, collate_fn_map={**default_collate_fn_map, **STACKING})


def _stack_tensors(batch: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> Any:
    first = batch[0]
    if all(type(item) is torch.Tensor and item.dtype is first.dtype for item in batch):
        # tensors without memory that numpy knows, and those of different shapes, are left to torch
        with suppress(RuntimeError, TypeError):
            out = empty_tensor((len(batch), *first.shape), first.dtype)
            return torch.stack(tuple(batch), 0, out=out)
    return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)


# Entries of torch's ``default_collate_fn_map``.
STACKING: dict[Any, Callable[..., Any]] = {torch.Tensor: _stack_tensors}


_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def prepare_process() -> None:
    """Prepare a new worker process: it ignores Ctrl-C, and numeric libraries use one thread."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # blocked while the process was started
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
    """Set the result of ``torch.utils.data.get_worker_info()`` in this process."""
    info = torch_worker.WorkerInfo(id=worker, num_workers=workers, seed=seed + worker, dataset=dataset)
    torch_worker._worker_info = info  # torch has no function that sets it


# Copies batches to a device beside the work that runs there.


class ToDevice:
    """Copies the tensors of a batch to a device, on a stream of its own, and transforms the batch there.

    Parameters
    ----------
    device : torch.device or str
        The device.
    transform : callable or None
        Called with the batch on the device; returns the batch to deliver. None: no transform.

    Raises
    ------
    RuntimeError
        If the device is not available.
    """

    # A step is launched long before the device has done it: the copy of the next batch, which waits for no
    # other stream, runs meanwhile. The step that uses the batch waits for the copy

    def __init__(self, device: torch.device | str, transform: Callable[[Any], Any] | None) -> None:
        self._device = torch.device(device)
        self._transform = transform or (lambda batch: batch)
        self._module: Any = None
        if self._device.type != "cpu":
            self._module = getattr(torch, self._device.type, None)
            if not hasattr(self._module, "Stream") or not self._module.is_available():
                msg = f"this machine or this version of torch does not support streams of {self._device.type}"
                raise RuntimeError(msg)

    @cached_property
    def _stream(self) -> Any:
        return self._module.Stream(self._device)

    def __call__(self, batch: Any) -> Any:
        if self._module is None:
            return self._transform(batch)
        with self._module.stream(self._stream):
            copies = tree_map_only(torch.Tensor, self._copied, pin(batch))
            batch = self._transform(copies)
        current = self._module.current_stream(self._device)
        current.wait_stream(self._stream)
        # their memory is not given to later batches before the step has used it
        tree_map_only(torch.Tensor, lambda tensor: tensor.record_stream(current), batch)
        return batch

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device, non_blocking=True)
