"""A store, and a runner of the scripts that trains in one process or in two ranks."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import unistore

HERE = Path(__file__).parent
ROWS = 96
Batches = list[dict[str, torch.Tensor]]


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 96 rows, half of them to train."""
    folder = tmp_path_factory.mktemp("rows")
    generator = np.random.default_rng(0)
    (folder / "arrays").mkdir()
    values = generator.normal(size=(ROWS, 8)).astype(np.float32)
    np.savez(folder / "arrays" / "rows.npz", data=values, label=generator.integers(0, 3, ROWS))
    path = folder / "arrays.zarr"
    unistore.convert(
        folder / "arrays", path, split={"train": 0.5, "val": 0.25, "test": 0.25}, split_seed=1, split_by="row"
    )
    return path


class Trainer:
    """Runs the script of a folder.

    Parameters
    ----------
    script : Path
        The script, with a function ``train(store, folder, on_batch)``.
    store : Path
        The store to train from.
    folder : Path
        Where runs leave checkpoints and results.
    """

    def __init__(self, script: Path, store: Path, folder: Path) -> None:
        self.script = script
        self.store = store
        self.folder = folder
        self._runs = 0

    def load(self) -> Any:
        """Return the script as a module."""
        specification: Any = importlib.util.spec_from_file_location("train", self.script)
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        return module

    def run(
        self, name: str, ranks: int, stop: int = -1, *, torchrun: bool = True, **environment: str
    ) -> list[dict[str, Batches]]:
        """Return the batches of every stage for each rank. Runs of one name resume each other."""
        self._runs += 1
        result = self.folder / f"result{self._runs}"
        launcher: list[str] = []
        if ranks > 1 and torchrun:
            launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        places = (self.script, self.store, self.folder / name, result)
        command = [sys.executable, *launcher, HERE / "ranks.py", *places, str(stop)]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **environment}
        done = subprocess.run(
            [*map(str, command)], env=variables, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
        return [torch.load(result / f"rank{rank}.pt") for rank in range(ranks)]

    def expected(self, ranks: int, epochs: int, split: str = "train", **options: Any) -> list[Batches]:
        """Return the batches of a plain loop over a Loader, for each rank."""
        dataset = unistore.Dataset(self.store, split=split)
        batches: list[Batches] = []
        for rank in range(ranks):
            settings = {"batch_size": 4, "num_workers": 0, "seed": 1, "rank": rank, "world_size": ranks}
            with unistore.Loader(dataset, **settings, **options) as loader:
                batches.append([batch for _ in range(epochs) for batch in loader])
        return batches

    def check_resuming(self, ranks: int, stop: int, shuffle: Any = True) -> list[dict[str, Batches]]:
        """Stop a run after some batches and check that a second one continues with the next batch.

        Parameters
        ----------
        ranks : int
            How many processes train.
        stop : int
            After how many batches of training the first run stops.
        shuffle : bool or str, default True
            The order that the script trains in.

        Returns
        -------
        list
            The batches of every stage of the second run, for each rank.
        """
        begun = self.run("stopped", ranks, stop)
        rest = self.run("stopped", ranks)
        expected = self.expected(ranks, epochs=2, shuffle=shuffle)
        for rank in range(ranks):
            assert same(begun[rank]["train"], expected[rank][:stop])
            assert same(rest[rank]["train"], expected[rank][stop:])
        return rest


@pytest.fixture
def trainer(request: pytest.FixtureRequest, store: Path, tmp_path: Path) -> Trainer:
    """The script ``train.py`` of the folder of the test."""
    return Trainer(request.path.parent / "train.py", store, tmp_path)


def same(batches: Batches, expected: Batches) -> bool:
    """Return whether two lists of batches have the same samples with the same values, in the same order."""
    assert expected, "nothing to compare"
    if len(batches) != len(expected):
        return False
    return all(
        torch.equal(batch[name], other[name])
        for batch, other in zip(batches, expected, strict=True)
        for name in ("index", "data", "label")
    )


@pytest.fixture(name="same")
def _same() -> Any:
    return same
