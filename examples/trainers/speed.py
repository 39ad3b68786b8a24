"""Samples a second of trainers with a Loader, and with PyTorch's DataLoader over HDF5.

``python speed.py FOLDER [ROUNDS [STEPS]]``. The file and the store are made in FOLDER. Lightning, accelerate
and transformers take the same number of steps with both, in turns: batches of 64 rows, shuffled, two workers.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import accelerate
import h5py
import lightning
import numpy as np
import torch
import transformers
from torch.utils.data import DataLoader

import unistore

ROWS, WIDTH, BATCH = 50_000, 256, 64


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Rows of an HDF5 file, which each worker opens itself."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: Any = None

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if self.file is None:
            self.file = h5py.File(self.path)
        values = torch.from_numpy(self.file["data"][index])
        return {"data": values, "label": torch.tensor(int(self.file["label"][index]))}


class Model(lightning.LightningModule):
    """One layer, for all three trainers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, 3)

    def forward(self, data: torch.Tensor, label: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        return {"loss": torch.nn.functional.cross_entropy(self.layer(data), label)}

    def training_step(self, batch: Any, number: int) -> torch.Tensor:  # noqa: ARG002
        return self(**batch)["loss"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters())


def with_lightning(batches: Any, steps: int, folder: Path) -> None:
    """Train with Lightning."""
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(
        max_steps=steps, accelerator="cpu", enable_checkpointing=False, default_root_dir=folder, **quiet
    )
    trainer.fit(Model(), batches)


def with_accelerate(batches: Any, steps: int, folder: Path) -> None:  # noqa: ARG001
    """Train with accelerate."""
    accelerator = accelerate.Accelerator(cpu=True)
    model = Model()
    model, optimizer, batches = accelerator.prepare(model, model.configure_optimizers(), batches)
    for _, batch in zip(range(steps), batches, strict=False):
        accelerator.backward(model(**batch)["loss"])
        optimizer.step()
        optimizer.zero_grad()


def with_transformers(batches: Any, steps: int, folder: Path) -> None:
    """Train with transformers."""
    quiet = {"report_to": [], "disable_tqdm": True, "save_strategy": "no", "logging_strategy": "no"}
    arguments = transformers.TrainingArguments(folder, max_steps=steps, use_cpu=True, **quiet)
    trainer = transformers.Trainer(Model(), arguments, train_dataset=batches.dataset)
    trainer.get_train_dataloader = lambda: batches
    trainer.train()


TRAINERS: tuple[Callable[[Any, int, Path], None], ...] = (with_lightning, with_accelerate, with_transformers)


def main(folder: Path, rounds: int, steps: int) -> None:
    """Measure in turns, and print the medians."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    with h5py.File(folder / "rows.h5", "w") as file:
        values = generator.normal(size=(ROWS, WIDTH)).astype(np.float32).round(2)
        file.create_dataset("data", data=values, chunks=(16, WIDTH), compression="gzip")
        file["label"] = generator.integers(0, 3, ROWS)
    unistore.convert(folder / "rows.h5", folder / "rows.zarr", "rows", overwrite=True)
    for train in TRAINERS:
        ratios = []
        for _ in range(rounds):
            dataset = unistore.Dataset(folder / "rows.zarr")
            rates = []
            with unistore.Loader(dataset, BATCH, shuffle=True, num_workers=2) as loader:
                usual = DataLoader(Rows(folder / "rows.h5"), BATCH, shuffle=True, num_workers=2)
                for batches in (loader, usual):
                    started = time.perf_counter()
                    train(batches, steps, folder / "run")
                    rates.append(steps * BATCH / (time.perf_counter() - started))
            ratios.append(rates[0] / rates[1])
            name = train.__name__.removeprefix("with_")
            print(
                f"{name}: Loader {rates[0]:.0f} samples/s, DataLoader {rates[1]:.0f}, {ratios[-1]:.1f}×",
                flush=True,
            )
        print(f"{name}: median of the ratios {median(ratios):.1f}×", flush=True)
    store = sum(path.stat().st_size for path in (folder / "rows.zarr").rglob("*") if path.is_file())
    print(f"disk: file {(folder / 'rows.h5').stat().st_size / 1e6:.1f} MB, store {store / 1e6:.1f} MB")


if __name__ == "__main__":
    given = [int(number) for number in sys.argv[2:]]
    main(Path(sys.argv[1]), *(given + [3, 200][len(given) :]))
