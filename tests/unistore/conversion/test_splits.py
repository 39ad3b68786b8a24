"""Splits: from the sources, from the converter, or dealt out by whole sources."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unistore.conversion.splits import Shares, assign_splits, parse_shares
from unistore.converters.protocol import Finalized, Scan, Source, Sources
from unistore.errors import InputError

SHARES = st.lists(st.integers(1, 10), min_size=1, max_size=4).map(
    lambda parts: Shares({f"part{i}": part / sum(parts) for i, part in enumerate(parts)})
)


def make(
    counts: list[int], folders: list[str | None] | None = None, **more: object
) -> tuple[Scan, Finalized]:
    names = folders or [None] * len(counts)
    sources = tuple(
        Source(path=Path(f"{i}.h5"), name=f"run/{i}.h5", files=(), split=name) for i, name in enumerate(names)
    )
    scan = Scan(family="rows", sources=Sources(sources), tables=(), sample_table="rows", main_table="rows")
    finalized = Finalized(
        arrays=(),
        samples=sum(counts),
        sample_source=np.repeat(np.arange(len(counts)), counts),
        **more,  # type: ignore[arg-type]
    )
    return scan, finalized


@given(st.lists(st.integers(0, 50), min_size=4, max_size=40), SHARES)
def test_dealt_sources_never_straddle(counts: list[int], shares: dict[str, float]) -> None:
    scan, finalized = make(counts)
    code, names = assign_splits(scan, finalized, shares)
    assert names == tuple(shares)
    assert code.dtype == np.uint8
    assert code.shape == (sum(counts),)
    for source in range(len(counts)):
        assert len(set(code[:][finalized.sample_source == source].tolist())) <= 1


@given(st.lists(st.integers(0, 50), min_size=4, max_size=20), st.none() | SHARES, st.data())
def test_runs_of_samples_are_what_each_sample_alone_is(
    counts: list[int], shares: dict[str, float] | None, data: st.DataObject
) -> None:
    folders = data.draw(st.sampled_from([None, ["train", None, "val", "train"] * 5]))
    scan, alone = make(counts, None if folders is None else folders[: len(counts)])
    runs = replace(alone, sample_source=np.arange(len(counts)), sample_runs=np.array(counts))
    expected, names = assign_splits(scan, alone, shares)
    code, named = assign_splits(scan, runs, shares)
    assert (named, len(code), code.shape, code.dtype) == (names, sum(counts), (sum(counts),), np.uint8)
    lo, hi = data.draw(st.integers(0, sum(counts))), data.draw(st.integers(0, sum(counts) + 2))
    np.testing.assert_array_equal(code[lo:hi], expected[lo:hi])


@given(SHARES, st.integers(20, 60))
def test_dealt_shares_are_met_to_within_a_source(shares: dict[str, float], sources: int) -> None:
    """Equal sources: no split is further than one source from its share."""
    scan, finalized = make([10] * sources)
    code, _ = assign_splits(scan, finalized, shares)
    given_samples = np.bincount(code[:], minlength=len(shares))
    wanted = np.array(list(shares.values())) * len(code)
    assert np.abs(given_samples - wanted).max() <= 10 + 1e-6


def test_dealing_depends_on_names_alone() -> None:
    """The same in every run; the order in which sources are found plays no part."""
    shares = Shares({"train": 0.8, "val": 0.2})
    scan, finalized = make([10] * 20)
    code, _ = assign_splits(scan, finalized, shares)
    again, _ = assign_splits(scan, finalized, shares)
    np.testing.assert_array_equal(code, again)
    backwards = Scan(
        family="rows",
        sources=Sources(reversed(scan.sources)),
        tables=(),
        sample_table="rows",
        main_table="rows",
    )
    reverse, _ = assign_splits(backwards, finalized, shares)
    np.testing.assert_array_equal(code[::10], reverse[::10][::-1])


def by(what: str) -> Shares:
    return parse_shares("train=0.9,val=0.1", what)


def test_samples_are_dealt_out_by_their_names() -> None:
    names = tuple(f"demo_{number}" for number in range(100))
    scan, finalized = make([100], sample_names=names)
    code, splits = assign_splits(scan, finalized, by("row"))
    assert (splits, np.bincount(code).tolist()) == (("train", "val"), [90, 10])
    assert sorted(code.tolist()) != code.tolist()
    order = np.random.default_rng(1).permutation(100)
    shuffled = replace(finalized, sample_names=tuple(names[at] for at in order))
    np.testing.assert_array_equal(assign_splits(scan, shuffled, by("row"))[0], code[order])
    runs = replace(finalized, sample_source=np.array([0]), sample_runs=np.array([100]))
    np.testing.assert_array_equal(assign_splits(scan, runs, by("row"))[0], code)


def test_samples_without_names_are_dealt_out_by_their_numbers() -> None:
    scan, finalized = make([30, 20])
    code, _ = assign_splits(scan, finalized, by("row"))
    named = replace(finalized, sample_names=tuple(map(str, [*range(30), *range(20)])))
    np.testing.assert_array_equal(assign_splits(scan, named, by("row"))[0], code)
    mixed = np.random.default_rng(1).permutation(50)  # rows of a source may stand anywhere
    other = replace(finalized, sample_source=finalized.sample_source[mixed])
    assert np.bincount(assign_splits(scan, other, by("row"))[0]).tolist() == [45, 5]


def test_what_is_dealt_out_is_checked() -> None:
    scan, _ = make([10])
    by("row").check(scan)
    with pytest.raises(InputError, match="splits can be assigned by source or by row here"):
        by("episode").check(scan)
    with pytest.raises(InputError, match=r"of 1 source: .*or --split-by row"):
        by("source").check(scan)


def test_splits_that_sources_tell_of_samples_win_over_shares_by_sample() -> None:
    scan, finalized = make([4], splits=np.array([0, 1, 0, 1], np.uint8), split_names=("a", "b"))
    code, names = assign_splits(scan, finalized, by("row"))
    assert (code.tolist(), names) == ([0, 1, 0, 1], ("a", "b"))


def test_splits_of_the_sources() -> None:
    scan, finalized = make([2, 1, 3], ["train", "val", "train"])
    code, names = assign_splits(scan, finalized, None)
    assert names == ("train", "val")
    assert code.tolist() == [0, 0, 1, 0, 0, 0]


def test_sources_without_a_split_are_other() -> None:
    scan, finalized = make([1, 1, 1, 1], ["train", None, "other", ""])
    code, names = assign_splits(scan, finalized, None)
    assert names == ("train", "other", "")
    assert code.tolist() == [0, 1, 1, 2]


def test_no_splits() -> None:
    scan, finalized = make([2, 2])
    code, names = assign_splits(scan, finalized, None)
    assert (code[:].tolist(), names) == ([0, 0, 0, 0], ())


def test_splits_of_the_converter_win_over_the_sources() -> None:
    scan, finalized = make(
        [2, 2], ["train", "val"], splits=np.array([1, 0, 0, 1], np.uint8), split_names=("seen", "unseen")
    )
    code, names = assign_splits(scan, finalized, None)
    assert (code[:].tolist(), names) == ([1, 0, 0, 1], ("seen", "unseen"))


def test_dealing_wins_over_all() -> None:
    scan, finalized = make([2, 2], ["train", "val"], splits=np.zeros(4, np.uint8), split_names=("x",))
    _, names = assign_splits(scan, finalized, Shares({"a": 0.5, "b": 0.5}))
    assert names == ("a", "b")


def test_shares_are_read() -> None:
    assert parse_shares("train=0.8,val=0.2") == {"train": 0.8, "val": 0.2}
    assert parse_shares(" train = 0.7 , val=0.2,test=0.1") == {"train": 0.7, "val": 0.2, "test": 0.1}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "train",
        "train=x",
        "train=0.8,val=0.1",
        "train=1.2,val=-0.2",
        "=1",
        "a=0.5,a=0.5",
        "a=nan,b=1",
        "a=0.3,a=1.0",
    ],
)
def test_wrong_shares_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"as in train=0\.8,val=0\.2"):
        parse_shares(text)
