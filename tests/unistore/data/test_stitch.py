"""Predictions of the cells of a grid, joined, against sums in plain numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import unistore
from unistore.errors import InputError

SIZE = (8, 16, 12)


def pairs(dataset: unistore.Dataset, of: Callable[[Any], Any], batch_size: int = 5) -> Any:
    loader = unistore.Loader(dataset, batch_size=batch_size, shuffle=False, num_workers=0)
    return ((batch["index"], of(batch)) for batch in loader)


@pytest.mark.parametrize(
    ("weights", "overlap"), [("constant", 0), ("gaussian", 0.25), ("constant", 0.5), ("gaussian", 0.7)]
)
def test_stitched_boxes_of_a_volume_are_the_volume(
    make_scans: Callable[..., Any], weights: Any, overlap: float
) -> None:
    scans = make_scans()
    kind = unistore.Patches(SIZE, random=False, overlap=overlap, pad="zero")
    grid = unistore.Dataset(scans.path, kind, fields=["image"])
    of_volume = dict(unistore.stitch(grid, pairs(grid, lambda batch: batch["image"].double()), weights))
    assert list(of_volume) == [0, 1, 2]
    for number, volume in enumerate(scans.volumes):
        assert of_volume[number].dtype == torch.float64
        np.testing.assert_allclose(of_volume[number], volume, rtol=1e-9)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("weights", ["constant", "gaussian"])
def test_overlapping_cells_are_joined_by_the_weighted_mean(
    make_scans: Callable[..., Any], weights: Any, library: str
) -> None:
    scans = make_scans([(13, 17, 25)])
    grid = unistore.Dataset(scans.path, unistore.Patches(SIZE, random=False, overlap=0.5), fields=["corner"])
    scores = np.random.default_rng(0).normal(size=(len(grid), 2, *SIZE)).astype(np.float32)
    scores = scores.astype(np.float16) if library == "torch" else scores
    curves = [np.exp(-0.5 * ((np.arange(n) - (n - 1) / 2) / (n / 8)) ** 2) for n in SIZE]
    weight = np.einsum("i,j,k->ijk", *curves) if weights == "gaussian" else np.ones(SIZE)
    total, count = np.zeros((2, 13, 17, 25)), np.zeros((13, 17, 25))
    for sample in grid:
        low = sample["corner"].tolist()
        box = tuple(slice(at, at + n) for at, n in zip(low, SIZE, strict=True))
        total[(slice(None), *box)] += scores[int(sample["index"])] * weight
        count[box] += weight
    order = np.random.default_rng(1).permutation(len(grid))
    given = [(rows, scores[rows]) for rows in np.array_split(order, 4)]
    if library == "torch":
        given = [(torch.from_numpy(rows), torch.from_numpy(part)) for rows, part in given]  # type: ignore[misc]
    ((number, volume),) = unistore.stitch(grid, given, weights)
    assert number == 0
    assert isinstance(volume, np.ndarray if library == "numpy" else torch.Tensor)
    assert volume.dtype == (np.float32 if library == "numpy" else torch.float32)
    np.testing.assert_allclose(volume, total / count, rtol=2e-5, atol=1e-6)


def test_volumes_are_numbered_as_those_of_stores_and_splits(make_scans: Callable[..., Any]) -> None:
    """Those that are too small are counted, and give nothing."""
    scans = [make_scans(splits={"train": [0, 2], "val": [1]}), make_scans([(9, 9, 9), (9, 20, 15)])]
    of_split = scans[0].volumes[0], scans[0].volumes[2]
    kind = unistore.Patches(SIZE, random=False, pad="drop", step=1)
    first = unistore.Dataset(scans[0].path, kind, ["image"], "train")
    joined = dict(unistore.stitch(first, pairs(first, lambda batch: batch["image"].float())))
    assert list(joined) == [0]
    np.testing.assert_array_equal(joined[0], of_split[0])
    both = unistore.Dataset([scan.path for scan in scans], kind, ["image"])
    volumes = [*scans[0].volumes, *scans[1].volumes]
    joined = dict(unistore.stitch(both, pairs(both, lambda batch: batch["image"].float())))
    assert list(joined) == [0, 1, 4]
    for number, volume in joined.items():
        np.testing.assert_array_equal(volume, volumes[number])


def test_a_grid_of_steps_is_stitched_to_the_volume_of_steps(make_scans: Callable[..., Any]) -> None:
    scans = make_scans([(20, 31, 41)])
    kind = unistore.Patches((5, 8, 7), random=False, overlap=0.3, step=3)
    grid = unistore.Dataset(scans.path, kind, fields=["image"])
    ((_, volume),) = unistore.stitch(grid, pairs(grid, lambda batch: batch["image"].float()))
    np.testing.assert_allclose(volume, scans.volumes[0][::3, ::3, ::3], rtol=1e-6)


def test_overlap_is_the_distance_of_the_cells_of_a_grid(make_scans: Callable[..., Any]) -> None:
    scans = make_scans([(20, 16, 12)])
    grid = unistore.Dataset(scans.path, unistore.Patches(SIZE, random=False, overlap=0.5), fields=["corner"])
    assert [sample["corner"].tolist() for sample in grid] == [[z, 0, 0] for z in (0, 4, 8, 12)]
    plain = unistore.Dataset(scans.path, unistore.Patches(SIZE, random=False), fields=["corner"])
    assert [sample["corner"].tolist() for sample in plain] == [[z, 0, 0] for z in (0, 8, 12)]


def test_predictions_that_do_not_fit_the_grid_are_an_error(make_scans: Callable[..., Any]) -> None:
    scans = make_scans([(9, 9, 9)] * 2)
    grid = unistore.Dataset(scans.path, unistore.Patches(8, random=False), fields=["corner"])
    cells = np.zeros((len(grid), 8, 8, 8), np.float32)
    every = np.arange(len(grid))
    with pytest.raises(InputError, match=r"dataset: must be a Dataset of samples=unistore.Patches"):
        unistore.stitch(unistore.Dataset(scans.path, unistore.Patches(8)), [])
    with pytest.raises(InputError, match="weights: must be one of 'constant', 'gaussian'"):
        unistore.stitch(grid, [], "linear")  # type: ignore[arg-type]
    for wrong, message in (
        ([(every, cells[:3])], r"have the shape \(3, 8, 8, 8\), but \(16, …, 8, 8, 8\)"),
        ([(every, cells.astype(np.int64))], "are torch.int64, but class numbers cannot be averaged"),
        ([(every + 1, cells)], "have the index 16, but the Dataset has 16"),
        ([(every[[0, 0]], cells[:2])], "sample 0 was given twice"),
        ([(every, cells[:, None, None, None])], r"have the shape \(16, 1, 1, 1, 8, 8, 8\)"),
        (
            [(every[:1], cells[:1]), (every[1:2], cells[1:2, None])],
            r"has \(1,\) channels, but others .* \(\)",
        ),
        ([(every[:11], cells[:11])], "end although 5 patches of 1 volumes are missing"),
    ):
        with pytest.raises(InputError, match=message):
            list(unistore.stitch(grid, wrong))
    for overlap in (1, -0.5, "half"):
        with pytest.raises(InputError, match="overlap: must be a number of at least 0 and below 1"):
            unistore.Patches(8, random=False, overlap=overlap)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"overlap: works only with a grid"):
        unistore.Patches(8, overlap=0.5)
