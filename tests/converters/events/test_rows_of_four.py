"""Events as rows of four numbers: arrays (N, 4) and text, against the events that were written; made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

import unistore
from tests.support.event_recordings import HEIGHT, WIDTH, made_up
from unistore import convert, export, verify
from unistore.errors import InputError

SENSOR: Any = {"sensor": (WIDTH, HEIGHT)}


def table(events: np.ndarray, order: str, dtype: str, *, low: int = 0, seconds: bool = False) -> np.ndarray:
    columns = {name: events[name].astype(dtype) for name in "txyp"}
    columns["p"] = np.where(events["p"] > 0, 1, low).astype(dtype)
    if seconds:
        columns["t"] = events["t"] / 1e6
    return np.stack([columns[name] for name in order], axis=1)


def assert_stored(store: Path, events: np.ndarray) -> None:
    stored = unistore.open_zarr(store)
    for name in "txyp":
        np.testing.assert_array_equal(stored[f"events/{name}"][...], events[name])


@pytest.mark.parametrize("order", ["txyp", "xytp", "xypt"])
@pytest.mark.parametrize(("dtype", "unit"), [("i8", "auto"), ("f8", "s")])
def test_arrays_of_four_columns_in_any_order_are_stored_and_exported(
    tmp_path: Path, order: str, dtype: str, unit: Any
) -> None:
    """The order is what the numbers show; MVSEC has seconds and -1."""
    events = made_up(3000)
    rows = table(events, order, dtype, low=-1 if unit == "s" else 0, seconds=unit == "s")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["davis/left/events"] = rows
    convert(
        tmp_path / "a.h5", tmp_path / "out.zarr", "events", events="davis/left/events", unit=unit, **SENSOR
    )
    assert_stored(tmp_path / "out.zarr", events)
    assert verify(tmp_path / "out.zarr", against=tmp_path / "a.h5").ok
    export(tmp_path / "out.zarr", tmp_path / "back")
    with h5py.File(tmp_path / "back/a.h5") as file:
        np.testing.assert_array_equal(file["davis/left/events"], rows)


@pytest.mark.parametrize("name", ["events.npy", "my_events_01.npy", "events.h5"])
def test_an_array_that_is_called_events_is_recognised(tmp_path: Path, name: str) -> None:
    events = made_up(500)
    rows = table(events, "txyp", "i8")
    (tmp_path / "in").mkdir()
    if name.endswith("npy"):
        np.save(tmp_path / "in" / name, rows)
    else:
        with h5py.File(tmp_path / "in" / name, "w") as file:
            file["events"] = rows
    convert(tmp_path / "in", tmp_path / "out.zarr", **SENSOR)
    assert_stored(tmp_path / "out.zarr", events)


def test_a_cloud_of_four_columns_is_no_recording(tmp_path: Path) -> None:
    np.save(tmp_path / "cloud.npy", np.random.default_rng(0).random((50, 4)))
    with pytest.raises(InputError, match="does not contain t, x, y and p in events"):
        convert(tmp_path / "cloud.npy", tmp_path / "out.zarr", "events", **SENSOR)


def test_an_ambiguous_order_of_columns_is_an_error_that_offers_order(tmp_path: Path) -> None:
    events = made_up(500, 60_000)
    events["x"] = np.sort(events["x"])  # rises as times do
    np.save(tmp_path / "events.npy", table(events, "xytp", "i8"))
    with pytest.raises(InputError, match="several orders of t, x, y and p fit: txyp and xytp") as caught:
        convert(tmp_path / "events.npy", tmp_path / "out.zarr", "events", **SENSOR)
    assert "--order xytp" in caught.value.problems[0].advice
    convert(tmp_path / "events.npy", tmp_path / "out.zarr", "events", order="xytp", **SENSOR)
    assert_stored(tmp_path / "out.zarr", events)


@pytest.mark.parametrize(("column", "value"), [(1, 2.5), (2, 1000), (3, 3)])
def test_a_row_that_is_not_an_event_is_named_by_its_number(tmp_path: Path, column: int, value: float) -> None:
    rows = table(made_up(70_000), "txyp", "f8")
    rows[69_000, column] = value  # behind what tells the order
    np.save(tmp_path / "events.npy", rows)
    with pytest.raises(InputError) as caught:
        convert(tmp_path / "events.npy", tmp_path / "out.zarr", "events", unit="us", **SENSOR)
    assert caught.value.problems[0].row == 69_000


@pytest.mark.parametrize("head", ["", f"{WIDTH} {HEIGHT}\n", "# t x y p\n"])
@pytest.mark.parametrize("order", ["txyp", "xytp"])
@pytest.mark.parametrize("unit", ["s", "us"])
def test_events_as_text_are_stored_in_any_order_unit_and_heading(
    tmp_path: Path, head: str, order: str, unit: Any
) -> None:
    events = made_up(800)
    lines = []
    for event in events.tolist():
        words = dict(zip("txyp", map(str, event), strict=True))
        if unit == "s":
            words["t"] = f"{event[0] / 1e6:.6f}"
        lines.append(" ".join(words[name] for name in order))
    (tmp_path / "in").mkdir()
    (tmp_path / "in/events.txt").write_text(head + "\n".join(lines) + "\n")
    sensor = {} if head.startswith(str(WIDTH)) else SENSOR
    convert(tmp_path / "in", tmp_path / "out.zarr", "events", unit=unit, **sensor)
    assert_stored(tmp_path / "out.zarr", events)
    assert verify(tmp_path / "out.zarr", against=tmp_path / "in").ok


@pytest.mark.parametrize("text", ["0.1 0.2 0.3 1\n" * 5, "1 2 3\n4 5 6\n", "hello\n", "5 1 9 1\n4 1 8 1\n"])
def test_other_text_is_no_recording(tmp_path: Path, text: str) -> None:
    (tmp_path / "events.txt").write_text(text)
    with pytest.raises(InputError, match="does not begin with lines of t, x, y and p"):
        convert(tmp_path / "events.txt", tmp_path / "out.zarr", "events", **SENSOR)


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "events.txt").write_text("1 2 3 0\n" * 9 + "1 2 x 0\n")
    with pytest.raises(InputError, match="line 10 is not a point"):
        convert(tmp_path / "events.txt", tmp_path / "out.zarr", "events", unit="us", **SENSOR)


@pytest.mark.parametrize("version", ["2.0", "3.1"])
def test_older_recordings_of_inivation_are_refused_by_name(tmp_path: Path, version: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.aedat").write_bytes(f"#!AER-DAT{version}\r\n# header\r\n".encode() + bytes(80))
    with pytest.raises(InputError, match=f"is AEDAT {version}, which is not supported"):
        convert(tmp_path / "in", tmp_path / "out.zarr", "events")


def test_a_damaged_first_line_is_an_error_and_a_text_of_prose_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a_events.txt").write_text(
        "64 48\n" + "".join(f"{n} 9 {9 - n} {n % 2}\n" for n in range(9))
    )
    damaged = tmp_path / "in/b_events.txt"
    damaged.write_text("0 2 X 0\n" + "".join(f"{n} 9 {9 - n} {n % 2}\n" for n in range(9)))
    with pytest.raises(
        InputError, match=r"b_events\.txt: line 1 is '0 2 X 0', but the next lines are t, x, y and p"
    ):
        convert(tmp_path / "in", tmp_path / "out.zarr", "events", unit="us", **SENSOR)
    damaged.write_text("The events of the day:\nnone\n")
    convert(tmp_path / "in", tmp_path / "out.zarr", "events", unit="us", **SENSOR)
    store = zarr.open_group(tmp_path / "out.zarr", mode="r")
    assert store["events/t"][:].tolist() == [*range(9)]
