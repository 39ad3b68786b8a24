"""Small inputs that end in problems whose fixes are options or commands, by name.

A case is called in an empty working directory, writes files there, and returns the command that fails.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from tests.support.cases import DATA

Words = list[str]
Case = Callable[[], Words]
CASES: dict[str, Case] = {}


def case(make: Case) -> Case:
    CASES[make.__name__] = make
    return make


def convert(*words: str) -> Words:
    return ["convert", *words]


def write(name: str, **arrays: Any) -> None:
    """Write an HDF5 file; two underlines in a name stand for a group."""
    with h5py.File(name, "w") as file:
        for path, values in arrays.items():
            file[path.replace("__", "/")] = values


def some(*shape: int) -> Any:
    """Return numbers that differ."""
    return np.random.default_rng(len(shape)).random(shape)


def steps(rows: int = 9, **others: Any) -> dict[str, Any]:
    """Return arrays of a trajectory."""
    rng = np.random.default_rng(rows)
    return {"actions": rng.random((rows, 2)), "observations": rng.random((rows, 3)), **others}


@case
def rows_of_other_columns() -> Words:
    np.savez("a.npz", x=np.zeros((4, 3)), y=np.arange(4))
    np.savez("b.npz", x=np.zeros((5, 3)))
    return convert("rows", "a.npz", "b.npz", "out.zarr")


@case
def rows_with_texts_in_common() -> Words:
    for name, column in (("a", "x"), ("b", "y")):
        np.savez(f"{name}.npz", **{column: np.zeros((4, 3)), "text": np.array([*"abcd"])})
    return convert("rows", "a.npz", "b.npz", "out.zarr")


@case
def rows_in_splits_with_texts_in_common() -> Words:
    texts = {"train__text": ["a"] * 4, "test__text": ["b"] * 4}
    write("a.h5", train__x=np.zeros((4, 3)), test__y=np.zeros((4, 3)), **texts)
    return convert("rows", "a.h5", "out.zarr")


@case
def rows_of_other_shapes() -> Words:
    np.savez("a.npz", x=np.zeros((4, 3)), y=np.arange(4))
    np.savez("b.npz", x=np.zeros((5, 2)), y=np.arange(5))
    return convert("rows", "a.npz", "b.npz", "out.zarr")


@case
def rows_of_no_common_type() -> Words:
    np.savez("a.npz", x=np.zeros(4, np.uint64), y=np.arange(4))
    np.savez("b.npz", x=np.zeros(5, np.int64), y=np.arange(5))
    return convert("rows", "a.npz", "b.npz", "out.zarr")


@case
def rows_of_other_lengths() -> Words:
    np.savez("a.npz", x=np.zeros((4, 3)), y=np.arange(4), z=np.arange(7))
    return convert("rows", "a.npz", "out.zarr")


@case
def rows_in_splits_of_other_columns() -> Words:
    write("a.h5", train__x=np.zeros((4, 3)), train__y=np.arange(4), test__x=np.zeros((4, 3)))
    return convert("rows", "a.h5", "out.zarr")


@case
def rows_in_splits_of_other_shapes() -> Words:
    write("a.h5", train__x=np.zeros((4, 3)), test__x=np.zeros((5, 2)))
    return convert("rows", "a.h5", "out.zarr")


@case
def rows_with_a_field_that_is_no_column() -> Words:
    write("a.h5", t=np.zeros(4, [("a", "i4"), ("s", "S3"), ("c", "c8")]))
    return convert("rows", "a.h5", "out.zarr")


@case
def rows_on_the_last_axis() -> Words:
    write("a.mat", x=np.zeros((3, 5)), y=np.zeros((2, 5)))
    return convert("rows", "a.mat", "out.zarr")


@case
def rows_with_a_slash_in_their_name() -> Words:
    np.savez("a.npz", **{"x\\y": np.arange(4), "z": np.arange(4)})
    return convert("rows", "a.npz", "out.zarr")


@case
def arrays_for_a_volume() -> Words:
    np.save("x.npy", np.zeros((4, 3)))
    return convert("ct", "x.npy", "out.zarr")


@case
def points_for_a_window() -> Words:
    np.savez("x.npz", data=np.zeros((4, 3)))
    return convert("ct", "x.npz", "out.zarr")


@case
def families_in_one_folder() -> Words:
    Path("p/ct/case_1").mkdir(parents=True)
    np.save("p/ct/case_1/ct_original.npy", np.arange(2048, dtype=np.int16).reshape(8, 16, 16))
    shutil.copy(DATA / "pointcloud" / "thin_a.h5", "p/thin_a.h5")
    return convert("p", "out.zarr")


@case
def clouds_for_a_trajectory() -> Words:
    Path("p").mkdir(parents=True)
    shutil.copy(DATA / "pointcloud" / "thin_a.h5", "p/thin_a.h5")
    return convert("trajectory", "p", "out.zarr")


@case
def arrays_beside_a_cloud() -> Words:
    Path("p").mkdir(parents=True)
    shutil.copy(DATA / "pointcloud" / "thin_a.h5", "p/thin_a.h5")
    write("p/x.h5", x=np.zeros((4, 3)))
    return convert("point-cloud", "p", "out.zarr")


@case
def a_store_as_a_source() -> Words:
    np.save("x.npy", np.zeros((4, 3)))
    run("convert", "x.npy", "p/a.zarr")
    return convert("p/a.zarr", "out.zarr")


@case
def nothing_known() -> Words:
    Path("p").mkdir(parents=True)
    Path("p/a.xyz1").write_text("none")
    return convert("p", "out.zarr")


@case
def a_finished_store() -> Words:
    np.save("x_1.npy", np.zeros((4, 3)))
    np.save("x_2.npy", np.ones((5, 3)))
    run("convert", "x_1.npy", "out.zarr")
    return convert("x_1.npy", "x_2.npy", "out.zarr")


@case
def a_split_that_is_empty() -> Words:
    for number in range(3):
        np.save(f"x_{number}.npy", np.zeros((4, 3)))
    return convert("x_0.npy", "x_1.npy", "x_2.npy", "out.zarr", "--split", "train=0.98,val=0.02")


@case
def a_seed_without_a_split() -> Words:
    for number in range(9):
        np.save(f"x_{number}.npy", np.zeros((4, 3)))
    return convert(*(f"x_{number}.npy" for number in range(9)), "out.zarr", "--split-seed", "3")


@case
def a_list_that_names_some() -> Words:
    for number in range(9):
        np.save(f"x_{number}.npy", np.zeros((4, 3)))
    Path("list.csv").write_text("x_0.npy,train\nx_1.npy,val\n")
    return convert(*(f"x_{number}.npy" for number in range(9)), "out.zarr", "--split-from", "list.csv")


@case
def too_little_memory() -> Words:
    np.save("x.npy", np.zeros((4000, 3)))
    return convert("x.npy", "out.zarr", "--memory", "1MB")


@case
def two_coordinates() -> Words:
    write("c.h5", points=some(9, 3), pos=some(9, 3), label=np.arange(9))
    return convert("point-cloud", "c.h5", "out.zarr")


@case
def columns_of_other_lengths() -> Words:
    write("c.h5", xyz=some(9, 3), label=np.zeros(9, np.uint8), weight=np.zeros(7))
    return convert("point-cloud", "c.h5", "out.zarr")


@case
def a_column_that_cannot_be_stored() -> Words:
    write("c.h5", xyz=some(9, 3), z_=np.zeros(9, np.complex64), a=np.arange(9))
    return convert("point-cloud", "c.h5", "out.zarr")


@case
def a_reserved_column() -> Words:
    write("c.h5", xyz=some(9, 3), index=np.arange(9))
    return convert("point-cloud", "c.h5", "out.zarr")


@case
def two_groups_of_coordinates() -> Words:
    axes = {axis: some(9) for axis in "xyz"}
    write("c.h5", **{f"{group}__{axis}": values for group in "ab" for axis, values in axes.items()})
    return convert("point-cloud", "c.h5", "out.zarr")


@case
def actions_by_another_name() -> Words:
    write("a.h5", control__cmd=np.zeros((9, 2)), sensors__pos=np.zeros((9, 3)))
    return convert("trajectory", "a.h5", "out.zarr")


@case
def two_actions() -> Words:
    write("a.h5", **steps(cmd=np.zeros((9, 4))))
    return convert("trajectory", "a.h5", "out.zarr", "--map", "action=cmd")


@case
def steps_of_other_lengths() -> Words:
    write("a.h5", **steps(rewards=np.zeros(8), terminals=np.zeros(9, bool)))
    return convert("trajectory", "a.h5", "out.zarr")


@case
def flags_that_are_none() -> Words:
    write("a.h5", **steps(terminals=np.full(9, 7)))
    return convert("trajectory", "a.h5", "out.zarr")


@case
def a_column_of_complex_numbers() -> Words:
    write("a.h5", **steps(wave=np.zeros(9, np.complex64), rewards=np.zeros(9)))
    return convert("trajectory", "a.h5", "out.zarr")


@case
def times_that_fall() -> Words:
    times = np.arange(20) / 20
    times[7] = 0.1
    force = {"observation__force__t": times, "observation__force__value": np.zeros((20, 6))}
    stamps = {"action__timestamps": np.arange(9) / 9, "action__value": np.zeros((9, 2))}
    write("a.h5", **force, **stamps)
    return convert("trajectory", "a.h5", "out.zarr")


@case
def times_that_stand_still() -> Words:
    force = {"observation__force__t": np.zeros(20), "observation__force__value": np.zeros((20, 6))}
    stamps = {"action__timestamps": np.arange(9) / 9, "action__value": np.zeros((9, 2))}
    write("a.h5", **force, **stamps)
    return convert("trajectory", "a.h5", "out.zarr")


@case
def times_of_an_unknown_unit() -> Words:
    force = {"observation__force__t": np.arange(20) / 20, "observation__force__value": np.zeros((20, 6))}
    write("a.h5", action__timestamps=np.arange(9) / 9, action__value=np.zeros((9, 2)), **force)
    with h5py.File("a.h5", "r+") as file:
        file["observation/force/t"].attrs["unit"] = "fortnight"
    return convert("trajectory", "a.h5", "out.zarr")


def events(**others: Any) -> dict[str, Any]:
    rows = 2000
    pixels = np.zeros(rows, np.uint16)
    return {"events__x": pixels, "events__y": pixels, "events__p": np.zeros(rows, np.uint8), **others}


@case
def events_of_float_times() -> Words:
    write("e.h5", **events(events__t=np.arange(2000.0)))
    return convert("events", "e.h5", "out.zarr", "--sensor", "9", "9")


@case
def events_of_another_unit() -> Words:
    # a recording in microseconds, converted as nanoseconds
    index = np.arange(3) * 1000
    write("e.h5", **events(events__t=np.arange(2000)), ms_to_idx=index)
    return convert("events", "e.h5", "out.zarr", "--sensor", "9", "9", "--unit", "ms")


@case
def a_dark_stream() -> Words:
    np.zeros(360 * 80 * 88, np.uint8).tofile("a.dat")
    return convert("spike", "a.dat", "out.zarr", "--height", "360", "--width", "640")


@case
def a_stream_of_another_size() -> Words:
    np.random.default_rng(0).integers(2, 255, 250 * 50 * 7, np.uint8).tofile("a.dat")
    return convert("spike", "a.dat", "out.zarr", "--height", "123", "--width", "456")


@case
def a_stream_of_several_cameras() -> Words:
    np.random.default_rng(0).integers(2, 255, 360 * 80 * 250, np.uint8).tofile("a.dat")
    return convert("spike", "a.dat", "out.zarr")


@case
def a_stream_read_by_chance() -> Words:
    np.random.default_rng(0).integers(2, 255, 360 * 80 * 88, np.uint8).tofile("a.dat")
    return convert("spike", "a.dat", "out.zarr", "--height", "396", "--width", "640")


@case
def streams_of_which_one_says_its_size() -> Words:
    for name in ("a", "b"):
        Path(name).mkdir()
        np.random.default_rng(0).integers(2, 255, 250 * 50 * 7, np.uint8).tofile(f"{name}/{name}.dat")
    Path("a/config.yaml").write_text("spike_h: 250\nspike_w: 400\n")
    return convert("spike", "a", "b", "out.zarr")


@case
def a_column_that_no_store_has() -> Words:
    write("a.h5", **{"x": np.arange(4), "zarr.json": np.arange(4)})
    return convert("rows", "a.h5", "out.zarr")


@case
def labels_without_a_number() -> Words:
    Path("case_1").mkdir()
    np.save("case_1/ct_original.npy", np.arange(512, dtype=np.int16).reshape(8, 8, 8))
    np.save("case_1/label.npy", (np.arange(512) % 3).astype(np.uint8).reshape(8, 8, 8))
    return convert("ct", "case_1", "out.zarr", "--label-map", "0=0,1=1")


@case
def values_that_a_window_cannot_cut() -> Words:
    Path("case_1").mkdir()
    np.save("case_1/ct_original.npy", np.linspace(0, 1, 512, dtype=np.float32).reshape(8, 8, 8))
    return convert("ct", "case_1", "out.zarr", "--window", "lung")


@case
def a_source_that_was_changed() -> Words:
    np.save("x_1.npy", np.zeros((4, 3)))
    run("convert", "x_1.npy", "out.zarr")
    np.save("x_1.npy", np.ones((5, 3)))
    return convert("x_1.npy", "out.zarr", "--append")


@case
def a_stream_out_of_the_folder() -> Words:
    Path("p/spike").mkdir(parents=True)
    Path("q").mkdir()
    np.random.default_rng(0).integers(2, 255, 250 * 50 * 7, np.uint8).tofile("q/a.dat")
    Path("p/spike/a.dat").symlink_to(Path("q/a.dat").absolute())
    return convert("spike", "p", "out.zarr")


@case
def stores_of_other_columns() -> Words:
    np.savez("a.npz", x=np.zeros((4, 3)), y=np.arange(4))
    np.savez("b.npz", x=np.zeros((5, 3)))
    for name in "ab":
        run("convert", f"{name}.npz", f"{name}.zarr")
    return ["compact", "a.zarr", "b.zarr", "out.zarr", "--columns", "exact"]


@case
def a_column_of_ragged_actions() -> Words:
    ragged = np.empty(9, object)
    for number in range(9):
        ragged[number] = np.arange(number + 1.0)
    with h5py.File("a.h5", "w") as file:
        for name, values in steps(rewards=np.zeros(9)).items():
            if name != "actions":
                file[name] = values
        file.create_dataset("actions", data=ragged, dtype=h5py.vlen_dtype(np.float64))
    return convert("trajectory", "a.h5", "out.zarr")


@case
def episodes_that_come_again() -> Words:
    write("a.h5", **steps(episode_index=np.array([0, 0, 0, 1, 1, 1, 0, 0, 0])))
    return convert("trajectory", "a.h5", "out.zarr")


@case
def columns_that_say_of_further_episodes() -> Words:
    ends = np.zeros(9, bool)
    ends[[3, 8]] = True
    write("a.h5", **steps(terminals=np.arange(9) == 8, episode_over=ends))
    return convert("trajectory", "a.h5", "out.zarr")


@case
def ends_of_which_one_says_nothing() -> Words:
    ends = np.zeros(9, bool)
    ends[[3, 8]] = True
    write("a.h5", **steps(is_last=ends, episode_index=np.repeat([0, 1], [5, 4])))
    return convert("trajectory", "a.h5", "out.zarr")


@case
def ends_beyond_the_steps() -> Words:
    write("a.h5", **steps(episode_ends=np.array([4, 12])))
    return convert("trajectory", "a.h5", "out.zarr")


@case
def flags_of_other_steps() -> Words:
    write("a.h5", **steps(is_last=np.arange(7) == 6))
    return convert("trajectory", "a.h5", "out.zarr")


@case
def numbers_of_episodes_that_come_again() -> Words:
    write("a.h5", **steps(episode_index=np.repeat([0, 1, 0], 3)))
    return convert("trajectory", "a.h5", "out.zarr")


@case
def offsets_that_divide_nothing() -> Words:
    lidar = {"points": some(9, 3), "timestamps": np.arange(4) * 0.15, "offsets": np.array([1, 3, 5, 6, 9])}
    arrays = {f"data__demo_0__obs__lidar__{name}": values for name, values in lidar.items()}
    times = np.arange(6) * 0.1
    write("a.h5", data__demo_0__actions=some(6, 2), data__demo_0__actions_timestamps=times, **arrays)
    return convert("trajectory", "a.h5", "out.zarr")


def volume(name: str, **more: Any) -> None:
    Path(name).mkdir()
    values = np.arange(512, dtype=np.int16).reshape(8, 8, 8)
    for key, array in {"ct_original": values, **more}.items():
        np.save(f"{name}/{key}.npy", array)


@case
def values_in_a_window_as_a_mask() -> Words:
    Path("case_1/windows").mkdir(parents=True)
    voxels = np.stack(np.unravel_index(np.arange(0, 512, 3), (8, 8, 8)), 1).astype(np.int16)
    np.savez("case_1/windows/lung_w1500_l-600_sparse.npz", indices=voxels, values=some(len(voxels)))
    return convert("ct", "case_1", "out.zarr", "--sparse", "mask")


@case
def a_window_of_a_store_that_is_no_hu() -> Words:
    Path("case_1").mkdir()
    np.save("case_1/ct_original.npy", np.linspace(0, 1, 512, dtype=np.float32).reshape(8, 8, 8))
    run("convert", "ct", "case_1", "a.zarr")
    return ["derive", "a.zarr", "--window", "lung"]


@case
def a_slice_that_cannot_be_read() -> Words:
    volume("case_1")
    Path("scans").mkdir()
    Path("scans/1.dcm").write_bytes(bytes(128) + b"DICM" + b"\xff" * 90)
    shutil.copytree("case_1", "scans/case_1")
    return convert("ct", "scans", "out.zarr")


@case
def two_compressions_of_one_volume() -> Words:
    import nibabel

    Path("p").mkdir()
    values = np.arange(512, dtype=np.int16).reshape(8, 8, 8)
    for name in ("p/a.nii", "p/a.nii.gz"):
        nibabel.save(nibabel.Nifti1Image(values, np.diag([1.0, 1, 2, 1])), name)
    return convert("ct", "p", "out.zarr")


def frames(**options: Any) -> Any:
    from tests.support.spike_recordings import sequences

    return sequences(Path("p"), {"a": (16, 16)}, **{"images": None, **options})


SIZE = ("--height", "24", "--width", "40")


@case
def events_in_an_order_that_they_do_not_show() -> Words:
    t = np.arange(90)
    np.save("events.npy", np.stack([t // 2, t % 7, t, t % 2], axis=1))
    return convert("events", "events.npy", "out.zarr", "--sensor", "64", "48")


@case
def a_sequence_that_lacks_a_frame() -> Words:
    from tests.support.spike_recordings import sequences

    sequences(Path("p"), {"a": (16,) * 5})
    Path("p/a/blur/002.png").unlink()
    return convert("spike", "p", "out.zarr", *SIZE)


def counted(spikes: Any, bins: int) -> Any:
    """Return spikes a pixel in each of `bins` spans of time."""
    voxel = np.zeros((bins, *spikes.shape[1:]), np.uint8)
    for step in range(len(spikes)):
        voxel[(step * bins) // len(spikes)] += spikes[step]
    return voxel


@case
def images_without_colour() -> Words:
    import cv2

    frames(images=(48, 80))
    for path in Path("p").rglob("*.png"):
        cv2.imwrite(str(path), np.arange(48 * 80, dtype=np.uint8).reshape(48, 80))
    return convert("spike", "p", "out.zarr", *SIZE)


@case
def voxels_of_two_numbers_of_bins() -> Words:
    made = frames()
    Path("p/a/spike_vox").mkdir()
    for number, spikes in enumerate(made.spikes.values()):
        np.save(f"p/a/spike_vox/{number:03}.npy", counted(spikes, 4 + number))
    return convert("spike", "p", "out.zarr", *SIZE)


@case
def voxels_of_both_ways_up() -> Words:
    from tests.support.spike_recordings import sequences

    made = sequences(Path("p"), {"a": (16,), "b": (16,)}, images=None)
    for number, (name, spikes) in enumerate(made.spikes.items()):
        folder = Path("p", name.partition("/")[0], "spike_vox")
        folder.mkdir()
        voxel = counted(spikes, 5)
        np.save(folder / "000.npy", voxel[:, ::-1] if number else voxel)
    return convert("spike", "p", "out.zarr", *SIZE)


@case
def a_topic_of_an_unknown_encoding() -> Words:
    from tests.support import bags

    Path("p").mkdir()
    robot = bags.Robot()
    # of an encoding that is not read
    pixels = np.zeros((4, 6), "u1")
    robot.sent.append(bags.Sent(bags.START + 10**9, "raw", robot.image(bags.START, pixels, "bayer_rggb8")))
    robot.folder(Path("p/run"))
    return convert("trajectory", "p", "out.zarr")


@case
def a_clock_of_a_bag_that_is_not_set() -> Words:
    from tests.support import bags

    Path("p").mkdir()
    robot = bags.Robot()
    for sent in robot.sent:
        if sent.topic == "imu":
            sent.message.header.stamp.sec = sent.message.header.stamp.nanosec = 0
    robot.folder(Path("p/run"))
    return convert("trajectory", "p", "out.zarr")


@case
def damage_of_another_family() -> Words:
    volume("case_1")
    Path("p").mkdir()
    shutil.move("case_1", "p/case_1")
    Path("p/bad.las").write_bytes(bytes(400))
    return convert("p", "out.zarr")


@case
def a_copy_under_a_longer_name() -> Words:
    Path("p/q").mkdir(parents=True)
    np.save("p/q/x.npy", some(4, 3))
    run("convert", "p/q/x.npy", "out.zarr")
    np.save("p/y.npy", some(5, 3))
    return convert("p", "out.zarr", "--append")


@case
def sources_that_are_not_in_the_store() -> Words:
    Path("p").mkdir()
    np.save("p/x.npy", some(4, 3))
    np.save("p/y.npy", some(4, 3))
    run("convert", "p", "out.zarr")
    Path("p/x.npy").rename("p/z.npy")
    return ["verify", "out.zarr", "--against", "p"]


@case
def a_source_that_was_replaced() -> Words:
    Path("p").mkdir()
    np.save("p/x.npy", some(4, 3))
    np.save("p/y.npy", some(4, 3))
    run("convert", "p", "out.zarr")
    np.save("p/x.npy", some(5, 3))
    run("convert", "p", "out.zarr", "--append", "--replace")
    return ["verify", "out.zarr", "--against", "p"]


@case
def statistics_of_other_values() -> Words:
    np.save("x.npy", some(400, 3))
    run("convert", "x.npy", "out.zarr")
    run("statistics", "out.zarr")
    with np.load("out.zarr/unistore-statistics.npz") as arrays:
        values = {name: array + 1 if name.endswith(".mean") else array for name, array in arrays.items()}
    np.savez_compressed("out.zarr/unistore-statistics.npz", **values)
    return ["verify", "out.zarr"]


@case
def a_name_that_no_export_writes() -> Words:
    Path("p").mkdir()
    for name in ("a", "b\\c"):
        np.save(f"p/{name}.npy", some(4, 3))
    return convert("p", "out.zarr")


@case
def two_resolutions() -> Words:
    Path("case_1").mkdir()
    for size in (8, 16):
        np.save(
            f"case_1/ct_original_{size}.npy", np.arange(8 * size**2, dtype=np.int16).reshape(8, size, size)
        )
    return convert("ct", "case_1", "out.zarr")


@case
def points_without_a_place() -> Words:
    xyz = some(9, 3)
    xyz[4, 1] = np.nan
    write("c.h5", xyz=xyz)
    return convert("point-cloud", "c.h5", "out.zarr", "--segment", "window:1")


@case
def least_points_of_no_window() -> Words:
    np.savetxt("a.xyz", some(9, 3))
    return convert("point-cloud", "a.xyz", "out.zarr", "--min-points", "5")


@case
def a_side_table_that_is_there() -> Words:
    np.save("x.npy", some(4, 3))
    np.save("y.npy", np.arange(4))
    run("convert", "x.npy", "a.zarr")
    run("attach", "a.zarr", "y", "y.npy")
    return ["attach", "a.zarr", "y", "y.npy"]


@case
def packed_bits_as_bytes() -> Words:
    np.random.default_rng(0).integers(2, 255, 250 * 50 * 8, np.uint8).tofile("a.dat")
    return convert("spike", "a.dat", "out.zarr", "--height", "250", "--width", "400", "--layout", "bytes")


@case
def images_of_no_size() -> Words:
    write("a.h5", **steps())
    return convert("trajectory", "a.h5", "out.zarr", "--images", "resized")


@case
def a_source_that_was_changed_and_is_checked() -> Words:
    Path("p").mkdir()
    np.save("p/x.npy", some(4, 3))
    run("convert", "p", "out.zarr")
    np.save("p/x.npy", some(5, 3))
    np.save("p/y.npy", some(5, 3))
    return convert("p", "out.zarr", "--append", "--check", "p")


def run(*words: str) -> int:
    from tests.support.programs import call

    return call(*words)


_IN_WORKER = "made in the process that reads the file; its fixes are run by case "
# Functions that make fixes and are not seen to by the cases, and why
NOT_PROVOKED: dict[str, str] = {
    "growing/cached_stores.py:_kept_problem": "a pinned store of the cache, which test_cached_stores.py has",
    "growing/cached_stores.py:_named": "a cache, which test_cached_stores.py has",
    "converters/adapter/gather.py:_not_anywhere": "only a family of a package declares such columns; "
    "test_wrong_forms.py::test_a_declared_column_that_no_source_has_is_an_error runs it",
    "converters/formats/lerobot.py:_unread_depth": "a LeRobot dataset with a video; "
    "test_lerobot.py::test_a_video_of_depths_is_an_error_until_it_is_ignored runs it",
    "converters/events/recordings.py:_units_by_index": f"{_IN_WORKER}events_of_another_unit",
    "converters/events/recordings.py:choose": f"{_IN_WORKER}events_of_float_times",
    "converters/rows/splits.py:_either": f"{_IN_WORKER}rows_in_splits_of_other_columns",
    "converters/point_cloud/derive.py:_not_finite": f"{_IN_WORKER}points_without_a_place",
    "converters/point_cloud/layouts.py:_form_problems": f"{_IN_WORKER}a_column_that_cannot_be_stored",
    "converters/point_cloud/layouts.py:_coordinates_in": f"{_IN_WORKER}two_groups_of_coordinates",
    "converters/point_cloud/layouts.py:_how_to_rename": f"{_IN_WORKER}a_reserved_column",
    "converters/point_cloud/layouts.py:_lengths_problems": f"{_IN_WORKER}columns_of_other_lengths",
    "converters/point_cloud/layouts.py:_name_coordinates": f"{_IN_WORKER}two_coordinates",
    "converters/trajectory/clocks.py:_ignoring": f"{_IN_WORKER}times_that_fall",
    "converters/trajectory/clocks.py:_in_units": f"{_IN_WORKER}times_of_an_unknown_unit",
    "converters/trajectory/columns.py:_check_name": f"{_IN_WORKER}two_actions",
    "converters/trajectory/columns.py:_feature": f"{_IN_WORKER}a_column_of_complex_numbers",
    "converters/trajectory/columns.py:_length_problems": f"{_IN_WORKER}steps_of_other_lengths",
    "converters/trajectory/columns.py:_renamed": f"{_IN_WORKER}a_column_of_ragged_actions",
    "converters/trajectory/columns.py:flags": f"{_IN_WORKER}flags_that_are_none",
    "converters/trajectory/layouts.py:_possible_actions": f"{_IN_WORKER}actions_by_another_name",
    "conversion/memory.py:_implausible": "its fix takes 2.7 GB: test_headers.py plans with it",
    "conversion/convert.py:local_sources": "of sources in a bucket",
    "converters/formats/bags.py:ignoring": f"{_IN_WORKER}a_topic_of_an_unknown_encoding",
    "converters/trajectory/columns.py:ranges_in": f"{_IN_WORKER}offsets_that_divide_nothing",
    "data/parts.py:open_parts": "of `top_fraction=`, which no command has: test_where.py runs it",
    "converters/trajectory/ends.py:_check_unread": f"{_IN_WORKER}columns_that_say_of_further_episodes",
    "converters/trajectory/ends.py:_ends": f"{_IN_WORKER}ends_beyond_the_steps and flags_of_other_steps",
    "converters/trajectory/ends.py:_refuse": f"{_IN_WORKER}ends_of_which_one_says_nothing",
    "converters/trajectory/ends.py:_where_it_changes": f"{_IN_WORKER}numbers_of_episodes_that_come_again",
}
