"""Voxel grids that came with the recordings: taken over as they are, the right way up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unistore.converters.scanning import scan_sources
from unistore.converters.spike.family import converter as spike_converter
from unistore.errors import InputError, Problem

SIZE = {"height": 24, "width": 40}


def grids(made: Any, bins: int, change: Callable[[np.ndarray], np.ndarray] = lambda v: v) -> list[np.ndarray]:
    """Write spike_vox/ beside spike/; return what was written, by frame."""
    written = []
    for name, spikes in made.spikes.items():
        voxel = np.zeros((bins, *spikes.shape[1:]), np.uint8)
        for t in range(len(spikes)):
            voxel[(t * bins) // len(spikes)] += spikes[t]
        file = made.root / name.replace("/spike/", "/spike_vox/").replace(".dat", ".npy")
        file.parent.mkdir(exist_ok=True)
        np.save(file, change(voxel))
        written.append(np.load(file))
    return written


def problems(root: Path, **options: Any) -> list[Problem]:
    with pytest.raises(InputError) as error:
        scan_sources(spike_converter(**SIZE, **options), [root])
    return list(error.value.problems)


def test_taken_over_beside_counted_sets(
    tmp_path: Path, sequences: Callable[..., Any], check_contract: Callable[..., Any]
) -> None:
    made = sequences(tmp_path, {"a": (16, 11), "b": (16,)}, images=None)
    written = grids(made, 5)
    converted = check_contract(
        spike_converter(**SIZE, voxel_bins=(4,)), [tmp_path], {"frames/voxel/5": np.stack(written)}
    )
    assert "existing voxels equal those counted from the spikes" in converted.scan.notes
    assert converted.fields["frames/voxel/5"].attributes == {"bins": 5, "counted": False}
    assert converted.fields["frames/voxel/4"].attributes == {"bins": 4, "counted": True}


def test_upside_down_grids_are_turned_over(
    tmp_path: Path, sequences: Callable[..., Any], convert_in_memory: Callable[..., Any]
) -> None:
    made = sequences(tmp_path, {"a": (16, 11)}, images=None)
    written = grids(made, 5, lambda voxel: voxel[:, ::-1])
    converted = convert_in_memory(spike_converter(**SIZE), [tmp_path])
    np.testing.assert_array_equal(converted.arrays["frames/voxel/5"], np.stack(written)[:, :, ::-1])
    assert any("flipped" in note for note in converted.scan.notes)


def test_both_ways_up_are_refused(tmp_path: Path, sequences: Callable[..., Any]) -> None:
    made = sequences(tmp_path, {"a": (16,), "b": (16,)}, images=None)
    grids(made, 5)
    file = tmp_path / "b/spike_vox/000.npy"
    np.save(file, np.load(file)[:, ::-1])
    (problem,) = problems(tmp_path)
    assert (problem.location, problem.kind) == ("b/spike_vox/000.npy", "orientation")


def test_other_values_keep_their_dtype_and_are_remarked(
    tmp_path: Path, sequences: Callable[..., Any], convert_in_memory: Callable[..., Any]
) -> None:
    made = sequences(tmp_path, {"a": (16, 11)}, images=None)
    written = grids(made, 5, lambda voxel: (voxel / 7).astype(">f4"))
    converted = convert_in_memory(spike_converter(**SIZE), [tmp_path])
    values = converted.arrays["frames/voxel/5"]
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, np.stack(written))
    assert any("a/spike_vox/000.npy differs from sums of its spikes" in note for note in converted.scan.notes)


def test_a_set_that_is_asked_for_is_counted(
    tmp_path: Path, sequences: Callable[..., Any], convert_in_memory: Callable[..., Any]
) -> None:
    made = sequences(tmp_path, {"a": (16,)}, images=None)
    right = grids(made, 5)
    grids(made, 5, lambda voxel: voxel + 1)
    converted = convert_in_memory(spike_converter(**SIZE, voxel_bins=(5,)), [tmp_path])
    np.testing.assert_array_equal(converted.arrays["frames/voxel/5"], np.stack(right))
    assert any("existing voxels are left" in note for note in converted.scan.notes)


def test_grids_without_spikes(
    tmp_path: Path, sequences: Callable[..., Any], check_contract: Callable[..., Any]
) -> None:
    made = sequences(tmp_path, {"train/a": (16, 11)})
    written = grids(made, 5)
    for name in made.spikes:
        (tmp_path / name).unlink()
    (tmp_path / "train/a/spike").rmdir()
    converted = check_contract(spike_converter(), [tmp_path], {"frames/voxel/5": np.stack(written)})
    assert "spikes/bits" not in converted.arrays
    assert "frames/offsets" not in converted.arrays
    assert converted.arrays["frames/spike_extent"].tolist() == [[24, 40]] * 2
    (problem,) = problems(tmp_path, voxel_bins=(5,))
    assert problem.location == "--voxel-bins"


def test_grids_of_another_shape(tmp_path: Path, sequences: Callable[..., Any]) -> None:
    made = sequences(tmp_path, {"a": (16, 16, 16, 16)}, images=None)
    grids(made, 5)
    folder = tmp_path / "a/spike_vox"
    np.save(folder / "001.npy", np.zeros((5, 26, 40), np.uint8))
    np.save(folder / "002.npy", np.zeros((4, 24, 40), np.uint8))
    np.save(folder / "003.npy", np.zeros((24, 40), np.uint8))
    found = {problem.location: problem for problem in problems(tmp_path)}
    assert set(found) == {"a/spike_vox/001.npy", "a/spike_vox/003.npy", "existing voxels"}
    assert "is 26 x 40, but its spikes are 24 x 40" in found["a/spike_vox/001.npy"].message
    assert "--voxel-dir none --voxel-bins 5" in found["a/spike_vox/001.npy"].cure


def misread(made: Any, change: Callable[[np.ndarray], np.ndarray] = lambda v: v) -> None:
    """Write spike_vox/ as a loader does that takes packed bytes for pixels: (T', 10, 12) of uint8."""
    for name in made.spikes:
        pixels = np.fromfile(made.root / name, np.uint8).reshape(-1, 10, 12)
        steps = len(pixels) // 4
        voxel = np.stack([pixels[b * steps : (b + 1) * steps].sum(0, np.float32) for b in range(4)])
        file = made.root / name.replace("/spike/", "/spike_vox/").replace(".dat", ".npy")
        file.parent.mkdir(exist_ok=True)
        np.save(file, change(voxel))


@pytest.mark.parametrize("change", [lambda v: v, lambda v: v[:, ::-1] / 7])
def test_grids_counted_from_packed_bytes_are_counted_again(
    tmp_path: Path, sequences: Callable[..., Any], check_contract: Callable[..., Any], change: Any
) -> None:
    made = sequences(tmp_path, {"a": (16, 16), "b": (8,)}, images=None)
    right = grids(made, 4)
    misread(made, change)
    converted = check_contract(
        spike_converter(**SIZE, voxel_bins=(2,)), [tmp_path], {"frames/voxel/4": np.stack(right)}
    )
    assert converted.fields["frames/voxel/4"].attributes == {"bins": 4, "counted": True}
    assert converted.arrays["frames/voxel/2"].shape[2:] == (24, 40)
    (note,) = [note for note in converted.scan.notes if "packed bytes" in note]
    assert "a/spike_vox/000.npy: 4 x 10 x 12" in note
    assert "24 x 40" in note


def test_grids_of_other_pixels_made_in_another_way_are_refused(
    tmp_path: Path, sequences: Callable[..., Any]
) -> None:
    made = sequences(tmp_path, {"a": (16,)}, images=None)
    misread(made, lambda voxel: np.random.default_rng(1).random(voxel.shape))
    (problem,) = problems(tmp_path)
    assert "is 10 x 12, but its spikes are 24 x 40" in problem.message


def test_existing_voxels_are_left_out_by_name(
    tmp_path: Path, sequences: Callable[..., Any], convert_in_memory: Callable[..., Any]
) -> None:
    made = sequences(tmp_path, {"a": (16,)}, images=None)
    misread(made, lambda voxel: voxel[:, :, :5])
    converted = convert_in_memory(spike_converter(**SIZE, voxel_dir="none"), [tmp_path])
    assert not [path for path in converted.arrays if "voxel" in path]
    assert any("spike_vox" in str(path) for path, _ in converted.scan.left_out)
