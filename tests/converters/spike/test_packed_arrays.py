"""Spikes of eight pixels a byte in .npy and .npz files: as NumPy packs and unpacks them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from tests.support.spike_recordings import record
from tests.support.spikes import stored_spikes
from unistore import convert, export, verify
from unistore.errors import InputError
from unistore.store.reader import open_zarr

ORDERS: dict[Any, Literal["little", "big"]] = {"packed": "little", "packed-msb": "big"}


@pytest.mark.parametrize("layout", ORDERS)
@pytest.mark.parametrize("width", [40, 37])
@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_packed_arrays_in_both_bit_orders_are_stored_and_exported(
    tmp_path: Path, layout: Any, width: int, suffix: str
) -> None:
    spikes = record(30, 24, width)
    packed = np.packbits(spikes, axis=-1, bitorder=ORDERS[layout])
    (tmp_path / "in/spike").mkdir(parents=True)
    path = tmp_path / f"in/spike/000.{suffix}"
    if suffix == "npy":
        np.save(path, packed)
    else:
        np.savez(path, spk=packed)
    options = {} if width == 40 else {"width": width}
    convert(tmp_path / "in", tmp_path / "out.zarr", "spike", layout=layout, **options)
    stored = open_zarr(tmp_path / "out.zarr")
    for name, values in stored_spikes([spikes]).items():
        np.testing.assert_array_equal(stored[name][...], values, err_msg=name)
    assert verify(tmp_path / "out.zarr", against=tmp_path / "in").ok
    export(tmp_path / "out.zarr", tmp_path / "back")
    (written,) = (tmp_path / "back").rglob(f"*.{suffix}")
    found = np.load(written)
    np.testing.assert_array_equal(found if suffix == "npy" else found["spk"], packed)


def test_packed_arrays_without_layout_are_an_error_that_names_the_option(tmp_path: Path) -> None:
    (tmp_path / "in/spike").mkdir(parents=True)
    np.save(tmp_path / "in/spike/000.npy", np.packbits(record(30, 24, 40), axis=-1))
    with pytest.raises(InputError, match="contains values up to") as caught:
        convert(tmp_path / "in", tmp_path / "out.zarr", "spike")
    assert "--layout packed-msb if np.packbits packed them" in caught.value.problems[0].advice


@pytest.mark.parametrize("dtype", [np.uint8, np.bool_])
def test_pixels_given_as_packed_bits_are_an_error(tmp_path: Path, dtype: Any) -> None:
    (tmp_path / "in/spike").mkdir(parents=True)
    np.save(tmp_path / "in/spike/000.npy", record(30, 24, 40).astype(dtype))
    with pytest.raises(InputError, match="which are pixels, not packed bits"):
        convert(tmp_path / "in", tmp_path / "out.zarr", "spike", layout="packed")


@pytest.mark.parametrize("size", [{"width": 48}, {"height": 23}])
def test_a_size_that_contradicts_the_packed_array_is_an_error(tmp_path: Path, size: dict[str, int]) -> None:
    (tmp_path / "in/spike").mkdir(parents=True)
    np.save(tmp_path / "in/spike/000.npy", np.packbits(record(30, 24, 40), axis=-1))
    with pytest.raises(InputError, match="has 24 rows of 5 bytes"):
        convert(tmp_path / "in", tmp_path / "out.zarr", "spike", layout="packed-msb", **size)
