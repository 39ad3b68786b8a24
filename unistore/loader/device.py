"""Copies batches to a device beside the work that runs there."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from unistore.data.collate import pin


class ToDevice:
    """Copies the tensors of a batch to a device, on a stream of their own, and transforms the batch there."""

    # A step is launched long before the device has done it: the copy of the next batch, which waits for no
    # other stream, runs meanwhile. The step that uses the batch waits for the copy

    def __init__(self, device: torch.device | str, transform: Callable[[Any], Any] | None) -> None:
        self._device = torch.device(device)
        self._transform = transform or (lambda batch: batch)
        self._module: Any = None
        if self._device.type != "cpu":
            self._module = getattr(torch, self._device.type, None)
            if not hasattr(self._module, "Stream") or not self._module.is_available():
                msg = f"this machine, or this torch, has no {self._device.type} with streams"
                raise RuntimeError(msg)

    @cached_property
    def _stream(self) -> Any:
        return self._module.Stream(self._device)

    def __call__(self, batch: Any) -> Any:
        """Return a batch on the device."""
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
