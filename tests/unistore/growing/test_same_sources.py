"""Which sources an append takes for those that the store has: by size and times, else by values."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import nibabel as nib
import numpy as np
import pytest

import unistore
from unistore.conversion import execution, plan
from unistore.errors import ConversionError, InputError
from unistore.growing import append as appending
from unistore.growing.alike import unite
from unistore.growing.same import _compare_with_absent, same_sources
from unistore.growing.sources import KeptSource
from unistore.store.joined import SelectedSources
from unistore.store.names import SOURCES


def write(path: Path, value: float) -> None:
    path.parent.mkdir(exist_ok=True)
    np.save(path, np.full((50, 4), value))


def values_of(store: Path) -> dict[str, float]:
    dataset = unistore.Dataset(store, fields=["data", "source"])
    samples = (dataset[index] for index in range(len(dataset)))
    return {sample["source"]: float(sample["data"][0]) for sample in samples}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write(tmp_path / "src" / "a.npy", 1)
    write(tmp_path / "src" / "b.npy", 1)
    time.sleep(0.02)  # more than the kernel's clock of files is late
    unistore.convert(tmp_path / "src", tmp_path / "s.zarr")
    return tmp_path / "s.zarr"


def _edited(path: Path) -> None:
    write(path, 2)


def _older(path: Path) -> None:
    write(path, 2)
    os.utime(path, (1e9, 1e9))


def _of_the_future(path: Path) -> None:
    write(path, 2)
    os.utime(path, (4e9, 4e9))


def _moved_over(path: Path) -> None:
    new = path.parents[1] / "new.npy"
    write(new, 2)
    os.utime(new, (1e9, 1e9))
    new.replace(path)


def _with_its_times(path: Path) -> None:
    state = path.stat()
    write(path, 2)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def _copied(*options: str) -> Callable[[Path], Path]:
    def copy(store: Path) -> Path:
        target = store.with_name("c.zarr")
        subprocess.run(["cp", *options, store, target], check=True)
        return target

    return copy


def _from_archive(store: Path) -> Path:
    archive = store.with_name("s.tar")
    subprocess.run(["tar", "cf", archive, "-C", store.parent, store.name], check=True)
    shutil.rmtree(store)
    subprocess.run(["tar", "xmf", archive, "-C", store.parent], check=True)
    return store


@pytest.mark.parametrize("carry", [Path, _copied("-r"), _copied("-a"), _from_archive])
@pytest.mark.parametrize("change", [_edited, _older, _of_the_future, _moved_over, _with_its_times])
def test_a_changed_source_is_never_up_to_date(
    store: Path, tmp_path: Path, change: Callable[[Path], None], carry: Callable[[Path], Path]
) -> None:
    change(tmp_path / "src" / "a.npy")
    store = carry(store)
    for check in ((), tmp_path / "src"):
        with pytest.raises(
            InputError,
            match=r"a\.npy: has (the name and size of a source|another size or modification time)",
        ):
            unistore.append(tmp_path / "src", store, check=check)
    appended = unistore.append(tmp_path / "src", store, replace=True)
    assert (appended.replaced, appended.skipped) == (("a.npy",), ("b.npy",))
    assert values_of(store) == {"a.npy": 2, "b.npy": 1}


@pytest.mark.parametrize("carry", [Path, _copied("-r"), _copied("-a"), _from_archive])
def test_unchanged_sources_are_skipped_without_reading(
    store: Path, tmp_path: Path, carry: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = carry(store)
    monkeypatch.setattr(appending, "run", None)  # would read them
    appended = unistore.append(tmp_path / "src", store, check=tmp_path / "src")
    assert (appended.version, appended.report, appended.skipped) == (1, None, ("a.npy", "b.npy"))
    os.utime(tmp_path / "src" / "a.npy")
    with pytest.raises(TypeError):
        unistore.append(tmp_path / "src", store)
    monkeypatch.undo()
    assert unistore.append(tmp_path / "src", store).skipped == ("b.npy", "a.npy")


def test_another_folder_of_the_same_names_and_sizes_is_read(store: Path, tmp_path: Path) -> None:
    write(tmp_path / "other" / "a.npy", 2)
    later = store.with_name("later.zarr")
    time.sleep(0.02)
    unistore.convert(tmp_path / "src", later)
    with pytest.raises(InputError, match=r"a\.npy: .* other values.*--replace"):
        unistore.append([tmp_path / "other" / "a.npy"], later)


def _absent(document: Path) -> None:
    document.unlink()


def _of_another_seal(document: Path) -> None:
    document.write_text(json.dumps({**json.loads(document.read_bytes()), "seal": "0" * 32}))


def _short(document: Path) -> None:
    document.write_text(json.dumps({**json.loads(document.read_bytes()), "sizes": [1]}))


def _cut(document: Path) -> None:
    document.write_bytes(document.read_bytes()[:-9])


@pytest.mark.parametrize("harm", [_absent, _of_another_seal, _short, _cut])
def test_without_valid_times_sources_are_compared_by_their_values(
    store: Path, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    harm(store / SOURCES)
    assert unistore.verify(store).ok
    assert unistore.append(tmp_path / "src", store).skipped == ("a.npy", "b.npy")
    _older(tmp_path / "src" / "a.npy")
    with pytest.raises(InputError, match=r"a\.npy: .* other values.*--replace"):
        unistore.append(tmp_path / "src", store)


def test_times_that_may_hide_a_change_are_not_trusted(store: Path, tmp_path: Path) -> None:
    document = json.loads((store / SOURCES).read_bytes())
    assert max(document["changed"]) < document["scans"][0] <= time.time_ns()
    assert document["sizes"] == [(tmp_path / "src" / name).stat().st_size for name in ("a.npy", "b.npy")]
    document["scans"] = [min(document["changed"])]  # as of files that were written while it scanned
    (store / SOURCES).write_text(json.dumps(document))
    appended = unistore.append(tmp_path / "src", store)
    assert appended.skipped == ("a.npy", "b.npy")


@pytest.mark.parametrize("change", [_edited, _older, _with_its_times])
def test_a_change_after_reading_is_seen_at_the_seal(
    tmp_path: Path, change: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "src" / "a.npy", 1)
    time.sleep(0.02)
    write_shards = execution.write_shards

    def then_change(*arguments: Any) -> int:
        done = write_shards(*arguments)
        change(tmp_path / "src" / "a.npy")
        return done

    with monkeypatch.context() as patched:
        patched.setattr(execution, "write_shards", then_change)
        with pytest.raises(ConversionError, match=r"a\.npy: .*changed during"):
            unistore.convert(tmp_path / "src", tmp_path / "s.zarr")
    assert not (tmp_path / "s.zarr").exists()
    unistore.convert(tmp_path / "src", tmp_path / "s.zarr", restart=True)
    assert values_of(tmp_path / "s.zarr") == {"a.npy": 2}


@pytest.fixture
def straddling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of five sources of 3000 rows of random numbers, whose shards end within sources."""
    monkeypatch.setattr(plan, "SHARD", 200_000)
    rng = np.random.default_rng(0)
    (tmp_path / "src").mkdir()
    for number in range(5):
        np.save(tmp_path / "src" / f"r{number}.npy", rng.normal(size=(3000, 4)).astype("f4"))
    unistore.convert(tmp_path / "src", tmp_path / "s.zarr")
    shards = [*(tmp_path / "s.zarr" / "rows" / "data" / "c").iterdir()]
    assert len(shards) > 1
    return tmp_path / "s.zarr"


def test_sources_that_shards_cut_are_known_by_their_values(straddling: Path, tmp_path: Path) -> None:
    src = tmp_path / "src"
    for file in src.iterdir():
        os.utime(file)
    for number in range(5):  # each alone, where no shard cuts it
        appended = unistore.append(src / f"r{number}.npy", straddling)
        assert (appended.version, appended.skipped) == (1, (f"r{number}.npy",))
    shutil.copytree(src, tmp_path / "all" / "day1")
    np.save(tmp_path / "all" / "new.npy", np.ones((50, 4), "f4"))
    with pytest.raises(InputError) as refused:
        unistore.append(tmp_path / "all", straddling)
    expected = {f"day1/r{number}.npy": f"r{number}.npy" for number in range(5)}
    for problem in refused.value.problems:
        assert f"the same values as '{expected.pop(problem.file)}'" in problem.message
    assert not expected
    values = np.load(src / "r1.npy")
    values[-1, -1] += 1
    np.save(src / "r1.npy", values)
    with pytest.raises(InputError, match=r"r1\.npy: .* other values.*--replace"):
        unistore.append(src / "r1.npy", straddling)
    appended = unistore.append(src, straddling, replace=True)
    assert appended.replaced == ("r1.npy",)


def _clouds(folder: Path) -> dict[str, Any]:
    for name in ("a", "b"):
        rng = np.random.default_rng(list(name.encode()))
        xyz = rng.normal(size=(40, 3))
        np.savez(folder / f"{name}.npz", xyz=xyz, label=np.arange(40) % 3)
    return {"family": "point_cloud"}


def _robots(folder: Path) -> dict[str, Any]:
    import h5py

    for name in ("a", "b"):
        with h5py.File(folder / f"{name}.h5", "w") as file:
            rng = np.random.default_rng(list(name.encode()))
            for demo in range(3):
                file[f"data/demo_{demo}/actions"] = rng.normal(size=(5 + demo, 2))
                file[f"data/demo_{demo}/states"] = rng.normal(size=(5 + demo, 3)).astype("f4")
    return {"family": "trajectory"}


def _promoted(folder: Path) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    for name, dtype in (("a", "f4"), ("b", "f8")):
        np.savez(folder / f"{name}.npz", x=rng.normal(size=(30, 3)).astype(dtype), y=np.arange(30))
    return {"family": "rows"}


@pytest.mark.parametrize("is_compact", [False, True])
@pytest.mark.parametrize("make", [_clouds, _robots, _promoted])
def test_touched_sources_are_known_after_compact_and_promotion(
    tmp_path: Path, make: Callable[[Path], dict[str, Any]], is_compact: bool
) -> None:
    (tmp_path / "src").mkdir()
    options = make(tmp_path / "src")
    store = tmp_path / "s.zarr"
    unistore.convert(tmp_path / "src", store, **options)
    if is_compact:
        unistore.compact(store, tmp_path / "c.zarr")
        store = tmp_path / "c.zarr"
        assert unistore.append(tmp_path / "src", store).report is None
    for file in sorted((tmp_path / "src").iterdir()):
        os.utime(file)
        appended = unistore.append(file, store)
        assert (appended.version, appended.report, len(appended.skipped)) == (1, None, 1)


def test_a_changed_header_is_a_change(tmp_path: Path) -> None:
    volume = np.arange(60, dtype=np.int16).reshape(3, 4, 5)
    path = tmp_path / "src" / "a.nii"
    path.parent.mkdir()
    nib.save(nib.Nifti1Image(volume, np.diag([1.0, 1, 2, 1])), path)
    unistore.convert(tmp_path / "src", tmp_path / "s.zarr", "ct")
    nib.save(nib.Nifti1Image(volume, np.diag([1.0, 1, 3, 1])), path)
    with pytest.raises(InputError, match=r"a\.nii: .* other values.*--replace"):
        unistore.append(tmp_path / "src", tmp_path / "s.zarr")
    nib.save(nib.Nifti1Image(volume, np.diag([1.0, 1, 2, 1])), path)
    assert unistore.append(tmp_path / "src", tmp_path / "s.zarr").report is None


def test_nan_equals_nan_but_zero_differs_from_minus_zero(tmp_path: Path) -> None:
    stores = []
    for name, values in (("x", [0.0, np.nan]), ("y", [-0.0, np.nan]), ("z", [0.0, 1.0])):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "a.npz", x=np.array(values))
        unistore.convert(tmp_path / name, tmp_path / f"{name}.zarr")
        stores.append(unistore.Store(tmp_path / f"{name}.zarr"))
    first = stores[0]
    assert [same_sources(first, other, [(0, 0)]) for other in stores] == [[True], [False], [False]]


@pytest.mark.parametrize("change", [_edited, _older, _moved_over])
@pytest.mark.parametrize("carry", [Path, _from_archive])
def test_a_conversion_is_up_to_date_by_the_times_of_its_sources(
    store: Path, tmp_path: Path, change: Callable[[Path], None], carry: Callable[[Path], Path]
) -> None:
    command = ["convert", str(tmp_path / "src"), str(carry(store))]
    from tests.support.programs import call

    assert call(*command) == 0
    change(tmp_path / "src" / "a.npy")
    assert call(*command) == 2


def test_copies_of_sources_are_known_beside_one_of_another_form(tmp_path: Path) -> None:
    """Decimal coordinates are stored as integers; beside a source of others, they would be floats."""
    rng = np.random.default_rng(0)

    def cloud(path: Path, xyz: Any) -> None:
        path.parent.mkdir(exist_ok=True)
        with h5py.File(path, "w") as file:
            file["points/xyz"] = xyz
            file["points/intensity"] = np.arange(len(xyz), dtype="f4")

    for number in range(2):
        cloud(tmp_path / f"a/cloud_{number}.h5", np.round(rng.random((500, 3)) * 100, 2))
    store = tmp_path / "a.zarr"
    unistore.convert(tmp_path / "a", store)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    cloud(tmp_path / "b/new.h5", rng.random((500, 3)) * np.pi)
    appended = unistore.append(tmp_path / "b", store)
    assert sorted(appended.skipped) == ["cloud_0.h5", "cloud_1.h5"]
    changed = np.round(rng.random((500, 3)) * 100, 2)
    cloud(tmp_path / "b/cloud_0.h5", changed)
    cloud(tmp_path / "b/other.h5", rng.random((500, 3)) * np.pi)
    with pytest.raises(InputError, match=r"cloud_0\.h5: .* other values.*--replace"):
        unistore.append(tmp_path / "b", store)


@pytest.mark.parametrize(("before", "after"), [(None, 2.0), (1.0, 2.0), (1.0, None)])
@pytest.mark.parametrize("form", ["alike", "other"])
def test_changed_attributes_of_a_source_are_no_copy_beside_one_of_another_form(
    tmp_path: Path, before: float | None, after: float | None, form: str
) -> None:
    rng = np.random.default_rng(0)

    def cloud(path: Path, xyz: Any, gain: float | None) -> None:
        path.parent.mkdir(exist_ok=True)
        with h5py.File(path, "w") as file:
            file["points/xyz"] = xyz
            file["points/intensity"] = np.arange(len(xyz), dtype="f4")
            if gain is not None:
                file["points/intensity"].attrs["gain"] = gain

    values = [np.round(rng.random((500, 3)) * 100, 2) for _ in range(3)]
    for number in range(2):
        cloud(tmp_path / f"a/cloud_{number}.h5", values[number], before)
    store = tmp_path / "a.zarr"
    unistore.convert(tmp_path / "a", store)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    cloud(tmp_path / "b/cloud_0.h5", values[0], after)
    cloud(tmp_path / "b/new.h5", values[2] * (1 if form == "alike" else np.pi), before)
    with pytest.raises(InputError, match=r"cloud_0\.h5: .* other values.*--replace") as refused:
        unistore.append(tmp_path / "b", store)
    assert len(refused.value.problems) == 1


def test_rows_of_an_array_that_a_store_lacks_are_compared_with_what_they_have_without_it(
    tmp_path: Path,
) -> None:
    for name, demos in (("a", [b"demo_0"]), ("b", [])):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["data/demo_0/actions"] = np.ones((4, 2))
            file["mask/good"] = np.array(demos, "S6")
    unistore.convert([tmp_path / "a.h5", tmp_path / "b.h5"], tmp_path / "s.zarr", "trajectory")
    store = unistore.Store(tmp_path / "s.zarr")
    sources = SelectedSources(unite([store], [KeptSource("", 0, 0), KeptSource("", 0, 1)], None), [1, 0])
    same = np.ones(2, bool)
    _compare_with_absent(sources, "episodes/mask/good", same)
    assert same.tolist() == [True, False]
    _compare_with_absent(sources, "steps/action", same)  # a store without it is none of this family
    assert same.tolist() == [True, False]
