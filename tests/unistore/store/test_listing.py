"""The arrays of parts of a version: which have the same form, and their document."""

from __future__ import annotations

import json
import math

from unistore.store.listing import DescribedArray, extended, listing_document, parse_listing
from unistore.zarr3.writer import array_metadata


def described(rows: int, fill: float, *, large: bool = False) -> DescribedArray:
    shape = (200 if large else 100, 3)
    return DescribedArray(array_metadata(shape, "f4", shape, shape, "fast", fill=fill), (rows, 3))


def test_arrays_filled_with_nan_have_one_form() -> None:
    assert described(7, math.nan) == described(7, math.nan)
    assert described(7, math.nan) != described(8, math.nan)
    assert described(7, math.nan) != described(7, 0.0)
    listing = extended({}, 0, [{"rows/x": described(rows, math.nan)} for rows in (7, 9)])
    assert len(listing["rows/x"].forms) == 1
    assert listing["rows/x"].in_part(1) == described(9, math.nan)


def test_a_listing_is_json_and_back() -> None:
    first = {"rows/x": described(7, math.nan), "rows/y": described(7, 0.0)}
    second = {"rows/x": described(9, math.nan, large=True)}
    listing = extended(extended({}, 0, [first]), 1, [second])
    document = json.loads(json.dumps(listing_document(listing), allow_nan=False))
    parsed = parse_listing(document, 2)
    assert {path: [array.in_part(part) for part in range(2)] for path, array in parsed.items()} == {
        "rows/x": [first["rows/x"], second["rows/x"]],
        "rows/y": [first["rows/y"], None],
    }
    assert json.loads(json.dumps(listing_document(parsed))) == document
