"""``--on-error skip``: what has problems is left out, whenever they show; the rest is as it were alone."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.programs import call
from tests.support.store_files import attributes_of
from unistore.cli.main import main
from unistore.conversion.run import run
from unistore.conversion.settings import Settings
from unistore.conversion.signatures import convert
from unistore.errors import ConversionError, InputError
from unistore.store.manifest import parse_manifest
from unistore.store.names import SOURCES
from unistore.store.reader import Store

REPORT = "unistore-report.json"
RNG = np.random.default_rng(0)


def files_of(store: Path) -> dict[str, bytes]:
    """Every file of a store but those that say what was left out, and what times the sources have."""
    beside = {REPORT, "zarr.json", "unistore-manifest.jsonl", SOURCES}
    found = {f.relative_to(store).as_posix(): f.read_bytes() for f in store.rglob("*") if f.is_file()}
    return {key: content for key, content in found.items() if key not in beside}


def root_of(store: Path) -> dict[str, Any]:
    """Root attributes without what says what was left out, and the digests of it."""
    attributes: dict[str, Any] = attributes_of(store)
    for name in ("skipped", "plan_digest", "seal"):
        del attributes[name]
    attributes.pop("verdicts", None)
    for name in ("exclude", "skipped"):
        attributes["options"].pop(name, None)
    return attributes


def corrupt(path: Path, dataset: str, chunk: int = 0) -> None:
    """Overwrite a compressed chunk: the file opens, the chunk cannot be read."""
    with h5py.File(path) as file:
        info = file[dataset].id.get_chunk_info(chunk)
    with path.open("r+b") as stream:
        stream.seek(info.byte_offset + 4)
        stream.write(b"\xff" * (info.size - 8))


def write_rows(folder: Path) -> list[str]:
    for number in range(5):
        with h5py.File(folder / f"{number}.h5", "w") as file:
            values = RNG.integers(0, 99, (400 + number, 8))
            file.create_dataset("data", data=values, chunks=(100, 8), compression="gzip")
            file["label"] = np.arange(400 + number)
    (folder / "1.h5").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    corrupt(folder / "3.h5", "data", 2)
    return ["1.h5", "3.h5"]


def write_clouds(folder: Path) -> list[str]:
    for number in range(5):
        with h5py.File(folder / f"{number}.h5", "w") as file:
            for axis in "xyz":
                file[f"data/{axis}"] = RNG.random(300)
            values = RNG.integers(0, 9, 300)
            file.create_dataset("data/classification", data=values, chunks=(100,), compression="gzip")
            file["segments/segment_0000/indices"] = np.arange(200)
    with h5py.File(folder / "0.h5", "r+") as file:
        del file["data/y"]
    with h5py.File(folder / "2.h5", "r+") as file:
        file["data/x"][7] = np.nan
    corrupt(folder / "4.h5", "data/classification", 1)
    return ["0.h5", "2.h5", "4.h5"]


def write_volumes(folder: Path) -> list[str]:
    for number in range(4):
        case = folder / f"case{number}"
        (case / "masks").mkdir(parents=True)
        np.save(case / "ct_original.npy", RNG.integers(-1000, 1000, (6, 8, 9), "i2"))
        np.save(case / f"masks/case{number}_binary.npy", RNG.integers(0, 2, (6, 8, 9), "u1"))
    whole = (folder / "case1/ct_original.npy").read_bytes()
    (folder / "case1/ct_original.npy").write_bytes(whole[:-7])
    np.save(folder / "case3/masks/case3_binary.npy", np.full((6, 8, 9), 0.5, "f4"))
    return ["case1", "case3"]


def write_streams(folder: Path) -> list[str]:
    import cv2

    for split, frames in (("train/a", 4), ("train/b", 2), ("test/c", 3)):
        for role in ("spike", "sharp"):
            (folder / split / role).mkdir(parents=True)
        for number in range(frames):
            bits = RNG.integers(1, 255, 24 * 5 * (8 + number), "u1").tobytes()
            (folder / f"{split}/spike/{number:03d}.dat").write_bytes(bits)
            image = RNG.integers(0, 255, (48, 80, 3), "u1")
            cv2.imwrite(str(folder / f"{split}/sharp/{number:03d}.png"), image)
    with (folder / "train/a/spike/003.dat").open("ab") as file:
        file.write(b"over")
    picture = folder / "test/c/sharp/000.png"
    picture.write_bytes(picture.read_bytes()[:-4000])  # its header is sound
    return ["train/a/spike/003.dat", "test/c/spike/000.dat"]


def write_episodes(folder: Path) -> list[str]:
    for number in range(3):
        with h5py.File(folder / f"{number}.hdf5", "w") as file:
            for demo in range(11):
                group = file.create_group(f"data/demo_{demo}")
                group["actions"] = RNG.random((40 + demo, 2))
                values = RNG.random((40 + demo, 16))
                group.create_dataset("obs/eef", data=values, chunks=(10, 16), compression="gzip")
                group.create_dataset("next_obs/eef", data=np.roll(values, -1, 0), chunks=(10, 16))
    with h5py.File(folder / "0.hdf5", "r+") as file:
        del file["data/demo_1/actions"]
        file["data/demo_1/actions"] = RNG.random((3, 2))
    corrupt(folder / "1.hdf5", "data/demo_1/obs/eef", 3)
    corrupt(folder / "1.hdf5", "data/demo_4/obs/eef", 0)
    (folder / "2.hdf5").write_bytes(b"")
    return ["0.hdf5: data/demo_1", "1.hdf5: data/demo_1", "1.hdf5: data/demo_4", "2.hdf5"]


@dataclass(frozen=True)
class Family:
    """Sources of which some are bad, at every stage that the family has."""

    write: Callable[[Path], list[str]]
    options: Mapping[str, Any]
    shard: int


FAMILIES = {
    "rows": Family(write_rows, {}, 8 << 10),
    "point_cloud": Family(write_clouds, {"voxel_size": (0.5,)}, 4 << 10),
    "ct": Family(write_volumes, {"window": ("lung",), "sparse": "coords"}, 1 << 10),
    "spike": Family(write_streams, {"height": 24, "width": 40, "layout": "packed"}, 1 << 10),
    "trajectory": Family(write_episodes, {}, 8 << 10),
}


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("unistore.conversion.plan.SHARD", FAMILIES[request.param].shard)
    return str(request.param)


def write_family(family: str, folder: Path) -> list[str]:
    folder.mkdir()
    return FAMILIES[family].write(folder)


def without(folder: Path, bad: Sequence[str], good: Path) -> Path:
    """A copy of the sources from which somebody removed what is bad by hand."""
    shutil.copytree(folder, good)
    for name in bad:
        file, _, group = name.partition(": ")
        if group:
            with h5py.File(good / file, "r+") as opened:
                del opened[group]
        elif (good / file).is_dir():
            shutil.rmtree(good / file)
        else:
            for path in good.glob(file.replace("/spike/", "/*/").replace(".dat", ".*")):
                path.unlink()
    return good


def test_a_store_without_the_bad_sources_equals_one_of_the_good_sources(tmp_path: Path, family: str) -> None:
    bad = write_family(family, tmp_path / "all")
    options = FAMILIES[family].options
    with pytest.raises(InputError):
        convert(tmp_path / "all", tmp_path / "none", family, **options)
    assert not (tmp_path / "none").exists()
    some = tmp_path / "some"
    report = convert(tmp_path / "all", some, family, on_error="skip", **options)
    good = without(tmp_path / "all", bad, tmp_path / "good")
    alone = convert(good, tmp_path / "alone", family, **options)
    assert files_of(some) == files_of(tmp_path / "alone")
    assert root_of(some) == root_of(tmp_path / "alone")
    assert (report.tasks, alone.skipped) == (alone.tasks, ())

    written = json.loads((some / REPORT).read_text())
    assert written.pop("verdicts") == list(report.verdicts)
    assert written == {"skipped": len(bad), "left_out": sorted(bad), "problems": list(report.skipped)}
    for entry in written["problems"]:
        assert set(entry) == {"file", "dataset", "reason", "fix", "kind", "left_out"}
        assert (tmp_path / "all" / entry["file"]).exists()
        assert entry["reason"]
    attributes = Store(some).attributes
    assert attributes["skipped"] == len(bad)
    assert sorted(attributes["options"]["exclude"]) == sorted(bad)
    lines = parse_manifest((some / "unistore-manifest.jsonl").read_bytes(), "out")
    assert REPORT in {line.key for line in lines}


def test_the_report_keeps_file_and_dataset_apart_if_names_contain_colons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write_rows(folder)
    (folder / "1.h5").rename(folder / "run: 1.h5")
    (folder / "3.h5").rename(folder / "run: 3.h5")
    report = convert(folder, tmp_path / "out", "rows", on_error="skip")
    written = json.loads((tmp_path / "out" / REPORT).read_text())["problems"]
    for entries in (report.skipped, written):
        places = {(entry["file"], entry["dataset"], entry["left_out"]) for entry in entries}
        assert places == {("run: 1.h5", "", "run: 1.h5"), ("run: 3.h5", "data", "run: 3.h5")}
    with pytest.raises(SystemExit):
        main(["convert", "rows", str(folder), str(tmp_path / "refused"), "--json"])
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert (problem["file"], problem["dataset"], problem["row"]) == ("run: 1.h5", "", None)


def test_the_report_names_the_row_of_a_damaged_frame(tmp_path: Path) -> None:
    frame = cv2.imencode(".png", RNG.integers(0, 255, (8, 8, 3), "u1"))[1]
    folder = tmp_path / "in"
    folder.mkdir()
    for name, size in (("run: 1.hdf5", len(frame) - 20), ("b.hdf5", len(frame))):
        with h5py.File(folder / name, "w") as file:
            file["action"] = RNG.random((3, 2))
            frames = file.create_dataset("observations/images/top", (3,), h5py.vlen_dtype("u1"))
            frames[0] = frames[2] = frame
            frames[1] = frame[:size]
    report = convert(folder, tmp_path / "out.zarr", "trajectory", images="keep", on_error="skip")
    (entry,) = report.skipped
    assert (entry["file"], entry["dataset"], entry["row"]) == ("run: 1.hdf5", "observations/images/top", 1)


def test_nothing_to_skip_changes_nothing(tmp_path: Path, toys: Path, toy: Any) -> None:
    fail = run(toy(), [toys], tmp_path / "fail")
    skip = run(toy(), [toys], tmp_path / "skip", Settings(on_error="skip"))
    assert skip.digest == fail.digest
    assert (tmp_path / "skip/zarr.json").read_bytes() == (tmp_path / "fail/zarr.json").read_bytes()
    assert Store(tmp_path / "skip").attributes["skipped"] == 0
    assert not (tmp_path / "skip" / REPORT).exists()


def test_names_that_no_export_could_write_are_left_out(tmp_path: Path, toys: Path, toy: Any) -> None:
    run(toy(), [toys], tmp_path / "good")
    shutil.copyfile(next(toys.rglob("*.npz")), toys / "train" / "a\\b.npz")
    with pytest.raises(InputError, match="has a name that cannot be exported: it contains a backslash"):
        run(toy(), [toys], tmp_path / "fail")
    run(toy(), [toys], tmp_path / "skip", Settings(on_error="skip"))
    assert files_of(tmp_path / "skip") == files_of(tmp_path / "good")


def test_skip_without_any_good_source_is_an_error_that_names_all(tmp_path: Path) -> None:
    for name in ("a.h5", "b.h5"):
        (tmp_path / name).write_bytes(b"nothing")
    with pytest.raises(InputError) as caught:
        convert(tmp_path, tmp_path / "../out", "rows", on_error="skip")
    assert [problem.location for problem in caught.value.problems[:2]] == ["a.h5", "b.h5"]
    assert len(caught.value.problems) == 3


def spoil(path: Path, row: int = 7) -> None:
    """A value that is found when values are read."""
    with np.load(path) as members:
        arrays: dict[str, NDArray[Any]] = dict(members)
    arrays["value"][row] = np.nan
    np.savez(path, **arrays)


def test_a_conversion_begun_with_skip_is_not_finished_without_it(
    tmp_path: Path, toy: Any, toys: Path, stopping: Any
) -> None:
    """A conversion that was begun with skip would else end under fail without what has problems."""
    spoil(toys / "train/s3.npz")
    with pytest.raises(KeyboardInterrupt):
        run(toy(), [toys], tmp_path / "out", Settings(on_error="skip"), executor=stopping(6))
    with pytest.raises(ConversionError, match=r"skipped train/s3\.npz\. Fix: add --on-error skip"):
        run(toy(), [toys], tmp_path / "out")
    assert run(toy(), [toys], tmp_path / "out", Settings(on_error="skip")).skipped


def test_on_error_skip_exits_with_3_and_lists_the_skipped_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_family("rows", tmp_path / "in")
    command = ["convert", "rows", str(tmp_path / "in"), str(tmp_path / "out")]
    assert call(*command) == 2
    assert call(*command, "--on-error", "skip") == 3
    shown = capsys.readouterr().out
    assert "skipped because of problems: 2 (listed in unistore-report.json)" in shown
    assert re.search(r"1\.h5 +is a Git LFS pointer", shown)
    assert re.search(r"3\.h5 +data +rows \d+:\d+ cannot be read", shown)
    assert call(*command, "--overwrite", "--exclude", "1.h5", "--exclude", "3.h5", "--json") == 0
    assert json.loads(capsys.readouterr().out)["skipped"] == []
    assert call(*command, "--on-error", "skip", "--dry-run", "--json") == 3
    plain = json.loads(capsys.readouterr().out)
    assert [entry["left_out"] for entry in plain["options"]["skipped"]] == ["1.h5"]


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (("x/a.npz", "x/d.npz"), "d.npz"),
        (("x/a.npz", "y/d.npz"), "y/d.npz"),
        (("x/a.npz", "y"), "y/d.npz"),
        (("x/a.npz", "x/sub", "y/d.npz"), "y/d.npz"),
    ],
)
def test_a_damaged_file_is_skipped_by_the_name_of_its_source_whatever_was_given(
    tmp_path: Path, given: tuple[str, ...], name: str
) -> None:
    for file in ("x/a.npz", "x/sub/b.npz"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        np.savez(tmp_path / file, x=np.ones((3, 2)))
    for file in ("x/d.npz", "y/d.npz"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(b"PK\3\4 and no more")
    sources = [tmp_path / path for path in given]
    with pytest.raises(InputError) as caught:
        convert(sources, tmp_path / "a.zarr")
    assert [problem.source for problem in caught.value.problems] == [name]
    report = convert(sources, tmp_path / "a.zarr", on_error="skip")
    assert [entry["left_out"] for entry in report.skipped] == [name]
    excluded = convert(sources, tmp_path / "b.zarr", exclude=[name])
    assert (excluded.sources, excluded.skipped) == (report.sources, ())
