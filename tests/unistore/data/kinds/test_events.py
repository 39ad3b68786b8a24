"""Windows of recordings of event cameras, against plain numpy over the events in memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

import unistore
from tests.support.event_recordings import HEIGHT, WIDTH, made_up, write_dsec
from unistore.errors import InputError

RECORDINGS = [made_up(60_000, 400_000), made_up(9_000, 95_000, 1), made_up(30, 1_000, 2)]
"""The last is shorter than a window of 2 ms, the first has several chunks."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("events")
    (folder / "in").mkdir()
    for number, events in enumerate(RECORDINGS):
        write_dsec(folder / "in" / f"{number}.h5", events)
    unistore.convert(folder / "in", folder / "a.zarr", "events", sensor=(WIDTH, HEIGHT))
    return folder / "a.zarr"


def windows(length: int, stride: int) -> list[np.ndarray]:
    """Events of all windows of time."""
    found = []
    for events in RECORDINGS:
        start = events["t"][0]
        while start + length <= events["t"][-1] + 1:
            inside = (events["t"] >= start) & (events["t"] < start + length)
            found.append(events[inside])
            start += stride
    return found


def voxels(events: np.ndarray, bins: int) -> np.ndarray:
    """Add one event after the other, as the definition says."""
    grid = np.zeros((bins, HEIGHT, WIDTH))
    if not len(events):
        return grid.astype(np.float32)
    first, last = int(events["t"][0]), int(events["t"][-1])
    position = (bins - 1) * (events["t"] - first) / max(1, last - first)
    earlier = np.floor(position).astype(int)
    share = position - earlier
    sign = 2.0 * events["p"] - 1
    later = np.minimum(earlier + 1, bins - 1)
    np.add.at(grid, (earlier, events["y"], events["x"]), sign * (1 - share))
    np.add.at(grid, (later, events["y"], events["x"]), sign * share)
    return grid.astype(np.float32)


def counts(events: np.ndarray) -> np.ndarray:
    frame = np.zeros((2, HEIGHT, WIDTH), np.int32)
    np.add.at(frame, (events["p"], events["y"], events["x"]), 1)
    return frame


def assert_events(sample: Mapping[str, torch.Tensor], expected: np.ndarray) -> None:
    for name in "txyp":
        assert np.array_equal(sample[name].numpy(), expected[name]), name


@pytest.mark.parametrize(
    ("window", "stride"), [("20ms", None), ("20ms", "5ms"), ("300us", "17ms"), ("2 ms", "333us")]
)
def test_windows_of_time_equal_numpy(store: Path, window: str, stride: str | None) -> None:
    kind = unistore.Events(window, stride=stride)
    expected = windows(kind.length, kind.step)
    dataset = unistore.Dataset(store, kind)
    assert len(dataset) == len(expected)
    for number in range(0, len(expected), max(1, len(expected) // 40)):
        assert_events(dataset[number], expected[number])


def test_windows_of_a_number_of_events_equal_numpy(store: Path) -> None:
    dataset = unistore.Dataset(
        store, unistore.Events(count=4_000, stride=3_000), ["t", "x", "y", "p", "start"]
    )
    expected = []
    for events in RECORDINGS:
        starts = range(0, len(events) - 4_000 + 1, 3_000)
        expected += [events[start : start + 4_000] for start in starts]
    assert len(dataset) == len(expected)
    for number, events in enumerate(expected):
        sample = dataset[number]
        assert_events(sample, events)
        assert sample["start"] == events["t"][0]


@pytest.mark.parametrize(
    "kind", [unistore.Events("30ms", voxel=5, frame=True), unistore.Events(count=700, voxel=1)]
)
def test_voxels_and_frames_equal_numpy_to_the_last_bit(store: Path, kind: unistore.Events) -> None:
    dataset = unistore.Dataset(store, kind)
    with_events = unistore.Dataset(store, kind, ["t", "x", "y", "p"])
    assert kind.voxel is not None
    for number in range(0, len(dataset), max(1, len(dataset) // 12)):
        events = np.rec.fromarrays([with_events[number][name].numpy() for name in "txyp"], names="t,x,y,p")
        sample = dataset[number]
        assert sample["voxel"].dtype == torch.float32
        assert np.array_equal(sample["voxel"].numpy(), voxels(events, kind.voxel))
        if kind.frame:
            assert np.array_equal(sample["frame"].numpy(), counts(events))
    assert "t" not in dataset[0]


def test_a_window_without_events_is_a_sample_of_zeros(tmp_path: Path) -> None:
    events = made_up(1_000, 10_000)
    events["t"][500:] += 1_000_000
    write_dsec(tmp_path / "a.h5", events)
    unistore.convert(tmp_path / "a.h5", tmp_path / "a.zarr", "events", sensor=(WIDTH, HEIGHT))
    keys = ["t", "voxel", "frame", "start"]
    sample = unistore.Dataset(tmp_path / "a.zarr", unistore.Events("100ms", voxel=3, frame=True), keys)[5]
    assert sample["t"].shape == (0,)
    assert not sample["voxel"].any()
    assert not sample["frame"].any()
    assert sample["start"] == events["t"][0] + 500_000


def test_random_windows_lie_in_their_recording_and_differ_in_each_epoch(store: Path) -> None:
    kind = unistore.Events("10ms", random=True)
    dataset = unistore.Dataset(store, kind, ["t", "x", "y", "p", "start", "source"], seed=3)
    plain = unistore.Dataset(store, unistore.Events("10ms"), ["source"])
    assert len(dataset) == len(plain)
    starts = []
    for epoch in (0, 1):
        dataset.set_epoch(epoch)
        for number in range(len(dataset)):
            sample = dataset[number]
            events = RECORDINGS[int(sample["source"][0])]
            start = int(sample["start"])
            assert events["t"][0] <= start <= events["t"][-1] + 1 - 10_000
            inside = (events["t"] >= start) & (events["t"] < start + 10_000)
            assert_events(sample, events[inside])
            starts.append(start)
    assert len(set(starts)) > 0.9 * len(starts)


@pytest.mark.parametrize("dtype", ["u4", "i8"])
def test_times_are_stored_as_the_files_have_them_and_delivered_as_int64(dtype: str, tmp_path: Path) -> None:
    """To the last microsecond of uint32: no time, and no end of a window, wraps."""
    events = made_up(3_000, 40_000)
    events["t"] += 2**32 - 1 - events["t"][-1]
    write_dsec(tmp_path / "a.h5", events, events__t=events["t"].astype(dtype), ms_to_idx=None)
    unistore.convert(tmp_path / "a.h5", tmp_path / "a.zarr", "events", sensor=(WIDTH, HEIGHT))
    stored = unistore.Store(tmp_path / "a.zarr")
    assert stored.array("events/t").dtype == dtype
    codecs = stored.attributes["options"]["found"]["codecs"]
    assert codecs["events/x"] == codecs["events/y"] == "lz4 bitshuffle 2"
    assert codecs["events/p"] == "none"
    kind = unistore.Events("7ms", stride="1ms")
    dataset = unistore.Dataset(tmp_path / "a.zarr", kind)
    start = events["t"][0]
    for number in range(len(dataset)):
        inside = (events["t"] >= start) & (events["t"] < start + 7_000)
        sample = dataset[number]
        assert sample["t"].dtype == torch.int64
        assert_events(sample, events[inside])
        start += 1_000
    voxel = unistore.Events(count=3_000, voxel=4)
    grid = unistore.Dataset(tmp_path / "a.zarr", voxel)[0]["voxel"]
    assert np.array_equal(grid.numpy(), voxels(events, 4))


def test_times_of_several_dtypes_are_stored_as_int64(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number, dtype in enumerate(("u4", "i8")):
        events = made_up(300, seed=number)
        write_dsec(tmp_path / "in" / f"{dtype}.h5", events, events__t=events["t"].astype(dtype))
    unistore.convert(tmp_path / "in", tmp_path / "a.zarr", "events", sensor=(WIDTH, HEIGHT))
    assert unistore.Store(tmp_path / "a.zarr").array("events/t").dtype == np.int64
    assert unistore.verify(tmp_path / "a.zarr", against=tmp_path / "in").ok


def test_numbers_of_the_source_are_delivered_if_requested(store: Path) -> None:
    sample = unistore.Dataset(store, unistore.Events("50ms"), ["t", "sources.t_offset", "sources.width"])[0]
    assert sample["sources.t_offset"] == 57_000_000
    assert sample["sources.width"] == WIDTH


@pytest.mark.parametrize(
    "options",
    [
        {"window": "50"},
        {"window": 50},
        {"window": "0ms"},
        {"window": "0.5us"},
        {"window": "50ms", "count": 5},
        {"window": "50ms", "stride": 5},
        {"count": 5, "stride": "5ms"},
        {"count": 0},
        {"voxel": 0},
        {"frame": 1},
    ],
)
def test_impossible_options_are_an_error(options: dict[str, object]) -> None:
    with pytest.raises(InputError):
        unistore.Events(**options)  # type: ignore[arg-type]


def test_windows_longer_than_every_recording_are_an_error_with_the_longest(store: Path) -> None:
    last = RECORDINGS[0]["t"]
    longest = last[-1] - last[0] + 1
    with pytest.raises(InputError, match=rf"window='2s' leaves no samples.*Events\(window=\"{longest}us\"\)"):
        len(unistore.Dataset(store, unistore.Events("2s")))
    with pytest.raises(InputError, match=r"count=100,000 leaves no samples.*Events\(count=60000\)"):
        len(unistore.Dataset(store, unistore.Events(count=100_000)))


@pytest.mark.parametrize("kind", [unistore.Events("20ms"), unistore.Events(count=500)])
def test_windows_of_a_batch_are_those_that_are_read_alone(store: Path, kind: unistore.Events) -> None:
    dataset = unistore.Dataset(store, kind)
    chosen = [len(dataset) - 1, 0, 3, 3]
    batch = dataset.read_batch(chosen)
    if kind.count is None:
        expected = windows(kind.length, kind.step)
        for place, number in enumerate(chosen):
            for name in "txyp":
                assert np.array_equal(batch[name][place], expected[number][name]), name
    for place, number in enumerate(chosen):
        alone = dataset[number]
        for name in "txyp":
            assert np.array_equal(batch[name][place], alone[name].numpy()), name
