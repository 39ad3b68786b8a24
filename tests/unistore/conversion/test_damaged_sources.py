"""Damage that a library meets, in every family: told with the file's name, left out beside good sources."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.executors import Disturbed
from unistore import verify
from unistore.conversion.run import run
from unistore.conversion.signatures import convert
from unistore.converters.files.npy import ArrayValues
from unistore.errors import ConversionError, InputError
from unistore.report.inspection import inspect
from unistore.store.reader import Store

GOOD, BAD = "a.h5", "b.h5"


def write_rows(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(40.0), chunks=(8,), compression="gzip")
        file["inner/y"] = np.arange(40)


def write_cloud(path: Path) -> None:
    with h5py.File(path, "w") as file:
        for axis in "xyz":
            file[f"data/{axis}"] = np.arange(30.0)
        for number in range(3):
            file[f"segments/segment_{number:04d}/indices"] = np.arange(number * 10, number * 10 + 10)


def write_episodes(path: Path) -> None:
    with h5py.File(path, "w") as file:
        for demo in range(2):
            file[f"data/demo_{demo}/actions"] = np.arange(10.0).reshape(5, 2)
            file[f"data/demo_{demo}/obs/eef"] = np.arange(15.0).reshape(5, 3)


WRITE: Mapping[str, Callable[[Path], None]] = {
    "rows": write_rows,
    "point_cloud": write_cloud,
    "trajectory": write_episodes,
}


@pytest.fixture(params=["point_cloud", "trajectory"])
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def sources(tmp_path: Path, family: str) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in (GOOD, BAD):
        WRITE[family](folder / name)
    return folder


def problems(sources: Path, store: Path, family: str | None = None, **options: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        convert(sources, store, family, **options)
    assert not store.exists()
    return caught.value


def check_told_and_left_out(sources: Path, family: str, name: str = BAD) -> None:
    """Beside a good source it is left out, and told in the report."""
    store = sources.parent / "out.zarr"
    report = convert(sources, store, family, on_error="skip")
    assert {entry["file"] for entry in report.skipped} == {name}
    assert GOOD in Store(store).text("sources/path")


def test_a_changed_byte_of_metadata_is_a_problem_that_names_the_file(tmp_path: Path) -> None:
    """Each byte in turn, of the HDF5 structures of a small file: an error that names it, or none."""
    path, seen = tmp_path / "b.h5", 0
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(3)
    whole = path.read_bytes()
    for at in range(0, len(whole), 41):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xA5]) + whole[at + 1 :])
        found = inspect(path)
        seen += any(problem.trace for problem in found.problems)
        assert all("b.h5" in problem.location for problem in found.problems)
    assert seen, "the border was met"


def test_a_name_that_is_not_utf_8_is_a_problem_and_can_be_skipped(sources: Path, family: str) -> None:
    with h5py.File(sources / BAD, "r+") as file:
        parent = file["data" if "data" in file else "/"]
        parent.id.links.create_hard(b"caf\xe9", file.id, next(iter(file)).encode())
    check_told_and_left_out(sources, family)
    said = problems(sources, sources.parent / "again.zarr", family).problems
    assert {problem.source.partition(": ")[0] for problem in said} == {BAD}
    assert r"b'caf\xe9'" in said[0].message


def test_an_attribute_whose_name_is_not_utf_8_is_a_problem_and_can_be_skipped(
    sources: Path, family: str
) -> None:
    """Attributes are kept of clouds' headers and of episodes."""
    with h5py.File(sources / BAD, "r+") as file:
        for group in (file, file.require_group("header")):
            scalar = h5py.h5s.create(h5py.h5s.SCALAR)
            h5py.h5a.create(group.id, b"caf\xe9", h5py.h5t.NATIVE_INT32, scalar).write(np.array(3, "i4"))
    check_told_and_left_out(sources, family)


def test_a_hierarchy_of_a_thousand_groups_is_a_problem_and_can_be_skipped(sources: Path, family: str) -> None:
    with h5py.File(sources / BAD, "r+") as file:
        group = file.require_group("data")
        for _ in range(1050):
            group = group.create_group("g")
    check_told_and_left_out(sources, family)


def test_links_that_lead_in_a_circle_are_problems_and_can_be_skipped(sources: Path, family: str) -> None:
    (sources / BAD).unlink()
    (sources / BAD).symlink_to(sources / "c.h5")
    (sources / "c.h5").symlink_to(sources / BAD)
    store = sources.parent / "out.zarr"
    said = problems(sources, store)
    assert {BAD, "c.h5"} <= {problem.location for problem in said.problems}
    report = convert(sources, store, on_error="skip")
    assert {entry["file"] for entry in report.skipped} == {BAD, "c.h5"}
    assert BAD in str(problems(sources / BAD, sources.parent / "alone.zarr", family))


def reads_fail(patch: pytest.MonkeyPatch, fails: Callable[[str], bool]) -> None:
    """Let the disk fail where values of an array are read, and `fails` says so of the file's name."""
    read_into = ArrayValues.read_into

    def read(self: ArrayValues, lo: int, hi: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        if fails(str(self.where)):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read_into(self, lo, hi, out)

    patch.setattr(ArrayValues, "read_into", read)


def test_a_failed_read_of_values_is_a_problem_of_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, store = tmp_path / "in", tmp_path / "out.zarr"
    folder.mkdir()
    for name in ("a.npy", "b.npy"):
        np.save(folder / name, np.arange(4000.0).reshape(1000, 4))
    with monkeypatch.context() as patch:
        reads_fail(patch, lambda name: name == "b.npy")
        said = problems(folder, store).problems
        assert [(each.location, each.kind, each.source) for each in said] == [
            ("b.npy", "unreadable", "b.npy")
        ]
        assert (tmp_path / "out.zarr.unistore-build").exists(), "what is done stays: the disk may come back"
        shutil.rmtree(tmp_path / "out.zarr.unistore-build")
        report = convert(folder, store, on_error="skip", overwrite=True)
        assert [entry["file"] for entry in report.skipped] == ["b.npy"]


@pytest.mark.usefixtures("in_this_process")
def test_verify_reports_a_source_that_cannot_be_read(
    sources: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second reading, by h5py alone, is inside the border, too."""
    store = sources.parent / "out.zarr"
    convert(sources, store, family)

    def broken(*given: Any) -> Any:
        raise RuntimeError("bad local heap")

    monkeypatch.setattr("unistore.integrity.compare.compare_source", broken)
    found = verify(store, against=[sources])
    assert not found.ok
    assert f"{GOOD}: cannot be read: RuntimeError: bad local heap" in "\n".join(map(str, found.problems))


STRAY = ["segment_0001x", "segment_-1", "other", "segment_2_1", "segment_٣", f"segment_{9**20}"]


@pytest.mark.parametrize("key", [*STRAY, "segment_01", "Segment_2"])
def test_a_group_among_segments_that_is_not_one_is_a_problem(tmp_path: Path, key: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in (GOOD, BAD):
        write_cloud(folder / name)
    with h5py.File(folder / BAD, "r+") as file:
        file[f"segments/{key}/indices"] = np.arange(3)
        file["segments/count"] = 3
    said = problems(folder, tmp_path / "out.zarr", "point_cloud").problems
    named = {problem.location.rpartition("/")[2] for problem in said}
    assert named & ({key} if key != "Segment_2" else {key, "segment_0002"})
    assert "count" not in named, "a dataset is no segment"
    check_told_and_left_out(folder, "point_cloud")


NAMES = ["a\nb.npy", "\u202ecba.npy", "\x1b[31m.npy", b"\xff\xfe.npy", "back\\slash.npy", "C:x.npy"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_could_not_be_exported_is_a_problem_and_can_be_skipped(
    tmp_path: Path, name: str | bytes
) -> None:
    folder, store = tmp_path / "in", tmp_path / "out.zarr"
    folder.mkdir()
    for each in ("good.npy", os.fsdecode(name)):
        np.save(folder / each, np.arange(9))
    (problem,) = problems(folder, store).problems
    assert str(problem).isprintable()
    assert "rename it" in problem.advice
    assert len(convert(folder, store, on_error="skip").skipped) == 1
    assert Store(store).text("sources/path") == ["good.npy"]


def test_an_episode_whose_values_are_in_a_missing_file_can_be_skipped(tmp_path: Path) -> None:
    """That file is none of those which guard the run, once the episode is left out."""
    folder, store = tmp_path / "in", tmp_path / "out.zarr"
    folder.mkdir()
    write_episodes(folder / BAD)
    with h5py.File(folder / BAD, "r+") as file:
        del file["data/demo_1/obs/eef"]
        file.create_dataset("data/demo_1/obs/eef", (5, 3), "f8", external=[("nowhere.bin", 0, 120)])
    report = convert(folder, store, "trajectory", on_error="skip")
    assert [entry["left_out"] for entry in report.skipped] == [f"{BAD}: data/demo_1"]


def test_content_that_changes_under_its_old_time_is_noticed(toys: Path, toy: Any, tmp_path: Path) -> None:
    """It is noticed, and the same command reads that source anew: nothing of the old content is sealed."""
    store, path = tmp_path / "out.zarr", toys / "val/s2.npz"
    arrays = dict(np.load(path))
    other = {**arrays, "value": arrays["value"][::-1]}

    def change() -> None:
        before = path.stat()
        np.savez(path, **other)
        assert path.stat().st_size == before.st_size
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    steps = 6
    with pytest.raises(ConversionError, match=r"val/s2\.npz: its content, permissions or links changed"):
        run(toy(), [toys], store, executor=Disturbed(steps, change))
    run(toy(), [toys], store)
    fresh = run(toy(), [toys], tmp_path / "fresh.zarr")
    assert Store(store).attributes["seal"]["digest"] == fresh.digest


def test_a_disk_that_comes_back_is_not_held_against_the_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a failed run with ``--on-error skip`` left out is not left out by the next one."""
    folder, store = tmp_path / "in", tmp_path / "out.zarr"
    folder.mkdir()
    for name in ("a.npy", "b.npy"):
        np.save(folder / name, np.arange(4000.0).reshape(1000, 4))
    whole = convert(folder, tmp_path / "whole.zarr").digest
    with monkeypatch.context() as patch:
        reads_fail(patch, lambda name: True)
        with pytest.raises(InputError, match="nothing is left"):
            convert(folder, store, on_error="skip")
    report = convert(folder, store, on_error="skip")
    assert not report.skipped
    assert report.digest == whole


def test_a_codec_is_not_chosen_without_the_values_that_could_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a.npy", "b.npy"):
        np.save(folder / name, np.arange(4000.0).reshape(1000, 4))
    right = convert(folder, tmp_path / "right.zarr").digest
    failures = iter([True])
    reads_fail(monkeypatch, lambda name: next(failures, False))
    report = convert(folder, tmp_path / "out.zarr", on_error="skip")
    assert report.skipped or report.digest == right
    assert [entry["kind"] for entry in report.skipped] == ["unreadable"]
