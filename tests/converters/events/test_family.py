"""Recordings of event cameras, from files to stores and back, against the arrays that were written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import faery
import h5py
import numpy as np
import pytest

import unistore
from tests.support.event_recordings import (
    HEADER2,
    HEADER3,
    HEIGHT,
    WIDTH,
    made_up,
    words2,
    words3,
    write_dat,
    write_dsec,
)
from unistore.errors import InputError
from unistore.testing import check_family

SENSOR = (WIDTH, HEIGHT)


def columns_of(events: np.ndarray) -> dict[str, np.ndarray]:
    return {f"events/{name}": events[name] for name in "txyp"}


def write_npy(path: Path, events: np.ndarray) -> None:
    np.save(path, events)


def write_npz(path: Path, events: np.ndarray) -> None:
    polarity = np.where(events["p"] > 0, 1, -1).astype("i1")
    np.savez(path, ts=events["t"], xs=events["x"].astype("i4"), ys=events["y"].astype("i2"), ps=polarity)


def write_evt2(path: Path, events: np.ndarray) -> None:
    path.write_bytes(HEADER2 + words2(events).tobytes())


def write_evt3(path: Path, events: np.ndarray) -> None:
    path.write_bytes(HEADER3 + words3(events).tobytes())


def write_aedat4(path: Path, events: np.ndarray) -> None:
    written = np.empty(len(events), faery.EVENTS_DTYPE)
    for name in "txy":
        written[name] = events[name]
    written["on"] = events["p"]
    faery.events_stream_from_array(written, SENSOR).to_file(path)


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("forked_workers")
def test_recordings_of_dsec_keep_every_promise(tmp_path: Path) -> None:
    folder = tmp_path / "dsec"
    folder.mkdir()
    events = [made_up(), made_up(9_000, 100_000, 1)]
    for number, one in enumerate(events):
        size = {"width": np.int64(WIDTH), "height": np.int64(HEIGHT)}
        write_dsec(folder / f"events_{number}.h5", one, ms_to_idx=None, **size)
    oracle: dict[str, Any] = columns_of(np.concatenate(events))
    oracle["recordings/offsets"] = np.array([0, 20_000, 29_000])
    oracle["sources/t_offset"] = np.array([57_000_000] * 2)
    oracle["sources/width"] = np.array([WIDTH] * 2)
    oracle["sources/height"] = np.array([HEIGHT] * 2)
    marks = [np.append(one["t"][::4096], one["t"][-1]) for one in events]
    oracle["marks/t"] = np.concatenate(marks)
    (tmp_path / "work").mkdir()
    check_family("events", folder, tmp_path / "work", oracle)


@pytest.mark.parametrize(
    ("name", "write", "options"),
    [
        ("a.npy", write_npy, {"sensor": SENSOR}),
        ("a.npz", write_npz, {"sensor": SENSOR}),
        ("a.dat", write_dat, {}),
        ("a.raw", write_evt2, {}),
        ("a.raw", write_evt3, {}),
        ("a.aedat4", write_aedat4, {}),
    ],
    ids=["npy", "npz", "dat", "evt2", "evt3", "aedat4"],
)
def test_files_of_every_format_are_stored_and_exported_with_their_events(
    name: str, write: Callable[[Path, np.ndarray], None], options: dict[str, Any], tmp_path: Path
) -> None:
    events = made_up(9_000)
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / name, events)
    report = unistore.convert(tmp_path / "in", tmp_path / "a.zarr", **options)
    assert report.family == "events"
    store = unistore.Store(tmp_path / "a.zarr")
    time_dtype = np.uint32 if name == "a.dat" else np.int64
    for path, expected in columns_of(events).items():
        stored = store.array(path)
        assert np.array_equal(stored.read(), expected), path
        assert stored.dtype == {"t": time_dtype, "p": np.uint8}.get(path[-1], np.uint16)
    assert store.array("sources/width").read().tolist() == [WIDTH]
    assert unistore.verify(tmp_path / "a.zarr", against=tmp_path / "in").ok
    if name in ("a.npy", "a.npz", "a.dat"):
        unistore.export(tmp_path / "a.zarr", tmp_path / "out")
        unistore.convert(tmp_path / "out", tmp_path / "again.zarr", "events", **options)
        assert (tmp_path / "out" / name).stat().st_size == (tmp_path / "in" / name).stat().st_size
        assert np.array_equal(unistore.Store(tmp_path / "again.zarr").array("events/p").read(), events["p"])
    else:
        with pytest.raises(InputError, match="which cannot be written"):
            unistore.export(tmp_path / "a.zarr", tmp_path / "out")


def test_exported_files_have_the_dtypes_and_polarities_of_the_source(tmp_path: Path) -> None:
    write_npz(tmp_path / "a.npz", made_up(500))
    unistore.convert(tmp_path / "a.npz", tmp_path / "a.zarr", "events", sensor=SENSOR)
    unistore.export(tmp_path / "a.zarr", tmp_path / "out")
    with np.load(tmp_path / "a.npz") as original, np.load(tmp_path / "out" / "a.npz") as exported:
        assert set(original.files) == set(exported.files)
        for name in original.files:
            assert exported[name].dtype == original[name].dtype
            assert np.array_equal(exported[name], original[name]), name


@pytest.mark.parametrize(
    ("unit", "times"),
    [
        ("ns", lambda t: t * 1000),
        ("ms", lambda t: t / 1000),
        ("s", lambda t: 1.6e9 + t / 1e6),
        ("us", lambda t: t.astype("f8")),
    ],
)
def test_times_in_other_units_are_stored_in_microseconds(
    unit: str, times: Callable[[np.ndarray], np.ndarray], tmp_path: Path
) -> None:
    events = made_up(5_000)
    write_dsec(tmp_path / "a.h5", events, events__t=times(events["t"]), ms_to_idx=None)
    unistore.convert(tmp_path / "a.h5", tmp_path / "a.zarr", "events", sensor=SENSOR, unit=unit)
    first = 1_600_000_000_000_000 if unit == "s" else 0
    assert np.array_equal(unistore.Store(tmp_path / "a.zarr").array("events/t").read(), events["t"] + first)
    assert unistore.verify(tmp_path / "a.zarr", against=tmp_path / "a.h5").ok


def falling(times: np.ndarray) -> np.ndarray:
    times = times.astype("u4")
    times[5_000] = times[4_999] - 1
    return times


def outside(values: np.ndarray) -> np.ndarray:
    values = values.copy()
    values[17] = 1000
    return values


def mixed(polarity: np.ndarray) -> np.ndarray:
    values = polarity.astype("i1")
    values[np.flatnonzero(values == 0)[5]] = -1
    return values


@pytest.mark.parametrize(
    ("changed", "options", "message", "kind"),
    [
        (
            {},
            {"sensor": None},
            r"does not state the size of the sensor\. Fix: .*--sensor 640 480",
            "missing",
        ),
        (
            {"events__t": falling},
            {},
            r"events/t row 5000: the time falls from \d+ to \d+\. Fix: sort the events",
            "order",
        ),
        (
            {"events__t": lambda t: t * 1000},
            {},
            r"events/t row \d+: is \d+ us, but ms_to_idx places it in",
            "unit",
        ),
        (
            {"events__t": lambda t: t / 1e6},
            {},
            r"is float64, and the file does not state whether.*--unit s",
            "unit",
        ),
        ({"events__t": lambda t: t + 0.5}, {"unit": "us"}, r"row 0: is [\d.]+, which is not a whole", "unit"),
        ({"events__t": lambda t: t * np.nan}, {"unit": "s"}, r"row 0: is nan, which is not a whole", "unit"),
        (
            {"events__t": lambda t: t.astype("u8") + np.uint64(2**63)},
            {},
            r"events/t row 0: is 92233720\d+, which is more microseconds than int64 holds",
            "range",
        ),
        ({"events__x": outside}, {}, r"events/x row 17: is 1000, but the sensor has 64 columns", "range"),
        (
            {"events__y": lambda y: y.astype("i2") - 1},
            {},
            r"events/y row \d+: is -1, but the sensor has 48",
            "range",
        ),
        ({"events__p": mixed}, {}, r"events/p row \d+: is -1, but polarities here are 0 and 1", "range"),
        (
            {"events__p": lambda p: p + 1},
            {},
            r"events/p row \d+: is 2, but polarities here are 0 and 1",
            "range",
        ),
        ({"events__p": lambda p: p[:-1]}, {}, r"differ in the length of axis 0", "length"),
        ({"events__x": lambda x: x.astype("f4")}, {}, r"is float32 \(n\), but", "dtype"),
    ],
)
def test_values_that_are_not_events_are_an_error_and_leave_no_store(
    changed: dict[str, Any], options: dict[str, Any], message: str, kind: str, tmp_path: Path
) -> None:
    events = made_up()
    arrays = {name: change(events[name[-1]]) for name, change in changed.items()}
    write_dsec(tmp_path / "a.h5", events, **arrays)
    with pytest.raises(InputError, match=message) as error:
        unistore.convert(tmp_path / "a.h5", tmp_path / "a.zarr", "events", **{"sensor": SENSOR, **options})
    assert error.value.problems[0].kind == kind
    assert not (tmp_path / "a.zarr").exists()


def test_a_missing_column_or_a_contradicting_sensor_size_is_an_error(tmp_path: Path) -> None:
    write_dsec(tmp_path / "a.h5", made_up(100), events__p=None)
    with pytest.raises(InputError, match="does not contain t, x, y and p in events"):
        unistore.convert(tmp_path / "a.h5", tmp_path / "a.zarr", "events", sensor=SENSOR)
    write_dat(tmp_path / "a.dat", made_up(100))
    with pytest.raises(InputError, match="64 × 48 pixels, but --sensor gives 640 × 480"):
        unistore.convert(tmp_path / "a.dat", tmp_path / "a.zarr", "events", sensor=(640, 480))


def test_events_in_prophesees_own_compression_are_refused_with_the_command(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        creation.set_chunk((16,))
        creation.set_filter(0x8ECF, h5py.h5z.FLAG_OPTIONAL)
        kind = h5py.h5t.py_create(made_up(1).dtype)
        group = file.create_group("CD")
        made = h5py.h5d.create(group.id, b"events", kind, h5py.h5s.create_simple((32,)), creation)
        h5py.Dataset(made)[:] = made_up(32)
    with pytest.raises(InputError, match=r"ECF \(filter 0x8ECF\).*metavision_file_to_dat"):
        unistore.convert(tmp_path / "a.h5", tmp_path / "a.zarr", "events", sensor=SENSOR)
