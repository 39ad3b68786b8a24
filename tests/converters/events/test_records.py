"""Events as records: whole numbers in any dtype, and places that a store can hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import unistore
from unistore.errors import InputError

pytestmark = pytest.mark.usefixtures("in_this_process")


def records(place: str) -> np.ndarray:
    events = np.zeros(5, [("x", place), ("y", place), ("t", "i8"), ("p", "?")])
    events["x"], events["t"] = [1, 2, 3, 4, 7], np.arange(5)
    events["p"][2] = True
    return events


@pytest.mark.parametrize("place", ["u2", "f4"])
def test_places_stored_as_whole_floats_are_read_as_integers(place: str, tmp_path: Path) -> None:
    np.save(tmp_path / "events.npy", records(place))
    unistore.convert(tmp_path / "events.npy", tmp_path / "o.zarr", "events", sensor=(8, 8))
    store = unistore.Store(tmp_path / "o.zarr")
    assert store.array("events/x").read().tolist() == [1, 2, 3, 4, 7]
    assert store.array("events/p").read().tolist() == [0, 0, 1, 0, 0]
    assert unistore.verify(store.path, against=tmp_path / "events.npy").problems == ()


def test_places_that_are_no_pixels_are_refused(tmp_path: Path) -> None:
    events = records("f4")
    events["x"][3] = 2.5
    np.save(tmp_path / "events.npy", events)
    with pytest.raises(InputError, match=r"x row 3: is 2\.5, but the sensor has 8 columns"):
        unistore.convert(tmp_path / "events.npy", tmp_path / "o.zarr", "events", sensor=(8, 8))


@pytest.mark.parametrize(("width", "is_sound"), [(65_536, True), (65_537, False)])
def test_a_sensor_wider_than_16_bits_is_an_error(width: int, is_sound: bool, tmp_path: Path) -> None:
    events = records("u4")
    events["x"][4] = width - 1
    np.save(tmp_path / "events.npy", events)
    if is_sound:
        unistore.convert(tmp_path / "events.npy", tmp_path / "o.zarr", "events", sensor=(width, 8))
        assert unistore.Store(tmp_path / "o.zarr").array("events/x").read()[4] == width - 1
        return
    with pytest.raises(InputError, match=r"has a sensor of 65,537 × 8 pixels"):
        unistore.convert(tmp_path / "events.npy", tmp_path / "o.zarr", "events", sensor=(width, 8))
