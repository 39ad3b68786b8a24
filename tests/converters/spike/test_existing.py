"""Voxel grids that came with the recordings: taken over as they are, the right way up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.converter_contract import check_contract, convert_in_memory
from tests.support.family_converters import spike as spike_converter
from tests.support.spike_recordings import sequences
from unistore.converters.source_scan import scan_sources
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


def test_existing_grids_are_kept_beside_counted_ones(tmp_path: Path) -> None:
    made = sequences(tmp_path, {"a": (16, 11), "b": (16,)}, images=None)
    written = grids(made, 5)
    converted = check_contract(
        spike_converter(**SIZE, voxel_bins=(4,)), [tmp_path], {"frames/voxel/5": np.stack(written)}
    )
    assert "existing voxels are kept as they are, with row 0 at the top" in converted.scan.notes
    assert converted.fields["frames/voxel/5"].attributes == {"bins": 5, "counted": False}
    assert converted.fields["frames/voxel/4"].attributes == {"bins": 4, "counted": True}


def test_upside_down_grids_are_turned_over(tmp_path: Path) -> None:
    made = sequences(tmp_path, {"a": (16, 11)}, images=None)
    written = grids(made, 5, lambda voxel: voxel[:, ::-1])
    converted = convert_in_memory(spike_converter(**SIZE), [tmp_path])
    np.testing.assert_array_equal(converted.arrays["frames/voxel/5"], np.stack(written)[:, :, ::-1])
    assert any("flipped" in note for note in converted.scan.notes)


def test_grids_in_two_orientations_are_a_problem(tmp_path: Path) -> None:
    made = sequences(tmp_path, {"a": (16,), "b": (16,)}, images=None)
    grids(made, 5)
    file = tmp_path / "b/spike_vox/000.npy"
    np.save(file, np.load(file)[:, ::-1])
    (problem,) = problems(tmp_path)
    assert (problem.location, problem.kind) == ("b/spike_vox/000.npy", "orientation")


def test_grids_that_are_not_sums_keep_their_values_with_a_note(tmp_path: Path) -> None:
    made = sequences(tmp_path, {"a": (16, 11)}, images=None)
    written = grids(made, 5, lambda voxel: (voxel / 7).astype(">f4"))
    converted = convert_in_memory(spike_converter(**SIZE), [tmp_path])
    values = converted.arrays["frames/voxel/5"]
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, np.stack(written))
    assert any(
        "a/spike_vox/000.npy differs from the sums of its spikes" in note for note in converted.scan.notes
    )


def test_voxel_bins_counts_grids_again_in_place_of_existing_ones(tmp_path: Path) -> None:
    made = sequences(tmp_path, {"a": (16,)}, images=None)
    right = grids(made, 5)
    grids(made, 5, lambda voxel: voxel + 1)
    converted = convert_in_memory(spike_converter(**SIZE, voxel_bins=(5,)), [tmp_path])
    np.testing.assert_array_equal(converted.arrays["frames/voxel/5"], np.stack(right))
    assert any("existing voxels are not stored" in note for note in converted.scan.notes)


def test_grids_without_spikes_are_stored_but_cannot_be_counted(tmp_path: Path) -> None:
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


def test_grids_counted_from_packed_bytes_are_counted_again(tmp_path: Path) -> None:
    made = sequences(tmp_path, {"a": (16, 16), "b": (8,)}, images=None)
    right = grids(made, 4)
    grids(made, 4, lambda voxel: voxel[:, :10, :12] * 30)
    converted = check_contract(
        spike_converter(**SIZE, voxel_bins=(2,)), [tmp_path], {"frames/voxel/4": np.stack(right)}
    )
    assert converted.fields["frames/voxel/4"].attributes == {"bins": 4, "counted": True}
    assert converted.arrays["frames/voxel/2"].shape[2:] == (24, 40)
    (note,) = [note for note in converted.scan.notes if "packed bytes" in note]
    assert "a/spike_vox/000.npy have 10 x 12 pixels, but their spikes have 24 x 40" in note


def test_grids_that_differ_in_bins_or_axes_are_a_problem(tmp_path: Path) -> None:
    made = sequences(tmp_path, {"a": (16, 16)}, images=None)
    grids(made, 5)
    file = tmp_path / "a/spike_vox/001.npy"
    np.save(file, np.zeros((4, 24, 40), np.uint8))
    (problem,) = problems(tmp_path)
    assert problem.message == (
        "have different numbers of bins: 4 in a/spike_vox/001.npy, 5 in a/spike_vox/000.npy"
    )
    assert "--voxel-dir none --voxel-bins 5" in problem.advice
    np.save(file, np.zeros((24, 40), np.uint8))
    (problem,) = problems(tmp_path)
    assert (problem.location, problem.kind) == ("a/spike_vox/001.npy", "shape")
