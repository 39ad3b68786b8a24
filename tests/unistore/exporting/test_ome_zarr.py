"""CT volumes as OME-NGFF 0.5: valid by ome-zarr-models, values by zarr-python."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray
from ome_zarr_models.v05 import Image

import unistore
from unistore.converters.common.exported import ExportedArray, File
from unistore.errors import ConversionError, InputError, StoreError
from unistore.exporting.run import write
from unistore.zarr3.writer import pad_chunk

MM = {"type": "space", "unit": "millimeter"}
IDENTITY = [1, 0, 0, 0, 1, 0, 0, 0, 1]
INFOS: dict[str, dict[str, Any]] = {
    "straight": {"spacing": [0.6, 0.7, 2.5], "origin": [1, 2, 3], "direction": IDENTITY},
    "undirected": {"spacing": [0.6, 0.7, 2.5], "origin": [1, 2, 3]},
    "turned": {"spacing": [1, 1, 1], "origin": [4, 5, 6], "direction": [-1, *IDENTITY[1:]]},
    "wrong": {"spacing": [1, 0, 1], "origin": [4, 5, 6]},
    "silent": {},
}


@dataclass
class Scans:
    store: Path
    export: Path
    done: unistore.Exported
    images: dict[str, NDArray[Any]]
    labels: dict[str, dict[str, NDArray[Any]]]

    def image(self, name: str) -> zarr.Group:
        return zarr.open_group(self.export / f"{name}.ome.zarr", mode="r")


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> Scans:
    """Ragged volumes of three dtypes; classes, masks of 0 and 1 and a window, some of them not everywhere."""
    folder = tmp_path_factory.mktemp("scans")
    rng = np.random.default_rng(0)
    images, labels = {}, {}
    for number, (name, info) in enumerate(INFOS.items()):
        extent = (70 + number, 5 + number, 9)
        image = rng.integers(-1500, 1500, extent).astype([">i2", "<i4", "<f4"][number % 3])
        found = {"organs": rng.integers(0, 5, extent).astype(np.int16)}
        if number != 1:
            found["tumour"] = rng.integers(0, 2, extent).astype(bool)
        case = folder / "sources" / name
        (case / "labels").mkdir(parents=True)
        np.save(case / "ct_original.npy", image)
        for label, values in found.items():
            np.save(case / "labels" / f"{label}.npy", values)
        if info:
            (case / "info.json").write_text(json.dumps(info))
        images[name] = image
        labels[name] = {**found, "lung": (image >= -1350) & (image <= 150)}
    unistore.convert(folder / "sources", folder / "store.zarr", family="ct", window="lung", info_order="xyz")
    done = unistore.export(folder / "store.zarr", folder / "export", to="ome-zarr")
    return Scans(folder / "store.zarr", folder / "export", done, images, labels)


def test_every_volume_is_a_valid_image_with_its_values(scans: Scans) -> None:
    assert {path.name for path in scans.export.iterdir()} == {f"{name}.ome.zarr" for name in INFOS}
    for name, expected in scans.images.items():
        group = scans.image(name)
        model = Image.from_zarr(group)
        assert model.attributes.ome.version == "0.5"
        assert model.labels is not None
        assert sorted(model.labels.attributes.ome.labels) == sorted(scans.labels[name])
        assert group["0"].dtype == expected.dtype.newbyteorder("=")
        assert group["0"].metadata.dimension_names == ("z", "y", "x")
        np.testing.assert_array_equal(group["0"][:], expected)
        for label, values in scans.labels[name].items():
            found = group[f"labels/{label}/0"]
            assert found.dtype.kind in "ui"
            np.testing.assert_array_equal(found[:], values)
            about = group[f"labels/{label}"].attrs["ome"]
            assert about["image-label"]["source"] == {"image": "../../"}
            assert about["multiscales"] == group.attrs["ome"]["multiscales"]
    lung = scans.image("silent")["labels/lung"].attrs["ome"]["image-label"]
    assert lung["properties"] == [{"label-value": 1, "width": 1500.0, "level": -600.0}]


@pytest.mark.parametrize(
    ("name", "scale", "translation"),
    [
        ("straight", [2.5, 0.7, 0.6], [3, 2, 1]),
        ("undirected", [2.5, 0.7, 0.6], None),
        ("turned", [1, 1, 1], None),
        ("wrong", None, None),
        ("silent", None, None),
    ],
)
def test_scale_and_translation_follow_from_the_geometry_of_the_volume(
    scans: Scans, name: str, scale: list[float] | None, translation: list[float] | None
) -> None:
    attributes = scans.image(name).attrs
    (multiscale,) = attributes["ome"]["multiscales"]
    known = MM if scale else {"type": "space"}
    assert multiscale["axes"] == [{"name": axis, **known} for axis in "zyx"]
    expected: list[dict[str, Any]] = [{"type": "scale", "scale": scale or [1, 1, 1]}]
    if translation:
        expected.append({"type": "translation", "translation": translation})
    assert multiscale["datasets"] == [{"path": "0", "coordinateTransformations": expected}]
    about = attributes["unistore"]
    assert about["frame"] == "LPS"
    assert about["source"] == name
    assert json.loads(about.get("info", "{}")) == INFOS[name]
    assert about["spacing"] == scale
    for key in ("origin", "direction"):
        numbers = INFOS[name].get(key)
        assert about[key] == (numbers and numbers[::-1])


def test_distance_fields_are_said_to_be_left_out(make_case: Callable[..., Any], tmp_path: Path) -> None:
    _, store = make_case("ct_cases")
    done = unistore.export(store, tmp_path / "out", to="ome-zarr")
    assert done.notes[0].startswith("distance fields are not written")
    Image.from_zarr(zarr.open_group(tmp_path / "out" / "train" / "case_0.ome.zarr", mode="r"))


@pytest.mark.parametrize("dtype", ["u1", "<i2", "<f8", "?"])
def test_blocks_that_do_not_fit_chunks_are_written_unchanged(tmp_path: Path, dtype: str) -> None:
    whole = np.random.default_rng(0).integers(0, 2, (150, 3, 70)).astype(dtype)
    values = ExportedArray(
        whole.shape, whole.dtype, lambda: (whole[lo : lo + 50] for lo in range(0, 150, 50))
    )
    attributes = {"": {}, "deep": {"a": 1}}
    write(
        File(
            name="g",
            form="zarr",
            source=0,
            values={"deep/x": values},
            attributes=attributes,
            axes=tuple("zyx"),
        ),
        tmp_path / "g",
    )
    np.testing.assert_array_equal(zarr.open_group(tmp_path / "g", mode="r")["deep/x"][:], whole)
    outside = File(name="g", form="zarr", source=0, values={"../x": values})
    with pytest.raises(StoreError, match="cannot be written"):
        write(outside, tmp_path / "h")
    assert [path.name for path in tmp_path.iterdir()] == ["g"]


def test_a_full_disk_leaves_nothing(scans: Scans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []

    def failing(chunk: Any, blank: Any) -> Any:
        written.append(chunk)
        if len(written) == 9:
            raise OSError(28, "No space left on device")
        return pad_chunk(chunk, blank)

    monkeypatch.setattr("unistore.exporting.run.pad_chunk", failing)
    with pytest.raises(ConversionError, match=r"No space left on device. Fix: free space there"):
        unistore.export(scans.store, tmp_path / "out", to="ome-zarr")
    assert len(written) == 9
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../out", "/tmp/out", "a/../../b"])
def test_a_store_cannot_name_images_outside(scans: Scans, tmp_path: Path, forge: Any, name: str) -> None:
    import shutil

    store = tmp_path / "store.zarr"
    shutil.copytree(scans.store, store)
    names = unistore.Store(store).text("volumes/name")
    room = len("".join(names))
    hostile = (name + "x" * room)[:room].encode()
    forge(store, {"volumes/name/data": np.frombuffer(hostile, np.uint8)})
    with pytest.raises(StoreError, match="cannot be written"):
        unistore.export(store, tmp_path / "out", to="ome-zarr")
    assert [path.name for path in tmp_path.iterdir()] == ["store.zarr"]


def test_a_store_that_cannot_be_exported_in_a_format_is_an_error(
    make_case: Callable[..., Any], tmp_path: Path
) -> None:
    for name, to, why in (
        ("rows_real", "ome-zarr", "rows stores cannot be exported as 'ome-zarr'.*remove --to"),
        ("ct_cases", "dicom", "cannot be exported as 'dicom'.*--to ome-zarr"),
        ("ct_sparse", "ome-zarr", "volume 'case_0' cannot be exported as an image"),
    ):
        with pytest.raises(InputError, match=why):
            unistore.export(make_case(name)[1], tmp_path / "out", to=to)
    assert list(tmp_path.iterdir()) == []
