"""Windows around the ticks of a clock: as a plain reference has them, for every alignment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import unistore
from tests.support import streams
from unistore.data.kinds.clocks import RowFinder, Ticks
from unistore.errors import InputError

MS = 1_000_000


class Row(NamedTuple):
    """What a window has at a place: the row, whether it is real, and the weight of the row after it."""

    row: int
    is_real: bool
    weight: float = 0.0


def reference(
    times: np.ndarray, wanted: int, align: str, tolerance: int | None, ends: tuple[int, int]
) -> tuple[int, bool, float]:
    """The row of one episode that stands for a time; -1 if none does."""
    if align == "nearest":
        distance = np.abs(times - wanted)
        first = int(np.argmin(distance))
        row = int(np.flatnonzero(times == times[first])[-1])
    else:
        row = int(np.searchsorted(times, wanted, "right")) - 1
    if row < 0:
        return -1, False, 0.0
    is_near = tolerance is None or abs(int(times[row]) - wanted) <= tolerance
    if align == "linear":
        if wanted == times[-1]:
            return row, is_near, 0.0
        if row + 1 == len(times):
            return row, False, 0.0
        weight = (wanted - times[row]) / (times[row + 1] - times[row])
        is_near &= weight == 0 or tolerance is None or int(times[row + 1]) - wanted <= tolerance
        return row, is_near, float(weight)
    inside = min(ends[0], times[0]) <= wanted <= max(ends[1], times[-1])
    return row, bool(is_near and inside), 0.0


class Asked(NamedTuple):
    """Which rows are wanted around a tick."""

    steps: Sequence[int]
    in_time: bool
    align: str
    tolerance: int | None


def window(times: np.ndarray, ticks: np.ndarray, tick: int, asked: Asked) -> list[Row]:
    """Rows of one episode for the steps around a tick."""
    if not len(times):
        return [Row(-1, is_real=False) for _ in asked.steps]
    rule = asked.align, asked.tolerance, (int(ticks[0]), int(ticks[-1]))
    found = []
    for step in asked.steps:
        if asked.in_time:
            row, is_real, weight = reference(times, int(ticks[tick]) + step, *rule)
        else:
            anchor, is_near, weight = reference(times, int(ticks[tick]), *rule)
            row = anchor + step
            is_real = (is_near or anchor < 0) and 0 <= row < len(times)
        found.append(Row(int(np.clip(row, 0, len(times) - 1)), is_real, weight))
    return found


class Sorted:
    """Times of rows in memory."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def times(self, rows: Any) -> np.ndarray:
        return self.values[rows]

    def search(self, times: Any, lo: Any, hi: Any, side: Any = "right") -> np.ndarray:
        ranges = zip(times, lo, hi, strict=True)
        return np.array([a + np.searchsorted(self.values[a:b], t, side) for t, a, b in ranges], "i8")


rising = st.lists(st.integers(0, 4), max_size=8).map(lambda steps: np.cumsum(steps, dtype="i8"))
some_ticks = st.lists(st.integers(0, 5), min_size=1, max_size=6).map(
    lambda steps: np.cumsum(steps, dtype="i8")
)


@given(
    st.lists(st.tuples(rising, some_ticks, st.integers(-6, 6)), min_size=1, max_size=4),
    st.lists(st.integers(-7, 7), min_size=1, max_size=5),
    st.sampled_from(["previous", "nearest", "linear"]),
    st.booleans(),
    st.none() | st.integers(0, 3),
    st.integers(-3, 3),
)
@settings(max_examples=60, deadline=None)
def test_rows_around_ticks_equal_the_plain_reference(
    episodes: Any, steps: list[int], align: Any, in_time: bool, tolerance: int | None, shift: int
) -> None:
    in_time = in_time or align == "linear"
    times = [own + late for own, _, late in episodes]
    offsets = np.cumsum([0, *map(len, times)])
    stream = RowFinder(
        offsets=offsets,
        clock=Sorted(np.concatenate(times)),
        steps=np.array(steps),
        in_time=in_time,
        align=align,
        tolerance=tolerance,
        shift=shift,
    )
    for number, (_, ticks, _) in enumerate(episodes):
        count = len(ticks)
        own = np.full(count, number)
        found = stream.places(
            Ticks(np.arange(count), own, ticks, np.full(count, ticks[0]), np.full(count, ticks[-1]))
        )
        for tick in range(count):
            asked = Asked(steps, in_time, align, tolerance)
            expected = window(times[number] + shift, ticks, tick, asked)
            assert found.is_real[tick].tolist() == [row.is_real for row in expected]
            real = found.is_real[tick]
            rows = [offsets[number] + row.row for row in expected]
            assert found.rows[tick][real].tolist() == np.array(rows)[real].tolist()
            if len(times[number]):
                assert (found.rows[tick] >= offsets[number]).all()
                assert (found.rows[tick] < offsets[number + 1]).all()
            if found.weights is not None:
                weights = np.array([row.weight for row in expected])
                assert found.weights[tick][real].tolist() == weights[real].tolist()


@pytest.fixture(scope="module")
def robots(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, np.ndarray]]]:
    folder = tmp_path_factory.mktemp("robots")
    path, episodes = streams.robot(folder)
    with h5py.File(path, "r+") as file:
        for number, arrays in enumerate(episodes):
            rng = np.random.default_rng(number)
            times = streams.ticks(rng, 0.6 + 0.3 * number, 10)
            scans = [rng.normal(size=(count, 3)).astype("f4") for count in rng.integers(0, 6, len(times))]
            lidar = file.create_group(f"data/demo_{number}/obs/lidar")
            lidar["points"] = np.concatenate(scans)
            lidar["offsets"] = np.cumsum([0, *map(len, scans)])
            lidar["timestamps"] = times
            arrays |= {"obs/lidar": scans, "obs/lidar_timestamps": times}  # type: ignore[dict-item]  # ragged
    unistore.convert(path, folder / "robot.zarr")
    for arrays in episodes:  # the rate counts from the first step on
        count = len(arrays["obs/qpos"])
        arrays["obs/qpos_timestamps"] = arrays["action_timestamps"][0] + np.arange(count) * MS
    return folder / "robot.zarr", episodes


AROUND: dict[str, Any] = {
    "left": (-4, -2, 0),
    "force": range(-20, 1),
    "action": range(4),
    "observation.qpos": (-0.011, 0.0, 0.0035),
    "wrist": (0, -1),
    "right": (-0.04, 0.0),
    "lidar": (-0.25, -0.1, 0.0),
}
ARRAYS = {
    "left": ("obs/images/left", "observation.images.left"),
    "force": ("obs/force", "observation.force"),
    "action": ("action", "action"),
    "observation.qpos": ("obs/qpos", "observation.qpos"),
    "wrist": ("obs/images/wrist", "observation.images.wrist"),
    "right": ("obs/images/right", "observation.images.right"),
    "lidar": ("obs/lidar", "observation.lidar.points"),
}


def scaled(name: str) -> tuple[list[int], bool]:
    """Steps of a name, in nanoseconds where they are seconds."""
    in_time = any(isinstance(step, float) for step in AROUND[name])
    return [round(step * 1e9) if in_time else step for step in AROUND[name]], in_time


def expected_of(arrays: dict[str, np.ndarray], name: str, rows: Sequence[Row]) -> np.ndarray:
    """Values of rows; between two rows in float64."""
    values = arrays[ARRAYS[name][0]]
    found = values[[row.row for row in rows]].astype("f8")
    for place, row in enumerate(rows):
        if row.is_real and row.weight:
            found[place] = found[place] * (1 - row.weight) + values[row.row + 1].astype("f8") * row.weight
    return found.astype(values.dtype)


MIXED = {"force": "nearest", "observation.qpos": "linear"}


@pytest.mark.parametrize(
    ("align", "tolerance", "pad"),
    [("previous", None, "edge"), ("nearest", 5.0, "zero"), (MIXED, None, "edge"), (MIXED, 5.0, "zero")],
)
def test_windows_of_a_robot_are_those_of_numpy(
    robots: Any, align: Any, tolerance: float | None, pad: Any
) -> None:
    path, episodes = robots
    kind = unistore.Windows(AROUND, clock="left", align=align, tolerance=tolerance, pad=pad)
    dataset = unistore.Dataset(path, kind)
    limit = None if tolerance is None else round(tolerance * MS)
    number = 0
    for arrays in episodes:
        ticks = arrays["obs/images/left_timestamps"]
        for tick in sorted({*range(0, len(ticks), 3), len(ticks) - 1}):
            sample = dataset[number + tick]
            for name, (array, key) in ARRAYS.items():
                own = align if isinstance(align, str) else align.get(name, "previous")
                steps, in_time = scaled(name)
                if name == "left":
                    rows = [Row(max(0, tick + step), tick + step >= 0) for step in steps]
                else:
                    asked = Asked(steps, in_time, own, limit)
                    rows = window(arrays[f"{array}_timestamps"], ticks, tick, asked)
                mask = np.array([row.is_real for row in rows])
                assert np.array_equal(sample[f"{name}_valid"].numpy(), mask), name
                if name == "lidar":
                    counts = sample[f"{key}_counts"].numpy()
                    scans = np.split(sample[key].numpy(), np.cumsum(counts)[:-1])
                    for scan, row in zip(scans, rows, strict=True):
                        if row.is_real:
                            assert np.array_equal(scan, arrays[array][row.row])
                    continue
                expected = expected_of(arrays, name, rows)
                found = sample[key].numpy()
                found = np.moveaxis(found, 1, -1) if found.ndim == 4 else found
                assert found.dtype == expected.dtype
                assert np.array_equal(found[mask], expected[mask]), name
                assert pad == "edge" or not found[~mask].any()
        number += len(ticks)
    assert number == len(dataset)


def test_timestamps_and_origins_are_given_on_request(robots: Any) -> None:
    path, episodes = robots
    fields = ["force_timestamps", "force_valid", "observation.qpos_timestamps", "episode_name", "step"]
    kind = unistore.Windows({"force": (-1, 0), "observation.qpos": (0,)}, clock="left", pad="edge", stride=3)
    samples = unistore.Dataset(path, kind, fields=fields)
    count = -(-len(episodes[0]["obs/images/left"]) // 3)
    sample = samples[count + 5]
    tick = episodes[1]["obs/images/left_timestamps"][15]
    times = episodes[1]["obs/force_timestamps"]
    row = np.searchsorted(times, tick, "right") - 1
    assert sample["force_timestamps"].tolist() == times[row - 1 : row + 1].tolist()
    assert 0 <= tick - int(sample["observation.qpos_timestamps"]) < MS
    assert (sample["episode_name"], int(sample["step"])) == ("demo_1", 15)
    assert set(sample) == {"index", *fields}


def test_a_shift_moves_the_timestamps_of_a_stream(robots: Any) -> None:
    path, episodes = robots
    kind = unistore.Windows({"force": (0,)}, clock="left", shift={"force": -7.5}, pad="edge")
    sample = unistore.Dataset(path, kind, fields=["force_timestamps"])[10]
    times = episodes[0]["obs/force_timestamps"]
    tick = episodes[0]["obs/images/left_timestamps"][10]
    assert sample["force_timestamps"].tolist() == [times[times - 7.5 * MS <= tick][-1]]


def test_windows_that_leave_their_episode_are_refused_or_dropped(robots: Any) -> None:
    path, episodes = robots
    around = {"left": (-4, 0), "force": (-0.05, 0.0)}
    counts = [len(arrays["obs/images/left"]) for arrays in episodes]
    late = episodes[2]["obs/force_timestamps"][0] + 50 * MS
    missing = [4, 4, int((episodes[2]["obs/images/left_timestamps"] < late).sum())]
    with pytest.raises(InputError, match=f"reach beyond .* in {sum(missing)} of {sum(counts)} samples"):
        len(unistore.Dataset(path, unistore.Windows(around, clock="left")))
    dropped = unistore.Dataset(path, unistore.Windows(around, clock="left", pad="drop"))
    assert len(dropped) == sum(counts) - sum(missing)
    assert all(
        dropped[n]["force_valid"].all() and dropped[n]["left_valid"].all() for n in range(len(dropped))
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"around": {}}, r"around: must be a mapping of keys to steps"),
        ({"around": {"force": ()}}, r"around: must be a mapping of keys to steps"),
        ({"around": {"force": (True,)}}, "must be a mapping of keys to steps"),
        ({"around": {"force": (0, float("nan"))}}, "must be a mapping of keys to steps"),
        ({"around": {"force": (0,)}, "history": 2}, "does not work together with a window"),
        (
            {"around": {"force": (0,)}, "align": "next"},
            "align: must be 'previous', 'nearest' or 'linear'",
        ),
        ({"around": {"force": (0,)}, "align": {"left": "nearest"}}, "align: there is no window of 'left'"),
        ({"around": {"force": (0,)}, "shift": {"left": 1}}, "shift: there is no window of 'left'"),
        ({"around": {"force": (0,)}, "tolerance": -1}, "tolerance: must be a number above 0"),
        ({"around": {"force": (0,)}, "align": 5}, "align: must be .*, or a mapping of keys"),
        ({}, "history: must be a whole number of at least 1"),
        ({"history": 2, "horizon": 2, "clock": "left"}, "clock: works only with a window for each key"),
        ({"history": 2, "horizon": 2, "tolerance": 5}, "tolerance: works only with a window for each key"),
    ],
)
def test_impossible_arguments_are_an_error(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        unistore.Windows(**arguments)


@pytest.mark.parametrize(
    ("around", "options", "message"),
    [
        ({"forces": (0,)}, {}, "no key and no clock 'forces'.*clocks steps, force, left"),
        ({"force": (0,)}, {"clock": "sonar"}, "clock: .* no key and no clock 'sonar'"),
        ({"force": (0,), "observation.force": (1,)}, {}, "observation.force is in two windows"),
        ({"left": (0.0,)}, {"align": "linear"}, "left is uint8, which cannot be interpolated.*'nearest'"),
        ({"force": (-1, 0)}, {"align": "linear"}, "counts rows, but align='linear' interpolates"),
    ],
)
def test_windows_that_a_store_cannot_have_are_an_error(
    robots: Any, around: Any, options: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        unistore.Dataset(robots[0], unistore.Windows(around, **options))


@pytest.mark.parametrize(
    "rotation",
    ["quat", "robot0_eef_quaternion", "pose.pose.orientation", "transform.rotation", "tcp/Orientation"],
)
def test_rotations_and_stores_without_times_are_refused(make_store: Any, rotation: str) -> None:
    arrays = {
        f"steps/observation/{rotation}": np.ones((4, 4)),
        "steps/next_valid": np.ones(4, bool),
        "episodes/offsets": np.array([0, 4]),
    }
    path = make_store("trajectory", arrays, count=1, table="episodes")
    name = f"observation.{rotation.replace('/', '.')}"
    with pytest.raises(InputError, match=r"the store has no times of its steps.*give whole numbers"):
        unistore.Dataset(path, unistore.Windows({name: (0.5,)}))
    with pytest.raises(InputError, match="is a rotation, according to its name"):
        unistore.Dataset(path, unistore.Windows({name: (0.0,)}, align="linear"))


def test_a_column_named_like_the_counts_of_a_text_is_delivered(make_store: Any) -> None:
    notes = ["go", "", "söll", "go"]
    encoded = [note.encode() for note in notes]
    group = "steps/observation/note"
    arrays = {
        f"{group}_utf8/data": np.frombuffer(b"".join(encoded), np.uint8),
        f"{group}_utf8/offsets": np.cumsum([0, *map(len, encoded)]),
        f"{group}_counts": np.array([5, 6, 7, 8], np.float32),
        "steps/next_valid": np.ones(4, bool),
        "episodes/offsets": np.array([0, 4]),
    }
    path = make_store("trajectory", arrays, count=1, table="episodes")
    around = {"observation.note": (-1, 0), "observation.note_counts": (0,)}
    for step, sample in enumerate(unistore.Dataset(path, unistore.Windows(around, pad="zero"))):
        assert list(sample["observation.note"]) == ["", *notes][step : step + 2]
        assert sample["observation.note_counts"].tolist() == [5 + step]


def test_relative_actions_are_differences_to_the_state_at_the_tick(make_store: Any) -> None:
    rng = np.random.default_rng(3)
    offsets = np.array([0, 5, 9])
    last = np.zeros(9, np.bool_)
    last[offsets[1:] - 1] = True
    action = rng.random((9, 3)).astype(np.float32)
    joint = rng.random((9, 3))
    path = make_store(
        "trajectory",
        {
            "steps/action": action,
            "steps/observation/joint": joint,
            "steps/observation/gripper": rng.random((9, 2)),
            "steps/terminated": last,
            "steps/truncated": np.zeros(9, np.bool_),
            "steps/next_valid": ~last,
            "episodes/offsets": offsets,
            "episodes/source": np.zeros(2, np.int32),
            "episodes/name": ["a", "b"],
            "sources/path": ["a.hdf5"],
        },
        count=2,
        table="episodes",
    )

    def windows(**options: Any) -> unistore.Dataset:
        return unistore.Dataset(path, unistore.Windows(history=1, horizon=2, **options))

    relative = windows(pad="edge", delta={"action": "observation.joint"})
    absolute = windows(pad="edge")
    for tick in range(9):
        expected = (absolute[tick]["action"].numpy() - joint[tick]).astype(np.float32)
        np.testing.assert_array_equal(relative[tick]["action"], expected)
        observed = [dataset[tick]["observation.joint"].numpy() for dataset in (relative, absolute)]
        np.testing.assert_array_equal(*observed)
    some = windows(pad="zero", delta={"action": ("observation.joint", (0, 2))})
    values = some[4]["action"].numpy()
    np.testing.assert_array_equal(values[0, [0, 2]], (action[4] - joint[4]).astype(np.float32)[[0, 2]])
    assert values[0, 1] == action[4, 1]
    assert not values[1].any()
    found = relative.statistics("action")
    expected = np.concatenate([relative[tick]["action"].numpy() for tick in range(9)])
    np.testing.assert_allclose(found.mean, expected.mean(axis=0, dtype=np.float64), rtol=1e-12)
    np.testing.assert_array_equal(found.max, expected.max(axis=0))
    unmoved = relative.statistics("observation.joint")
    np.testing.assert_allclose(unmoved.mean, joint.mean(axis=0), rtol=1e-12)
    for delta, said in (
        ({"action": "observation.joints"}, "no key and no clock 'observation.joints'"),
        ({"actions": "observation.joint"}, "no window contains 'actions'"),
        ({"action": "observation.gripper"}, r"observation.gripper is float64 \(2,\).*range\(6\)"),
        ({"action": ("observation.gripper", range(3))}, r"observation\.gripper is float64 \(2,\), but"),
        ({"terminated": "observation.joint"}, "must be floating point"),
        ({"action": ("observation.joint", 2)}, "delta"),
    ):
        with pytest.raises(InputError, match=said):
            windows(pad="edge", delta=delta)[0]


@pytest.mark.parametrize("shift", [5, {"force": "5"}, ["force"]])
def test_a_shift_that_names_no_milliseconds_is_refused(shift: Any) -> None:
    with pytest.raises(InputError, match=r"^shift: .*a mapping of keys to milliseconds"):
        unistore.Windows({"force": (0,)}, shift=shift)


def test_options_of_windows_are_given_by_name() -> None:
    with pytest.raises(TypeError, match="positional argument"):
        unistore.Windows({"force": (0,)}, 5)  # type: ignore[call-arg]


def test_a_shift_is_exact_to_the_nanosecond(robots: Any) -> None:
    path, episodes = robots
    tick = int(episodes[0]["obs/images/left_timestamps"][10])
    times = episodes[0]["obs/force_timestamps"].tolist()
    later = next(time for time in times if time > tick + 20 * MS)
    for nanoseconds, expected in ((later - tick, later), (later - tick - 1, times[times.index(later) - 1])):
        shift = {"force": -nanoseconds / MS}
        kind = unistore.Windows({"force": (0,)}, clock="left", shift=shift, pad="edge")
        sample = unistore.Dataset(path, kind, fields=["force_timestamps"])[10]
        assert sample["force_timestamps"].tolist() == [expected]
