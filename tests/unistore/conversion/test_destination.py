"""What may stand at the destination, and what becomes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import unistore
from tests.support.problems import of_kind
from tests.support.store_files import tree
from unistore.conversion.run import run
from unistore.conversion.settings import Settings
from unistore.errors import ConversionError, InputError
from unistore.store.reader import Store


def test_a_finished_store_is_refused_and_untouched(tmp_path: Path, toys: Path, toy: Any) -> None:
    store = tmp_path / "out.zarr"
    run(toy(), [toys], store)
    before = tree(store)
    with pytest.raises(
        InputError, match=r"finished store exists here, made from the same sources and options.*--overwrite"
    ) as error:
        run(toy(), [toys], store)
    assert "--append" not in str(error.value), "nothing is new"
    assert tree(store) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.zarr", "sources"]


def test_a_kill_between_the_two_renames_recovers(
    tmp_path: Path, toys: Path, toy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "out.zarr"
    run(toy(), [toys], store)
    old = tree(store)
    whole = run(toy(brightness=1), [toys], tmp_path / "whole.zarr").digest

    def die(self: Path, target: Path) -> Path:
        if self.name == "store":
            raise KeyboardInterrupt
        return original(self, target)

    original = Path.rename
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", die)
        with pytest.raises(KeyboardInterrupt):
            run(toy(brightness=1), [toys], store, Settings(overwrite=True))
    assert not store.exists(), "the moment between the renames"

    with pytest.raises(ConversionError, match=r"options\.brightness"):
        run(toy(brightness=2), [toys], store, Settings(overwrite=True))
    assert tree(store) == old, "whatever runs next brings the old store back"
    assert run(toy(brightness=1), [toys], store, Settings(overwrite=True)).digest == whole
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.zarr", "sources", "whole.zarr"]


@pytest.mark.parametrize("restart", [False, True])
def test_a_kill_after_both_renames_leaves_only_the_cleanup(
    tmp_path: Path, toys: Path, toy: Any, monkeypatch: pytest.MonkeyPatch, restart: bool
) -> None:
    """The new store stands, its build folder and the old store too: the same command only tidies up."""
    store = tmp_path / "out.zarr"
    run(toy(), [toys], store)
    with monkeypatch.context() as patch:
        patch.setattr("unistore.conversion.build.Build.remove", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(toy(brightness=1), [toys], store, Settings(overwrite=True))
    assert (tmp_path / "out.zarr.unistore-build/old").exists()
    report = run(toy(brightness=1), [toys], store, Settings(overwrite=True, restart=restart))
    assert Store(store).attributes["seal"]["digest"] == report.digest
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.zarr", "sources"]


def test_an_old_store_set_aside_is_not_lost_to_something_new(
    tmp_path: Path, toys: Path, toy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "out.zarr"
    run(toy(), [toys], store)
    build = tmp_path / "out.zarr.unistore-build"
    build.mkdir()
    store.rename(build / "old")
    store.mkdir()
    (store / "thesis.tex").write_text("precious")
    with pytest.raises(ConversionError, match="move one of them away"):
        run(toy(), [toys], store, Settings(overwrite=True))
    assert (store / "thesis.tex").read_text() == "precious"
    assert Store(build / "old").family == "rows"


def test_a_destination_that_is_not_a_store_is_an_error_and_stays_unchanged(
    tmp_path: Path, toys: Path, toy: Any
) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "thesis.tex").write_text("precious")
    file = tmp_path / "file.zarr"
    file.write_text("precious")
    plain = tmp_path / "plain.zarr"
    plain.mkdir()
    (plain / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group", "attributes": {}}')
    link = tmp_path / "link.zarr"
    link.symlink_to(folder)
    before = tree(tmp_path)
    for taken in (folder, file, plain, link):
        for overwrite in (False, True):
            with pytest.raises(InputError, check=of_kind("target")):
                run(toy(), [toys], taken, Settings(overwrite=overwrite))
    assert tree(tmp_path) == before
    assert not list(tmp_path.glob("*.unistore-build"))


@pytest.mark.parametrize("place", ["sources", "sources/out.zarr", "sources/train/deep/out.zarr", "."])
def test_nothing_is_written_among_the_sources(tmp_path: Path, toys: Path, toy: Any, place: str) -> None:
    before = tree(tmp_path)
    with pytest.raises(InputError, check=of_kind("target")):
        run(toy(), [toys], tmp_path / place)
    assert tree(tmp_path) == before


def test_a_destination_inside_of_the_sources_by_a_link_is_an_error(
    tmp_path: Path, toys: Path, toy: Any
) -> None:
    (tmp_path / "elsewhere").symlink_to(toys)
    with pytest.raises(InputError, match="overlap"):
        run(toy(), [toys], tmp_path / "elsewhere" / "out.zarr")


def _interrupt(build: Any) -> None:
    raise KeyboardInterrupt


def test_a_relative_path_to_an_empty_folder_is_a_destination(
    tmp_path: Path, toys: Path, toy: Any, monkeypatch: Any
) -> None:
    """An empty folder is a destination, also when it is called ``.`` or reached by ``..``."""
    (tmp_path / "a/b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a/b")
    with pytest.raises(InputError, check=of_kind("target")):
        run(toy(), [toys], Path(".."))
    assert not list(tmp_path.rglob("*.unistore-build"))
    run(toy(), [toys], Path("../c/../d"))
    assert Store(tmp_path / "a/d").family == "rows"


def test_the_commands_for_several_families_make_stores_of_different_names(tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    with h5py.File(folder / "run.h5", "w") as file:
        file["data/demo_0/actions"] = np.zeros((4, 2))
    with h5py.File(folder / "cloud.h5", "w") as file:
        file["points/xyz"] = np.zeros((5, 3))
    with pytest.raises(InputError, match="several families") as caught:
        unistore.convert(folder, tmp_path / "a.zarr")
    (problem,) = caught.value.problems
    words = " ".join(map(str, problem.fixes)).split()
    names = {Path(word).name for word in words if word.endswith(".zarr")}
    assert names == {"mixed-point-cloud.zarr", "mixed-trajectory.zarr"}
