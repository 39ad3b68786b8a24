"""Sources of the same values: one file by two names is one source, a file and its copy are told."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

import unistore
from unistore.conversion.identity import equal_sources

SPLIT = "train=0.5,val=0.5"


def values(seed: int, rows: int = 12) -> np.ndarray:
    return np.random.default_rng(seed).random((rows, 3))


def by_source(store: Path) -> dict[str, np.ndarray]:
    dataset = unistore.Dataset(store, fields=["data", "source"])
    rows: dict[str, list[np.ndarray]] = {}
    for index in range(len(dataset)):
        sample = dataset[index]
        rows.setdefault(sample["source"], []).append(sample["data"].numpy())
    return {name: np.array(each) for name, each in rows.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files of other values, in a folder of their own."""
    folder = tmp_path / "src"
    folder.mkdir()
    np.save(folder / "a.npy", values(1))
    np.save(folder / "b.npy", values(2))
    return folder


def equal_notes(report: unistore.Report | None) -> list[str]:
    assert report is not None
    return [note for note in report.notes if "the same values as another one" in note]


def test_hard_links_of_one_file_are_one_source(tmp_path: Path, folder: Path) -> None:
    os.link(folder / "a.npy", folder / "z.npy")
    report = unistore.convert(folder, tmp_path / "s.zarr")
    assert equal_notes(report) == []
    assert "skipped, its values are in a.npy: z.npy" in " ".join(report.notes)
    stored = by_source(tmp_path / "s.zarr")
    assert stored.keys() == {"a.npy", "b.npy"}
    np.testing.assert_array_equal(stored["a.npy"], values(1))
    appended = unistore.append(folder, tmp_path / "s.zarr")
    assert (appended.version, appended.report) == (1, None)


def test_a_part_its_hard_link_and_its_virtual_dataset_are_one_source(tmp_path: Path) -> None:
    """A part, its hard link, and the virtual dataset that shows it: one source."""
    folder = tmp_path / "src"
    folder.mkdir()
    with h5py.File(folder / "part.h5", "w") as file:
        file["data"] = values(1)
    os.link(folder / "part.h5", folder / "again.h5")
    layout = h5py.VirtualLayout((12, 3), "f8")
    layout[:] = h5py.VirtualSource("part.h5", "data", (12, 3))
    with h5py.File(folder / "whole.h5", "w", libver="latest") as file:
        file.create_virtual_dataset("data", layout)
    unistore.convert(folder, tmp_path / "s.zarr")
    (stored,) = by_source(tmp_path / "s.zarr").values()
    np.testing.assert_array_equal(stored, values(1))


def test_a_file_with_a_hard_link_outside_is_converted(tmp_path: Path, folder: Path) -> None:
    os.link(folder / "a.npy", tmp_path / "kept.npy")
    os.link(folder / "b.npy", tmp_path / "kept2.npy")
    unistore.convert(folder, tmp_path / "s.zarr")
    assert by_source(tmp_path / "s.zarr").keys() == {"a.npy", "b.npy"}


def test_a_copy_is_stored_with_a_note_that_offers_exclude(tmp_path: Path, folder: Path) -> None:
    (folder / "far").mkdir()
    shutil.copy(folder / "b.npy", folder / "far" / "other.npy")
    (note,) = equal_notes(unistore.convert(folder, tmp_path / "s.zarr", split=SPLIT, split_seed=3))
    assert "a source has the same values as another one: far/other.npy = b.npy; both are stored" in note
    assert "the split may separate them" in note
    assert "--exclude far/other.npy" in note
    assert len(by_source(tmp_path / "s.zarr")) == 3
    report = unistore.convert(folder, tmp_path / "t.zarr", exclude=["far/other.npy"])
    assert equal_notes(report) == []
    assert by_source(tmp_path / "t.zarr").keys() == {"a.npy", "b.npy"}


def test_an_array_and_an_archive_of_it_are_noted_as_equal(tmp_path: Path, folder: Path) -> None:
    np.savez(folder / "archive.npz", data=values(1))
    (note,) = equal_notes(unistore.convert(folder, tmp_path / "s.zarr"))
    assert "archive.npz = a.npy" in note or "a.npy = archive.npz" in note


def test_files_of_one_name_or_without_rows_are_not_noted_as_equal(tmp_path: Path, folder: Path) -> None:
    for number, name in enumerate(("x", "y")):
        (folder / name).mkdir()
        np.save(folder / name / "a.npy", values(10 + number))
        np.save(folder / name / "empty.npy", values(0, rows=0))
    report = unistore.convert(folder, tmp_path / "s.zarr")
    assert equal_notes(report) == []
    stored = by_source(tmp_path / "s.zarr")
    np.testing.assert_array_equal(stored["x/a.npy"], values(10))
    np.testing.assert_array_equal(stored["y/a.npy"], values(11))


def test_a_copy_under_an_unrelated_name_is_appended_with_a_note(tmp_path: Path, folder: Path) -> None:
    store = tmp_path / "s.zarr"
    unistore.convert(folder, store, split=SPLIT, split_seed=0)
    (tmp_path / "new").mkdir()
    shutil.copy(folder / "a.npy", tmp_path / "new" / "unrelated.npy")
    np.save(tmp_path / "new" / "c.npy", values(3))
    appended = unistore.append([tmp_path / "new"], store)
    (note,) = equal_notes(appended.report)
    assert "a source has the same values as another one in the store: unrelated.npy = a.npy" in note
    assert note.endswith(f"may separate them; unistore remove {store} unrelated.npy removes it again")
    stored = by_source(store)
    assert stored.keys() == {"a.npy", "b.npy", "unrelated.npy", "c.npy"}
    np.testing.assert_array_equal(stored["unrelated.npy"], values(1))
    np.save(tmp_path / "new" / "d.npy", values(4))
    assert equal_notes(unistore.append([tmp_path / "new"], store).report) == []
    unistore.remove(store, ["a.npy", "unrelated.npy"])
    shutil.copy(folder / "a.npy", tmp_path / "new" / "once_more.npy")
    assert equal_notes(unistore.append([tmp_path / "new" / "once_more.npy"], store).report) == []


def test_equal_sources_are_found_by_their_digests() -> None:
    rng = np.random.default_rng(5)
    digests = rng.integers(0, 2, (300, 16), np.uint8)
    digests[:, 4:] = 0
    rows = rng.integers(0, 2, 300)
    earliest: dict[bytes, int] = {}
    expected = []
    for number, digest in enumerate(digests):
        if rows[number]:
            first = earliest.setdefault(digest.tobytes(), number)
            if first != number:
                expected.append((number, first))
    assert [*equal_sources(digests, rows)] == expected
    assert expected
    assert [*equal_sources(digests[:0], rows[:0])] == []
