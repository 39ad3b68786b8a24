"""Columns of text: the same bytes whether they are made at once or when slices are asked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from unistore.schemas.tables import TextBytes, lazy_text_arrays, text_arrays

TEXTS = st.lists(st.text(max_size=5) | st.sampled_from(["", "höhe", "\udcff"]), max_size=12)


@given(TEXTS, st.slices(80))
@example(["höhe"], slice(2, 2))
def test_lazy_text_has_the_same_fields_and_bytes(strings: list[str], rows: slice) -> None:
    made = text_arrays("cases/name", strings, axis="case", description="Name")
    lazy = lazy_text_arrays("cases/name", strings, axis="case", description="Name")
    assert [field for field, _ in made] == [field for field, _ in lazy]
    for (_, values), (_, other) in zip(made, lazy, strict=True):
        assert (values.shape, values.dtype, len(values)) == (other.shape, other.dtype, len(other))
        np.testing.assert_array_equal(values[:], other[:])
    if rows.step is None or rows.step > 0:
        np.testing.assert_array_equal(made[0][1][rows], lazy[0][1][rows])


def test_text_that_is_another_the_second_time_is_refused() -> None:
    strings = ["first", "second"]
    text = TextBytes.of(strings)
    strings[1] = "third"
    with pytest.raises(ValueError, match="have 10 bytes, expected 11"):
        text[:]
