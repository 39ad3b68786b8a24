"""NIfTI as nibabel reads it, and placed as SimpleITK places it."""

from __future__ import annotations

import gzip
from pathlib import Path

import nibabel
import numpy as np
import pytest
import SimpleITK

from unistore.converters.formats.nifti import Nifti
from unistore.converters.opened import Metadata, SourceFile
from unistore.errors import InputError
from unistore.testing import check_format

REAL = Path(__file__).parents[2] / "data/samples/ct/totalseg_ct_cropped.nii.gz"
"""Real CT; the other files here are synthetic, or of nibabel's own tests."""
OF_NIBABEL = Path(nibabel.__file__).parent / "tests/data"
AFFINE = np.array([[0, -2.0, 0, 10], [1.5, 0, 0, -20], [0, 0, 3.0, 30], [0, 0, 0, 1]])
VOXELS = np.random.default_rng(0).integers(-1000, 1000, (4, 5, 6), np.int16)


def opened(path: Path) -> tuple[np.ndarray, Metadata]:
    with Nifti().open(SourceFile(path, path.name)) as file:
        return file.arrays["image"][:], file.metadata


def of_nibabel(path: Path) -> np.ndarray:
    return np.asanyarray(nibabel.load(path).dataobj).T


def assert_placed_as_by_itk(path: Path) -> None:
    _, metadata = opened(path)
    image = SimpleITK.ReadImage(str(path))
    np.testing.assert_allclose(metadata["spacing"], image.GetSpacing()[::-1], rtol=1e-6)
    np.testing.assert_allclose(metadata["origin"], image.GetOrigin()[::-1], atol=1e-5)
    np.testing.assert_allclose(metadata["direction"], image.GetDirection()[::-1], atol=1e-6)


@pytest.mark.parametrize(
    "path", [REAL, OF_NIBABEL / "anatomical.nii", OF_NIBABEL / "standard.nii.gz"], ids=lambda path: path.name
)
def test_real_files_have_the_voxels_of_nibabel_and_the_geometry_of_itk(path: Path) -> None:
    check_format(Nifti(), path, {"image": of_nibabel(path)})
    assert_placed_as_by_itk(path)


@pytest.mark.parametrize("dtype", ["u1", "i2", "u2", "i4", "u4", "i8", "f4", "f8", ">i2", ">f4"])
def test_voxels_keep_every_dtype_and_byte_order(tmp_path: Path, dtype: str) -> None:
    header = nibabel.Nifti1Header(endianness=">" if dtype[0] == ">" else "<")
    header.set_data_dtype(dtype)
    nibabel.save(nibabel.Nifti1Image(VOXELS.astype(dtype), AFFINE, header), tmp_path / "a.nii")
    voxels, _ = opened(tmp_path / "a.nii")
    assert voxels.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(voxels, VOXELS.T.astype(dtype))
    assert_placed_as_by_itk(tmp_path / "a.nii")


def scaled(path: Path, slope: float, intercept: float, dtype: str = "i2") -> None:
    header = nibabel.Nifti1Header()
    header.set_data_dtype(dtype)
    header.set_data_shape(VOXELS.shape)
    header.set_slope_inter(slope, intercept)
    header.set_sform(AFFINE, 1)
    header.set_data_offset(352)
    with path.open("wb") as file:
        header.write_to(file)
        file.write(VOXELS.astype(dtype).tobytes(order="F"))


@pytest.mark.parametrize(
    ("slope", "intercept", "dtype", "expected"),
    [
        (1, -1024, "i2", "i4"),
        (2, 0, "u1", "u2"),
        (0.5, 1, "i2", "f8"),
        (1 / 3, -0.1, "i2", "f8"),
        (2, 1, "f4", "f8"),
    ],
)
def test_whole_slopes_give_integers_and_fractions_give_floats(
    tmp_path: Path, slope: float, intercept: float, dtype: str, expected: str
) -> None:
    path = tmp_path / "a.nii"
    scaled(path, slope, intercept, dtype)
    voxels, metadata = opened(path)
    assert voxels.dtype == np.dtype(expected)
    np.testing.assert_array_equal(voxels, of_nibabel(path))
    assert (metadata["header"]["slope"], metadata["header"]["intercept"]) == pytest.approx((slope, intercept))


def test_the_geometry_is_from_sform_and_both_forms_are_kept(tmp_path: Path) -> None:
    image = nibabel.Nifti1Image(VOXELS, AFFINE)
    image.set_sform(AFFINE, 2)
    image.set_qform(np.diag([1.0, 1, 1, 1]), 1)
    nibabel.save(image, tmp_path / "a.nii.gz")
    with Nifti().open(SourceFile(tmp_path / "a.nii.gz", "a.nii.gz")) as file:
        assert file.forward_only
        assert "the place is from sform" in file.notes["image"]
        header = file.metadata["header"]
        assert file.metadata["spacing"] == [3.0, 2.0, 1.5]
        assert file.metadata["origin"] == [30.0, 20.0, -10.0]
    assert (header["sform_code"], header["qform_code"]) == (2, 1)
    assert header["sform"] == AFFINE.tolist()
    assert header["qform"] == np.eye(4).tolist()


def test_an_unplaced_file_has_a_spacing_alone(tmp_path: Path) -> None:
    image = nibabel.Nifti1Image(VOXELS, None)
    image.header.set_zooms((1, 2, 3))
    image.header.set_xyzt_units("micron")
    nibabel.save(image, tmp_path / "a.nii")
    _, metadata = opened(tmp_path / "a.nii")
    assert metadata["spacing"] == pytest.approx([3e-3, 2e-3, 1e-3])
    assert "origin" not in metadata
    assert "direction" not in metadata


def test_texts_that_may_name_a_patient_are_not_kept(tmp_path: Path) -> None:
    image = nibabel.Nifti1Image(VOXELS, AFFINE)
    for field in ("descrip", "aux_file", "db_name", "intent_name"):
        image.header[field] = b"DOE"
    nibabel.save(image, tmp_path / "a.nii")
    assert "DOE" not in str(opened(tmp_path / "a.nii")[1])


def test_axes_of_one_voxel_are_dropped_behind_the_third(tmp_path: Path) -> None:
    nibabel.save(nibabel.Nifti1Image(VOXELS[..., None], AFFINE), tmp_path / "a.nii")
    assert opened(tmp_path / "a.nii")[0].shape == (6, 5, 4)


def test_a_damaged_checksum_is_noticed(tmp_path: Path) -> None:
    nibabel.save(nibabel.Nifti1Image(VOXELS, AFFINE), tmp_path / "a.nii.gz")
    content = bytearray((tmp_path / "a.nii.gz").read_bytes())
    content[-8] ^= 1
    (tmp_path / "a.nii.gz").write_bytes(content)
    with pytest.raises(InputError, match="is damaged"):
        opened(tmp_path / "a.nii.gz")


def placed_at(path: Path, offset: int, *, removed: int = 0, added: int = 0, name: str = "a.nii") -> Path:
    """Write voxels behind the header, which places them at `offset`."""
    scaled(path / "whole.nii", 1, 0)
    content = bytearray((path / "whole.nii").read_bytes())
    content[108:112] = np.float32(offset).tobytes()
    del content[348 : 348 + removed]
    content += bytes(added)
    (path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    return path / name


@pytest.mark.parametrize(
    ("offset", "removed", "added"), [(348, 0, 0), (0, 0, 1), (0, 1, 0), (100, 0, 0), (0, 4, 9)]
)
@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
def test_voxels_inside_the_header_are_refused(
    tmp_path: Path, offset: int, removed: int, added: int, name: str
) -> None:
    """Neither the header nor the size says where they begin."""
    path = placed_at(tmp_path, offset, removed=removed, added=added, name=name)
    with pytest.raises(InputError, match=f"states that its voxels begin at byte {offset}, "):
        opened(path)


@pytest.mark.parametrize(("offset", "removed"), [(0, 0), (0, 4), (348, 4)])
@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
def test_voxels_without_a_valid_offset_are_read_from_the_end_of_the_file(
    tmp_path: Path, offset: int, removed: int, name: str
) -> None:
    """An offset of 0 is none. Other programs read them from bytes 0, 348 or 352 on."""
    path = placed_at(tmp_path, offset, removed=removed, name=name)
    with Nifti().open(SourceFile(path, path.name)) as file:
        np.testing.assert_array_equal(file.arrays["image"][:], VOXELS.T)
        assert (
            file.notes["image"] == f"vox_offset is {offset}, so voxels were read from byte {352 - removed} on"
        )


def test_voxels_of_nifti_2_without_an_offset_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.nii"
    nibabel.Nifti2Image(VOXELS, AFFINE).to_filename(path)
    content = bytearray(path.read_bytes())
    content[168:176] = bytes(8)  # vox_offset of nifti2.h
    path.write_bytes(content)
    np.testing.assert_array_equal(opened(path)[0], VOXELS.T)


@pytest.mark.nightly
def test_every_file_of_nibabel_has_its_values() -> None:
    read = 0
    for path in sorted(OF_NIBABEL.rglob("*.nii*")):
        try:
            image = nibabel.load(path)
        except Exception:  # damaged on purpose
            continue
        if isinstance(image, nibabel.Cifti2Image):  # matrices, whose axes nibabel gives in another order
            continue
        expected = np.asanyarray(image.dataobj).T
        voxels, _ = opened(path)
        np.testing.assert_array_equal(voxels.squeeze(), expected.squeeze(), err_msg=path.name)
        read += 1
    assert read >= 4


@pytest.mark.parametrize("extent", [-1, -(1 << 62), 1 << 40, 1 << 62, (1 << 63) - 1])
def test_an_impossible_extent_is_an_error(tmp_path: Path, extent: int) -> None:
    path = tmp_path / "a.nii"
    nibabel.Nifti2Image(VOXELS, AFFINE).to_filename(path)
    np.testing.assert_array_equal(opened(path)[0], of_nibabel(path))
    content = bytearray(path.read_bytes())
    content[24:32] = extent.to_bytes(8, "little", signed=True)  # dim[1] of nifti2.h
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"a\.nii: (its header states the shape|has [\d,]+ bytes of voxels)"):
        opened(path)


def test_a_spacing_of_zero_and_an_unknown_code_are_written_as_they_were(tmp_path: Path) -> None:
    """The affine is sound: pixdim 0 is no spacing of it, and a code says what an affine is of."""
    image = nibabel.Nifti1Image(VOXELS, AFFINE)
    image.set_qform(AFFINE, 1)
    nibabel.save(image, tmp_path / "whole.nii")
    content = bytearray((tmp_path / "whole.nii").read_bytes())
    content[80:92] = bytes(12)  # pixdim[1:4]
    content[252:256] = np.array([1, 99], "<i2").tobytes()  # qform_code, sform_code
    path = tmp_path / "a.nii"
    path.write_bytes(content)
    np.testing.assert_array_equal(opened(path)[0], VOXELS.T)
    assert opened(path)[1]["spacing"] == pytest.approx([3, 2, 1.5])
    with Nifti().open(SourceFile(path, path.name)) as file:
        Nifti().write(tmp_path / "b.nii", file.arrays, file.metadata)
    metadata = opened(tmp_path / "b.nii")[1]
    for name in ("spacing", "origin", "direction"):
        np.testing.assert_allclose(metadata[name], opened(path)[1][name])
    assert metadata["header"]["sform_code"] == 99


def test_a_half_turn_is_a_quaternion_of_length_one(tmp_path: Path) -> None:
    image = nibabel.Nifti1Image(VOXELS, AFFINE)
    image.set_sform(None, 0)
    image.set_qform(np.diag([-1.5, -2, 3, 1]), 1)
    nibabel.save(image, tmp_path / "a.nii")
    assert nibabel.load(tmp_path / "a.nii").header["quatern_d"] == 1
    with Nifti().open(SourceFile(tmp_path / "a.nii", "a.nii")) as file:
        assert "image" not in file.notes
    assert_placed_as_by_itk(tmp_path / "a.nii")


@pytest.mark.parametrize("length", [1.0000004, 1.07])
@pytest.mark.parametrize("sform_code", [0, 1])
def test_a_quaternion_longer_than_one_is_scaled_as_itk_does(
    tmp_path: Path, length: float, sform_code: int
) -> None:
    image = nibabel.Nifti1Image(VOXELS, AFFINE)
    turned = AFFINE.copy()
    turned[:3, :3] = np.array([[0, 1, 0], [1, 0, 0], [0, 0, -1]]) * [1.5, 2, 3]
    image.set_qform(turned, 1)
    image.set_sform(turned, sform_code)
    nibabel.save(image, tmp_path / "whole.nii")
    content = bytearray((tmp_path / "whole.nii").read_bytes())
    quaternion = np.frombuffer(content, "<f4", 3, 256) * np.float32(length)
    content[256:268] = quaternion.tobytes()
    path = tmp_path / "a.nii"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="w2 should be positive"):
        nibabel.load(path).get_qform()
    with Nifti().open(SourceFile(path, "a.nii")) as file:
        note = file.notes.get("image", "")
        assert ("quaternion of qform is longer than 1" in note) == (not sform_code)
        assert "differ" not in note
    assert_placed_as_by_itk(path)
    np.testing.assert_array_equal(opened(path)[0], VOXELS.T)


@pytest.mark.parametrize(
    ("place", "number", "message"),
    [
        (70, np.int16(1), "datatype 1,"),  # one bit a voxel
        (70, np.int16(9999), "datatype 9999,"),
        (70, np.int16(0), "datatype 0,"),
        (108, np.float32("nan"), "states the vox_offset nan"),
        (108, np.float32("inf"), "states the vox_offset inf"),
        (116, np.float32("nan"), "states the scl_slope 2 and the scl_inter nan"),
        (116, np.float32("-inf"), "states the scl_slope 2 and the scl_inter -inf"),
    ],
)
def test_a_number_of_the_header_that_means_nothing_is_named(
    tmp_path: Path, place: int, number: np.generic, message: str
) -> None:
    scaled(tmp_path / "a.nii", 2, 1)
    content = bytearray((tmp_path / "a.nii").read_bytes())
    content[place : place + number.nbytes] = number.tobytes()
    (tmp_path / "a.nii").write_bytes(content)
    with pytest.raises(InputError, match=rf"a\.nii: .*{message}"):
        opened(tmp_path / "a.nii")
