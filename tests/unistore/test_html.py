"""Views and still pictures of samples of every case: values as numpy has them, nothing blank, errors told."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pytest

import unistore
from tests.support.cases import REAL
from tests.support.store_files import flip
from unistore.converters.preview import Preview
from unistore.converters.views import View
from unistore.errors import StoreError
from unistore.html import STILL, pictures_html, sample_picture, sample_view
from unistore.report.page import pack
from unistore.store.reader import Store


def pixels(data: bytes) -> Any:
    decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert decoded is not None
    return decoded


DRAWN = (
    *REAL,
    *("rows_hdf5", "rows_structured", "rows_side_by_side", "cloud_in_segments", "cloud_batches", "ct_cases"),
    *("ct_sparse", "spike_tiles", "spike_keep", "robot_robomimic", "robot_flat", "robot_act_keep"),
)
"""Cases whose samples are drawn in ways of their own."""


@pytest.mark.parametrize("name", DRAWN)
def test_every_kind_of_sample_is_drawn(name: str, make_case: Any) -> None:
    store = Store(make_case(name)[1])
    image = pixels(sample_picture(store, store.sample_count - 1))
    assert image.std() > 8, "blank"
    assert 200 < image.shape[1] <= 1600
    assert 60 < image.shape[0] <= 300


def volume_store(folder: Path, volume: Any, **options: Any) -> Store:
    np.save(folder / "a.npy", volume)
    unistore.convert(folder / "a.npy", folder / "a.zarr", "ct", **options)
    return Store(folder / "a.zarr")


def test_means_of_blocks_are_those_of_numpy(tmp_path: Path) -> None:
    volume = np.random.default_rng(0).integers(-1000, 3000, (21, 30, 43)).astype(np.int16)
    store = volume_store(tmp_path, volume)
    view = sample_view(store, 0, replace(STILL, edge=11))
    assert view.head["block"] == [2, 3, 4]
    expected = np.zeros((11, 10, 11))
    for z, y, x in np.ndindex(expected.shape):
        expected[z, y, x] = volume[2 * z : 2 * z + 2, 3 * y : 3 * y + 3, 4 * x : 4 * x + 4].mean()
    np.testing.assert_array_equal(view.arrays["image"], np.round(expected))
    for axis, middle in enumerate((10, 15, 21)):
        np.testing.assert_array_equal(view.arrays[f"plane{axis}"], np.take(volume, middle, axis=axis))
    assert "means of 2 × 3 × 4 voxels" in view.head["note"]


def test_masks_show_the_middles_of_blocks(tmp_path: Path) -> None:
    volume = np.random.default_rng(0).integers(-1000, 1000, (9, 20, 29)).astype(np.int16)
    store = volume_store(tmp_path, volume, window=("low:1500:0",))
    assert store.has("windows/low/mask")
    view = sample_view(store, 0, replace(STILL, edge=8))
    inside = (volume >= -750) & (volume <= 750)
    block = view.head["block"]
    middles = [
        np.minimum(np.arange(0, n, b) + b // 2, n - 1) for n, b in zip(volume.shape, block, strict=True)
    ]
    np.testing.assert_array_equal(view.arrays["overlay0"], inside[np.ix_(*middles)])


def test_of_a_volume_that_is_too_large_some_slices_are_read(tmp_path: Path) -> None:
    volume = np.random.default_rng(0).integers(0, 100, (200, 64, 64)).astype(np.int16)
    store = volume_store(tmp_path, volume)
    view = sample_view(store, 0, replace(STILL, read=volume.nbytes // 3))
    assert view.read < volume.nbytes
    layer, every = map(int, re.findall(r"of (\d+) of every (\d+) slices", view.head["note"])[0])
    expected = volume[every : every + layer].mean(axis=0)
    assert view.head["block"][1:] == [1, 1]
    np.testing.assert_array_equal(view.arrays["image"][1], np.round(expected))


@pytest.mark.parametrize(
    ("options", "planes", "size"),
    [
        ({}, [None, None, None], "spacing unknown"),
        ({"info_order": "xyz"}, ["sagittal", "coronal", "axial"], "3 × 0.7 × 0.6 mm"),
    ],
)
def test_planes_are_named_only_where_a_direction_says_so(
    tmp_path: Path, options: dict[str, str], planes: list[str], size: str
) -> None:
    (tmp_path / "in" / "case").mkdir(parents=True)
    np.save(tmp_path / "in" / "case" / "ct_original.npy", np.arange(120, dtype="i2").reshape(4, 5, 6))
    info = {"spacing": [0.6, 0.7, 3], "direction": [0, 0, 1, 0, 1, 0, -1, 0, 0]}
    (tmp_path / "in" / "case" / "info.json").write_text(json.dumps(info))
    unistore.convert(tmp_path / "in", tmp_path / "a.zarr", "ct", **options)
    view = sample_view(Store(tmp_path / "a.zarr"), 0, STILL)
    assert view.head["planes"] == planes
    assert size in view.title


def test_spikes_of_a_view_equal_those_of_the_dataset(make_case: Any) -> None:
    store = Store(make_case("spike_real")[1])
    view = sample_view(store, 0, STILL)
    height, width = view.head["shape"]
    pixels = np.unpackbits(view.arrays["bits"], axis=2, bitorder="little")[:, :, :width]
    with_bits = unistore.Dataset(store.path, unistore.Clips(length=1, crop=None), fields=["spike"])
    np.testing.assert_array_equal(pixels.reshape(-1, height, width), with_bits[0]["spike"].numpy()[0])


def test_a_view_shows_texts_and_rows_of_any_length(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["caption"] = ["a cat", "</script> dog"]
        scans = file.create_dataset("scan", 2, h5py.vlen_dtype(np.float32))
        scans[0], scans[1] = [1, 2, 3], [4, 5]
        file["x"] = np.arange(2)
    unistore.convert(tmp_path / "a.h5", tmp_path / "a.zarr", "rows")
    view = sample_view(Store(tmp_path / "a.zarr"), 1, STILL)
    columns = {column["name"]: column for column in view.head["columns"]}
    assert columns["caption"]["text"] == "</script> dog"
    assert columns["x"]["value"] == 1
    np.testing.assert_array_equal(view.arrays[columns["scan"]["array"]], [[4], [5]])


def test_a_packed_view_contains_its_arrays_and_cleaned_texts() -> None:
    arrays = {
        "flags": np.array([True, False]),
        "big": np.arange(6, dtype=">i2").reshape(2, 3),
        "long": np.array([1, 2**40]),
        "half": np.array([0.5], np.float16),
    }
    head = {"text": "x" * 1_000_000, "hostile": "</script>\x1b[2J", "bounds": [1.5, float("nan")]}
    view = View(widget="rows", title="t", head=head, arrays=arrays)
    packed = pack(view)
    length = int.from_bytes(packed[:4], "little")
    read = json.loads(packed[4 : 4 + length])
    assert len(read["text"]) == 201
    assert "\x1b" not in read["hostile"]
    assert read["bounds"] == [1.5, None]
    for name, values in arrays.items():
        about = read["arrays"][name]
        place = 4 + length + about["place"]
        assert place % 8 == 0
        sent = np.frombuffer(packed, about["dtype"], values.size, place).reshape(about["shape"])
        np.testing.assert_array_equal(sent, values)


def test_an_image_of_a_row_is_that_image(tmp_path: Path) -> None:
    image = np.zeros((1, 24, 24, 3), np.uint8)
    image[0, :12, :, 0] = 255  # red above
    image[0, 12:, :, 2] = 255  # blue below
    np.savez(tmp_path / "a.npz", picture=image)
    unistore.convert(tmp_path / "a.npz", tmp_path / "a.zarr", "rows")
    drawn = pixels(sample_picture(Store(tmp_path / "a.zarr"), 0))
    red, blue = (np.argwhere((drawn == colour).all(axis=2)) for colour in ([0, 0, 255], [255, 0, 0]))
    assert len(red) == pytest.approx(len(blue), rel=0.05)
    assert red[:, 0].max() < blue[:, 0].min()


@pytest.fixture
def rows(make_store: Any) -> Store:
    return Store(make_store("rows", {"rows/x": np.arange(40.0).reshape(10, 4)}, count=10))


def test_a_picture_is_drawn_whatever_the_names_of_columns(tmp_path: Path, make_store: Any) -> None:
    path = make_store("rows", {"rows/$_{$": np.ones((3, 5, 5)), "rows/名前": np.ones((3, 2))}, count=3)
    assert pixels(sample_picture(Store(path), 1)).std() > 8


def test_a_damaged_sample_is_named_beside_the_pictures_of_others(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.random.default_rng(0).random((6, 64, 64)))
    unistore.convert(tmp_path / "a.npy", tmp_path / "a.zarr", "rows", codec="none")
    shard = max((tmp_path / "a.zarr/rows").rglob("c/*/*/*"), key=lambda file: file.stat().st_size)
    flip(shard, 100, 255)
    shown = pictures_html(Store(tmp_path / "a.zarr"), [(0, "one"), (5, "two")])
    assert "one: no picture: " in shown
    assert "<img" in shown


def test_an_error_of_a_family_while_drawing_is_reported_and_escaped(
    rows: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise ZeroDivisionError("<b>oops</b>")

    monkeypatch.setattr("unistore.html.preview_of_store", lambda _: Preview(view=fails))
    with pytest.raises(StoreError, match="sample 0 cannot be drawn: ZeroDivisionError"):
        sample_picture(rows, 0)
    shown = pictures_html(rows, [(0, "one")])
    assert "&lt;b&gt;oops&lt;/b&gt;" in shown
    assert "<b>" not in shown


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples are chosen, and not drawn."""
    monkeypatch.setattr("unistore.html.sample_picture", lambda *_: b"picture")


@pytest.mark.usefixtures("undrawn")
def test_a_split_shows_its_own_samples(make_store: Any) -> None:
    path = make_store(
        "rows", {"rows/x": np.arange(9.0)}, count=9, splits={"train": range(4), "val": range(4, 9)}
    )
    shown = unistore.Dataset(path, split="val")._repr_html_()
    assert re.findall(r"<figcaption>sample (\d+)", shown) == ["4", "6", "8"]
