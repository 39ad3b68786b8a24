"""Worker counts against the documents' own numbers and hand-written cgroup trees."""

from __future__ import annotations

import pytest

from unistore.system.workers import plan


@pytest.mark.parametrize(
    ("asked", "cores", "ranks", "train"),
    [
        ("auto", 40, 3, 10),  # 32 in total, 10 for each of three GPUs
        ("cpu*0.9", 40, 1, 36),
        ("CPU * 0.5", 40, 2, 10),
        (24, 40, 3, 8),
        ("24", 40, 3, 8),
        ("auto", 2, 1, 1),
        ("auto", 1, 4, 1),
        ("auto", 2.5, 1, 2),
        ("auto", 0.5, 1, 1),
        (0, 40, 1, 0),
        ("cpu*0.3", 10, 1, 3),
    ],
)
def test_counts(asked: str | int, cores: float, ranks: int, train: int) -> None:
    result = plan(asked, ranks=ranks, cores=cores)
    assert result.per_rank == train


@pytest.mark.parametrize(
    ("samples", "train"), [(1, 1), (20, 2), (49, 2), (50, 4), (200, 4), (201, 32), (2015, 32)]
)
def test_few_samples_want_few_workers(samples: int, train: int) -> None:
    result = plan("auto", samples=samples, cores=40)
    assert result.per_rank == train
    assert ("only" in result.reason) == (train < 32)


def test_a_number_is_taken_as_it_is() -> None:
    result = plan(32, samples=20, cores=2)
    assert result.per_rank == 32
    assert "more than 2 usable cores" in result.reason
