"""Streams of other rates: a table a clock, timestamps as they are, and times that cannot be believed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pytest

import unistore
from tests.support import streams
from tests.support.family_converters import trajectory
from tests.support.trajectories import converted, problems_of
from unistore.converters.source_scan import scan_sources
from unistore.errors import InputError


def written(path: Path, arrays: dict[str, Any], **attributes: dict[str, Any]) -> Path:
    """Write arrays at the root; ``force={"rate": 100}`` is an attribute of ``force``."""
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file[name] = values
        for name, own in attributes.items():
            file[name.replace("__", "/")].attrs.update(own)
    return path


def act(force: Any, times: Any, steps: int = 4) -> dict[str, Any]:
    """An episode of `steps` steps, one a second, and force with timestamps in seconds."""
    return {
        "action": np.zeros((steps, 2), "f4"),
        "observations/qpos": np.zeros((steps, 2), "f4"),
        "timestamps": np.arange(steps) + 100.0,
        "observations/force": force,
        "observations/force_timestamps": times,
    }


def without(arrays: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: values for name, values in arrays.items() if name not in names}


CLOCKS = {
    "force": "obs/force",
    "left": "obs/images/left",
    "right": "obs/images/right",
    "wrist": "obs/images/wrist",
    "qpos": "obs/qpos",
}


def test_each_clock_has_a_table_with_its_timestamps(tmp_path: Path) -> None:
    path, episodes = streams.robot(tmp_path)
    store = converted(path)
    told = store.group("episodes")["clocks"]
    assert told.pop("qpos") == {"rate": 1000.0}
    assert told["steps"] == {"timestamps": "steps/action_timestamps", "unit": "ns"}
    assert set(told) == {"steps", "force", "left", "right", "wrist"}
    assert np.array_equal(store.array("steps/action").read(), np.concatenate([e["action"] for e in episodes]))
    for clock, dataset in CLOCKS.items():
        lengths = [len(arrays[dataset]) for arrays in episodes]
        assert (
            store.array(f"episodes/clocks/{clock}/offsets").read().tolist()
            == np.cumsum([0, *lengths]).tolist()
        )
        for name in (dataset, f"{dataset}_timestamps")[: 1 if clock == "qpos" else 2]:
            array = store.array(f"clocks/{clock}/{name.replace('obs', 'observation')}")
            expected = np.concatenate([arrays[name] for arrays in episodes])
            assert array.dtype == expected.dtype
            assert np.array_equal(array.read(), expected)
    assert unistore.verify(store.path, against=path).ok


def test_streams_are_exported_and_compared(tmp_path: Path) -> None:
    path, episodes = streams.robot(tmp_path)
    store = converted(path)
    unistore.export(store.path, tmp_path / "again")
    with h5py.File(tmp_path / "again" / "robot.h5") as file:
        for number, arrays in enumerate(episodes):
            for name, expected in arrays.items():
                found = file[f"data/demo_{number}/{name}"]
                assert found.dtype == expected.dtype
                assert np.array_equal(found[...], expected)
        assert file["data/demo_1/obs/qpos"].attrs["rate"] == 1000.0
    with h5py.File(path, "r+") as file:
        file["data/demo_1/obs/force"][7, 1] += 1
    found = unistore.verify(store.path, against=path)
    assert "clocks/force/observation/force: row" in str(found.problems[0])


def test_groups_with_timestamps_are_streams(tmp_path: Path) -> None:
    arrays = {
        "action/value": np.ones((5, 2), "f4"),
        "action/timestamps": np.arange(5) * 0.1,
        "force/t": np.arange(40) * 0.0125,
        "force/value": np.arange(80.0).reshape(40, 2),
        "camera/time": np.arange(3) * 0.2,
        "camera/rgb": np.zeros((3, 2, 2, 3), "u1"),
    }
    store = converted(written(tmp_path / "a.h5", arrays))
    assert store.array("clocks/force/observation/force").shape == (40, 2)
    assert store.array("clocks/camera/observation/camera/rgb").shape == (3, 2, 2, 3)
    told = store.group("episodes")["clocks"]
    assert told["steps"] == {"timestamps": "steps/observation/action_timestamps", "unit": "s"}
    assert told["force"] == {"timestamps": "clocks/force/observation/force_t", "unit": "s"}
    assert unistore.verify(store.path, against=tmp_path / "a.h5").ok


def test_cameras_of_their_own_rate_are_decoded_and_resized(tmp_path: Path) -> None:
    frames = np.random.default_rng(0).integers(0, 255, (7, 12, 16, 3), "u1")
    encoded = [cv2.imencode(".png", frame)[1].ravel() for frame in frames]
    padded = np.zeros((7, max(map(len, encoded))), "u1")
    for row, one in zip(padded, encoded, strict=True):
        row[: len(one)] = one
    path = written(tmp_path / "a.h5", act(padded, np.arange(7) * 0.5 + 100))
    store = converted(path, image_size=8)
    assert np.array_equal(store.array("clocks/force/observation/force").read(), frames[..., ::-1])
    small = store.array("clocks/force/observation/force_8").read()
    assert np.array_equal(small[3], cv2.resize(np.ascontiguousarray(frames[3, ..., ::-1]), (8, 8)))


def test_columns_of_equal_length_are_stored_as_steps(tmp_path: Path) -> None:
    arrays = act(np.zeros((4, 2)), np.arange(4.0))
    store = converted(written(tmp_path / "a.h5", arrays))
    assert "clocks" not in store.group("episodes")
    assert store.array("steps/observation/force").shape == (4, 2)


def test_equal_lengths_by_chance_are_on_their_clock_all_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "all"
    folder.mkdir()
    for name, steps in (("a", 4), ("b", 8)):
        times = 100 + np.arange(steps) * 4 / steps
        arrays = act(np.full((steps, 2), steps), times, steps)
        arrays |= {"timestamps": times, "observations/imu": np.arange(4.0)}
        written(folder / f"{name}.h5", arrays, observations__imu={"rate": 1.0})
    store = converted(folder)
    assert store.array("episodes/offsets").read().tolist() == [0, 4, 12]
    assert store.array("episodes/clocks/imu/offsets").read().tolist() == [0, 4, 8]
    assert store.array("episodes/clocks/force/offsets").read().tolist() == [0, 4, 12]
    assert store.array("clocks/imu/observation/imu").read().tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert unistore.verify(store.path, against=folder).ok


def test_an_episode_without_the_stream_has_no_rows_of_it(tmp_path: Path) -> None:
    episodes = [streams.episode(seed, 0.4) for seed in range(3)]
    for name in ("obs/force", "obs/force_timestamps"):
        del episodes[1][name]
    path = streams.write(tmp_path / "a.h5", episodes)
    assert "columns differ" in problems_of(path)
    offsets = converted(path, columns="union").array("episodes/clocks/force/offsets").read()
    assert np.diff(offsets).tolist() == [len(episodes[0]["obs/force"]), 0, len(episodes[2]["obs/force"])]


FORCE = np.zeros((9, 2))
TIMES = 100 + np.arange(9) * 0.4


def changed(at: int, to: float) -> np.ndarray:
    times = TIMES.copy()
    times[at] = to
    return times


@pytest.mark.parametrize(
    ("arrays", "attributes", "message", "fix"),
    [
        (
            act(FORCE, changed(5, 100.1)),
            {},
            r"force_timestamps: row 5 is 100.1, earlier than the row before it (101.6)",
            "sort the stream by time",
        ),
        (act(FORCE, changed(3, np.nan)), {}, "row 3 is nan, which is not a time in s", "--ignore"),
        (
            act(FORCE, TIMES * 1e6),
            {},
            "lasts from 100000000.000000 to 103200000.000000 s in s, at another time",
            "attribute unit",
        ),
        (act(FORCE, TIMES - 99), {}, "at another time than the steps", "all times with the same clock"),
        (
            act(FORCE, 100 + np.arange(9) * 4e-4),
            {},
            "lasts 0.0032 s in s, but the steps last 3 s",
            "attribute unit to s, ms, us or ns",
        ),
        (
            act(FORCE, TIMES),
            {"observations__force_timestamps": {"unit": "fortnights"}},
            "has the unit 'fortnights', expected one of s, ms, us, ns",
            "correct the attribute",
        ),
        (
            without(act(FORCE, TIMES), "timestamps"),
            {},
            "has streams of other rates (force), but no times of its steps",
            "action_timestamps",
        ),
        (
            without(act(FORCE, TIMES), "observations/force_timestamps"),
            {},
            "different numbers of steps",
            "write its timestamps (NAME_timestamps) or its attribute rate",
        ),
        (
            without(act(FORCE, TIMES), "observations/force_timestamps"),
            {"observations__force": {"fps": 500}},
            "force: 9 rows at 500 per second last 0.016 s, but the steps last 3 s",
            "correct the rate",
        ),
        (act(FORCE, TIMES[:8]), {}, "different numbers of steps", "NAME_timestamps"),
        (
            {
                "actions": np.zeros((4, 2)),
                "actions_timestamps": np.arange(4.0),
                "observations/force": FORCE,
                "observations/force_timestamps": np.arange(9) * 0.4,
                "terminals": np.array([0, 1, 0, 1]),
            },
            {},
            "contains several episodes in the same arrays, and streams of other rates (force)",
            "each episode to a file of its own",
        ),
    ],
)
def test_implausible_times_are_a_problem_with_a_fix(
    arrays: dict[str, Any], attributes: dict[str, Any], message: str, fix: str, tmp_path: Path
) -> None:
    found = problems_of(written(tmp_path / "a.h5", arrays, **attributes))
    assert message in found
    assert fix in found


def test_times_that_repeat_and_streams_that_begin_late_are_remarked(tmp_path: Path) -> None:
    times = TIMES + 1
    times[4:6] = times[3]
    notes = " ".join(scan_sources(trajectory(), [written(tmp_path / "a.h5", act(FORCE, times))]).notes)
    assert "2 rows with the time of the row before, from row 4 on" in notes
    assert "force_timestamps: begins 1.00 s after the steps" in notes
    notes = " ".join(scan_sources(trajectory(), [written(tmp_path / "b.h5", act(FORCE, TIMES))]).notes)
    assert "repeat" not in notes
    assert "begins" not in notes


EPOCH = 1_700_000_000.0


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (np.zeros(9), "has the same time in all 9 rows: 0.0 s"),
        (np.full(9, 101, "i8"), "has the same time in all 9 rows: 101 ns"),
        ((EPOCH + TIMES).astype("f4"), "has the same time in all 9 rows"),
        (
            (3e5 + np.arange(9) * 0.01).astype("f4"),
            "is float32, which cannot represent times less than 0.03125 s apart",
        ),
        (
            (100 + np.arange(9) * 0.04).astype("f2"),
            "is float16, which cannot represent times less than 0.0625 s apart",
        ),
        (np.array([100] * 5 + [101] * 4, "i8"), "is int64, which cannot represent times less than 1 s apart"),
        (np.full(9, np.nan), "row 0 is nan, which is not a time in s"),
        (TIMES[::-1], "row 1 is 102.8, earlier than the row before it"),
    ],
)
def test_a_clock_that_stands_still_is_refused_and_a_rate_takes_its_place(
    times: np.ndarray, message: str, tmp_path: Path
) -> None:
    arrays = act(np.arange(18.0).reshape(9, 2), times)
    unit = "s" if times.dtype != np.int64 or times[0] != times[-1] else "ns"
    path = written(tmp_path / "a.h5", arrays, observations__force_timestamps={"unit": unit})
    assert f"observations/force_timestamps: {message}" in problems_of(path)
    store = converted(path, rate={"force": "3"})
    around = unistore.Windows({"force": (0,), "action": (0,)}, align="previous", pad="edge")
    data = unistore.Dataset(store.path, around, fields=["observation.force", "force_valid"])
    seen = [
        (data[step]["observation.force"][0, 0].item(), bool(data[step]["force_valid"])) for step in range(4)
    ]
    # three rows a second from the first step on, a step a second: of step t row 3 t stands for it
    assert seen == [(2.0 * min(8, 3 * step), True) for step in range(4)]
    kept = store.array("clocks/force/observation/force_timestamps").read()
    assert np.array_equal(kept, times, equal_nan=True)


def test_steps_that_stand_still_are_refused(tmp_path: Path) -> None:
    arrays = act(FORCE, TIMES) | {"timestamps": np.zeros(4)}
    path = written(tmp_path / "a.h5", arrays)
    found = problems_of(path)
    assert "timestamps: has the same time in all 4 rows" in found
    assert "add --rate steps=HZ" in found
    assert converted(path, rate={"steps": "1"}).group("episodes")["clocks"]["steps"] == {"rate": 1.0}


def test_times_that_distinguish_rows_are_stored_in_any_dtype(tmp_path: Path) -> None:
    for dtype, start in (("f4", 0.0), ("f4", 1e4), ("f2", 0.0), ("f8", EPOCH)):
        times = (start + np.arange(9) * 0.4).astype(dtype)
        arrays = act(FORCE, times) | {"timestamps": start + np.arange(4.0)}
        store = converted(written(tmp_path / f"{dtype}{start}.h5", arrays))
        assert np.array_equal(store.array("clocks/force/observation/force_timestamps").read(), times)


def test_one_row_of_a_stream_is_no_clock_that_stands_still(tmp_path: Path) -> None:
    store = converted(written(tmp_path / "a.h5", act(FORCE[:1], np.array([100.0]))))
    assert store.array("clocks/force/observation/force").shape == (1, 2)
    both = act(FORCE, TIMES) | {
        "observations/imu": np.ones(5),
        "observations/imu_timestamps": TIMES[[0, 3, 3, 6, 7]],
    }
    assert converted(written(tmp_path / "b.h5", both)).array("clocks/imu/observation/imu").shape == (5,)


def test_a_constant_clock_is_a_problem_only_if_another_file_has_streams(tmp_path: Path) -> None:
    folder = tmp_path / "all"
    folder.mkdir()
    written(folder / "a.h5", act(FORCE[:4], np.zeros(4)))
    assert converted(folder / "a.h5").array("steps/observation/force").shape == (4, 2)  # rows are steps
    written(folder / "b.h5", act(FORCE, TIMES))
    assert "a.h5: observations/force_timestamps: has the same time in all 4 rows" in problems_of(folder)


def test_clocks_of_different_units_are_converted_apart(tmp_path: Path) -> None:
    folder = tmp_path / "all"
    folder.mkdir()
    written(folder / "a.h5", act(FORCE, TIMES))
    arrays = act(FORCE, (TIMES * 1000).astype("i8"))
    written(folder / "b.h5", arrays, observations__force_timestamps={"unit": "ms"})
    assert "the clock force has timestamps" in problems_of(folder)
    assert converted(folder / "b.h5").group("episodes")["clocks"]["force"]["unit"] == "ms"


@pytest.mark.parametrize("name", ["observations/force", "force"])
def test_rate_gives_a_stream_without_times_its_clock(name: str, tmp_path: Path) -> None:
    arrays = without(act(FORCE, TIMES), "observations/force_timestamps")
    path = written(tmp_path / "a.h5", arrays)
    assert "--rate NAME=HZ" in problems_of(path)
    store = converted(path, rate={name: "2.5"})
    assert store.group("episodes")["clocks"]["force"] == {"rate": 2.5}
    assert store.attributes["options"]["rate"] == {name: "2.5"}
    assert store.array("clocks/force/observation/force").shape == (9, 2)
    found = problems_of(path, rate={name: "500"})
    assert "force: 9 rows at 500 per second last 0.016 s, but the steps last 3 s" in found
    assert "--rate force=HZ" in found


@pytest.mark.parametrize(
    ("rate", "message"),
    [
        (
            {"force": "fast"},
            "--rate force: is 'fast', but must be a number of rows per second. Fix: for example --rate",
        ),
        ({"force": "-3"}, "is '-3', but must be a number of rows"),
        ({"forse": "3"}, "--rate forse=3: no dataset, group or clock has this name"),
    ],
)
def test_a_malformed_rate_is_an_error(rate: dict[str, str], message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5", act(FORCE, TIMES))
    with pytest.raises(InputError) as caught:
        scan_sources(trajectory(rate=rate), [path])
    assert message in str(caught.value)


def test_time_unit_is_suggested_by_the_values_and_recorded(tmp_path: Path) -> None:
    start = 1_700_000_000_000
    arrays = act(FORCE, start + np.arange(9) * 400)
    arrays["timestamps"] = start + np.arange(4) * 1000
    path = written(tmp_path / "a.h5", arrays)
    remark = "if they are ms, as the values suggest, add --time-unit ms"
    assert remark in " ".join(scan_sources(trajectory(), [path]).notes)
    store = converted(path, time_unit="ms")
    assert store.group("episodes")["clocks"]["force"]["unit"] == "ms"
    assert store.attributes["options"]["time_unit"] == "ms"
    assert "look like" not in " ".join(scan_sources(trajectory(time_unit="ms"), [path]).notes)


@pytest.mark.parametrize(
    ("times", "unit"),
    [
        (1_700_000_000_000 + np.arange(9) * 400, "ms"),
        (1_700_000_000_000_000 + np.arange(9) * 400_000, "us"),
        (1_700_000_000_000_000_000 + np.arange(9) * 400_000_000, ""),
        (1_700_000_000.0 + np.arange(9) * 0.4, ""),
        (np.arange(9) * 0.4, ""),
    ],
)
def test_a_note_suggests_the_unit_that_timestamps_look_like(
    times: np.ndarray, unit: str, tmp_path: Path
) -> None:
    arrays = act(FORCE, times)
    arrays["timestamps"] = times[[0, 2, 5, 7]]
    notes = " ".join(scan_sources(trajectory(), [written(tmp_path / "a.h5", arrays)]).notes)
    assert (f"force_timestamps: read in {'s' if times.dtype.kind == 'f' else 'ns'}" in notes) == bool(unit)
    assert f"--time-unit {unit}" in notes or not unit
