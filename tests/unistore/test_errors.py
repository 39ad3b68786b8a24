"""Text in messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from unistore.errors import printable


@given(st.text())
def test_printable_text_is_printable(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert (shown == text) == text.isprintable()
