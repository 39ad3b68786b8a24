"""Splits that are taken over: lists in files, lists in stores, and what is wrong with them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import unistore
from unistore.conversion import split_rule
from unistore.conversion.split_rule import RecordedSplits, SplitRule, read_split_list
from unistore.conversion.splits import assign_splits
from unistore.converters.protocol import Finalized, Scan, Source, Sources
from unistore.errors import InputError
from unistore.store.reader import Store

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write files of ten rows each; returns their folder."""

    def made(*names: str, subject: int = 3) -> Path:
        for number, name in enumerate(names):
            path = tmp_path / "in" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with h5py.File(path, "w") as file:
                file["x"] = np.arange(10) + 10 * number
                file["subject"] = np.arange(10) % subject
        return tmp_path / "in"

    return made


def splits_of(path: Path) -> dict[str, set[str]]:
    """Splits of the rows of each source."""
    store = Store(path)
    codes, names = store.splits()
    owner = np.repeat(store.text("sources/path"), np.diff(store.array("sources/rows/offsets").read()))
    return {source: {names[code] for code in codes[owner == source]} for source in store.text("sources/path")}


LISTS = {
    "list.csv": "a.h5,train\nb.h5,val\nc.h5,train\n",
    "header.CSV": "\ufeffsource,split\r\n a.h5 , train\r\n\r\nb.h5,val\r\nc.h5,train\r\n",
    "list.json": json.dumps({"a.h5": "train", "b.h5": "val", "c.h5": "train"}),
    "twice.csv": "a.h5,train\na.h5,train\nb.h5,val\nc.h5,train\n",
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_in_every_format_assigns_the_splits(name: str, write: Write, tmp_path: Path) -> None:
    folder = write("a.h5", "b.h5", "c.h5")
    (tmp_path / name).write_text(LISTS[name])
    report = unistore.convert(folder, tmp_path / "out.zarr", split_from=tmp_path / name)
    assert splits_of(tmp_path / "out.zarr") == {"a.h5": {"train"}, "b.h5": {"val"}, "c.h5": {"train"}}
    assert any("train 66.7 %, val 33.3 % (as listed)" in note for note in report.notes)


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("l.csv", "a.h5,train\na.h5,val\n", r"'a.h5' is in two splits, train and val"),
        ("l.json", '{"a.h5": "train", "a.h5": "val"}', r"'a.h5' is in two splits, train and val"),
        ("l.csv", "a.h5;train\n", "line 1 has 1 cells"),
        ("l.csv", 'a.h5,"train\n', "unexpected end of data"),
        ("l.csv", ",train\n", "a line with the split 'train' has no name"),
        ("l.csv", "a.h5,\n", "'a.h5' has no split"),
        ("l.csv", "", "the list is empty"),
        ("l.csv", b"\xff\xfe", "is not UTF-8 text: byte 0"),
        ("l.csv", "a" * 200_000 + ",train", "field larger than field limit"),
        ("l.json", "{}", "the list is empty"),
        ("l.json", "[]", "is not a JSON object"),
        ("l.json", '{"train": ["a.h5"]}', "the split of 'train' is not a text"),
        ("l.json", '{"a.h5": "train"', "delimiter"),
        ("l.json", '{"a":' * 100_000, "nested too deeply"),
        ("l.json", json.dumps({f"{n}.h5": str(n) for n in range(300)}), "names 300 splits"),
        (
            "l.csv",
            "a.h5,train\nb.h5,val\n",
            r"l.csv: does not contain c.h5. Fix: add them to the list, or add --split",
        ),
        ("l.csv", "a.h5,t\nb.h5,t\nc.h5,t\nd.h5,v\n", r"l.csv: has 1 names that do not exist here: d.h5"),
        ("l.csv", "a.h5: 3,t\nb.h5,t\nc.h5,t\n", "add --split-by"),
    ],
)
def test_a_malformed_or_contradictory_list_is_an_error(
    name: str, content: str | bytes, match: str, write: Write, tmp_path: Path
) -> None:
    folder = write("a.h5", "b.h5", "c.h5")
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=match) as caught:
        unistore.convert(folder, tmp_path / "out.zarr", split_from=path)
    (problem,) = caught.value.problems
    assert name in problem.location
    assert "\n" not in str(problem)
    assert problem.advice
    assert not list(tmp_path.glob("out*"))


def test_a_list_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_rule, "MAX_BYTES", 1 << 20)
    (tmp_path / "l.csv").write_text("a.h5,train\n" * 100_000)
    with pytest.raises(InputError, match=r"l.csv: is larger than 1 MiB"):
        read_split_list(tmp_path / "l.csv")
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_split_list(tmp_path / "none.csv")


def test_a_newer_store_takes_over_the_splits_of_another(write: Write, tmp_path: Path) -> None:
    """Whatever way it has them: exact shares move nothing that is taken over."""
    names = [f"{number}.h5" for number in range(10)]
    exact = "exact:train=0.8,val=0.2"
    unistore.convert(write(*names), tmp_path / "old.zarr", split=exact)
    old = splits_of(tmp_path / "old.zarr")
    folder = write(*names, "new_1.h5", "new_2.h5")
    with pytest.raises(InputError, match=r"old.zarr: does not contain new_1.h5, new_2.h5"):
        unistore.convert(folder, tmp_path / "new.zarr", split_from=tmp_path / "old.zarr")
    how: dict[str, Any] = {"split_from": tmp_path / "old.zarr", "split": "train=0.5,test=0.5"}
    unistore.convert(folder, tmp_path / "new.zarr", **how)
    new = splits_of(tmp_path / "new.zarr")
    assert old.items() <= new.items()
    hashed = unistore.convert(folder, tmp_path / "hashed.zarr", split="train=0.5,test=0.5")
    for name in ("new_1.h5", "new_2.h5"):
        assert new[name] == splits_of(Path(hashed.destination))[name]
    assert unistore.verify(tmp_path / "new.zarr", against=folder).receipt
    (folder / "3.h5").unlink()
    unistore.convert(folder, tmp_path / "less.zarr", **how)
    assert splits_of(tmp_path / "less.zarr") == {k: v for k, v in new.items() if k != "3.h5"}


def test_names_of_a_store_begin_at_the_folder_that_was_given(write: Write, tmp_path: Path) -> None:
    unistore.convert(
        write(*(f"a/{number}.h5" for number in range(10))), tmp_path / "old.zarr", split="train=0.5,val=0.5"
    )
    folder = write("b/1.h5")
    how = {"split": "train=0.5,val=0.5"}
    unistore.convert(folder, tmp_path / "taken.zarr", split_from=tmp_path / "old.zarr", **how)
    unistore.convert(folder, tmp_path / "hashed.zarr", **how)
    old = {f"a/{name}": split for name, split in splits_of(tmp_path / "old.zarr").items()}
    assert set(old) == {f"a/{number}.h5" for number in range(10)}
    for name in ("taken.zarr", "hashed.zarr"):
        assert old.items() <= splits_of(tmp_path / name).items()
        assert unistore.verify(tmp_path / name, against=folder).receipt
    assert unistore.verify(tmp_path / "old.zarr", against=folder / "a").receipt, "whatever folder is given"


def test_splits_of_single_rows_are_taken_over_from_a_store(write: Write, tmp_path: Path) -> None:
    unistore.convert(write("a.h5"), tmp_path / "old.zarr", split="train=0.5,val=0.5", split_by="row")
    codes, _ = Store(tmp_path / "old.zarr").splits()
    assert len(set(codes.tolist())) == 2
    folder = write("a.h5", "0.h5")
    how: Mapping[str, Any] = {"split_from": tmp_path / "old.zarr", "split": "train=0.1,val=0.9"}
    with pytest.raises(InputError, match="add --split-by"):
        unistore.convert(folder, tmp_path / "new.zarr", **how)
    unistore.convert(folder, tmp_path / "new.zarr", split_by="row", **how)
    store = Store(tmp_path / "new.zarr")
    new, names = store.splits()
    assert (names, store.text("sources/path")) == (["train", "val"], ["0.h5", "a.h5"])
    np.testing.assert_array_equal(new[10:], codes)
    assert unistore.verify(store.path, against=folder).receipt


def test_what_is_taken_over_is_repaired_without_the_list(write: Write, tmp_path: Path) -> None:
    folder = write("a.h5", "b.h5", "c.h5")
    (tmp_path / "l.csv").write_text(LISTS["list.csv"])
    unistore.convert(folder, tmp_path / "out.zarr", split_from=tmp_path / "l.csv")
    (tmp_path / "l.csv").unlink()
    codes = next((tmp_path / "out.zarr/splits/code/c").rglob("0"))
    sound = codes.read_bytes()
    codes.unlink()
    assert unistore.repair(tmp_path / "out.zarr", folder).ok
    assert codes.read_bytes() == sound


@pytest.mark.parametrize(
    "splits", [{}, {"names": ["a"]}, {"names": 3, "codes": "eJw="}, {"names": ["a"], "codes": "?"}]
)
def test_recorded_splits_that_cannot_be_are_refused(splits: Any) -> None:
    options = {"split": None, "split_from": {"name": "l", "digest": ""}, "found": {"splits": splits}}
    with pytest.raises((KeyError, TypeError, ValueError)):
        SplitRule.recorded(options)


@pytest.mark.parametrize(
    "options",
    [
        {"split": 3},
        {"split": "train=1"},
        {"split": {}},
        {"split": {"a": -1}},
        {"split": {"a": 1.0}, "split_rule": "other"},
        {"split": {"a": 1.0}, "split_rule": ["hash"]},
        {"split": {"a": 1.0}, "split_rule": "hash", "split_seed": -1},
        {"split": {"a": 1.0}, "split_rule": "hash", "split_seed": 1e300},
        {"split": {"a": 1.0}, "split_rule": "hash", "split_seed": 2**80},
        {"split": {"a": 1.0}, "split_rule": "hash", "group_by": "("},
    ],
)
def test_recorded_rules_that_cannot_be_are_refused(options: Any) -> None:
    with pytest.raises((KeyError, TypeError, ValueError, InputError)):
        SplitRule.recorded(options)


@pytest.mark.parametrize(
    "codes", [b"", b"x", zlib.compress(bytes(3)), zlib.compress(b"\x07\0"), zlib.compress(bytes(1 << 20))]
)
def test_recorded_codes_of_other_sources_are_not_believed(codes: bytes) -> None:
    sources = Sources(Source(path=Path(name), name=name, files=()) for name in "ab")
    scan = Scan(family="rows", sources=sources, tables=(), sample_table="rows", main_table="rows")
    finalized = Finalized(arrays=(), samples=2, sample_source=np.arange(2))
    rule = SplitRule(method="list", taken=RecordedSplits("l", "", ("train", "val"), codes))
    assert assign_splits(scan, finalized, rule).codes[:].tolist() == [0, 0]


def test_a_new_member_of_a_group_goes_where_the_group_is(write: Write, tmp_path: Path) -> None:
    folder = write("p1_a.h5", "p2_a.h5", "p1_b.h5", "p3_a.h5", "p3_b.h5")
    (tmp_path / "l.csv").write_text("p1_a.h5,val\np2_a.h5,train\n")
    how: dict[str, Any] = {"split_from": tmp_path / "l.csv", "group_by": r"p\d"}
    with pytest.raises(InputError, match=r"does not contain p3_a.h5, p3_b.h5"):
        unistore.convert(folder, tmp_path / "out.zarr", **how)
    unistore.convert(folder, tmp_path / "out.zarr", split="train=0.5,val=0.5", **how)
    splits = splits_of(tmp_path / "out.zarr")
    assert splits["p1_b.h5"] == {"val"}
    assert splits["p3_a.h5"] == splits["p3_b.h5"]
    (tmp_path / "l.csv").write_text("p1_a.h5,val\np1_b.h5,train\n")
    with pytest.raises(InputError, match="puts the group 'p1' into two splits, val and train"):
        unistore.convert(folder, tmp_path / "no.zarr", split="train=0.5,val=0.5", **how)


def test_rows_are_grouped_by_a_column(write: Write, tmp_path: Path) -> None:
    folder = write("a.h5", "b.h5", subject=7)
    how: dict[str, Any] = {"split": "train=0.5,val=0.5", "group_by": "column:subject"}
    unistore.convert(folder, tmp_path / "out.zarr", **how)
    store = Store(tmp_path / "out.zarr")
    codes, _ = store.splits()
    subject = store.array("rows/subject").read()
    of_subject = {number: set(codes[subject == number].tolist()) for number in range(7)}
    assert all(len(found) == 1 for found in of_subject.values())
    assert set(codes.tolist()) == {0, 1}
    assert unistore.verify(store.path, against=folder).receipt
    unistore.convert(write("a.h5", "b.h5", "c.h5", subject=9), tmp_path / "more.zarr", **how)
    more = Store(tmp_path / "more.zarr")
    codes, subject = more.splits()[0], more.array("rows/subject").read()
    assert all(set(codes[subject == number].tolist()) == of_subject[number] for number in range(7))
    with pytest.raises(InputError, match=r"column:y: is not a column .* use one of subject, x"):
        unistore.convert(folder, tmp_path / "no.zarr", **{**how, "group_by": "column:y"})
