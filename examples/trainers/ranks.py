"""Call ``train`` of a script in this rank, and keep every batch that it saw.

``python ranks.py SCRIPT STORE FOLDER RESULT STOP``; below ``torchrun`` for several ranks. The script stops
with an exception when it gets the training batch number STOP, from 0. -1: it does not stop.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import torch


class Stop(Exception):  # noqa: N818 - stands for a machine that goes down
    """The machine goes down."""


class Recorder:
    """Keeps copies of the batches of every stage: "train", "validate", "test".

    Parameters
    ----------
    stop : int
        Number of the training batch at which to raise `Stop`.
    """

    def __init__(self, stop: int) -> None:
        self.stop = stop
        self.seen: dict[str, list[dict[str, torch.Tensor]]] = {"train": [], "validate": [], "test": []}

    def __call__(self, stage: str, batch: dict[str, torch.Tensor]) -> None:
        if stage == "train" and len(self.seen["train"]) == self.stop:
            raise Stop
        self.seen[stage].append({name: batch[name].clone() for name in ("index", "data", "label")})


def _rank() -> int:
    if torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return int(os.environ.get("RANK", "0"))


def main(script: str, store: str, folder: str, result: str, stop: str) -> None:
    """Run the script, and save what it saw as ``rank0.pt`` and so on."""
    specification = importlib.util.spec_from_file_location("train", script)
    assert specification is not None
    assert specification.loader is not None
    module: Any = importlib.util.module_from_spec(specification)
    sys.modules["train"] = module
    specification.loader.exec_module(module)
    recorder = Recorder(int(stop))
    try:
        module.train(store, folder, recorder)
    except Stop:
        if int(stop) < 0:
            raise
    Path(result).mkdir(parents=True, exist_ok=True)
    torch.save(recorder.seen, f"{result}/rank{_rank()}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
