"""The text renderer: what fits a terminal, what is hidden or folded, what is never printed."""

from __future__ import annotations

import re

import pytest

from unistore.report.text import Block, aligned, to_text

BLOCKS = [
    Block(facts=[("path", "a.zarr"), ("options", ""), ("seal", "word " * 30)]),
    Block(
        "arrays",
        columns=("array", "shape", "codec", "why"),
        rows=[("rows/名前", "3 × 4", "blosc lz4 5 shuffle, crc32c", "reason " * 12)],
        optional_columns=("codec",),
        lines=["- " + "sentence " * 20],
    ),
    Block("go on", code="unistore convert rows a b"),
]


@pytest.mark.parametrize("width", [40, 80])
def test_a_terminal_shows_every_word_within_its_width(width: int) -> None:
    text = to_text(BLOCKS, width=width)
    assert max(map(len, text.splitlines())) <= width
    assert [text.count(word) for word in ("word", "reason", "sentence", "rows/名前")] == [30, 12, 20, 1]
    assert re.search(r"hidden, as the terminal is narrow:\s+codec", text)
    assert "blosc" not in text
    assert "options" not in text


def test_a_wide_terminal_hides_and_folds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    text = to_text(BLOCKS)
    assert "blosc lz4 5 shuffle, crc32c  " + ("reason " * 12).rstrip() in text
    assert "word " * 29 in text


def test_colours_change_nothing_else() -> None:
    painted = to_text(BLOCKS, width=80, color=True)
    assert "\x1b[1;36marrays\x1b[0m" in painted
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == to_text(BLOCKS, width=80)


def test_letters_as_wide_as_two_are_aligned() -> None:
    assert aligned([("名前", "1"), ("name", "2")]) == ["名前  1", "name  2"]


def test_neither_control_characters_nor_secrets() -> None:
    text = to_text([Block(facts=[("url", "s3://key:secret@bucket/a\x1b[2J")], lines=["a\u2028b"])])
    assert "secret" not in text
    assert "\x1b" not in text
    assert "\u2028" not in text
