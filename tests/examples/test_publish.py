"""The script that publishes a store: the root comes last, and nothing is there before it is."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unistore
from tests.support.fake_hub import TOKEN, FakeHub, running_hub, use_hub
from tests.support.programs import loaded
from unistore.errors import NoStoreError

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "publish.py"
NAME = "datasets/org/name"
URL = f"hf://{NAME}/train.zarr"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with running_hub() as hub:
        use_hub(hub, monkeypatch, tmp_path / "home")
        yield hub


@pytest.fixture
def store(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "0.npz", data=rng.normal(size=(600, 24)), label=rng.integers(0, 9, 600))
    unistore.convert(tmp_path / "0.npz", tmp_path / "train.zarr", split="train=0.8,val=0.2", split_by="row")
    return tmp_path / "train.zarr"


def publish(store: Path) -> str:
    url: str = loaded(SCRIPT).publish(store, "org/name")
    return url


def test_a_published_store_equals_the_local_one(hub: FakeHub, store: Path) -> None:
    url = publish(store)
    repository = hub.repositories[NAME]
    assert url == f"hf://{NAME}@{repository.refs['main']}/train.zarr"
    assert unistore.verify(url, against=store.with_name("0.npz")).ok
    files = repository.commits[repository.refs["main"]]
    files.pop("README.md")
    local = [path for path in store.rglob("*") if path.is_file()]
    assert files == {f"train.zarr/{path.relative_to(store)}": path.read_bytes() for path in local}


def test_the_root_comes_in_the_last_commit(hub: FakeHub, store: Path) -> None:
    publish(store)
    *before, last = hub.repositories[NAME].commits.values()
    assert len(before) >= 2
    assert not any("train.zarr/zarr.json" in files for files in before)
    assert last.keys() - before[-1].keys() == {"train.zarr/zarr.json", "README.md"}


def test_the_card_describes_the_store_and_its_code_reads_it(hub: FakeHub, store: Path) -> None:
    publish(store)
    repository = hub.repositories[NAME]
    card = repository.commits[repository.refs["main"]]["README.md"].decode()
    counts = {split: len(unistore.Dataset(store, split=split)) for split in ("train", "val")}
    assert [f"- split `{split}`: {count} samples" in card for split, count in counts.items()] == [True, True]
    assert "Family `rows`, 600 samples" in card
    assert "| `rows/data` | 600 × 24 | float64 |" in card
    assert "| `rows/label` | 600 | int64 |" in card
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    expected = unistore.Dataset(store)[0]
    assert names["sample"].keys() == expected.keys()
    assert all(np.array_equal(names["sample"][key], expected[key]) for key in ("data", "label"))


def test_an_upload_that_lost_a_file_makes_no_store(hub: FakeHub, store: Path) -> None:
    hub.lost = {"train.zarr/rows/data/c/0/0"}
    with pytest.raises(SystemExit, match=r"rows/data/c/0/0 is not there as it is here; run the same command"):
        publish(store)
    with pytest.raises(NoStoreError, match="no such store"):
        unistore.Dataset(URL)
    hub.lost = set()
    assert len(unistore.Dataset(publish(store))) == 600


def test_a_card_that_is_there_is_kept(hub: FakeHub, store: Path) -> None:
    repository = hub.add(NAME, {"README.md": b"mine"}, readers={TOKEN})
    publish(store)
    assert repository.commits[repository.refs["main"]]["README.md"] == b"mine"


def test_a_store_of_the_same_name_is_kept(hub: FakeHub, store: Path) -> None:
    hub.add(NAME, {"train.zarr/zarr.json": b"{}"}, readers={TOKEN})
    with pytest.raises(SystemExit, match=r"has a store train\.zarr; rename your store"):
        publish(store)
    assert len(hub.repositories[NAME].commits) == 1


def test_a_folder_of_too_many_entries_is_not_published(hub: FakeHub, store: Path) -> None:
    module = loaded(SCRIPT)
    module.MOST_ENTRIES = 4
    with pytest.raises(SystemExit, match=r"entries; convert the sources to several stores, and publish each"):
        module.publish(store, "org/name")
    assert not hub.requests


def test_a_versioned_store_is_told_how_to_become_one(hub: FakeHub, store: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "1.npz", data=np.ones((9, 24)), label=np.arange(9))
    unistore.append(tmp_path / "1.npz", store)
    with pytest.raises(NoStoreError, match=r"Fix: unistore compact .* single store"):
        publish(store)
    assert not hub.requests


def test_the_guide_shows_the_code_of_the_script() -> None:
    guide = (ROOT / "docs" / "publish.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    assert textwrap.indent(code, "    ") in SCRIPT.read_text()
    assert len(guide.splitlines()) <= 40


def test_the_script_prints_the_url(
    hub: FakeHub, store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["publish.py", str(store), "org/name"])
    exec(compile(SCRIPT.read_text(), SCRIPT, "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == f"hf://{NAME}@{hub.repositories[NAME].refs['main']}/train.zarr\n"
