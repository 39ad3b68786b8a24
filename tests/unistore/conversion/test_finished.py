"""What a conversion onto a finished store says: which sources are new or changed, and what helps."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import unistore
from tests.support.problems import of_kind
from tests.support.programs import call
from unistore.errors import AddOptions, InputError, Problem, RunCommand


def write(folder: Path, *numbers: int) -> None:
    folder.mkdir(exist_ok=True)
    for number in numbers:
        np.savez(folder / f"{number}.npz", x=np.full((number + 1, 2), number, np.float32))


def rows_of(store: Path) -> np.ndarray:
    dataset = unistore.Dataset(store)
    return np.concatenate([np.asarray(dataset[row]["x"]) for row in range(len(dataset))])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of two sources, of which a store was made."""
    monkeypatch.chdir(tmp_path)
    write(Path("in"), 1, 2)
    unistore.convert("in", "a.zarr")
    return Path("in")


def refused(sources: object = "in", **options: object) -> Problem:
    with pytest.raises(InputError, check=of_kind("exists")) as error:
        unistore.convert(sources, "a.zarr", **options)  # type: ignore[arg-type]
    (problem,) = error.value.problems
    return problem


def fix_of(problem: Problem) -> RunCommand:
    (command,) = (fix for fix in problem.fixes if isinstance(fix, RunCommand))
    return command


def test_sources_that_are_new_are_counted_and_appended(folder: Path) -> None:
    write(folder, 5, 6)
    problem = refused()
    assert "2 new (5.npz, 6.npz)" in problem.message
    fix = fix_of(problem)
    assert fix.arguments[-1] == "--append"
    assert fix.purpose == "to add 2 sources"
    assert AddOptions(("--overwrite",), "to replace it") in problem.fixes
    assert call(*fix.arguments) == 0
    expected = np.repeat([1.0, 2.0, 5.0, 6.0], [4, 6, 12, 14])
    np.testing.assert_array_equal(rows_of(Path("a.zarr")), expected)


def test_append_is_not_offered_if_no_source_is_new(folder: Path) -> None:
    problem = refused()
    assert problem.message.endswith("the same sources and options")
    assert fix_of(problem).arguments[:1] == ("verify",)
    assert call(*fix_of(problem).arguments) == 0
    problem = refused(codec="small")
    assert problem.message.endswith("other options: --codec was auto, is small")
    assert not any("--append" in str(fix) for fix in problem.fixes)
    assert problem.fixes[-1] == AddOptions(("--overwrite",), "to replace it")
    (*first, codec) = fix_of(problem).arguments
    assert first == ["compact", str(Path("a.zarr").absolute()), "NEW", "--codec"]
    assert call(*("new.zarr" if word == "NEW" else word for word in first), codec) == 0
    np.testing.assert_array_equal(rows_of(Path("new.zarr")), rows_of(Path("a.zarr")))
    problem = refused([folder / "1.npz"])
    assert problem.message.endswith("1 not given now (2.npz)")
    assert problem.fixes == (AddOptions(("--overwrite",), "to replace it by a store without 2.npz"),)


def test_a_removed_source_is_not_offered_for_append(folder: Path) -> None:
    write(folder, 5)
    unistore.append(folder, "a.zarr")
    removals = {"2.npz": "1 removed from it (2.npz)", "5.npz": "2 removed from it (2.npz, 5.npz)"}
    for name, removed in removals.items():
        unistore.remove("a.zarr", name)
        problem = refused()
        assert problem.message.endswith(f"made from other sources: {removed}")
        assert not any("--append" in str(fix) for fix in problem.fixes)
    assert unistore.append(folder, "a.zarr").report is None
    problem = refused([folder / "2.npz"])
    assert "1 new (2.npz)" in problem.message
    assert call(*fix_of(problem).arguments) == 0
    np.testing.assert_array_equal(rows_of(Path("a.zarr")), np.repeat([1.0, 2.0], [4, 6]))


def test_options_of_a_versioned_store_are_compared_with_those_of_its_first_part(folder: Path) -> None:
    write(folder, 5)
    unistore.append(folder, "a.zarr")
    assert refused().message.endswith("made from the same sources and options")
    assert refused(codec="small").message.endswith("with other options: --codec was auto, is small")


def test_sources_whose_names_begin_at_another_folder_now_are_not_offered_for_append(folder: Path) -> None:
    shutil.rmtree("a.zarr")
    (folder / "monday").mkdir()
    for name in ("1.npz", "2.npz"):
        (folder / name).rename(folder / "monday" / name)
    unistore.convert(folder, "a.zarr")
    shutil.copytree(folder / "monday", folder / "tuesday")
    problem = refused()
    renamed = "monday/1.npz was 1.npz, monday/2.npz was 2.npz"
    assert problem.message.endswith(f"with names that begin at another folder: {renamed}")
    (fix,) = problem.fixes
    assert isinstance(fix, AddOptions)
    unistore.convert(folder, "a.zarr", overwrite=True)
    assert unistore.Store("a.zarr").text("sources/path")[::2] == ["monday/1.npz", "tuesday/1.npz"]


def test_a_split_that_is_not_given_again_is_reported_as_a_changed_option(folder: Path) -> None:
    split = {"train": 0.5, "val": 0.5}
    unistore.convert(folder, "a.zarr", overwrite=True, split="exact:train=0.5,val=0.5")
    difference = "with other options: --split was exact:train=0.5,val=0.5, is none"
    assert refused().message.endswith(f"the same sources {difference}")
    assert refused([folder / "1.npz"]).message.endswith(f"1 not given now (2.npz), and {difference}")
    unistore.convert(folder, "a.zarr", overwrite=True, split=split, split_by="row")
    problem = refused(split=split, split_by="row", split_seed=7)
    assert problem.message.endswith("with other options: --split-seed was 0, is 7")
    assert problem.fixes == (AddOptions(("--overwrite",), "to replace it"),)


def test_overwriting_notes_options_splits_and_sources_that_the_new_store_lacks(folder: Path) -> None:
    def replaced(sources: object = "in", **options: object) -> tuple[str, ...]:
        report = unistore.convert(sources, "a.zarr", overwrite=True, **options)  # type: ignore[arg-type]
        return tuple(note for note in report.notes if "the replaced store" in note)

    split = {"train": 0.5, "val": 0.5}
    options = "options differ from the replaced store: "
    assert replaced() == ()
    assert replaced(split=split, split_by="row") == (f"{options}--split was none, is train=0.5,val=0.5",)
    assert replaced(split=split, split_by="row") == ()
    assert replaced(codec="small") == (
        "the replaced store had the splits train, val, which the new one has not",
        f"{options}--codec was auto, is small; --split was train=0.5,val=0.5, is none",
    )
    one = "1 source of the replaced store is not in the new one: 2.npz"
    assert replaced([folder / "1.npz"], codec="small") == (one,)


def test_sources_that_changed_are_replaced(folder: Path) -> None:
    np.savez(folder / "2.npz", x=np.full((1, 2), 9, np.float32))
    write(folder, 3)
    problem = refused()
    assert "1 changed or touched since (2.npz)" in problem.message
    fix = fix_of(problem)
    assert fix.arguments[-2:] == ("--append", "--replace")
    assert call(*fix.arguments) == 0
    np.testing.assert_array_equal(np.sort(rows_of(Path("a.zarr"))), np.repeat([1.0, 3.0, 9.0], [4, 8, 2]))


def test_a_touched_source_is_no_new_version(folder: Path) -> None:
    os.utime(folder / "1.npz")
    assert call(*fix_of(refused()).arguments) == 0
    assert len(unistore.Dataset("a.zarr")) == 5
    assert Path("a.zarr/zarr.json").exists()


def test_a_versioned_store_at_the_destination_offers_append(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(folder, 3)
    unistore.append("in", "a.zarr")
    write(folder, 4)
    problem = refused()
    assert "a versioned store" in problem.message
    assert "1 new (4.npz)" in problem.message
    refused(overwrite=True)
    assert call("convert", "in", "a.zarr", "--json") == 2
    assert json.loads(capfd.readouterr().out)["problems"][0]["kind"] == "exists"
    assert call(*fix_of(problem).arguments) == 0
    np.testing.assert_array_equal(rows_of(Path("a.zarr")), np.repeat([1.0, 2, 3, 4], [4, 6, 8, 10]))


def test_a_finished_store_error_survives_pickling(folder: Path) -> None:
    import pickle

    from unistore.conversion.build import FinishedStoreError

    error = FinishedStoreError("a.zarr", ("in",), is_grown=True)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.sources) == (str(error), ("in",))
