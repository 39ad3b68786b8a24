"""Limits of cgroups, version 1 and 2, on hand-written trees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unistore.system.machine import MemoryLimit, cpu_quota, memory_limits, usable_cores

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
def test_cpu_quota(build: Build, lines: str, files: dict[str, str], quota: float | None) -> None:
    assert cpu_quota(*build(lines, files)) == quota


@pytest.mark.parametrize(("quota", "cores"), [("max", 16), ("250000", 2.5), ("6400000", 16)])
def test_usable_cores(build: Build, monkeypatch: pytest.MonkeyPatch, quota: str, cores: float) -> None:
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
def test_memory_limits(build: Build, lines: str, files: dict[str, str], limits: Any) -> None:
    assert memory_limits(*build(lines, files)) == limits


def test_without_cgroups(tmp_path: Path) -> None:
    assert (cpu_quota(tmp_path), memory_limits(tmp_path)) == (None, [])
