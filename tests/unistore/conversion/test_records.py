"""What jobs write for one another, and that nothing else is made of it."""

from __future__ import annotations

import io
import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unistore.conversion.parts import JobPart
from unistore.conversion.records import from_json, to_json
from unistore.converters.formats.arrays import Npz
from unistore.errors import Location, Problem

VALUES = [
    (None, True, -3, 0.1, float("inf"), "é\udcff", b"\0\xff"),
    [{"a": (1, [2])}, {3: "three"}, {1.5}, frozenset("b")],
    (Path("a") / "b", np.dtype("<f4"), np.dtype([("x", ">i2", (3,))])),
    (JobPart(1, 2), Problem.at(Location("a.h5"), "is empty", "copy it again"), Npz()),
]


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_values_and_records_are_read_back_from_json(value: Any) -> None:
    again = from_json(json.loads(json.dumps(to_json(value))))
    assert again == value
    assert list(map(type, again)) == list(map(type, value))


def test_arrays_and_their_scalars_are_read_back_from_json() -> None:
    for array in (np.arange(6, dtype=">u2").reshape(2, 3), np.array("2026-01-01", "M8[D]"), np.zeros((0, 4))):
        again = from_json(to_json(array))
        assert again.dtype == array.dtype
        np.testing.assert_array_equal(again, array)
    assert type(from_json(to_json(np.float32(0.1)))) is np.float32


@pytest.mark.parametrize("value", [object(), np.array([object()]), print, np.dtype(object)], ids=range(4))
def test_values_without_a_json_form_are_an_error(value: object) -> None:
    with pytest.raises(TypeError):
        to_json(value)


def test_pickled_objects_in_arrays_are_refused() -> None:
    file = io.BytesIO()
    np.save(file, np.array([print], object), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle"):
        from_json({"array": b64encode(file.getvalue()).decode()})
