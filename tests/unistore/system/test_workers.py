"""Worker counts against the documents' own numbers and hand-written cgroup trees."""

from __future__ import annotations

import os

import pytest

from unistore.errors import InputError
from unistore.system.machine import usable_cores
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


@pytest.mark.parametrize(
    "asked", ["many", "cpu*", "cpu*0", "-3", -3, True, "gpu*0.5", "9" * 5000, f"cpu*{'9' * 400}"]
)
def test_nonsense_is_refused(asked: str | int) -> None:
    with pytest.raises(InputError, match="workers"):
        plan(asked, cores=8)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine of 16 cores with the given cgroup files."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)

    def build(lines: str, files: dict[str, str]) -> float:
        process, cgroups = tmp_path / "proc", tmp_path / "cgroup"
        process.mkdir()
        (process / "cgroup").write_text(lines)
        for name, text in files.items():
            file = cgroups / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return usable_cores(process, cgroups)

    return build


@pytest.mark.parametrize(
    ("lines", "files", "cores"),
    [
        ("0::/\n", {}, 16),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 16),
        ("0::/\n", {"cpu.max": "250000 100000\n"}, 2.5),
        ("0::/a/b\n", {"a/cpu.max": "400000 100000\n", "a/b/cpu.max": "max 100000\n"}, 4),
        ("0::/a/b\n", {"a/cpu.max": "400000 100000\n", "a/b/cpu.max": "200000 100000\n"}, 2),
        (
            "4:cpu,cpuacct:/job\n",
            {"cpu,cpuacct/job/cpu.cfs_quota_us": "300000", "cpu,cpuacct/job/cpu.cfs_period_us": "100000"},
            3,
        ),
        ("4:cpuacct,cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 16),
        ("7:memory:/\n", {"memory/cpu.max": "100000 100000"}, 16),
        ("0::/\n", {"cpu.max": "6400000 100000\n"}, 16),
    ],
)
def test_quota_and_affinity(machine, lines: str, files: dict[str, str], cores: float) -> None:
    assert machine(lines, files) == cores
