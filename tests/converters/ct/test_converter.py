from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.cases import DATA
from tests.support.converter_contract import check_contract, convert_in_memory
from tests.support.family_converters import ct as ct_converter
from tests.support.real_ct import LUNG, VOLUME, write_lung, write_volume
from unistore.converters.ct import slabs as ct_points
from unistore.converters.families import specs_of
from unistore.converters.registry import get_family
from unistore.converters.source_scan import scan_sources
from unistore.errors import InputError
from unistore.schemas.array_specs import ArrayInfo
from unistore.schemas.ct.windows import PRESETS
from unistore.schemas.tables import text_values

COUNTS = {"lung": 2031283, "bone": 1602770, "soft_tissue": 1226157, "brain": 441639}


@pytest.fixture(scope="module")
def ct_samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the real CT files: NIfTI, DICOM, and the volume and a mask of its lung window as .npy."""
    folder = tmp_path_factory.mktemp("ct_samples")
    for path in (DATA / "samples" / "ct").iterdir():
        shutil.copy(path, folder)
    write_lung(folder, write_volume(folder))
    return folder


def ct_like(shape: tuple[int, int, int], seed: int = 0) -> np.ndarray:
    """Synthetic HU: a body with lungs, bones, and air around it."""
    grid = np.meshgrid(*(np.linspace(-1, 1, n) for n in shape), indexing="ij")
    radius = np.sqrt(sum(axis**2 for axis in grid))
    hu = np.where(radius > 0.9, -1000, np.where(radius < 0.4, -750, 40))
    return (hu + np.random.default_rng(seed).normal(0, 60, shape)).astype(np.int16)


def inside(image: np.ndarray, name: str) -> np.ndarray:
    window = PRESETS[name]
    return (image >= window.level - window.width / 2) & (image <= window.level + window.width / 2)


def text(converted: Any, path: str) -> list[str]:
    return text_values(converted.arrays[f"{path}/data"], converted.arrays[f"{path}/offsets"])


def unpacked(converted: Any, path: str) -> np.ndarray:
    width = int(converted.arrays["volumes/extent"][:, 2].max())
    return np.unpackbits(converted.arrays[path], axis=-1, count=width, bitorder="little").astype(bool)


def padded(volumes: list[np.ndarray], dtype: str) -> np.ndarray:
    shape = np.max([volume.shape for volume in volumes], axis=0)
    whole = np.zeros((len(volumes), *shape), dtype)
    for row, volume in zip(whole, volumes, strict=True):
        row[tuple(slice(n) for n in volume.shape)] = volume
    return whole


def make_case(folder: Path, image: np.ndarray | None, resolution: int = 512, **info: Any) -> Path:
    (folder / "windows").mkdir(parents=True)
    (folder / "masks").mkdir()
    if image is not None:
        np.save(folder / f"ct_original_{resolution}.npy", image)
    (folder / "info.json").write_text(json.dumps({"case": folder.name, **info}))
    return folder


def assert_valid(converted: Any) -> None:
    infos = {
        path: ArrayInfo(values.shape, str(values.dtype))
        for path, values in converted.arrays.items()
        if not path.startswith("sources/")  # the runner adds the others
    }
    assert specs_of(get_family("ct")).problems(infos, converted.finalized.samples) == []


@pytest.mark.parametrize("sparse", ["auto", "coords", "mask"])
def test_windows_of_a_real_volume_equal_the_thresholded_image_in_every_form(
    ct_samples: Path, sparse: str
) -> None:
    image = np.load(ct_samples / VOLUME)
    converter = ct_converter(window=("lung", "bone", "soft_tissue", "brain", "dense:100:1200"), sparse=sparse)
    converted = convert_in_memory(converter, [ct_samples / VOLUME])
    np.testing.assert_array_equal(converted.arrays["volumes/image"][0], image)
    for name, count in COUNTS.items():
        np.testing.assert_array_equal(converted.arrays[f"windows/{name}/offsets"], [0, count])
        expected = inside(image, name)
        if sparse == "coords":
            points = np.argwhere(expected)
            np.testing.assert_array_equal(converted.arrays[f"windows/{name}/coords"], points)
            np.testing.assert_array_equal(converted.arrays[f"windows/{name}/values"], image[tuple(points.T)])
        else:
            np.testing.assert_array_equal(unpacked(converted, f"windows/{name}/mask")[0], expected)
    dense = converted.finalized.groups["windows/dense"]
    assert dense["encoding"] == {"auto": "coords", "coords": "coords", "mask": "mask"}[sparse]
    assert (dense["width"], dense["level"], dense["low"], dense["high"]) == (100, 1200, 1150, 1250)
    assert_valid(converted)


def test_a_real_window_file_is_read_as_a_window_of_its_volume(ct_samples: Path) -> None:
    converted = convert_in_memory(ct_converter(), [ct_samples])
    assert len(converted.scan.sources) == 3, "the window's volume, one in NIfTI, a slice in DICOM"
    assert converted.finalized.groups["windows/lung"]["low"] == -1350
    lung = np.load(ct_samples / LUNG)
    stored = unpacked(converted, "windows/lung/mask")[0]
    np.testing.assert_array_equal(stored[tuple(map(slice, lung.shape))], lung == 1)
    notes = "\n".join(converted.scan.notes)
    assert f"{LUNG}: read as windows of {VOLUME}" in notes


def test_volumes_of_several_dtypes_orders_and_extents_are_stored_padded(tmp_path: Path) -> None:
    base = ct_like((9, 10, 11))
    arrays = {
        "a_fortran.npy": np.asfortranarray(base),
        "b_big.npy": base.astype(">i2")[:, :5],
        "c_int32.npy": base.astype("<i4")[:4],
        "d_byte.npy": (base > 0).astype("u1") * 200,
        "e_half.npy": np.asfortranarray(base[:, :, :3].astype("<f2")),
        "vol10.npy": base[:2],
        "vol9.npy": base[:3],
    }
    for name, array in arrays.items():
        np.save(tmp_path / name, array)
    order = ["a_fortran", "b_big", "c_int32", "d_byte", "e_half", "vol9", "vol10"]
    images = [arrays[f"{name}.npy"] for name in order]
    converted = check_contract(
        ct_converter(window=("lung",), sparse="coords", tile=(4, 4, 4), values="hu"),
        [tmp_path],
        {
            "volumes/image": padded(images, "float64"),
            "windows/lung/coords": np.concatenate([np.argwhere(inside(i, "lung")) for i in images]).astype(
                "u2"
            ),
        },
    )
    assert text(converted, "volumes/name") == order
    assert text(converted, "volumes/source_dtype") == ["<i2", ">i2", "<i4", "|u1", "<f2", "<i2", "<i2"]
    assert converted.fields["volumes/image"].tile == (4, 4, 4)
    assert_valid(converted)


def test_case_folders_are_stored_with_windows_masks_and_geometry(tmp_path: Path) -> None:
    root = tmp_path / "dataset"
    images = [ct_like((8, 9, 10), 1), ct_like((6, 9, 17), 2)]
    processed = root / "processed"
    (root).mkdir()
    (root / "metadata.csv").write_text("case,split\n")
    geometry = {
        "spacing": [0.7, 0.7, 1.5],
        "direction": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
        "origin": "unknown",
    }
    cases = [
        make_case(processed / "case_2", images[0], **geometry),
        make_case(processed / "case_10", images[1]),
    ]
    for case, image in zip(cases, images, strict=True):
        np.save(case / "windows" / "lung_w1500_l-600.npy", inside(image, "lung").astype("u1"))
    np.savez_compressed(
        cases[0] / "windows" / "lung_w1500_l-600_sparse.npz",
        indices=np.argwhere(inside(images[0], "lung")).astype("i2"),
        values=np.ones(inside(images[0], "lung").sum(), "f2"),
    )
    sdf_index = np.array([[5, 1, 2], [0, 0, 0], [7, 8, 9]], "i4")
    sdf = np.array([[0.5], [-1.25], [3.0]], "f4")
    np.savez(cases[0] / "windows" / "bone.npz", sparse_sdf=sdf, sparse_index=sdf_index, resolution=512)
    np.save(cases[0] / "masks" / "3_binary.npy", (images[0] > 100).astype("u1"))
    np.save(cases[1] / "masks" / "case_10_binary.npy", images[1] > 0)
    converted = check_contract(
        ct_converter(window=("brain",), info_order="zyx"),
        [root],
        {
            "volumes/image": padded(images, "int16"),
            "sdf/bone/coords": sdf_index.astype("u2"),
            "sdf/bone/values": sdf[:, 0],
            "sdf/bone/offsets": np.array([0, 3, 3]),
            "sdf/bone/present": np.array([True, False]),
            "sdf/bone/resolution": np.array([512, 0], "i4"),
            "masks/3/present": np.array([True, False]),
            "masks/binary/present": np.array([False, True]),
        },
    )
    assert "windows/lung/present" not in converted.arrays
    assert text(converted, "volumes/name") == ["case_2", "case_10"]
    for name in ("lung", "brain"):
        np.testing.assert_array_equal(
            unpacked(converted, f"windows/{name}/mask"),
            padded([inside(image, name) for image in images], "bool"),
        )
    np.testing.assert_array_equal(
        unpacked(converted, "masks/3/mask"), padded([images[0] > 100, np.zeros((1, 1, 17))], "bool")
    )
    np.testing.assert_array_equal(converted.arrays["volumes/spacing"], [[0.7, 0.7, 1.5], [np.nan] * 3])
    np.testing.assert_array_equal(converted.arrays["volumes/direction"][0], np.eye(3).ravel())
    assert "volumes/origin" not in converted.arrays
    for name in ("spacing", "direction"):
        assert converted.fields[f"volumes/{name}"].attributes["frame"] == "LPS"
    assert json.loads(text(converted, "volumes/info")[1]) == {"case": "case_10"}
    notes = "\n".join(converted.scan.notes)
    assert "windows brain:80:35, lung:1500:-600: stored as" in notes
    assert "masks/3: 1 of 2 volumes do not have it" in notes
    assert "not needed for the source that it belongs to: lung_w1500_l-600_sparse.npz" in notes
    assert "metadata.csv" in notes
    assert_valid(converted)


def test_resolution_selects_one_of_several_volumes_of_a_case(tmp_path: Path) -> None:
    image = ct_like((5, 6, 7))
    case = make_case(tmp_path / "case", image, 512)
    np.save(case / "ct_original_1024.npy", image.repeat(2, 0))
    converted = convert_in_memory(ct_converter(resolution=1024), [case])
    assert converted.arrays["volumes/extent"].tolist() == [[10, 6, 7]]
    with pytest.raises(InputError, match=r"ct_original_512.npy, ct_original_1024.npy, but one is needed"):
        scan_sources(ct_converter(), [case])
    with pytest.raises(InputError, match="--resolution 256 is not one of them"):
        scan_sources(ct_converter(resolution=256), [case])


def test_sparse_files_without_volumes_are_stored_as_points(tmp_path: Path) -> None:
    points = [np.array([[0, 1, 2], [0, 1, 3], [4, 0, 0]], "i2"), np.array([[3, 3, 3], [1, 2, 2]], "i2")]
    values = [np.array([0.5, 0.25, 1], "f2"), np.array([2, 3], "f2")]
    for number, (index, value) in enumerate(zip(points, values, strict=True)):
        folder = tmp_path / f"case_{number}" / "windows"
        folder.mkdir(parents=True)
        np.savez_compressed(folder / "lung_w1500_l-600_sparse.npz", indices=index, values=value)
    converted = check_contract(
        ct_converter(),
        [tmp_path],
        {
            "windows/lung/coords": np.array([[0, 1, 2], [0, 1, 3], [4, 0, 0], [1, 2, 2], [3, 3, 3]], "u2"),
            "windows/lung/values": np.array([0.5, 0.25, 1, 3, 2], "f2"),
            "windows/lung/offsets": np.array([0, 3, 5]),
            "volumes/extent": np.array([[5, 2, 4], [4, 4, 4]], "i4"),
        },
    )
    assert "volumes/image" not in converted.arrays
    with pytest.raises(InputError, match="which a mask cannot store"):
        scan_sources(ct_converter(sparse="mask"), [tmp_path])


def test_auto_takes_the_smaller_form(tmp_path: Path) -> None:
    image = np.zeros((8, 16, 64), "i2")  # as bits: 8 * 16 * 8 = 1024 bytes; a point: 3 * 2 + 2 = 8 bytes
    image.reshape(-1)[:127] = 1000
    image.reshape(-1)[200:328] = 2000
    np.save(tmp_path / "ct.npy", image)
    converted = convert_in_memory(
        ct_converter(window=("few:10:1000", "many:10:2000", "none:10:500")), [tmp_path]
    )
    windows = {name: group for name, group in converted.finalized.groups.items() if name != "volumes"}
    encoding = {name: group["encoding"] for name, group in windows.items()}
    assert encoding == {"windows/few": "coords", "windows/many": "mask", "windows/none": "coords"}
    assert converted.arrays["windows/none/coords"].shape == (0, 3)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
def test_distance_fields_are_read_in_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: Callable[..., None], order: str
) -> None:
    monkeypatch.setattr(ct_points, "BLOCK", 7)
    rng = np.random.default_rng(0)
    index = np.asarray(rng.integers(0, 64, (50, 3)), "i4", order=order)
    values = rng.normal(size=(50, 1)).astype("f4")
    (tmp_path / "case/windows").mkdir(parents=True)
    save(tmp_path / "case/windows/far.npz", sparse_index=index, sparse_sdf=values)
    oracle = {"sdf/far/coords": index, "sdf/far/values": values[:, 0]}
    oracle["volumes/extent"] = (index.max(axis=0) + 1).astype("i4")[None]
    check_contract(ct_converter(), [tmp_path], oracle)
    index[44, 1] = -3
    save(tmp_path / "case/windows/far.npz", sparse_index=index, sparse_sdf=values)
    scan = scan_sources(ct_converter(), [tmp_path])
    with pytest.raises(InputError, match=r"1 point outside .* the first is row 44: "):
        ct_converter().derive(scan, 0, lambda *_: None, None)
