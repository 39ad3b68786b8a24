"""The same values by two routes are one source; h5py, nibabel, laspy and zarr-python write them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import laspy
import nibabel
import numpy as np
import pytest
import zarr

import unistore
from unistore import Dataset, convert
from unistore.converters.adapter.formats import LATER
from unistore.errors import InputError
from unistore.system.types import AnyArray

ROWS = np.arange(36, dtype="f4").reshape(12, 3)
VOXELS = np.arange(8 * 9 * 10, dtype="i2").reshape(8, 9, 10) - 900


def stored(folder: Path, name: str = "o", family: str = "rows", **options: Any) -> AnyArray:
    """Values of the rows of a store of everything in a folder, in their order."""
    store = folder.parent / f"{name}.zarr"
    convert(folder, store, family=family, **options)
    values: AnyArray = np.concatenate([np.atleast_2d(sample["data"]) for sample in Dataset(store)])
    return values


def problems(folder: Path, family: str = "rows", **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        convert(folder, folder.parent / "refused.zarr", family=family, **options)
    assert {problem.kind for problem in caught.value.problems} == {"twice"}
    return str(caught.value)


def notes(store: Path) -> list[str]:
    return [f"{one['why']}: {one['files']}" for one in unistore.Store(store).attributes["verdicts"]]


def write(path: Path, rows: AnyArray = ROWS, **more: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w", libver="latest") as file:
        file["data"] = rows
        for name, values in more.items():
            file[name] = values
    return path


def virtual(path: Path, *sources: tuple[str, slice, slice], rows: int = 12) -> Path:
    """A virtual dataset: of each file, which of its rows are which rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    layout = h5py.VirtualLayout((rows, 3), "f4")
    for name, own, inside in sources:
        with h5py.File(path.parent / name) as file:
            length = len(file["data"])
        layout[own] = h5py.VirtualSource(name, "data", (length, 3))[inside]
    with h5py.File(path, "w", libver="latest") as file:
        file.create_virtual_dataset("data", layout)
    return path


def parts(folder: Path) -> list[tuple[str, slice, slice]]:
    """Two files of six rows each, as sources of a virtual dataset."""
    for part in range(2):
        write(folder / f"p{part}.h5", ROWS[part * 6 : part * 6 + 6])
    return [(f"p{part}.h5", slice(part * 6, part * 6 + 6), slice(0, 6)) for part in range(2)]


def whole(folder: Path) -> None:
    virtual(folder / "all.h5", *parts(folder))


def interleaved(folder: Path) -> None:
    layout = h5py.VirtualLayout((12, 3), "f4")
    for part in range(2):
        write(folder / f"p{part}.h5", ROWS[part::2])
        layout[part::2] = h5py.VirtualSource(f"p{part}.h5", "data", (6, 3))
    with h5py.File(folder / "all.h5", "w", libver="latest") as file:
        file.create_virtual_dataset("data", layout)


def numbered(folder: Path) -> None:
    """`%b` in the name of a source stands for datasets of all numbers, without end."""
    write(folder / "b.h5", ROWS[:0], d0=ROWS[:6], d1=ROWS[6:])
    with h5py.File(folder / "b.h5", "a") as file:
        del file["data"]
    space = h5py.h5s.create_simple((12, 3), (h5py.h5s.UNLIMITED, 3))
    space.select_hyperslab((0, 0), (h5py.h5s.UNLIMITED, 1), (6, 3), (6, 3))
    source = h5py.h5s.create_simple((6, 3))
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_virtual(space, b"b.h5", b"d%b", source)
    with h5py.File(folder / "all.h5", "w", libver="latest") as file:
        space = h5py.h5s.create_simple((12, 3), (h5py.h5s.UNLIMITED, 3))
        h5py.h5d.create(file.id, b"data", h5py.h5t.IEEE_F32LE, space, creation)


def chain(folder: Path) -> None:
    whole(folder)
    virtual(folder / "top.h5", ("all.h5", slice(0, 12), slice(0, 12)))


def linked(folder: Path) -> None:
    write(folder / "b.h5")
    with h5py.File(folder / "a.h5", "w") as file:
        file["data"] = h5py.ExternalLink("b.h5", "/data")


def linked_alias(folder: Path) -> None:
    """The link leads to another name of the same dataset."""
    write(folder / "b.h5")
    with h5py.File(folder / "b.h5", "a") as file:
        file["deep/x"] = file["data"]
        del file["data"]
        file["data"] = h5py.SoftLink("/deep/x")
        del file["data"]
        file["data"] = file["deep/x"]
        del file["deep"]
    with h5py.File(folder / "a.h5", "w") as file:
        file["data"] = h5py.ExternalLink("b.h5", "/data")


def each_other(folder: Path) -> None:
    for own, other in (("a", "b"), ("b", "a")):
        with h5py.File(folder / f"{own}.h5", "w") as file:
            file[own] = ROWS
            file[other] = h5py.ExternalLink(f"{other}.h5", f"/{other}")


def raw_storage(folder: Path) -> None:
    """External storage in a `.npy` file, behind its header."""
    np.save(folder / "b.npy", ROWS)
    with h5py.File(folder / "a.h5", "w") as file:
        external = [(str(folder / "b.npy"), 128, ROWS.nbytes)]
        file.create_dataset("data", (12, 3), "f4", external=external)


@pytest.mark.parametrize(
    ("make", "left_out"),
    [
        (whole, {"all.h5": 2}),
        (interleaved, {"all.h5": 2}),
        (numbered, {"all.h5": 1}),
        (chain, {"top.h5": 1, "all.h5": 2}),
        (linked, {"a.h5": 1}),
        (linked_alias, {"a.h5": 1}),
        (raw_storage, {"a.h5": 1}),
    ],
)
def test_values_that_several_files_contain_or_show_are_stored_once(
    make: Callable[[Path], None], left_out: dict[str, int], tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    make(folder)
    np.testing.assert_array_equal(stored(folder), ROWS)
    said = [note for note in notes(tmp_path / "o.zarr") if note.startswith("its values are in")]
    counts = {note.split(": ")[0].rpartition(" ")[2]: int(note.split(": ")[1]) for note in said}
    assert sum(counts.values()) == sum(left_out.values())
    assert counts.keys() <= left_out.keys()
    assert unistore.verify(tmp_path / "o.zarr", against=folder).ok
    assert unistore.append(folder, tmp_path / "o.zarr").version == 1


def test_files_that_show_each_other_are_one_source(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    each_other(folder)
    convert(folder, tmp_path / "o.zarr", family="rows")
    data = Dataset(tmp_path / "o.zarr")
    assert len(data) == 12
    for name in "ab":
        np.testing.assert_array_equal(np.stack([sample[name] for sample in data]), ROWS)


def test_the_fix_of_a_virtual_dataset_alone_leads_to_its_rows(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    parts(folder / "parts")
    sources = [(f"parts/p{part}.h5", slice(part * 6, part * 6 + 6), slice(0, 6)) for part in range(2)]
    path = virtual(folder / "all.h5", *sources)
    with pytest.raises(InputError, match=str(folder / "parts")):
        convert(path, tmp_path / "o.zarr")
    convert([path, folder / "parts"], tmp_path / "o.zarr")
    np.testing.assert_array_equal(np.stack([sample["data"] for sample in Dataset(tmp_path / "o.zarr")]), ROWS)


@pytest.mark.parametrize("rows", [slice(0, 6), slice(3, 9)])
def test_a_file_that_shows_some_of_the_rows_of_another_is_refused(rows: slice, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    write(folder / "big.h5")
    virtual(folder / "view.h5", ("big.h5", slice(0, 6), rows), rows=6)
    assert "--exclude" in problems(folder)
    np.testing.assert_array_equal(stored(folder, "big", exclude=["view.h5"]), ROWS)
    np.testing.assert_array_equal(stored(folder, "view", exclude=["big.h5"]), ROWS[rows])
    np.testing.assert_array_equal(stored(folder, "skipped", on_error="skip"), ROWS)


@pytest.mark.parametrize("more", [{"label": np.arange(12)}, {"rate": 50}])
def test_a_link_whose_target_holds_more_is_refused(more: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "in"
    write(folder / "b.h5", **more)
    with h5py.File(folder / "a.h5", "w") as file:
        file["data"] = h5py.ExternalLink("b.h5", "/data")
    assert "--exclude" in problems(folder, columns="intersection")
    np.testing.assert_array_equal(stored(folder, exclude=["a.h5"]), ROWS)
    np.testing.assert_array_equal(stored(folder, "o2", exclude=["b.h5"]), ROWS)
    if "label" in more:  # which is not stored
        np.testing.assert_array_equal(stored(folder, "o3", map={"data": "data"}), ROWS)


def test_views_that_have_no_row_in_common_are_sources(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    write(folder / "big.h5")
    for number in range(3):
        inside = slice(number * 4, number * 4 + 4)
        virtual(folder / f"v{number}.h5", ("big.h5", slice(0, 4), inside), rows=4)
    np.testing.assert_array_equal(stored(folder, exclude=["big.h5"]), ROWS)
    virtual(folder / "v3.h5", ("big.h5", slice(0, 4), slice(6, 10)), rows=4)
    said = problems(folder, exclude=["big.h5"])
    assert "v1.h5" in said
    assert "v2.h5" in said
    assert "v0.h5" not in said


def test_of_two_that_show_files_the_one_with_all_values_is_taken(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    sources = parts(folder)
    virtual(folder / "all.h5", *sources)
    virtual(folder / "another.h5", *sources)
    virtual(folder / "first.h5", sources[0], rows=6)
    np.testing.assert_array_equal(stored(folder), ROWS)
    assert notes(tmp_path / "o.zarr")[-1] == "its values are in all.h5: 4"


def test_an_append_takes_no_values_that_the_store_has(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    sources = parts(folder)
    np.testing.assert_array_equal(stored(folder), ROWS)
    virtual(folder / "all.h5", *sources)
    with pytest.raises(InputError, match=r"all\.h5: links to values of p0\.h5, p1\.h5"):
        unistore.append(folder, tmp_path / "o.zarr")
    # and the other way round
    np.testing.assert_array_equal(stored(folder, "o2"), ROWS)
    write(folder / "new.h5", ROWS + 100)
    assert unistore.append(folder, tmp_path / "o2.zarr").version == 2
    np.testing.assert_array_equal(
        np.stack([sample["data"] for sample in Dataset(tmp_path / "o2.zarr")]),
        np.concatenate([ROWS, ROWS + 100]),
    )


def test_no_row_is_in_two_splits(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    whole(folder)
    write(folder / "new.h5", ROWS + 100)
    store = tmp_path / "o.zarr"
    convert(folder, store, family="rows", split="train=0.5,val=0.5", split_seed=2)
    train, val = [
        {tuple(sample["data"].tolist()) for sample in Dataset(store, split=split)}
        for split in ("train", "val")
    ]
    assert len(train) + len(val) == 24
    assert train.isdisjoint(val)


def test_episodes_behind_links_are_taken_once(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(2):
        with h5py.File(folder / f"part{number}.hdf5", "w") as file:
            demo = file.create_group("data/demo_0")
            demo["actions"] = ROWS + number
            demo["obs/state"] = ROWS - number
    with h5py.File(folder / "all.hdf5", "w") as file:
        for number in range(2):
            demo = file.create_group(f"data/demo_{number}")
            for name in ("actions", "obs/state"):
                demo[name] = h5py.ExternalLink(f"part{number}.hdf5", f"/data/demo_0/{name}")
    convert(folder, tmp_path / "o.zarr", family="trajectory")
    store = unistore.Store(tmp_path / "o.zarr")
    assert store.text("sources/path") == ["all.hdf5"]
    np.testing.assert_array_equal(store.array("steps/action").read(), np.concatenate([ROWS, ROWS + 1]))


# Volumes


def metaimage(path: Path, voxels: str, skip: int = 0, depth: int = 8) -> None:
    header = {
        "ObjectType": "Image",
        "NDims": 3,
        "BinaryData": "True",
        "HeaderSize": skip,
        "DimSize": f"10 9 {depth}",
        "ElementType": "MET_SHORT",
        "ElementDataFile": voxels,
    }
    path.write_text("".join(f"{key} = {value}\n" for key, value in header.items()))


def nrrd(path: Path, voxels: str) -> None:
    fields = ["type: int16", "dimension: 3", "sizes: 10 9 8", "endian: little", "encoding: raw"]
    path.write_text("\n".join(["NRRD0004", *fields, f"data file: {voxels}", "", ""]))


def volumes(folder: Path, **options: Any) -> list[AnyArray]:
    store = folder.parent / f"ct{len(list(folder.parent.iterdir()))}.zarr"
    convert(folder, store, family="ct", **options)
    return [np.asarray(sample["image"]) for sample in Dataset(store)]


def test_headers_of_the_same_voxels_are_one_volume(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    VOXELS.tofile(folder / "v.raw")
    metaimage(folder / "a.mhd", "v.raw")
    metaimage(folder / "b.mhd", "v.raw")
    nrrd(folder / "c.nhdr", "v.raw")
    (volume,) = volumes(folder)
    np.testing.assert_array_equal(volume, VOXELS)
    # Each of two headers has its own voxels of one file.
    metaimage(folder / "a.mhd", "v.raw", 0, 4)
    metaimage(folder / "b.mhd", "v.raw", VOXELS.nbytes // 2, 4)
    (folder / "c.nhdr").unlink()
    np.testing.assert_array_equal(np.concatenate(volumes(folder)), VOXELS)


# Twins: two files of one name


def nifti(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        nibabel.save(nibabel.Nifti1Image(VOXELS.T, np.eye(4)), folder / name)


def las(folder: Path, *names: str) -> None:
    header = laspy.LasHeader(point_format=0, version="1.2")
    header.scales = [0.01] * 3
    cloud = laspy.LasData(header)
    cloud.x = cloud.y = cloud.z = np.arange(5)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        cloud.write(folder / name)


def arrays(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".npz"):
            np.savez(folder / name, data=ROWS)
        elif name.endswith(".h5"):
            write(folder / name)
        else:
            np.save(folder / name, ROWS)


def buffers(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        stores = zarr.storage.ZipStore if name.endswith(".zip") else zarr.storage.LocalStore
        options = {"mode": "w"} if name.endswith(".zip") else {}
        with stores(str(folder / name), **options) as store:
            root = zarr.open_group(store, mode="w", zarr_format=2)
            root.create_array("data/action", data=ROWS)
            root.create_array("meta/episode_ends", data=np.array([5, 12]))


TWINS: list[tuple[str, Callable[..., None], tuple[str, str], tuple[str, str]]] = [
    ("ct", nifti, ("a.nii", "a.nii.gz"), ("a.nii", "b.nii.gz")),
    ("ct", nifti, ("a.b.nii", "a.b.nii.gz"), ("a.b.nii", "a.c.nii.gz")),
    ("point_cloud", las, ("a.las", "a.laz"), ("x/a.las", "y/a.laz")),
    ("rows", arrays, ("a.npy", "a.npz"), ("a.npy", "b.npz")),
    ("rows", arrays, ("a.h5", "a.npz"), ("x/a.h5", "y/a.npz")),
    ("trajectory", buffers, ("a.zarr", "a.zarr.zip"), ("a.zarr", "b.zarr.zip")),
]


def test_volumes_with_the_same_label_behind_two_headers_are_not_one(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "shared.raw").write_bytes((VOXELS > 0).astype("i2").tobytes())
    for number, case in enumerate("AB"):
        (folder / case / "labels").mkdir(parents=True)
        np.save(folder / case / "ct_original.npy", VOXELS + number)
        header = f"ObjectType = Image\nNDims = 3\nDimSize = {' '.join(map(str, VOXELS.shape[::-1]))}\n"
        header += "ElementType = MET_SHORT\nElementDataFile = ../../shared.raw\n"
        (folder / case / "labels/x.mhd").write_text(header)
    said = problems(folder, "ct")
    assert "A: links to some of the values of B" in said
    assert "--exclude A" in said
    assert not (tmp_path / "refused.zarr").exists()


@pytest.mark.parametrize(("family", "make", "same", "others"), TWINS)
def test_two_files_of_one_name_are_refused(
    family: str,
    make: Callable[..., None],
    same: tuple[str, str],
    others: tuple[str, str],
    tmp_path: Path,
) -> None:
    folder = tmp_path / "in"
    make(folder, *same)
    said = problems(folder, family)
    assert said.count("--exclude") == 2
    convert(folder, tmp_path / "skipped.zarr", family=family, on_error="skip")
    names = unistore.Store(tmp_path / "skipped.zarr").text("sources/path")
    assert [name.startswith(same[0]) and not name.startswith(same[1]) for name in names] == [True]
    # Files of other names, or in other folders, are sources.
    make(tmp_path / "sound", *others)
    convert(tmp_path / "sound", tmp_path / "sound.zarr", family=family)
    assert len(unistore.Store(tmp_path / "sound.zarr").text("sources/path")) == 2


def test_files_of_one_name_with_other_rows_are_sources(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    np.savez(tmp_path / "in" / "a.npz", data=ROWS[:5])
    np.save(tmp_path / "in" / "a.npy", ROWS)
    assert len(stored(tmp_path / "in")) == 17


def test_appending_a_file_with_the_name_of_a_stored_one_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    nifti(folder, "a.nii", "b.nii")
    convert(folder, tmp_path / "o.zarr", family="ct")
    nifti(folder, "b.nii.gz")
    with pytest.raises(InputError, match=r"b.nii.gz: has the same name as b.nii"):
        unistore.append(folder, tmp_path / "o.zarr")


def test_formats_declare_the_same_twins_before_and_after_loading() -> None:
    assert {one.name: one.twins for one in LATER} == {one.name: one._format.twins for one in LATER}
    assert sum(bool(one.twins) for one in LATER) > 5
