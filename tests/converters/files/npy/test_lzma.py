"""Members of ``.npz`` files in LZMA, of which few bytes may be gigabytes: decoded in parts, and checked."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

import unistore
from unistore.errors import InputError

ROWS = np.random.default_rng(0).integers(0, 5, (1000, 37)).astype("<f4")


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as file:
        for name, values in (("x", ROWS), ("y", np.asfortranarray(2 * ROWS))):
            with file.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, values)
    return path


def test_arrays_of_lzma_members_are_stored_with_their_values(archive: Path, tmp_path: Path) -> None:
    unistore.convert(archive, tmp_path / "a.zarr", "rows")
    store = unistore.Store(tmp_path / "a.zarr")
    np.testing.assert_array_equal(store.array("rows/x").read(), ROWS)
    np.testing.assert_array_equal(store.array("rows/y").read(), np.load(archive)["y"])


@pytest.mark.parametrize("part", [0.05, 0.2, 0.4, 0.6, 0.8])
def test_a_flipped_bit_is_an_error(archive: Path, tmp_path: Path, part: float) -> None:
    content = bytearray(archive.read_bytes())
    content[int(part * len(content))] ^= 16
    archive.write_bytes(content)
    with pytest.raises(InputError, match="is damaged"):
        unistore.convert(archive, tmp_path / "a.zarr", "rows")


def test_a_wrong_checksum_is_an_error(archive: Path, tmp_path: Path) -> None:
    """As where damage decodes to as many bytes."""
    content = archive.read_bytes()
    with zipfile.ZipFile(archive) as file:
        crc = file.infolist()[0].CRC.to_bytes(4, "little")
    assert content.count(crc) >= 1
    archive.write_bytes(content.replace(crc, bytes(4)))
    with pytest.raises(InputError, match=r"its CRC-32 is .*, not 0x00000000"):
        unistore.convert(archive, tmp_path / "a.zarr", "rows")
