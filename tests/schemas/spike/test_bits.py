"""Spikes as bits: packing, crops, and voxels against the formula written out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import unistore.schemas.spike.fields as spike_bits
from unistore.schemas.spike.fields import bin_edges, count_dtype, pack, row_bytes, voxelize
from unistore.schemas.tables import unpack


def formula(spikes: np.ndarray, bins: int) -> np.ndarray:
    voxel = np.zeros((bins, *spikes.shape[1:]), np.int64)
    for t in range(len(spikes)):
        voxel[(t * bins) // len(spikes)] += spikes[t]
    return voxel


@given(st.integers(1, 400), st.integers(1, 70))
def test_bin_edges_equal_the_formula(length: int, bins: int) -> None:
    edges = bin_edges(length, bins)
    counts = np.bincount([(t * bins) // length for t in range(length)], minlength=bins)
    np.testing.assert_array_equal(np.diff(edges), counts)
    assert (edges[0], edges[-1]) == (0, length)
    assert counts.max() <= -(-length // bins)


@given(st.data())
def test_crops_of_bits_unpack_and_voxelize_to_the_crop_of_the_spikes(data: st.DataObject) -> None:
    length, height, width = (data.draw(st.integers(1, most)) for most in (40, 5, 40))
    seed = data.draw(st.integers(0, 9))
    spikes = np.random.default_rng(seed).integers(0, 2, (length, height, width)).astype(np.uint8)
    packed = pack(spikes)
    assert packed.shape == (length, height, row_bytes(width))
    x = data.draw(st.integers(0, width - 1))
    w = data.draw(st.integers(1, width - x))
    part = packed[:, :, x // 8 : row_bytes(x + w)]
    np.testing.assert_array_equal(unpack(part, w, x % 8), spikes[:, :, x : x + w])
    bins = data.draw(st.integers(1, 12))
    np.testing.assert_array_equal(voxelize(part, w, bins, left=x % 8), formula(spikes[:, :, x : x + w], bins))


@pytest.mark.parametrize("width", [16, 13])
def test_voxels_above_255_are_uint16_and_do_not_depend_on_pieces(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spikes = np.random.default_rng(0).integers(0, 4, (1_500, 3, width)).astype(bool).astype(np.uint8)
    whole = voxelize(pack(spikes), width, 2)
    assert whole.dtype == np.uint16
    assert whole.max() > 255
    np.testing.assert_array_equal(whole, formula(spikes, 2))
    monkeypatch.setattr(spike_bits, "_PIECE", 3 * 16 * 7)
    np.testing.assert_array_equal(voxelize(pack(spikes), width, 2), whole)
    into_bytes = np.full((1_500, 3, width), 9, np.uint8)
    np.testing.assert_array_equal(voxelize(pack(spikes), width, 1_500, out=into_bytes), spikes)


def test_out_may_be_a_part_of_a_larger_array() -> None:
    spikes = np.random.default_rng(1).integers(0, 2, (30, 4, 16)).astype(np.uint8)
    block = np.full((2, 6, 6, 20), 7, np.uint8)
    target = block[1, :5, 1:5, 2:18]
    assert voxelize(pack(spikes), 16, 5, out=target) is target
    np.testing.assert_array_equal(target, formula(spikes, 5))
    target[...] = 7
    assert (block == 7).all(), "nothing around it was written"


def test_count_dtype_is_the_smallest_that_holds_every_count() -> None:
    assert [count_dtype(t, 2) for t in (510, 511, 131_070, 131_071)] == [
        "uint8",
        "uint16",
        "uint16",
        "uint32",
    ]


def test_impossible_arguments_are_an_error() -> None:
    packed = np.zeros((4, 2, 3), np.uint8)
    with pytest.raises(ValueError, match="bins is 0, expected at least 1"):
        voxelize(packed, 24, 0)
    with pytest.raises(ValueError, match="cannot read 24 pixels from bit 1 on: a row has only 24 bits"):
        unpack(packed, 24, 1)
    with pytest.raises(ValueError, match=r"out has shape \(2, 2, 23\)"):
        voxelize(packed, 24, 2, out=np.zeros((2, 2, 23), np.uint8))
    with pytest.raises(ValueError, match="at least uint16"):
        voxelize(np.zeros((600, 1, 1), np.uint8), 8, 1, out=np.zeros((1, 1, 8), np.uint8))
