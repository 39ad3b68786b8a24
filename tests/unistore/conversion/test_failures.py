"""Disks that fill, rights that lack, sources that vanish or change: each its own error, each resumable."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.executors import Disturbed
from unistore.conversion.convert import make_converter
from unistore.conversion.run import run
from unistore.conversion.settings import Settings
from unistore.errors import ConversionError, InputError
from unistore.store.reader import Store


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 160 KiB, if this process may mount one."""
    place = tmp_path / "small"
    place.mkdir()
    mount = shutil.which("mount")
    made = mount and subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=160k", "unistore-test", str(place)],
        capture_output=True,
        check=False,
    )
    if not made or made.returncode:
        pytest.skip("may not mount a small file system here")
    yield place
    subprocess.run(["umount", str(place)], check=True, capture_output=True)


@pytest.mark.parametrize("writes", [0, 40])
def test_a_conversion_resumes_after_a_full_disk_at_any_shard(
    toys: Path, toy: Any, store: Path, whole: str, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    left = writes

    def full(descriptor: int, data: list[bytes], original: Callable[..., int] = os.writev) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            original(descriptor, [b"half"])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr("unistore.zarr3.durable.write", full)
        with pytest.raises(
            ConversionError, match=r"No space left on device.*free space there, then run the same"
        ):
            run(toy(), [toys], store)
    assert not store.exists()
    assert not list(store.parent.rglob("*.part"))
    assert run(toy(), [toys], store).digest == whole


@pytest.mark.parametrize("failing", [errno.ENOSPC, errno.EIO])
def test_a_conversion_resumes_after_a_failed_write_of_the_journal(
    toys: Path, toy: Any, store: Path, whole: str, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    left = 7

    def fsync(descriptor: int, original: Callable[[int], None] = os.fsync) -> None:
        nonlocal left
        if Path(f"/proc/self/fd/{descriptor}").readlink().name == "journal.jsonl":
            left -= 1
            if left < 0:
                raise OSError(failing, os.strerror(failing))
        original(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", fsync)
        with pytest.raises(ConversionError, match=os.strerror(failing)):
            run(toy(), [toys], store)
    assert run(toy(), [toys], store).digest == whole, "the lock is free, the journal whole"


def test_a_folder_without_permission_is_an_error(tmp_path: Path, toys: Path, toy: Any, whole: str) -> None:
    def refuse(path: Path, *_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    store = tmp_path / "to" / "out.zarr"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pathlib.Path.mkdir", refuse)
        with pytest.raises(ConversionError, match=r"Permission denied. Fix: change the permissions"):
            run(toy(), [toys], store)
    assert run(toy(), [toys], store).digest == whole


def test_a_read_only_file_system_is_an_error(tmp_path: Path, toys: Path, toy: Any, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True, capture_output=True)
    with pytest.raises(ConversionError, match=r"Read-only file system. Fix: choose a destination"):
        run(toy(), [toys], small_disk / "out.zarr")


@pytest.mark.parametrize("after", [2, 5], ids=["deriving", "writing"])
def test_a_conversion_resumes_once_a_vanished_source_is_back(
    toys: Path, toy: Any, store: Path, whole: str, after: int
) -> None:
    path, away = toys / "val/s2.npz", toys.parent / "away.npz"
    with pytest.raises(ConversionError, match=r"val/s2\.npz: disappeared during") as caught:
        run(toy(), [toys], store, executor=Disturbed(after, lambda: path.rename(away)))
    assert "put it back" in str(caught.value)
    away.rename(path)
    report = run(toy(), [toys], store)
    assert report.digest == whole
    assert report.resumed >= after - 4


def rewritten(path: Path) -> None:
    arrays = dict(np.load(path))
    np.savez(path, **{name: values[: len(values) // 2] for name, values in arrays.items()})


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize("change", [rewritten, truncated])
@pytest.mark.parametrize("after", [2, 5], ids=["deriving", "writing"])
def test_a_source_that_changes_during_the_conversion_is_an_error(
    toys: Path, toy: Any, store: Path, after: int, change: Callable[[Path], None]
) -> None:
    """Also when the change makes it unreadable: that is no reason to throw away what was done."""
    path = toys / "val/s2.npz"
    with pytest.raises(ConversionError, match=r"val/s2\.npz: changed during") as caught:
        run(toy(), [toys], store, executor=Disturbed(after, lambda: change(path)))
    assert "--restart" in str(caught.value)
    assert (store.parent / "out.zarr.unistore-build").exists()
    if change is rewritten:
        with pytest.raises(ConversionError, match=r"sources\.val/s2\.npz"):
            run(toy(), [toys], store)
        run(toy(), [toys], store, Settings(restart=True))
        assert Store(store).sample_count == len(np.load(path)["value"]) + 100 + 1 + 211


@pytest.mark.parametrize("codec", ["fast", "auto"])
def test_a_reader_that_fails_names_the_source(toys: Path, toy: Any, tmp_path: Path, codec: str) -> None:
    """h5py raises OSError without a file name; the problem has it all the same, and the work stays."""

    class Failing(toy):  # type: ignore[misc]
        def read(self, scan: Any, table: str, source: int, lo: int, hi: int, out: Mapping[str, Any]) -> None:
            if source == 3:
                raise OSError("Can't synchronously read data")
            super().read(scan, table, source, lo, hi, out)

    said = r"val/s2\.npz: cannot be read: OSError: Can't synchronously read data"
    with pytest.raises(InputError, match=said) as caught:
        run(Failing(), [toys], tmp_path / "store", Settings(codec=codec))
    assert [problem.source for problem in caught.value.problems] == ["val/s2.npz"]
    assert "in read\n" in caught.value.problems[0].trace
    report = run(toy(), [toys], tmp_path / "store", Settings(codec=codec))
    assert report.digest == run(toy(), [toys], tmp_path / "whole", Settings(codec=codec)).digest
    assert report.resumed > 0 or codec == "auto"  # a codec is chosen before anything is written


@pytest.mark.parametrize("codec", ["fast", "auto"])
def test_a_converter_that_forgets_a_column_is_refused(
    toys: Path, toy: Any, tmp_path: Path, codec: str
) -> None:
    """Fill in its place would be silently wrong; with ``--on-error skip`` too."""

    class Forgetting(toy):  # type: ignore[misc]
        def read(self, scan: Any, table: str, source: int, lo: int, hi: int, out: Mapping[str, Any]) -> None:
            if table == "rows" and source == 2:
                out["value"][...] = 1
                out["image"][...] = 2
            else:
                super().read(scan, table, source, lo, hi, out)

    said = r"s3\.npz: .*ToyFamily did not read deep/flag of the table 'rows'. Fix: please report it"
    for on_error in ("fail", "skip"):
        with pytest.raises(ConversionError, match=said):
            run(Forgetting(), [toys], tmp_path / "store", Settings(codec=codec, on_error=on_error))
        assert not (tmp_path / "store").exists()


def test_planes_that_a_converter_forgets_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from unistore.converters.ct import Ct

    np.save(tmp_path / "a.npy", np.ones((9, 8, 8), np.int16))
    monkeypatch.setattr("unistore.conversion.plan.LARGE", 0)
    converter = make_converter("ct", {})
    monkeypatch.setattr(Ct, "read_planes", lambda *arguments: None)
    with pytest.raises(ConversionError, match=r"a\.npy: .*Ct did not read image"):
        run(converter, [tmp_path / "a.npy"], tmp_path / "a.zarr")


def test_a_staging_folder_that_cannot_be_removed_is_an_error_after_the_seal(
    toys: Path, toy: Any, store: Path, whole: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is finished, which is said; the same command does what is left to do."""

    def refuse(path: Path, **_: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    build = f"{store.name}.unistore-build"
    with monkeypatch.context() as patch:
        patch.setattr("unistore.conversion.build.shutil.rmtree", refuse)
        for _ in range(2):
            with pytest.raises(ConversionError, match=rf"the store is finished, but .*{build}.*: Permission"):
                run(toy(), [toys], store)
    assert Store(store).attributes["seal"]["digest"] == whole
    report = run(toy(), [toys], store)
    assert (report.digest, report.notes) == (whole, ("toys",))
    assert [path.name for path in store.parent.iterdir() if path.name.startswith(store.name)] == [store.name]


def test_bad_sources_are_an_error_even_if_the_staging_folder_cannot_be_removed(
    toys: Path, toy: Any, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(toy):  # type: ignore[misc]
        def finalize(self, scan: Any, metadata: Any) -> Any:
            raise InputError("the sources are wrong")

    def refuse(path: Path, **_: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    with monkeypatch.context() as patch:
        patch.setattr("unistore.conversion.build.shutil.rmtree", refuse)
        with pytest.raises(InputError, match="the sources are wrong"):
            run(Failing(), [toys], store)
