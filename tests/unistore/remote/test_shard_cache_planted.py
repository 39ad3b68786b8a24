"""A cache's folder that others can write to, or planted: nothing outside is read, written or deleted."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash

from unistore.errors import StoreError
from unistore.store.shard_cache import ShardCache

CONTENT = b"x" * 300
NAME = xxhash.xxh3_128_hexdigest(CONTENT)
OTHER = 4711
"""A user that this one is not."""


@pytest.fixture
def cache(tmp_path: Path) -> ShardCache:
    (tmp_path / "cache").mkdir(mode=0o700)
    return ShardCache(tmp_path / "cache", 1000)


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "victim"
    file.write_bytes(b"the user's own")
    yield file
    assert file.read_bytes() == b"the user's own"
    assert file.stat().st_mode & 0o777 == 0o644


def ensure(cache: ShardCache) -> bool:
    return cache.ensure(NAME, len(CONTENT), lambda: [CONTENT], "object")


@pytest.mark.parametrize("place", [f"{NAME}.part", "lock", NAME])
@pytest.mark.parametrize("how", ["link", "dangling", "hard link", "pipe", "folder"])
def test_a_planted_file_is_refused_by_name(cache: ShardCache, victim: Path, place: str, how: str) -> None:
    planted = cache.folder / place
    if how == "link":
        planted.symlink_to(victim)
    elif how == "dangling":
        planted.symlink_to(victim.with_name("made"))
    elif how == "hard link":
        os.link(victim, planted)
    elif how == "pipe":
        os.mkfifo(planted)
    else:
        planted.mkdir()
    with pytest.raises(
        StoreError, match=rf"cache_dir .*cache: cannot be used: .*{place} .* Fix: remove it, or"
    ):
        ensure(cache)
    assert not victim.with_name("made").exists()


def test_a_folder_that_is_a_link_is_refused(cache: ShardCache, victim: Path) -> None:
    """Else the limit would delete what stands there."""
    outside = victim.parent / "outside"
    cache.folder.rename(outside)
    (outside / NAME).write_bytes(b"a file of the user")
    cache.folder.symlink_to(outside)
    before = sorted(outside.rglob("*"))
    with pytest.raises(StoreError, match=r"cannot be used: .*is a link"):
        ensure(cache)
    assert sorted(outside.rglob("*")) == before


@pytest.mark.parametrize("mode", [0o1777, 0o775])
def test_a_folder_that_others_write_to_is_refused(cache: ShardCache, mode: int) -> None:
    cache.folder.chmod(mode)
    with pytest.raises(
        StoreError, match=r"cannot be used: .*can be accessed by other users. Fix: .*of your own"
    ):
        ensure(cache)


@pytest.mark.parametrize("place", [f"{NAME}.part", NAME, "lock"])
def test_a_cache_file_of_another_user_is_an_error(cache: ShardCache, place: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("giving a file away needs root")
    path = cache.folder / place
    if not path.exists():
        path.write_bytes(b"")
    os.chown(path, OTHER, OTHER)
    with pytest.raises(StoreError, match=r"cannot be used: .*(another user|not a file that only this user)"):
        ensure(cache)


def test_the_limit_removes_only_copies_and_no_other_files(cache: ShardCache) -> None:
    """In a folder that holds other things, too, the limit deletes copies alone."""
    others = ["notes", "x.part", "f" * 31, f"zz/{NAME}", "de/deep/x"]
    for name in others:
        (cache.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (cache.folder / name).write_bytes(b"y" * 5000)
    (cache.folder / ("cd" * 16)).symlink_to(cache.folder / "notes")
    old = cache.folder / ("ab" * 16)
    old.write_bytes(b"z" * 900)
    assert ensure(cache)
    assert not old.exists()
    assert all((cache.folder / name).read_bytes() == b"y" * 5000 for name in others)
    assert (cache.folder / NAME).read_bytes() == CONTENT


def test_a_new_cache_is_private_to_its_user(tmp_path: Path) -> None:
    cache = ShardCache(tmp_path / "new" / "cache", 1000)
    assert ensure(cache)
    for path in (cache.folder, *cache.folder.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0


def as_another_user(cache: ShardCache) -> tuple[bool, str]:
    """Use a cache in a process of another user: whether there is a copy, or why it is refused."""
    ours, theirs = multiprocessing.get_context("fork").Pipe()

    def use() -> None:
        os.setgroups([])
        os.setegid(OTHER)
        os.seteuid(OTHER)
        try:
            theirs.send((ensure(ShardCache(cache.folder, 1000)), ""))
        except StoreError as error:
            theirs.send((False, str(error)))

    process = multiprocessing.get_context("fork").Process(target=use)
    process.start()
    assert ours.poll(20)
    process.join()
    answer: tuple[bool, str] = ours.recv()
    return answer


@pytest.mark.timeout(60)
@pytest.mark.skipif(os.geteuid() != 0, reason="taking the place of another user needs root")
def test_others_read_the_copies_of_a_folder_that_is_open_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        cache = ShardCache(Path(folder) / "cache", 1000)
        cache.folder.mkdir(mode=0o755)
        assert as_another_user(cache) == (False, ""), "there is none, and none is made"
        assert not list(cache.folder.iterdir())
        assert ensure(cache)
        copy = cache.folder / NAME
        assert copy.stat().st_mode & 0o777 == 0o644
        before = copy.stat()
        assert as_another_user(cache) == (True, "")
        copy.write_bytes(b"y" * len(CONTENT))
        assert as_another_user(cache) == (False, ""), "each verifies it"
        assert copy.exists()
        assert before.st_ino == copy.stat().st_ino
        copy.chmod(0o666)
        assert "only the owner of the folder can change" in as_another_user(cache)[1]
        cache.folder.chmod(0o1777)
        assert "can be accessed by other users" in as_another_user(cache)[1]
        cache.folder.chmod(0o700)
        assert "cannot be opened" in as_another_user(cache)[1]
