"""Events of five bytes, N-MNIST and N-Caltech101: against bytes packed one by one (synthetic)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import unistore
from unistore.converters.formats.atis import AtisBin
from unistore.converters.opened import SourceFile
from unistore.errors import InputError

Events = list[tuple[int, int, int, int]]


def some_events(count: int, most: int = 300_000, width: int = 34, height: int = 34) -> Events:
    """Random events in the order of their times: t, x, y, p."""
    rng = np.random.default_rng(count)
    times = np.sort(rng.integers(0, most, count)).tolist()
    places = rng.integers(0, (width, height, 2), (count, 3)).tolist()
    return [(time, *place) for time, place in zip(times, places, strict=True)]


def packed(events: Events, jumps: int = 0) -> bytes:
    """Bytes of events, with so many jumps of the clock before the first."""
    written = bytearray(bytes((0, 240, 0, 0, 0)) * jumps)
    for time, x, y, p in events:
        written += bytes((x, y)) + (p << 23 | time - jumps * 2**13).to_bytes(3, "big")
    return bytes(written)


def stored(store: Path) -> Events:
    arrays = unistore.Store(store)
    columns = [arrays.array(f"events/{name}") for name in "txyp"]
    return list(zip(*(column.read(0, column.shape[0]).tolist() for column in columns), strict=True))


def test_events_are_those_that_were_packed(tmp_path: Path) -> None:
    written = {"Train/0/00001.bin": some_events(900), "Test/3/00002.bin": some_events(40)}
    for name, events in written.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True)
        (tmp_path / "in" / name).write_bytes(packed(events))
    unistore.convert(tmp_path / "in", tmp_path / "a.zarr", sensor=(34, 34))
    assert unistore.Store(tmp_path / "a.zarr").family == "events"
    assert stored(tmp_path / "a.zarr") == [*written["Test/3/00002.bin"], *written["Train/0/00001.bin"]]
    assert unistore.Store(tmp_path / "a.zarr").split_names() == ["test", "train"]
    assert unistore.verify(tmp_path / "a.zarr", against=tmp_path / "in").receipt is not None
    unistore.export(tmp_path / "a.zarr", tmp_path / "back")
    for name in written:
        assert (tmp_path / "back" / name).read_bytes() == (tmp_path / "in" / name).read_bytes()


def test_jumps_of_the_clock_are_added_to_later_times(tmp_path: Path) -> None:
    events = some_events(30, width=240, height=180)
    later = [(time + 2**24, x, y, p) for time, x, y, p in events]
    jumps = (2**24 - 2**22) // 2**13
    second = packed(later, jumps)
    (tmp_path / "image_0001.bin").write_bytes(packed(events) + second)
    unistore.convert(tmp_path / "image_0001.bin", tmp_path / "a.zarr", sensor=(240, 180))
    assert stored(tmp_path / "a.zarr") == events + later
    unistore.export(tmp_path / "a.zarr", tmp_path / "back")
    (exported,) = (tmp_path / "back").rglob("*.bin")
    unistore.convert(exported, tmp_path / "again.zarr", sensor=(240, 180))
    assert stored(tmp_path / "again.zarr") == events + later


def test_a_place_outside_of_the_sensor_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(packed(some_events(50)))
    with pytest.raises(InputError, match="the sensor has 10 columns"):
        unistore.convert(tmp_path / "a.bin", tmp_path / "a.zarr", "events", sensor=(10, 34))
    with pytest.raises(InputError, match="does not state the size of the sensor"):
        unistore.convert(tmp_path / "a.bin", tmp_path / "a.zarr")


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(packed(some_events(50))[:-2])
    with pytest.raises(InputError, match="ends 3 bytes into an event"):
        unistore.convert(tmp_path / "a.bin", tmp_path / "a.zarr", sensor=(34, 34))


def test_a_time_that_falls_later_is_refused(tmp_path: Path) -> None:
    events = some_events(2_000)
    events[1500] = (0, 1, 1, 1)
    (tmp_path / "a.bin").write_bytes(packed(events))
    with pytest.raises(InputError, match=r"events/t row 1500: the time falls from"):
        unistore.convert(tmp_path / "a.bin", tmp_path / "a.zarr", sensor=(34, 34))


OTHERS = {
    "zeros": bytes(5 * 400),
    "a sweep": np.random.default_rng(0).normal(size=(500, 4)).astype("<f4").tobytes(),
    "spikes": np.random.default_rng(1).integers(0, 256, 4000, np.uint8).tobytes(),
    "counters": np.arange(2000, dtype="<u4").tobytes(),
    "few events": packed(some_events(10)),
    "nothing": b"",
    "text": b"0 1 2 3 4\n" * 100,
}


@pytest.mark.parametrize("name", OTHERS)
def test_bin_files_of_other_content_are_not_recognised(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.bin").write_bytes(OTHERS[name])
    assert AtisBin().recognise(SourceFile(tmp_path / "a.bin", "a.bin")).certainty == "no"


def test_a_bin_file_that_may_be_several_things_names_them(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(OTHERS["a sweep"][: 16 * 301])
    with pytest.raises(InputError, match="may be a sweep of a lidar or spikes") as caught:
        unistore.convert(tmp_path / "a.bin", tmp_path / "a.zarr")
    (problem,) = caught.value.problems
    assert [str(fix).split()[2] for fix in problem.fixes] == ["point-cloud", "spike"]
