"""Hypothesis strategies for what strangers may write: JSON values, lines of manifests, roots."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

TEXTS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        ["../../victim", "/etc/passwd", "a/../../x", "a\x00b", "a\nb", "\ud800", "C:/x", "a\\b", "x" * 300]
    ),
)
NUMBERS = st.one_of(
    st.integers(),
    st.floats(),
    st.booleans(),
    st.sampled_from([2**63, -(2**63), 10**30, 10**400, 1e308]),
)
VALUES = st.recursive(
    st.none() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
"""Any JSON-like value; with NaN, Infinity and integers that no 64 bits hold."""


@st.composite
def changed(draw: st.DrawFn, good: Any) -> Any:
    """A value with some of its parts replaced, left out or added, at any depth."""
    what = draw(st.sampled_from(["keep", "inside", "inside", "replace"]))
    if what == "replace":
        return draw(VALUES)
    if what == "keep" or not good or not isinstance(good, dict | list):
        return good
    if isinstance(good, list):
        at = draw(st.integers(0, len(good) - 1))
        return [*good[:at], draw(changed(good[at])), *good[at + 1 :]]
    name = draw(st.sampled_from(sorted(good)))
    rest = {key: value for key, value in good.items() if key != name}
    how = draw(st.sampled_from(["change", "change", "change", "drop", "rename", "add"]))
    if how == "drop":
        return rest
    if how == "rename":
        return rest | {draw(TEXTS): good[name]}
    if how == "add":
        return good | {draw(TEXTS): draw(VALUES)}
    return good | {name: draw(changed(good[name]))}


GOOD_ENTRY = {"key": "rows/x/c/0", "bytes": 7, "checksum": "0" * 32, "rows": [0, 5], "content": "1" * 32}


@st.composite
def manifests(draw: st.DrawFn) -> bytes:
    """A manifest of a few lines: good, changed, or no JSON at all."""
    line = st.one_of(
        changed(GOOD_ENTRY).map(json.dumps).map(str.encode),
        changed(GOOD_ENTRY).map(json.dumps).map(str.encode),
        st.binary(max_size=20),
        st.integers(1, 100_000).map(lambda depth: b"[" * depth),
    )
    return b"\n".join(draw(st.lists(line, max_size=3)))


def roots(good: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """A root document like a good one: changed, cut off, or no JSON at all."""
    documents = changed(good).map(json.dumps).map(str.encode)
    cut = st.tuples(documents, st.integers(0, 2000)).map(lambda pair: pair[0][: pair[1]])
    deep = st.integers(1, 100_000).map(lambda depth: b'{"attributes":' * depth)
    return st.one_of(documents, documents, documents, cut, deep, st.binary(max_size=30))
