"""Pictures of samples of every case: nothing blank, nothing of the user's matplotlib touched, errors told."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import unistore
from tests.cases import REAL
from unistore.converters.preview import Preview, preview_of
from unistore.errors import StoreError
from unistore.pictures import pictures_html, sample_picture
from unistore.store.reader import Store

pytest.importorskip("matplotlib", reason="matplotlib draws the pictures: pip install 'unistore[plot]'")


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
    inner = image[image.shape[0] // 6 :, :]  # below the title
    assert inner.std() > 8, "blank"
    assert 900 < image.shape[1] < 1300
    assert 200 < image.shape[0] < 1500


def test_voxels_labels_and_axes_are_where_they_belong(tmp_path: Path) -> None:
    """The middle slice of a volume with a bright corner: bright there, and nowhere else."""
    volume = np.zeros((20, 30, 40), np.int16)
    volume[:, :15, :20] = 1000
    np.save(tmp_path / "a.npy", volume)
    unistore.convert(tmp_path / "a.npy", tmp_path / "a.zarr", "ct")
    image = pixels(sample_picture(Store(tmp_path / "a.zarr"), 0))[:, :, 0]
    dark = np.flatnonzero((image < 60).mean(axis=0) > 0.3)  # columns of pixels that cross the dark half
    first = image[:, dark[0] : dark[0] + 1]
    assert len(dark) > 100
    assert (first > 200).any()


@pytest.mark.parametrize(
    ("options", "planes", "size"),
    [
        ({}, ["", "", ""], "spacing unknown"),
        ({"info_order": "xyz"}, [", sagittal", ", coronal", ", axial"], "3 × 0.7 × 0.6 mm"),
    ],
)
def test_planes_are_named_only_where_a_direction_says_so(
    tmp_path: Path, options: dict[str, str], planes: list[str], size: str
) -> None:
    from matplotlib.figure import Figure

    (tmp_path / "in" / "case").mkdir(parents=True)
    np.save(tmp_path / "in" / "case" / "ct_original.npy", np.arange(120, dtype="i2").reshape(4, 5, 6))
    info = {"spacing": [0.6, 0.7, 3], "direction": [0, 0, 1, 0, 1, 0, -1, 0, 0]}
    (tmp_path / "in" / "case" / "info.json").write_text(json.dumps(info))
    unistore.convert(tmp_path / "in", tmp_path / "a.zarr", "ct", **options)
    store, figure = Store(tmp_path / "a.zarr"), Figure()
    preview_of(store).draw(store, 0, figure)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == [
        f"axis {axis} of 3{plane}: plane {extent // 2} of {extent}"
        for axis, (plane, extent) in enumerate(zip(planes, (4, 5, 6), strict=True))
    ]
    assert size in figure.get_suptitle()


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


def test_names_of_columns_are_no_formulas(tmp_path: Path, make_store: Any) -> None:
    path = make_store("rows", {"rows/$_{$": np.ones((3, 5, 5)), "rows/名前": np.ones((3, 2))}, count=3)
    assert pixels(sample_picture(Store(path), 1)).std() > 8


def test_what_is_damaged_is_said_beside_what_is_not(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.random.default_rng(0).random((6, 64, 64)))
    unistore.convert(tmp_path / "a.npy", tmp_path / "a.zarr", "rows", codec="none")
    shard = max((tmp_path / "a.zarr/rows").rglob("c/*/*/*"), key=lambda file: file.stat().st_size)
    data = bytearray(shard.read_bytes())
    data[100] ^= 255
    shard.write_bytes(data)
    shown = pictures_html(Store(tmp_path / "a.zarr"), [(0, "one"), (5, "two")])
    assert "one: no picture: " in shown
    assert "<img" in shown


@pytest.mark.parametrize("late", [False, True], ids=["drawing", "writing"])
def test_a_family_may_fail_in_any_way(rows: Store, monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    def fails(*_: Any) -> None:
        raise ZeroDivisionError("<b>oops</b>")

    def fails_late(_store: Any, _sample: int, figure: Any) -> None:
        figure.subplots().draw = fails

    preview = Preview(draw=fails_late if late else fails)
    monkeypatch.setattr("unistore.converters.rows.export.PREVIEW", preview)
    with pytest.raises(StoreError, match="sample 0 cannot be drawn: ZeroDivisionError"):
        sample_picture(rows, 0)
    shown = pictures_html(rows, [(0, "one")])
    assert "&lt;b&gt;oops&lt;/b&gt;" in shown
    assert "<b>" not in shown


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples are chosen, and not drawn."""
    monkeypatch.setattr("unistore.pictures.sample_picture", lambda *_: b"picture")


@pytest.mark.usefixtures("undrawn")
def test_a_split_shows_its_own_samples(make_store: Any) -> None:
    path = make_store(
        "rows", {"rows/x": np.arange(9.0)}, count=9, splits={"train": range(4), "val": range(4, 9)}
    )
    shown = unistore.Dataset(path, split="val")._repr_html_()
    assert re.findall(r"<figcaption>sample (\d+)", shown) == ["4", "6", "8"]
