"""What attributes of an array state about its column in each source."""

from __future__ import annotations

import numpy as np
import pytest

from unistore.schemas.tables import Field, SourceForms


def test_forms_by_numbers_of_sources() -> None:
    forms = SourceForms.of(
        {
            "missing_in": [1, 4],
            "source_dtype": {"<f4": [0, 2], ">i2": [3]},
            "source_row_shape": {"4x3": [0, 3], "2x1": [2]},
        }
    )
    assert [forms.has(source) for source in range(5)] == [True, False, True, True, False]
    otherwise = np.dtype(np.float64)
    assert [forms.dtype(source, otherwise).str for source in (0, 2, 3)] == ["<f4", "<f4", ">i2"]
    assert forms.dtype(7, otherwise) == otherwise
    assert [forms.row_shape(source, (9, 9)) for source in (0, 2, 3)] == [(4, 3), (2, 1), (4, 3)]
    assert list(forms.sources_by_row_shape()) == [((4, 3), [0, 3]), ((2, 1), [2])]


@pytest.mark.parametrize("dtypes", [None, ["<f4", "<f8"]], ids=["not stated", "without numbers"])
def test_forms_that_are_not_those_of_single_sources(dtypes: list[str] | None) -> None:
    forms = SourceForms.of({"source_dtype": dtypes, "source_row_shape": ["4x3", "2x1"]})
    assert forms.has(0)
    assert forms.dtype(0, np.dtype(np.int16)) == np.int16
    assert forms.row_shape(0, (4, 3)) == (4, 3)
    assert list(forms.sources_by_row_shape()) == []


def test_a_dtype_of_all_sources() -> None:
    assert SourceForms.of({"source_dtype": "|u1"}).dtype(12, np.dtype(np.int64)) == np.uint8


def test_own_form_of_a_field() -> None:
    attributes = {"missing_in": [1], "source_dtype": {">f4": [0], "|S5": [2]}, "source_row_shape": {"2": [0]}}
    field = Field(path="rows/x", dtype="float64", row_shape=(3,), axes=("row", "x"), attributes=attributes)
    assert field.own_form(0) == ("<f4", (2,), None, "")
    assert field.own_form(1) is None
    assert field.own_form(2) == ("<f8", (3,), None, ""), "texts are stored as bytes"
