"""Times of KITTI's raw sweeps: against NumPy's parser of times (synthetic texts)."""

from __future__ import annotations

import re
from pathlib import Path

import h5py
import numpy as np
import pytest

import unistore
from tests.support.family_converters import point_cloud
from unistore.converters.source_scan import scan_sources
from unistore.errors import InputError

TIMES = [
    "2011-09-26 13:02:25.963389445",
    "2011-09-26 13:02:26.066845678",
    "2012-02-29 23:59:59.999999999",
    "1969-12-31 23:59:59.5",
]
NAMES = {"timestamp": "timestamps", "timestamp_start": "timestamps_start", "timestamp_end": "timestamps_end"}


def nanoseconds(text: str) -> int:
    """Nanoseconds since 1970 by NumPy, which reads up to nine decimals exactly."""
    return int(np.datetime64(text.replace(" ", "T"), "ns").astype(np.int64))


def recording(root: Path, sweeps: int = 4, **texts: list[str]) -> Path:
    """Write a drive of KITTI's raw recordings with some sweeps, and texts of times."""
    folder = root / "2011_09_26/2011_09_26_drive_0001_sync/velodyne_points"
    (folder / "data").mkdir(parents=True)
    for number in range(sweeps):
        points = np.random.default_rng(number).uniform(0, 20, (20 + number, 4))
        points.astype("<f4").tofile(folder / f"data/{number:010d}.bin")
    for name, lines in texts.items():
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
    return folder


def test_times_are_exact_nanoseconds_of_each_sample(tmp_path: Path) -> None:
    texts = {name: TIMES[number:] + TIMES[:number] for number, name in enumerate(NAMES.values())}
    recording(tmp_path / "in", **texts)
    unistore.convert(tmp_path / "in", tmp_path / "a.zarr")
    dataset = unistore.Dataset(tmp_path / "a.zarr")
    for column, name in NAMES.items():
        stored = [int(dataset[index][column]) for index in range(4)]
        assert stored == [nanoseconds(line) for line in texts[name]]
    array = unistore.Store(tmp_path / "a.zarr").array("segments/timestamp_end")
    assert array.dtype == np.int64
    assert array.attributes["units"] == "ns"
    receipt = unistore.verify(tmp_path / "a.zarr", against=tmp_path / "in").receipt
    assert receipt is not None
    assert receipt.values == sum(4 * (20 + number) for number in range(4)) + 4  # and the times of each sweep
    assert receipt.left_out == ()


def test_every_window_of_a_sweep_has_its_time(tmp_path: Path) -> None:
    recording(tmp_path / "in", timestamps=TIMES)
    unistore.convert(tmp_path / "in", tmp_path / "a.zarr", segment="window:10")
    store = unistore.Store(tmp_path / "a.zarr")
    owner = store.array("segments/source").read(0, store.sample_count)
    assert store.sample_count > 4
    expected = np.array([nanoseconds(line) for line in TIMES])[owner]
    assert store.array("segments/timestamp").read(0, store.sample_count).tolist() == expected.tolist()
    assert unistore.verify(tmp_path / "a.zarr", against=tmp_path / "in").receipt is not None


def test_a_recording_that_lacks_a_sweep_keeps_the_times_of_the_others(tmp_path: Path) -> None:
    folder = recording(tmp_path / "in", timestamps=TIMES)
    (folder / "data/0000000001.bin").unlink()
    unistore.convert(tmp_path / "in", tmp_path / "a.zarr")
    dataset = unistore.Dataset(tmp_path / "a.zarr")
    assert [int(dataset[index]["timestamp"]) for index in range(3)] == [
        nanoseconds(TIMES[number]) for number in (0, 2, 3)
    ]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (TIMES[:3], "has 3 times, but 4 are needed for the sweeps in data"),
        ([*TIMES, TIMES[0]], "has 5 times, but 4 are needed for the sweeps in data"),
        (["2011-09-26 13:02:25.9633894451", *TIMES[1:]], "has '2011-09-26 13:02:25.9633894451' in line 1"),
        ([*TIMES[:3], "2011-02-29 13:02:25.1"], "has '2011-02-29 13:02:25.1' in line 4"),
        ([*TIMES[:3], "2011-09-26 24:00:00"], "has '2011-09-26 24:00:00' in line 4"),
        ([*TIMES[:3], "2300-01-01 00:00:00"], "has '2300-01-01 00:00:00' in line 4"),
        ([TIMES[0], "", *TIMES[2:]], "has '' in line 2"),
        ([], "is empty"),
    ],
)
def test_wrong_texts_are_refused_by_name(tmp_path: Path, lines: list[str], message: str) -> None:
    recording(tmp_path / "in", timestamps=TIMES, timestamps_end=lines)
    with pytest.raises(InputError) as caught:
        unistore.convert(tmp_path / "in", tmp_path / "a.zarr")
    assert message in str(caught.value)
    assert {problem.file.rpartition("/")[2] for problem in caught.value.problems} == {"timestamps_end.txt"}


def test_a_sweep_without_a_number_is_refused(tmp_path: Path) -> None:
    folder = recording(tmp_path / "in", timestamps=TIMES)
    (folder / "data/0000000001.bin").rename(folder / "data/scan_b.bin")
    with pytest.raises(InputError, match=r"scan_b\.bin: its name is not a number"):
        unistore.convert(tmp_path / "in", tmp_path / "a.zarr")


def test_two_sweeps_of_one_number_are_an_error_that_names_both(tmp_path: Path) -> None:
    folder = recording(tmp_path / "in", timestamps=TIMES)
    (folder / "data/2.bin").write_bytes((folder / "data/0000000003.bin").read_bytes())
    with pytest.raises(InputError) as caught:
        unistore.convert(tmp_path / "in", tmp_path / "a.zarr")
    problems = {problem.file.rpartition("/")[2]: problem for problem in caught.value.problems}
    others = {name: re.findall(r"\w+\.bin", problem.message) for name, problem in problems.items()}
    assert others == {"2.bin": ["0000000002.bin"], "0000000002.bin": ["2.bin"]}
    assert {problem.kind for problem in caught.value.problems} == {"twice"}


def test_two_sweeps_of_one_number_are_converted_without_texts_of_times(tmp_path: Path) -> None:
    folder = recording(tmp_path / "in")
    (folder / "data/2.bin").write_bytes((folder / "data/0000000003.bin").read_bytes())
    unistore.convert(tmp_path / "in", tmp_path / "a.zarr")
    assert unistore.Store(tmp_path / "a.zarr").sample_count == 5


def test_times_outside_the_given_folder_are_not_read_with_a_note(tmp_path: Path) -> None:
    folder = recording(tmp_path / "in", timestamps=TIMES)
    scan = scan_sources(point_cloud(), [folder / "data"])
    notes = "\n".join(scan.notes)
    assert "timestamps.txt: not read, because it is outside the given paths" in notes
    assert "timestamp" not in scan.shared["segment_columns"]


def test_times_are_left_out_if_asked(tmp_path: Path) -> None:
    recording(tmp_path / "in", timestamps=TIMES, timestamps_end=TIMES)
    scan = scan_sources(point_cloud(map={"timestamp_end": ""}), [tmp_path / "in"])
    assert list(scan.shared["segment_columns"]) == ["timestamp"]
    assert any(note.startswith("not stored") and "timestamp_end" in note for note in scan.notes)


def test_exported_sweeps_have_their_times_as_attributes(tmp_path: Path) -> None:
    recording(tmp_path / "in", timestamps=TIMES)
    unistore.convert(tmp_path / "in", tmp_path / "a.zarr")
    unistore.export(tmp_path / "a.zarr", tmp_path / "back")
    files = sorted((tmp_path / "back").rglob("*.h5"))
    times = []
    for path in files:
        with h5py.File(path) as file:
            times.append(int(file.attrs["timestamp"]))
    assert times == [nanoseconds(line) for line in TIMES]
