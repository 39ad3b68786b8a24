"""Splits: from the sources, from the converter, or by shares and lists of names."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, reject
from hypothesis import strategies as st

from unistore.conversion.split_rule import SplitRule, parse_shares, parse_split
from unistore.conversion.splits import KEPT, assign_splits, prepare_splits
from unistore.converters.protocol import Finalized, Scan, Source, Sources
from unistore.errors import InputError

TRAIN_VAL = {"train": 0.8, "val": 0.2}
NAMES = st.lists(st.text("abc/_0123é", min_size=1, max_size=6), min_size=1, max_size=60, unique=True)
SHARES = st.lists(st.integers(1, 10), min_size=1, max_size=4).map(
    lambda parts: {f"part{i}": part / sum(parts) for i, part in enumerate(parts)}
)


def former(shares: Mapping[str, float] | None, by: str = "source") -> SplitRule | None:
    """The exact rule of a store, which may leave splits empty."""
    return None if shares is None else SplitRule(shares=shares, method="exact", by=by, is_recorded=True)


def rule(split: str | None = "train=0.8,val=0.2", **options: Any) -> SplitRule:
    found = parse_split(split, **options)
    assert found is not None
    return found


def splits_of_samples(
    counts: Mapping[str, int], how: SplitRule, units: Sequence[str] = ()
) -> dict[tuple[str, int], str]:
    """Split of each sample by its source and its number there."""
    sources = Sources(Source(path=Path(name), name=name, files=()) for name in counts)
    table = "rows" if how.by == "source" else f"{how.by}s"
    scan = Scan(family="rows", sources=sources, tables=(), sample_table=table, main_table=table, units=units)
    runs = np.array(list(counts.values()))
    finalized = Finalized(
        arrays=(), samples=int(runs.sum()), sample_source=np.arange(len(runs)), sample_runs=runs
    )
    assigned = assign_splits(scan, finalized, how)
    samples = [(name, number) for name, count in counts.items() for number in range(count)]
    codes = assigned.codes[:].tolist()
    return {sample: assigned.names[code] for sample, code in zip(samples, codes, strict=True)}


def splits_of(names: Sequence[str], how: SplitRule, units: Sequence[str] = ()) -> dict[str, str]:
    """Split of each source, of one sample each."""
    found = splits_of_samples(dict.fromkeys(names, 1), how, units)
    return {name: split for (name, _), split in found.items()}


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


@given(st.lists(st.integers(0, 50), min_size=4, max_size=20), st.none() | SHARES, st.data())
def test_splits_of_runs_of_samples_equal_those_of_single_samples(
    counts: list[int], shares: dict[str, float] | None, data: st.DataObject
) -> None:
    folders = data.draw(st.sampled_from([None, ["train", None, "val", "train"] * 5]))
    scan, alone = make(counts, None if folders is None else folders[: len(counts)])
    runs = replace(alone, sample_source=np.arange(len(counts)), sample_runs=np.array(counts))
    expected, names = assign_splits(scan, alone, former(shares))[:2]
    code, named = assign_splits(scan, runs, former(shares))[:2]
    assert (named, len(code), code.shape, code.dtype) == (names, sum(counts), (sum(counts),), np.uint8)
    lo, hi = data.draw(st.integers(0, sum(counts))), data.draw(st.integers(0, sum(counts) + 2))
    np.testing.assert_array_equal(code[lo:hi], expected[lo:hi])


def test_exact_splits_depend_only_on_the_names_of_sources() -> None:
    """The same in every run; the order in which sources are found plays no part."""
    scan, finalized = make([10] * 20)
    code, _ = assign_splits(scan, finalized, former(TRAIN_VAL))[:2]
    backwards = replace(scan, sources=Sources(reversed(scan.sources)))
    reverse, _ = assign_splits(backwards, finalized, former(TRAIN_VAL))[:2]
    np.testing.assert_array_equal(code[::10], reverse[::10][::-1])
    exact = rule("exact:train=0.8,val=0.2")
    np.testing.assert_array_equal(assign_splits(scan, finalized, exact).codes, code)


@pytest.mark.parametrize("method", ["", "hash"])
def test_samples_without_names_are_known_by_their_numbers(method: Any) -> None:
    by = SplitRule(shares={"train": 0.9, "val": 0.1}, by="row", method=method)
    scan, finalized = make([30, 20])
    code = assign_splits(scan, finalized, by).codes[:]
    named = replace(finalized, sample_names=tuple(map(str, [*range(30), *range(20)])))
    np.testing.assert_array_equal(assign_splits(scan, named, by).codes[:], code)
    mixed = np.random.default_rng(1).permutation(50)  # rows of a source may stand anywhere
    other = replace(finalized, sample_source=finalized.sample_source[mixed])
    assert np.bincount(assign_splits(scan, other, by).codes[:]).tolist() == np.bincount(code).tolist()


@given(NAMES, NAMES, SHARES, st.integers(0, 3), st.sampled_from(["source", "row"]))
def test_adding_sources_moves_no_source_to_another_split(
    names: list[str], more: list[str], shares: dict[str, float], seed: int, by: str
) -> None:
    before, after = sorted(names), sorted({*names, *more})
    how = SplitRule(shares=shares, seed=seed, by=by)
    try:
        first, second = (splits_of(some, how) for some in (before, after))
    except InputError:
        reject()  # a split is empty
    assert first.items() <= second.items()


@given(NAMES, SHARES, st.integers(0, 3))
def test_a_split_is_where_the_hash_of_the_name_falls(
    names: list[str], shares: dict[str, float], seed: int
) -> None:
    how = SplitRule(shares=shares, seed=seed)
    expected = {}
    for name in names:
        left = xxhash.xxh3_64_intdigest(name.encode(), seed=seed) / 2**64
        for split, share in shares.items():
            expected[name] = split
            left -= share
            if left < 0:
                break
    if set(expected.values()) == set(shares):
        assert splits_of(names, how) == expected
    else:
        with pytest.raises(InputError, match="would be empty"):
            splits_of(names, how)


def test_an_empty_split_is_refused_with_a_seed_that_fills_it() -> None:
    names = ["a.h5", "b.h5", "c.h5"]
    refused = []
    for seed in range(20):
        try:
            splits_of(names, SplitRule(shares=TRAIN_VAL, seed=seed))
        except InputError as error:
            refused.append(str(error))
    assert 5 < len(refused) < 19, "0.8³ + 0.2³ of all seeds"
    assert "the hash puts 3 sources into" in refused[0]
    assert "--split exact:train=0.8,val=0.2" in refused[0]
    found = re.search(r"--split-seed (\d+) to fill every split", refused[0])
    assert found is not None
    splits = splits_of(names, SplitRule(shares=TRAIN_VAL, seed=int(found[1])))
    assert set(splits.values()) == {"train", "val"}


GROUPED = [f"{place}/patient_{number // 2}_{'xy'[number % 2]}.npy" for place in "ab" for number in range(60)]
PATIENT = r"patient_\d+"


def test_groups_are_never_divided() -> None:
    splits = splits_of(GROUPED, rule(group_by=PATIENT))
    of_patient: dict[str, set[str]] = {}
    for name, split in splits.items():
        of_patient.setdefault(name[2:].rpartition("_")[0], set()).add(split)
    assert len(of_patient) == 30
    assert all(len(found) == 1 for found in of_patient.values())
    again = splits_of([*GROUPED, "c/patient_7_z.npy", "c/patient_99_z.npy"], rule(group_by=PATIENT))
    assert splits.items() <= again.items()
    assert again["c/patient_7_z.npy"] == again["a/patient_7_x.npy"]
    exact = splits_of(GROUPED, rule("exact:train=0.8,val=0.2", group_by=PATIENT))
    assert sum(split == "val" for split in exact.values()) == 24
    assert all(exact[name] == exact[f"b{name[1:]}"] for name in GROUPED if name[0] == "a")


@pytest.mark.parametrize(
    ("pattern", "match"),
    [
        (r"(", "is not a regular expression"),
        (r"(a)(b)", "groups in brackets"),
        (r"patient_[0-8]_", r"does not match 84 names: a/patient_9_x.npy, a/patient_9_y.npy.*'patient"),
    ],
)
def test_patterns_that_do_not_group_are_refused(pattern: str, match: str) -> None:
    with pytest.raises(InputError, match=match):
        splits_of(GROUPED, rule(group_by=pattern))


def test_the_folder_below_the_one_given_is_part_of_names(tmp_path: Path) -> None:
    """So a second folder of sources, which lengthens all names in the store, moves none."""

    def splits(folders: str) -> dict[str, str]:
        files = [tmp_path / folder / f"{number}.h5" for folder in folders for number in range(30)]
        root = os.path.commonpath([file.parent for file in files])
        names = [file.relative_to(root).as_posix() for file in files]
        sources = [Source(path=file, name=name, files=()) for file, name in zip(files, names, strict=True)]
        scan, finalized = make([1] * len(files))
        scan = replace(scan, sources=Sources(sources))
        prepared = rule().prepared([tmp_path], scan)
        assert prepared.below == ("" if len(folders) > 1 else folders)
        assert SplitRule.recorded(prepared.to_json()) == prepared
        codes = assign_splits(scan, finalized, prepared).codes[:].tolist()
        return {str(file): ("train", "val")[code] for file, code in zip(files, codes, strict=True)}

    for name in "ab":
        (tmp_path / name).mkdir()
    assert splits("a").items() <= splits("ab").items()


@pytest.mark.parametrize(
    "options",
    [
        {"seed": 3},
        {"by": "row"},
        {"group_by": "x"},
        {"split": "exact:a=1", "seed": 3},
        {"split": "exact:a=1", "split_from": "list.csv"},
    ],
)
def test_options_without_effect_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"has no effect|does not work with exact shares"):
        parse_split(**{"split": None, **options})


def test_splits_by_an_unknown_unit_or_of_one_source_are_an_error() -> None:
    scan, _ = make([10])
    prepare_splits(rule(by="row"), [], scan)
    with pytest.raises(InputError, match="only by source or by row"):
        prepare_splits(rule(by="episode"), [], scan)
    with pytest.raises(InputError, match=r"of 1 source, .*add --split-by row \(then samples of one file"):
        prepare_splits(rule(by="source"), [], scan)


OWN = {"splits": np.array([1, 0, 0, 1], np.uint8), "split_names": ("seen", "unseen")}


@pytest.mark.parametrize(
    ("counts", "folders", "own", "how", "names", "codes"),
    [
        ([2, 1, 3], ["train", "val", "train"], {}, None, ("train", "val"), [0, 0, 1, 0, 0, 0]),
        ([1, 1, 1, 1], ["train", None, "other", ""], {}, None, ("train", "other", ""), [0, 1, 1, 2]),
        ([2, 2], ["train", "val"], OWN, None, ("seen", "unseen"), [1, 0, 0, 1]),
        ([4], None, OWN, rule(by="row"), ("seen", "unseen"), [1, 0, 0, 1]),
        ([2, 2], ["train", "val"], OWN, former({"a": 0.5, "b": 0.5}), ("a", "b"), None),
    ],
    ids=["folders", "without one", "the converter's", "before shares by row", "dealt before all"],
)
def test_splits_of_the_converter_win_over_folders_but_not_over_exact_shares(
    counts: Any, folders: Any, own: Any, how: Any, names: tuple[str, ...], codes: list[int] | None
) -> None:
    scan, finalized = make(counts, folders, **own)
    assigned = assign_splits(scan, finalized, how)
    assert assigned.names == names
    assert codes is None or assigned.codes[:].tolist() == codes
    assert (assigned.notes == (KEPT,)) == (how is not None and how.by == "row")


def test_shares_are_parsed_with_and_without_spaces() -> None:
    assert parse_shares("train=0.8,val=0.2") == {"train": 0.8, "val": 0.2}
    assert parse_shares(" train = 0.7 , val=0.2,test=0.1") == {"train": 0.7, "val": 0.2, "test": 0.1}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "train",
        "train=0.8,val=0.1",
        "train=1.2,val=-0.2",
        "=1",
        "a=0.5,a=0.5",
        "a=nan,b=1",
    ],
)
def test_wrong_shares_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"for example train=0\.8,val=0\.2"):
        parse_shares(text)
