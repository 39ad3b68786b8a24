"""What is named wrongly is refused by name: no traceback, nothing read first, nothing left behind."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unistore
from unistore import verify
from unistore.cli.main import main
from unistore.errors import InputError, NoStoreError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "arrays"
    folder.mkdir()
    np.save(folder / "data.npy", np.arange(40.0).reshape(10, 4))
    return folder


@pytest.fixture
def store(source: Path, tmp_path: Path) -> Path:
    unistore.convert(source, tmp_path / "a.zarr")
    return tmp_path / "a.zarr"


@pytest.mark.parametrize("command", ["verify", "export", "inspect", "doctor"])
def test_a_path_that_is_no_store_is_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    arguments = [command, str(tmp_path / "nothing.zarr"), *([str(tmp_path / "out")] * (command == "export"))]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "nothing.zarr" in "".join(capsys.readouterr())


def test_unistore_open_names_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NoStoreError, match=r"nothing.zarr: no such store"):
        unistore.open_zarr(tmp_path / "nothing.zarr")


def test_sources_are_looked_for_before_the_store_is_read(store: Path) -> None:
    (store / "rows/data/c/0/0").write_bytes(b"damaged")  # which reading would find first
    with pytest.raises(InputError, match=r"no such file or folder: typo"):
        verify(store, against=["typo"])


def test_a_store_is_no_source(store: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a.zarr: is a store already.*'unistore export"):
        unistore.convert(store, tmp_path / "b.zarr")


def test_a_folder_of_links_is_named(source: Path, tmp_path: Path) -> None:
    links = tmp_path / "links"
    links.mkdir()
    (links / "data.npy").symlink_to(source / "data.npy")
    with pytest.raises(InputError, match=r"data.npy: is a link to .*outside the given paths"):
        unistore.convert(links, tmp_path / "b.zarr")


def test_options_of_another_form(source: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--map: must be a mapping of names, got 'a=data'"):
        unistore.convert(source, tmp_path / "b.zarr", "rows", map="a=data")
    with pytest.raises(InputError, match=r"shares above 0 that add up to 1"):
        unistore.convert(source, tmp_path / "b.zarr", split={"train": 0.5})
    shutil.copy(source / "data.npy", source / "more.npy")
    unistore.convert(source, tmp_path / "b.zarr", split={"train": 0.5, "val": 0.5})
    assert unistore.Dataset(tmp_path / "b.zarr", split="val").splits


@pytest.mark.parametrize("given", ["a.zarr", Path("a.zarr")])
def test_a_loader_reads_datasets(given: Any) -> None:
    with pytest.raises(TypeError, match=r"unistore.Loader\(unistore.Dataset\('a.zarr'\)"):
        unistore.Loader(given, 4, shuffle=True)
