"""Repairs that are killed at any operation: a file is as it was or whole, and nothing else is touched."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unistore import repair, verify
from unistore.store.names import MANIFEST, REPAIR, ROOT

Copy = Callable[[str], tuple[Any, Path]]
Tree = Callable[[Path], dict[str, bytes]]
OPERATIONS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir")
DAMAGED = ("points/xyz/c/0/0", "points/rgb/zarr.json", "segments/offsets/c/0", MANIFEST, ROOT)


def killed_before(last: int, folder: Path, job: Callable[[], bool]) -> bool:
    """Run a job in a process that is killed before an operation on files below a folder; whether it was."""
    pid = os.fork()
    if pid == 0:
        left = last

        def strike(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal left
            if event in OPERATIONS and str(arguments[0]).startswith(str(folder)):
                left -= 1
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)

        done = False
        try:
            signal.alarm(60)
            sys.addaudithook(strike)
            done = job()
        finally:
            os._exit(not done)
    status = os.waitpid(pid, 0)[1]
    assert status in (0, signal.SIGKILL)
    return bool(status)


@pytest.mark.nightly
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.usefixtures("in_this_process")  # the worker that reads HDF5 writes nothing
def test_a_repair_killed_at_any_operation_leaves_each_file_old_or_whole(copy_case: Copy, tree: Tree) -> None:
    case, store = copy_case("cloud_indices")
    sound = tree(store)
    damaged = [key for key in DAMAGED if key in sound]
    assert {MANIFEST, ROOT} < {*damaged}
    place = store.parent
    (place / "beside").write_bytes(b"the user's own")
    rng = random.Random(0)
    for key in damaged:
        data = bytearray(sound[key])
        data[rng.randrange(len(data))] ^= 1
        (store / key).write_bytes(data)
    (store / "notes.txt").write_text("mine")
    before = tree(store)
    inodes = {key: (store / key).stat().st_ino for key in sound if key not in damaged}
    operations = 1
    while killed_before(operations, place, lambda: repair(store, case.sources).ok):
        operations += rng.randrange(100, 200)
        now = tree(store)
        assert now.keys() - before.keys() <= {key for key in now if key.endswith(".part")}
        assert all(now[key] in (before[key], sound.get(key)) for key in before)
        assert all((store / key).stat().st_ino == inode for key, inode in inodes.items()), "not written again"
        assert (place / "beside").read_bytes() == b"the user's own"
    assert operations > 150
    assert tree(store) == {**sound, "notes.txt": b"mine"}
    assert {path.name for path in place.iterdir()} == {store.name, "beside"}


def test_a_repair_removes_the_folder_of_a_killed_one(copy_case: Copy) -> None:
    case, store = copy_case("rows_real")
    left = store.with_name(f"{store.name}.{REPAIR}")
    left.mkdir()
    (left / "lock").write_text("{}")
    os.utime(left / "lock", (0, 0))
    assert repair(store, case.sources).repaired == ()
    assert not left.exists()


@pytest.mark.parametrize("how", ["swapped", "older", "other store"])
def test_sound_files_in_the_place_of_others_are_found_and_repaired(
    copy_case: Copy, tree: Tree, make_case: Any, how: str
) -> None:
    """Each decodes by itself, and is not what the manifest says."""
    case, store = copy_case("robot_flat")
    before = tree(store)
    action, reward = "steps/action/c/0/0", "steps/reward/c/0"
    if how == "swapped":
        (store / action).write_bytes(before[reward])
        (store / reward).write_bytes(before[action])
    elif how == "older":
        (store / action).write_bytes(before["steps/observation/joint/c/0/0"])
    else:
        _, other = make_case("robot_d4rl")
        (store / action).write_bytes((other / action).read_bytes())
    found = {problem.location for problem in verify(store).problems}
    assert found == ({action, reward} if how == "swapped" else {action})
    assert set(repair(store, case.sources).repaired) == found
    assert tree(store) == before
