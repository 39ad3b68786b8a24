"""Texts and rows of variable length as columns: plain arrays and episodes, there, back, and in batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import unistore
from unistore.errors import InputError, StoreError

BYTES = [b"cat", "dög".encode(), b"", b"h\xffrse"]
TEXTS = ["cat", "dög", "", "h\udcffrse"]
"""Bytes that are not UTF-8 are kept, and read as Python reads names of files."""
ROWS = [np.arange(count, dtype="f4") for count in (2, 0, 3, 1)]
FORMS: dict[str, Any] = {
    "variable": h5py.string_dtype(),
    "ascii": h5py.string_dtype("ascii"),
    "fixed": "S6",
    "fixed UTF-8": h5py.string_dtype("utf-8", 6),
}


def rows_file(path: Path, form: Any = "S6", start: int = 0) -> Path:
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(start, start + 4)
        file.create_dataset("label", data=BYTES, dtype=form)
        ranges = file.create_dataset("ranges", (4,), h5py.vlen_dtype("f4"))
        for number, row in enumerate(ROWS):
            ranges[number] = row
    return path


def episodes_file(path: Path, form: Any = "S6") -> Path:
    with h5py.File(path, "w") as file:
        for number in range(2):
            group = file.create_group(f"data/demo_{number}")
            group["actions"] = np.zeros((4, 2))
            group["obs/x"] = np.arange(4.0)
            group.create_dataset("obs/label", data=BYTES, dtype=form)
            group["language_instruction"] = f"do {number}"
    return path


@pytest.mark.parametrize(
    ("family", "form"),
    [*(("rows", form) for form in FORMS), ("trajectory", "variable"), ("trajectory", "fixed")],
)
def test_texts_come_back_byte_for_byte(tmp_path: Path, family: str, form: str) -> None:
    write = rows_file if family == "rows" else episodes_file
    path = write(tmp_path / "a.h5", FORMS[form])
    unistore.convert(path, tmp_path / "a.zarr", family)
    unistore.export(tmp_path / "a.zarr", tmp_path / "again")
    name = "label" if family == "rows" else "data/demo_1/obs/label"
    with h5py.File(tmp_path / "again/a.h5") as file:
        assert file[name][:].tolist() == BYTES
        assert file[name].dtype.kind == ("S" if form.startswith("fixed") else "O")
    receipt = unistore.verify(tmp_path / "a.zarr", against=path).receipt
    assert receipt is not None
    assert not [left for left in receipt.left_out if "label" in left]
    with h5py.File(path, "r+") as file:
        file[name][0] = b"cow"
    assert "97 and 111, 2 of" in str(unistore.verify(tmp_path / "a.zarr", against=path).problems)


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_contain_texts_as_lists_and_variable_rows_with_offsets(tmp_path: Path, workers: int) -> None:
    rows_file(tmp_path / "a.h5", FORMS["variable"])
    rows_file(tmp_path / "b.h5", "S6", 4)
    unistore.convert([tmp_path / "a.h5", tmp_path / "b.h5"], tmp_path / "a.zarr", "rows")
    dataset = unistore.Dataset(tmp_path / "a.zarr")
    for number, sample in enumerate(dataset):
        assert sample["x"] == number
        assert sample["label"] == TEXTS[number % 4]
        assert sample["ranges"].tolist() == ROWS[number % 4].tolist()
    with unistore.Loader(dataset, batch_size=8, num_workers=workers) as loader:
        batch = next(iter(loader))
    assert batch["label"] == TEXTS * 2
    assert batch["ranges"].tolist() == np.concatenate(ROWS * 2).tolist()
    assert batch["ranges_offsets"].diff().tolist() == [len(row) for row in ROWS * 2]
    statistics = dataset.statistics("ranges")
    assert np.isclose(statistics.mean, np.concatenate(ROWS).mean())


@pytest.mark.parametrize("suffix", ["npz", "npy"])
def test_texts_of_numpy_come_back(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "in").mkdir()
    label = np.array(["cat", "dög", "", "x"])
    if suffix == "npz":
        np.savez(tmp_path / "in/a.npz", x=np.arange(4), label=label)
        np.savez(tmp_path / "in/b.npz", x=np.arange(4), label=np.array(["longer text"] * 4))
    else:
        np.save(tmp_path / "in/x.npy", np.arange(4))
        np.save(tmp_path / "in/label.npy", label)
    unistore.convert(tmp_path / "in", tmp_path / "a.zarr", "rows")
    assert unistore.Dataset(tmp_path / "a.zarr")[1]["label"] == "dög"
    assert unistore.verify(tmp_path / "a.zarr", against=tmp_path / "in").receipt
    unistore.export(tmp_path / "a.zarr", tmp_path / "again")
    again = np.load(tmp_path / ("again/a.npz" if suffix == "npz" else "again/label.npy"), allow_pickle=False)
    again = again["label"] if suffix == "npz" else again
    assert again.dtype == label.dtype
    assert again.tolist() == label.tolist()


def test_texts_of_episodes_are_delivered_by_every_kind_and_collation(tmp_path: Path) -> None:
    unistore.convert(episodes_file(tmp_path / "a.h5"), tmp_path / "a.zarr", "trajectory")
    key = "observation.label"
    step = unistore.Dataset(tmp_path / "a.zarr", fields=[key, f"next.{key}", "episode.language_instruction"])
    first = step[4]
    assert (first[key], first[f"next.{key}"]) == (TEXTS[0], TEXTS[1])
    assert first["episode.language_instruction"] == "do 1"
    windows = unistore.Dataset(tmp_path / "a.zarr", unistore.Windows(history=2, horizon=1, pad="zero"))
    assert windows[0][key] == ["", TEXTS[0]]
    assert unistore.collate([windows[1], windows[2]])[key] == [TEXTS[0:2], TEXTS[1:3]]
    episodes = unistore.Dataset(tmp_path / "a.zarr", unistore.Episodes())
    assert episodes[1][key] == TEXTS
    for ragged, expected in (("packed", TEXTS * 2), ("list", [TEXTS] * 2), ("padded", [TEXTS] * 2)):
        collate = unistore.Collate(ragged)
        assert collate(episodes.__getitems__([0, 1]))[key] == expected
        assert collate([episodes[0], episodes[1]])[key] == expected
    unistore.export(tmp_path / "a.zarr", tmp_path / "robomimic", to="robomimic")


def test_text_mixed_with_numbers_or_without_an_array_of_numbers_is_an_error(tmp_path: Path) -> None:
    path = episodes_file(tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        del file["data/demo_0/obs/label"]
        file["data/demo_0/obs/label"] = np.zeros(4, "u1")
    with pytest.raises(InputError, match=r"observation/label: uint8 in .*, text in "):
        unistore.convert(path, tmp_path / "a.zarr", "trajectory")
    with h5py.File(path, "r+") as file:
        del file["data/demo_0/obs/label"]
        file["data/demo_0/obs/label"] = np.array([["a", "b"]] * 4, "S1")
    with pytest.raises(InputError, match="--ignore"):
        unistore.convert(path, tmp_path / "a.zarr", "trajectory")
    rows_file(tmp_path / "b.h5")
    with h5py.File(tmp_path / "b.h5", "r+") as file:
        del file["x"], file["ranges"]
    with pytest.raises(InputError, match="needs an array of numbers"):
        unistore.convert(tmp_path / "b.h5", tmp_path / "b.zarr", "rows")


def test_a_damaged_chunk_of_texts_is_an_error_that_names_its_column(tmp_path: Path) -> None:
    unistore.convert(rows_file(tmp_path / "a.h5"), tmp_path / "a.zarr", "rows", codec="none")
    shard = next((tmp_path / "a.zarr/rows/label_utf8/data/c").rglob("0"))
    content = bytearray(shard.read_bytes())
    content[0] ^= 1
    shard.write_bytes(content)
    with pytest.raises(StoreError, match="label_utf8"):
        unistore.Dataset(tmp_path / "a.zarr")[0]
