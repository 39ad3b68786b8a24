"""Limits of cgroups on hand-written trees, worker counts that follow from them, packed sequences."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unistore.converters.scan_types import Source, Sources
from unistore.system import packed
from unistore.system.machine import MemoryLimit, cpu_quota, memory_limits, usable_cores
from unistore.system.packed import PackedObjects, view
from unistore.system.workers import plan

Build = Callable[[str, dict[str, str]], tuple[Path, Path]]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    def make(lines: str, files: dict[str, str]) -> tuple[Path, Path]:
        process, mounts = tmp_path / "proc", tmp_path / "cgroup"
        process.mkdir()
        (process / "cgroup").write_text(lines)
        for name, text in files.items():
            (mounts / name).parent.mkdir(parents=True, exist_ok=True)
            (mounts / name).write_text(text)
        return process, mounts

    return make


@pytest.mark.parametrize(
    ("lines", "files", "quota"),
    [
        ("0::/\n", {}, None),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/a/b\n", {"a/cpu.max": "150000 100000\n", "a/b/cpu.max": "400000 100000\n"}, 1.5),
        ("0::/a/b\n", {"a/cpu.max": "400000 100000\n", "a/b/cpu.max": "max 100000\n"}, 4),
        ("4:cpuacct,cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("3:cpu:/x\n", {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 0.5),
        ("3:memory:/\n", {"memory/cpu.max": "100000 100000"}, None),
    ],
)
def test_cpu_quota_is_the_smallest_of_all_cgroups(
    build: Build, lines: str, files: dict[str, str], quota: float | None
) -> None:
    assert cpu_quota(*build(lines, files)) == quota


@pytest.mark.parametrize(("quota", "cores"), [("max", 16), ("250000", 2.5), ("6400000", 16)])
def test_usable_cores_are_limited_by_affinity_and_quota(
    build: Build, monkeypatch: pytest.MonkeyPatch, quota: str, cores: float
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)), raising=False)
    assert usable_cores(*build("0::/\n", {"cpu.max": f"{quota} 100000\n"})) == cores


@pytest.mark.parametrize(
    ("lines", "files", "limits"),
    [
        ("0::/\n", {"memory.max": "max\n"}, []),
        ("0::/a\n", {"a/memory.max": "500\n", "a/memory.current": "200\n"}, [MemoryLimit(500, 200)]),
        (
            "0::/a/b\n",
            {
                "a/memory.max": "500\n",
                "a/memory.current": "450\n",
                "a/memory.stat": "anon 100\nfile 350\ninactive_file 250\nactive_file 50\nshmem 50\n",
                "a/b/memory.max": "700\n",
            },
            [MemoryLimit(700, 0), MemoryLimit(500, 150)],
        ),
        (
            "9:memory:/job\n",
            {
                "memory/job/memory.limit_in_bytes": "900",
                "memory/job/memory.usage_in_bytes": "800",
                "memory/job/memory.stat": "active_file 1\ntotal_active_file 100\ntotal_inactive_file 200\n",
                "memory/memory.limit_in_bytes": str(2**63 - 4096),
            },
            [MemoryLimit(900, 500)],
        ),
    ],
)
def test_memory_limits_are_read_from_all_cgroups(
    build: Build, lines: str, files: dict[str, str], limits: Any
) -> None:
    assert memory_limits(*build(lines, files)) == limits


def test_without_cgroups_there_are_no_limits(tmp_path: Path) -> None:
    assert (cpu_quota(tmp_path), memory_limits(tmp_path)) == (None, [])


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
def test_workers_per_rank_follow_from_cores_and_ranks(
    asked: str | int, cores: float, ranks: int, train: int
) -> None:
    result = plan(asked, ranks=ranks, cores=cores)
    assert result.per_rank == train


@pytest.mark.parametrize(
    ("samples", "train"), [(1, 1), (20, 2), (49, 2), (50, 4), (200, 4), (201, 32), (2015, 32)]
)
def test_few_samples_want_few_workers(samples: int, train: int) -> None:
    result = plan("auto", samples=samples, cores=40)
    assert result.per_rank == train
    assert ("only" in result.reason) == (train < 32)


def test_a_given_number_of_workers_is_kept() -> None:
    result = plan(32, samples=20, cores=2)
    assert result.per_rank == 32
    assert "more than 2 usable cores" in result.reason


ITEMS = st.lists(st.tuples(st.text(), st.dictionaries(st.text(max_size=3), st.integers())), max_size=40)


@given(items=ITEMS, block=st.integers(1, 7), size=st.integers(1, 300), data=st.data())
def test_packed_objects_behave_like_a_list(
    items: list[Any], block: int, size: int, data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "BLOCK", block)
        patch.setattr(packed, "BYTES", size)
        found = PackedObjects(items)
    assert (len(found), list(found)) == (len(items), items)
    assert [found[at] for at in range(len(items))] == items
    assert found[::-1] == items[::-1]
    assert view(found, str)[:3] == [str(item) for item in items[:3]]
    with pytest.raises(IndexError):
        found[len(items)]
    again = pickle.loads(pickle.dumps(found))
    assert list(again) == items
    numbers = data.draw(st.sets(st.integers(0, len(items) - 1))) if items else set()
    some = pickle.loads(pickle.dumps(found.only(numbers)))
    assert len(some) == len(items)
    assert [some[number] for number in numbers] == [items[number] for number in numbers]


@given(counts=st.lists(st.integers(0, 3), min_size=1, max_size=9), data=st.data())
def test_sources_kept_as_columns_equal_the_list_of_sources(counts: list[int], data: st.DataObject) -> None:
    items = [
        Source(
            path=Path(f"{n}"),
            name=f"{n}\udc80",
            files=tuple(Path(f"{n}/{file}") for file in range(count)),
            rows={"rows": n} if count else {},
            split="train" if count > 1 else None,
            detail={"files": count},
            memory=n,
        )
        for n, count in enumerate(counts)
    ]
    sources = Sources(items)
    assert list(sources) == sources[:] == items
    assert [[Path(file) for file in files] for files in sources.files()] == [list(s.files) for s in items]
    assert sources.rows("rows") == [each.rows.get("rows", 0) for each in items]
    assert sources.numbers["memory"].tolist() == list(range(len(items)))
    numbers = data.draw(st.sets(st.integers(0, len(items) - 1)))
    some = pickle.loads(pickle.dumps(sources.only(numbers).only(numbers)))
    assert len(some) == len(items)
    assert [some[number] for number in numbers] == [items[number] for number in numbers]
