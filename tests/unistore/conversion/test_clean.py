"""``unistore clean``: what it finds, what it leaves alone, what it removes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from unistore.cli.main import main
from unistore.conversion.clean import clean
from unistore.conversion.lock import Lock
from unistore.conversion.run import run
from unistore.conversion.settings import Settings
from unistore.errors import InputError


@pytest.fixture
def build(tmp_path: Path, toys: Path, toy: Any, store: Path) -> Path:
    """The build folder of a conversion of which one part of two is done."""
    run(toy(), [toys], store, Settings(part="1/2"))
    return store.with_name("out.zarr.unistore-build")


def test_unfinished_conversions_are_listed_and_removed(
    build: Path, toys: Path, toy: Any, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(toy(), [toys], tmp_path / "deep" / "finished.zarr")
    (tmp_path / "deep" / "mine.unistore-build").mkdir()
    for path in (tmp_path, store):
        found = {leftover.path: leftover for leftover in clean(path)}[str(build)]
        assert (found.kept, found.removed) == ("", False)
        assert found.bytes == sum(file.stat().st_size for file in build.rglob("*") if file.is_file())
    assert build.exists()
    with pytest.raises(SystemExit):
        main(["clean", str(tmp_path), "--remove", "--json"])
    told = json.loads(capsys.readouterr().out)["leftovers"]
    assert {Path(each["path"]).name: each["removed"] for each in told} == {
        "out.zarr.unistore-build": True,
        "mine.unistore-build": False,
    }
    assert not build.exists()
    assert (tmp_path / "deep" / "finished.zarr" / "zarr.json").exists()
    assert (tmp_path / "deep" / "mine.unistore-build").exists(), "no journal: not of unistore"
    with pytest.raises(InputError, match="there is no such folder"):
        clean(tmp_path / "nothing")


@pytest.mark.parametrize("lock", ["lock", "lock-2-of-2"])
def test_a_conversion_at_work_is_not_removed(build: Path, store: Path, lock: str) -> None:
    with Lock(build / lock):
        (found,) = clean(store, remove=True)
    assert found.kept.startswith(f"process {os.getpid()} on ")
    assert build.exists()
    assert clean(store, remove=True)[0].removed


def test_a_store_that_was_being_replaced_stays(build: Path, store: Path) -> None:
    (build / "old").mkdir()
    (found,) = clean(store, remove=True)
    assert "was being replaced" in found.kept
    assert build.exists()


def test_clean_follows_no_links(build: Path, store: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    shutil.copytree(build, precious)
    (build / "spill" / "link").symlink_to(precious)
    (found,) = clean(store, remove=True)
    assert "is a link" in found.kept
    assert precious.exists()
    shutil.rmtree(build)
    build.symlink_to(precious)
    assert clean(store, remove=True)[0].kept
    assert any(precious.iterdir())
