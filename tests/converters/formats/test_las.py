"""LAS and LAZ: against the records that NumPy reads, and files that laspy wrote (synthetic)."""

from __future__ import annotations

import shutil
from pathlib import Path

import laspy
import numpy as np
import pytest
from laspy.vlrs.known import WktCoordinateSystemVlr
from laspy.vlrs.vlrlist import VLRList

import unistore
from unistore import export, verify
from unistore.conversion.signatures import convert
from unistore.converters.adapter.formats import calling
from unistore.converters.formats.las import Las, Laz
from unistore.converters.opened import SourceFile
from unistore.errors import InputError
from unistore.testing import check_format

REAL = Path(__file__).resolve().parents[2] / "data/pointcloud/pdal_extrabytes.las"
RECORD = np.dtype(
    [
        *[(axis, "<i4") for axis in "XYZ"],
        ("intensity", "<u2"),
        ("flags", "u1"),
        ("classes", "u1"),
        ("scan_angle_rank", "i1"),
        ("user_data", "u1"),
        ("point_source_id", "<u2"),
        ("gps_time", "<f8"),
        *[(colour, "<u2") for colour in ("red", "green", "blue")],
        ("Colors", "<u2", 3),
        ("Reserved", "u1", 7),
        ("Flags", "i1", 2),
        ("Intensity", "<u4"),
        ("Time", "<u8"),
    ]
)
"""Point format 3 of ASPRS LAS 1.4 R15, table 10, and the extra bytes of the file."""
BITS = {
    "return_number": ("flags", 0, 7),
    "number_of_returns": ("flags", 3, 7),
    "scan_direction_flag": ("flags", 6, 1),
    "edge_of_flight_line": ("flags", 7, 1),
    "classification": ("classes", 0, 31),
    "synthetic": ("classes", 5, 1),
    "key_point": ("classes", 6, 1),
    "withheld": ("classes", 7, 1),
}


def real_arrays() -> dict[str, np.ndarray]:
    """The real file as NumPy reads it; its scale is 0.01, its offset 0."""
    start = int.from_bytes(REAL.read_bytes()[96:100], "little")
    records = np.fromfile(REAL, RECORD, offset=start)
    arrays = {axis.lower(): records[axis] * 0.01 + 0.0 for axis in "XYZ"}
    arrays |= {name: records[packed] >> shift & mask for name, (packed, shift, mask) in BITS.items()}
    names = [name for name in RECORD.names or () if name not in ("X", "Y", "Z", "flags", "classes")]
    return arrays | {name: records[name] for name in names}


def write(path: Path, count: int = 700, *, wkt: str = "", extended: bool = False) -> laspy.LasData:
    """Write a file of version 1.4 with scaled extra bytes of two values; synthetic."""
    random = np.random.default_rng(5)
    header = laspy.LasHeader(version="1.4", point_format=7)
    header.scales, header.offsets = [0.001, 0.001, 0.0005], [4e5, 5.2e6, -20]
    header.add_extra_dim(laspy.ExtraBytesParams("height", "2int16", scales=[0.1, 0.1], offsets=[5, 5]))
    cloud = laspy.LasData(header)
    for axis in "XYZ":
        cloud[axis] = random.integers(-(1 << 31), 1 << 31, count)
    cloud["height"] = random.integers(-99, 99, (count, 2)) * 0.1 + 5
    cloud["return_number"] = random.integers(0, 16, count)
    cloud["overlap"] = random.integers(0, 2, count)
    cloud["classification"] = random.integers(0, 256, count)
    cloud["gps_time"] = random.normal(1e8, 5, count)
    if wkt and extended:
        cloud.evlrs = VLRList([WktCoordinateSystemVlr(wkt)])
    elif wkt:
        cloud.header.vlrs.append(WktCoordinateSystemVlr(wkt))
    cloud.write(path)
    return laspy.read(path)


def read(path: Path) -> dict[str, np.ndarray]:
    cloud = laspy.read(path)
    names = [name for name in cloud.point_format.dimension_names if name not in ("X", "Y", "Z")]
    return {axis: np.asarray(cloud[axis]) for axis in ("x", "y", "z")} | {
        name: np.asarray(cloud[name]) for name in names
    }


def test_a_folder_of_tiles_becomes_a_store_and_files_again(tmp_path: Path) -> None:
    """Tiles of other scales and offsets keep their own."""
    folder = tmp_path / "tiles"
    folder.mkdir()
    shutil.copy(REAL, folder / "a.las")
    write(folder / "b.laz", 900)
    write(folder / "c.las", 800)
    convert(folder, tmp_path / "store", columns="union")
    receipt = verify(tmp_path / "store", against=[folder]).receipt
    assert receipt is not None
    assert (receipt.files, receipt.left_out) == (3, ())
    stored = unistore.open_zarr(tmp_path / "store")
    assert stored["points/xyz"].dtype == np.int32
    assert stored["sources/scale"][...].tolist() == [[0.01] * 3, *[[0.001, 0.001, 0.0005]] * 2]
    exact = unistore.Segments(coordinates="absolute")
    samples = unistore.Dataset(tmp_path / "store", exact, fields=["xyz", "return_number"])
    for name, sample in zip(("a.las", "b.laz", "c.las"), samples, strict=True):
        oracle = read(folder / name)
        xyz = np.stack([oracle[axis] for axis in "xyz"], axis=1)
        assert np.asarray(sample["xyz"]).tobytes() == xyz.tobytes()
        np.testing.assert_array_equal(sample["return_number"], oracle["return_number"])
    export(tmp_path / "store", tmp_path / "again")
    for name in ("a.las", "c.las"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()
    again, before = read(tmp_path / "again/b.laz"), read(folder / "b.laz")
    assert {name: values.tobytes() for name, values in again.items()} == {
        name: values.tobytes() for name, values in before.items()
    }


def opened_metadata(path: Path) -> dict[str, object]:
    form = Laz() if path.suffix == ".laz" else Las()
    with form.open(SourceFile(path, path.name)) as opened:
        return dict(opened.metadata)


def test_a_real_file_is_as_numpy_reads_it() -> None:
    check_format(Las(), REAL, real_arrays())


@pytest.mark.parametrize(
    ("name", "form", "extended"),
    [("a.las", Las(), False), ("a.las", Las(), True), ("a.laz", Laz(), True), ("a.copc.laz", Laz(), False)],
)
def test_extra_bytes_flags_and_extended_records_are_read_in_every_form(
    tmp_path: Path, name: str, form: Las, extended: bool
) -> None:
    write(tmp_path / name, wkt='PROJCS["UTM 10"]', extended=extended)
    oracle = read(tmp_path / name)
    assert oracle["height"].shape == (700, 2)
    assert {"return_number", "scanner_channel", "overlap"} <= oracle.keys()
    check_format(form, tmp_path / name, oracle)
    metadata = opened_metadata(tmp_path / name)
    assert metadata["crs"] == 'PROJCS["UTM 10"]'
    assert (metadata["scale"], metadata["offset"]) == ([0.001, 0.001, 0.0005], [4e5, 5.2e6, -20.0])


def test_geotiff_keys_become_the_epsg_codes_of_the_coordinate_system(tmp_path: Path) -> None:
    cloud = write(tmp_path / "a.las", 9)
    keys = np.array([1, 1, 0, 2, 3072, 0, 1, 26910, 4096, 0, 1, 5703], "<u2")
    cloud.header.vlrs.append(laspy.VLR("LASF_Projection", 34735, "", keys.tobytes()))
    cloud.write(tmp_path / "a.las")
    assert opened_metadata(tmp_path / "a.las")["crs"] == "EPSG:26910+5703"


def test_a_las_file_is_written_byte_by_byte(tmp_path: Path) -> None:
    write(tmp_path / "a.las", wkt="X", extended=True)
    for path in (REAL, tmp_path / "a.las"):
        with Las().open(SourceFile(path, path.name)) as opened:
            Las().write(tmp_path / f"again-{path.name}", opened.arrays, opened.metadata)
        assert (tmp_path / f"again-{path.name}").read_bytes() == path.read_bytes()


def test_values_that_las_cannot_hold_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.las", 9)
    with Las().open(SourceFile(tmp_path / "a.las", "a.las")) as opened:
        moved = type(opened.arrays["x"])(opened.arrays["x"][0:9] + 1e-4)
        with pytest.raises(
            InputError, match=r"b\.las: cannot be restored, .* store x exactly\. Fix: read the store instead"
        ):
            Las().write(tmp_path / "b.las", {**opened.arrays, "x": moved}, opened.metadata)


@pytest.mark.parametrize(("ending", "form"), [(".las", Las()), (".laz", Laz())])
def test_each_damage_of_a_file_is_an_error_that_names_it(tmp_path: Path, ending: str, form: Las) -> None:
    path = tmp_path / f"a{ending}"
    write(path)
    whole = path.read_bytes()

    def read(file: SourceFile) -> None:
        form.recognise(file)
        with form.open(file) as opened:
            opened.arrays["x"][0:700]

    def message(content: bytes) -> str:
        path.write_bytes(content)
        file = SourceFile(path, path.name)
        with pytest.raises(InputError) as caught, calling(form, path.name):
            read(file)
        return str(caught.value)

    assert "is empty" in message(b"")
    assert "does not begin with LASF" in message(b"PK" + whole)
    assert "ends inside its header, after 100 bytes" in message(whole[:100])
    assert f"it has {len(whole) * 2 // 3:,} bytes, but its header states" in message(
        whole[: len(whole) * 2 // 3]
    )
    assert "255 records" in message(whole[:100] + b"\xff" + whole[101:])
    other = tmp_path / f"b{'.las' if ending == '.laz' else '.laz'}"
    write(other)
    assert "Fix: rename it to ." in message(other.read_bytes())


def piped(path: Path, target: Path) -> Path:
    """Write a LAZ file as LASzip pipes it: the place of its table of chunks stands in its last bytes."""
    content = bytearray(path.read_bytes())
    start = int.from_bytes(content[96:100], "little")
    content += content[start : start + 8]
    content[start : start + 8] = b"\xff" * 8
    target.write_bytes(content)
    return target


@pytest.mark.parametrize("count", [700, 120_000])
def test_a_piped_laz_file_is_read_by_the_chunk_table_at_its_end(tmp_path: Path, count: int) -> None:
    """More than a chunk of points, too; a reader that knows no such table would stop at 50,000."""
    expected = write(tmp_path / "whole.laz", count)
    path = piped(tmp_path / "whole.laz", tmp_path / "a.laz")
    found = read(path)
    with Laz().open(SourceFile(path, path.name)) as opened:
        for name, values in found.items():
            np.testing.assert_array_equal(opened.arrays[name][:], values)
        last = opened.arrays["x"][count - 5 : count]
    np.testing.assert_array_equal(last, np.asarray(expected.x)[-5:])


def test_a_piped_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "whole.laz")
    path = piped(tmp_path / "whole.laz", tmp_path / "a.laz")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError), Laz().open(SourceFile(path, path.name)) as opened:
        opened.arrays["x"][:]


def file_of_stated_points(path: Path, version: str, stated: int, evlrs: bool = False) -> laspy.LasData:
    """Write 20 points, of which the header states another number."""
    header = laspy.LasHeader(point_format=3, version=version)
    header.scales = [0.01] * 3
    las = laspy.LasData(header)
    las.X, las.Y, las.Z = np.random.default_rng(0).integers(0, 9999, (3, 20))
    if evlrs:
        las.evlrs = VLRList([laspy.VLR("unistore", 1, "", b"x" * 500)])
    las.write(path)
    content = bytearray(path.read_bytes())
    content[107:111] = (stated if version != "1.4" else 20).to_bytes(4, "little")
    if version == "1.4":
        content[247:255] = stated.to_bytes(8, "little")
    path.write_bytes(content)
    return las


@pytest.mark.parametrize("version", ["1.2", "1.3", "1.4"])
def test_a_header_that_states_no_points_before_points_is_an_error(version: str, tmp_path: Path) -> None:
    """Writers that are interrupted leave 0; others set only the older number of LAS 1.4."""
    file_of_stated_points(tmp_path / "a.las", version, 0)
    with pytest.raises(
        InputError, match=r"states 0 points, but the bytes behind it are those of 20\. Fix: correct"
    ):
        convert(tmp_path / "a.las", tmp_path / "a.zarr", "point-cloud", workers=0)


@pytest.mark.parametrize("evlrs", [False, True])
def test_points_that_the_header_does_not_state_are_noted(evlrs: bool, tmp_path: Path) -> None:
    las = file_of_stated_points(tmp_path / "a.las", "1.4", 7, evlrs)
    report = convert(tmp_path / "a.las", tmp_path / "a.zarr", "point-cloud", workers=0)
    assert any("states 7 points" in note and "could be 13" in note for note in report.notes)
    assert unistore.Dataset(tmp_path / "a.zarr")[0]["intensity"].shape == (7,)
    export(tmp_path / "a.zarr", tmp_path / "exported")
    assert (tmp_path / "exported/a.las").read_bytes() == (tmp_path / "a.las").read_bytes()
    file_of_stated_points(tmp_path / "a.las", "1.4", len(las.X), evlrs)
    report = convert(tmp_path / "a.las", tmp_path / "b.zarr", "point-cloud", workers=0)
    assert not any("could be" in note for note in report.notes)


@pytest.mark.nightly
def test_every_file_of_laspy_has_its_values() -> None:
    folder = Path(laspy.__file__).parent
    paths = [path for path in folder.parent.rglob("*.la[sz]") if path.stat().st_size < 1 << 25]
    if not paths:
        pytest.skip("laspy installs no files of points")
    for path in paths:
        kind = Laz() if path.suffix == ".laz" else Las()
        with kind.open(SourceFile(path, path.name)) as opened:
            for name, values in read(path).items():
                np.testing.assert_array_equal(opened.arrays[name][:], values, err_msg=path.name)
