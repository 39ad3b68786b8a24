"""Batches of the next epoch are made while this one ends, and are what they would have been."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.waiting import wait_until
from unistore import Loader
from unistore.errors import SampleError


class Counted:
    """Rows that count how often they are read, by any process; one of them cannot be read twice."""

    def __init__(self, folder: Path, rows: int, bad: int = -1) -> None:
        self.folder, self.rows, self.bad = folder, rows, bad

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> int:
        file = self.folder / str(index)
        if index == self.bad and file.exists():
            msg = "read once too often"
            raise ValueError(msg)
        with file.open("ab") as stream:
            stream.write(b".")
        return index

    def total(self) -> int:
        return sum(file.stat().st_size for file in self.folder.iterdir())

    def wait_for(self, reads: int) -> None:
        """Until so many samples were read in all."""
        wait_until(lambda: self.total() >= reads, f"fewer than {reads} samples were read")


def epoch_of(loader: Loader) -> list[list[int]]:
    return [np.asarray(batch).tolist() for batch in loader]


def epochs(count: int, length: int = 6, **options: int) -> list[list[list[int]]]:
    """What a loader without workers delivers."""
    with Loader(range(length), 2, shuffle=True, num_workers=0, **options) as loader:
        return [epoch_of(loader) for _ in range(count)]


@pytest.mark.parametrize("workers", [1, 2])
def test_the_next_epoch_is_made_while_this_one_ends(workers: int, tmp_path: Path, nothing_left: None) -> None:
    dataset, expected = Counted(tmp_path, 6), epochs(4)
    with Loader(dataset, 2, shuffle=True, num_workers=workers, prefetch_factor=4) as loader:
        assert epoch_of(loader) == expected[0]
        dataset.wait_for(6 + 4 * workers)  # half of what may be made ahead, of several epochs
        assert dataset.total() <= 6 + 8 * workers
        assert loader.state_dict()["epoch"] == 1
        assert loader.state_dict()["delivered"] == 0
        assert [epoch_of(loader) for _ in range(3)] == expected[1:]
        dataset.wait_for(24 + 4 * workers)  # quick batches are asked for when half may be, together
        assert dataset.total() <= 24 + 8 * workers, "batches made ahead were thrown away"


def test_errors_of_batches_that_nobody_asks_for_are_not_raised(tmp_path: Path, nothing_left: None) -> None:
    dataset = Counted(tmp_path, 6, bad=3)
    with Loader(dataset, 2, num_workers=1) as loader:
        assert epoch_of(loader) == [[0, 1], [2, 3], [4, 5]]
        dataset.wait_for(9)  # all but the bad one again
        iteration = iter(loader)
        assert np.asarray(next(iteration)).tolist() == [0, 1]
        with pytest.raises(SampleError, match="read once too often"):
            next(iteration)
        assert np.asarray(next(iteration)).tolist() == [4, 5]


@pytest.mark.parametrize("rows", [0, 1])
def test_epochs_without_a_whole_batch_end(rows: int, nothing_left: None) -> None:
    with Loader(range(rows), 2, num_workers=1, drop_last=True) as loader:
        assert [epoch_of(loader) for _ in range(3)] == [[], [], []]


def test_ranks_go_on_alone(nothing_left: None) -> None:
    def of_rank(rank: int, workers: int) -> Sequence[list[list[int]]]:
        options = {"rank": rank, "world_size": 2, "seed": 5}
        with Loader(range(12), 2, shuffle=True, num_workers=workers, **options) as loader:
            return [epoch_of(loader) for _ in range(3)]

    for rank in (0, 1):
        assert of_rank(rank, 2) == of_rank(rank, 0)
