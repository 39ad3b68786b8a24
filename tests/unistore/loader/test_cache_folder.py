"""One cache for all ranks of a machine: decoded once, gone with the last of them, and nobody else's."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

import unistore
from unistore.errors import InputError
from unistore.loader import Loader
from unistore.loader.cache import CacheFile
from unistore.loader.cached import cache_file

pytestmark = pytest.mark.usefixtures("nothing_left")
COUNT = 120


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where shared caches of this test lie."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"unistore-cache-{os.geteuid()}"


@pytest.fixture
def dataset(make_store):
    """Rows of a chunk each."""
    values = np.arange(COUNT)[:, None] * 1000 + np.arange(300)
    chunks = {"rows/data": (1, 300)}
    arrays = {"rows/data": values, "sources/path": ["a.h5"]}
    return unistore.Dataset(make_store("rows", arrays, count=COUNT, chunks=chunks))


def files(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != "lock")


def opened(folder):
    """Files of a folder that this process has open or mapped."""
    mapped = Path("/proc/self/maps").read_text().splitlines()
    held = [os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()]
    return [name for name in mapped + held if str(folder) in name]


def right(batch):
    return torch.equal(batch["data"], batch["index"][:, None] * 1000 + torch.arange(300))


def test_ranks_decode_every_sample_once_between_them(servers, folder, dataset):
    options = {"shuffle": True, "seed": 1, "world_size": 3, "drop_last": False, "cache": "all"}
    ranks = [
        Loader(dataset, 6, rank=rank, num_workers=workers, multiprocessing_context=method, **options)
        for rank, (workers, method) in enumerate([(0, "fork"), (2, "fork"), (1, "forkserver")])
    ]
    for _ in range(3):
        for loader in ranks:
            assert all(right(batch) for batch in loader)
    stats = [loader.stats() for loader in ranks]
    # a worker that is in the next epoch already may decode what another one is decoding in this
    assert COUNT <= sum(each["cache_misses"] for each in stats) < COUNT + COUNT // 4
    assert sum(each["cache_misses"] + each["cache_hits"] for each in stats) >= 3 * COUNT
    assert len(files(folder)) == 1
    assert len(opened(folder)) > 0
    for number, loader in enumerate(ranks):
        assert len(files(folder)) == 1, number
        loader.close()
    assert files(folder) == []
    assert opened(folder) == []


def start_and_kill(dataset):
    """A rank that has decoded half of the samples when it is killed; its workers end by themselves."""
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(receive)
        with Loader(dataset, 6, False, num_workers=2, subset=range(60), cache="all") as loader:
            list(loader)
            os.kill(os.getpid(), signal.SIGKILL)
    os.close(send)
    with os.fdopen(receive) as pipe:
        assert pipe.read() == ""  # until nobody has the other end any more
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL


def test_what_a_killed_rank_has_decoded_is_there_for_the_others(folder, dataset):
    with Loader(dataset, 6, False, num_workers=0, cache="all") as loader:
        iterator = iter(loader)
        assert right(next(iterator))
        start_and_kill(dataset)
        for _ in range(2):
            assert all(right(batch) for batch in loader)
        assert loader.stats()["cache_hits"] >= COUNT
        assert len(files(folder)) == 1
        del iterator
    assert files(folder) == []


def test_what_only_killed_ranks_have_used_goes_with_the_next_loader(folder, dataset):
    start_and_kill(dataset)
    (left,) = files(folder)
    folder.joinpath("another").write_bytes(b"left, too")
    with Loader(dataset, 6, False, num_workers=0, cache="all") as loader:
        assert all(right(batch) for batch in loader)
        assert loader.stats()["cache_hits"] == 0
        assert files(folder) == [left]
    assert files(folder) == []


def adds(file, writer):
    region = file.region(file.descriptor)
    for sample in range(writer, 400, 4):
        if region.find(np.array([sample]))[0] == 0:
            region.add(sample, [np.full(sample % 50 + 1, sample, np.int64)])
    os._exit(0)


def test_processes_that_add_at_once_do_not_write_over_each_other(folder):
    file = CacheFile(400, 400 * 8 * 64, "name")
    children = []
    for writer in range(4):
        pid = os.fork()
        if pid == 0:
            adds(CacheFile(400, 400 * 8 * 64, "name"), writer)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
    region = file.region(file.descriptor)
    places = region.find(np.arange(400))
    assert np.all(places > 0)
    for sample, place in enumerate(places.tolist()):
        assert np.all(region.array(place, (sample % 50 + 1,), np.dtype(np.int64)) == sample)
    file.close()
    assert files(folder) == []


@pytest.mark.parametrize("wrong", ["open to others", "a link", "a file"])
def test_a_folder_that_is_not_this_users_own_is_refused(folder, dataset, tmp_path, wrong):
    if wrong == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    elif wrong == "a file":
        folder.write_bytes(b"")
    else:
        folder.mkdir()
        folder.chmod(0o777)
    with pytest.raises(InputError, match=f"{folder} .*set TMPDIR to a folder of your own"):
        iter(Loader(dataset, 6, shuffle=True, num_workers=0, cache="all"))


@pytest.mark.parametrize("wrong", ["link", "hard link", "size"])
def test_a_file_that_is_not_this_caches_is_refused(folder, dataset, tmp_path, wrong):
    cache_file(dataset, None, 10**6).close()
    with Loader(dataset, 6, num_workers=0, cache=10**6) as loader:
        iter(loader)
        (name,) = files(folder)
    target = tmp_path / "precious"
    target.write_bytes(b"precious")
    if wrong == "link":
        (folder / name).symlink_to(target)
    elif wrong == "hard link":
        (folder / name).hardlink_to(target)
    user = CacheFile(7, 999, name) if wrong == "size" else None
    with pytest.raises(InputError, match=f"{name} is .*remove it"):
        iter(Loader(dataset, 6, shuffle=True, num_workers=0, cache=10**6))
    assert target.read_bytes() == b"precious"
    if user is not None:
        user.close()


def test_no_room_for_the_index(tmp_path, monkeypatch):
    """Else a hole would be read through the map, which ends in SIGBUS on a full file system in memory."""

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(InputError, match=r"No space left on device.*free space there, set TMPDIR"):
        CacheFile(COUNT, 1 << 20, "shared")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["lock"]
