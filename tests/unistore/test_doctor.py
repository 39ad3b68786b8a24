"""doctor: facts of the machine and of a store, and a line that runs."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import unistore
from unistore.cli.main import cli, main
from unistore.doctor import _remarks, _wants_blocks, check_up, file_system
from unistore.loader.machine import available_memory


@pytest.fixture
def store(make_store):
    return make_store("rows", {"rows/data": np.arange(6000).reshape(300, 20)}, count=300)


def test_the_recommended_line_runs(store):
    found = check_up(store)
    loader = eval(found.line, {"unistore": unistore})
    with loader:
        assert sum(len(batch["index"]) for batch in loader) == 300
    assert found.store.samples == 300
    assert found.store.together == unistore.Dataset(store).store.array("rows/data").chunk_shape[0]
    assert found.machine.cores >= 1
    assert found.machine.memory > 1 << 20
    assert json.loads(json.dumps(found.to_json()))["line"] == found.line
    assert "fits the page cache  yes" in str(found)


def test_what_stands_in_the_way_is_said(store):
    found = check_up(store)
    small = replace(found.machine, memory=10, descriptors=256, cores=0.5, all_cores=4)
    far = replace(found.store, network=True, together=8.0)
    remarks = " ".join(_remarks(small, far))
    for word in ("0.5 of 4 cores", "ulimit -n", "page cache", "cache_dir", "8 samples share a chunk"):
        assert word in remarks
    assert _wants_blocks(far, small)
    assert not _wants_blocks(far, found.machine)
    assert not _wants_blocks(replace(far, together=1.0), small)


def test_file_systems_by_the_longest_mount_point(tmp_path):
    mounts = tmp_path / "mounts"
    inside = tmp_path / "a b" / "c"
    escaped = str(tmp_path / "a b").replace(" ", "\\040")
    mounts.write_text(f"/dev/x / ext4 rw 0 0\nserver:/y {escaped} nfs4 rw 0 0\n")
    assert file_system(inside, mounts) == "nfs4"
    assert file_system(tmp_path, mounts) == "ext4"
    assert file_system(tmp_path, tmp_path / "absent") == "?"


def test_memory_of_a_container(tmp_path):
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (cgroups / "job" / "step").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 800 kB\n")
    assert available_memory(proc, cgroups) == 800 * 1024
    (proc / "self" / "cgroup").write_text("0::/job/step\n")
    assert available_memory(proc, cgroups) == 800 * 1024
    (cgroups / "job" / "memory.max").write_text("300000\n")
    (cgroups / "job" / "memory.current").write_text("100000\n")
    (cgroups / "job" / "step" / "memory.max").write_text("max\n")
    assert available_memory(proc, cgroups) == 200_000
    (proc / "self" / "cgroup").write_text("9:memory:/old\n")
    (cgroups / "memory" / "old").mkdir(parents=True)
    (cgroups / "memory" / "old" / "memory.limit_in_bytes").write_text(str(2**63 - 4096))
    assert available_memory(proc, cgroups) == 800 * 1024
    (cgroups / "memory" / "old" / "memory.limit_in_bytes").write_text("5000")
    assert available_memory(proc, cgroups) == 5000


def test_command(store, tmp_path, capsys):
    assert "doctor" in cli.commands
    with pytest.raises(SystemExit) as done:
        main(["doctor", str(store), "--json"])
    assert done.value.code == 0
    assert json.loads(capsys.readouterr().out)["store"]["samples"] == 300
    with pytest.raises(SystemExit) as done:
        main(["doctor"])
    assert done.value.code == 0
    assert "unistore.Loader(dataset" in capsys.readouterr().out
    with pytest.raises(SystemExit) as done:
        main(["doctor", str(tmp_path / "nothing")])
    assert done.value.code == 1
