"""What a spike store must hold, and how its arrays are tiled."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from unistore.schemas.spike.fields import (
    bits_field,
    chunk_steps,
    even_tile,
    file_table,
    image_field,
    voxel_field,
)


@given(st.integers(1, 2_000), st.integers(1, 300))
def test_even_tiles_cover_with_little_padding(extent: int, wanted: int) -> None:
    tile = even_tile(extent, wanted)
    assert 1 <= tile <= extent
    if extent > wanted:
        assert -(-extent // tile) * tile <= -(-extent // wanted) * wanted
        assert tile <= wanted * 1.6


def test_tiles_of_known_cameras() -> None:
    assert bits_field(360, 640, 88).tile == (36, 40)
    assert voxel_field(5, "uint8", 360, 640, counted=True).tile == (5, 120, 128)
    assert voxel_field(10, "uint8", 360, 640, counted=True).tile == (10, 60, 128)
    assert image_field("blur", 720, 1280).tile == (120, 128, 3)
    assert voxel_field(5, "uint8", 250, 400, counted=True).tile == (5, 125, 200), "columns in groups of 8"


@given(st.integers(1, 2_000), st.integers(1, 1_500), st.integers(1, 1_500), st.integers(1, 64))
def test_chunks_stay_of_a_readable_size(length: int, height: int, width: int, bins: int) -> None:
    for field in (
        bits_field(height, width, chunk_steps([length])),
        voxel_field(bins, "uint16", height, width, counted=True),
    ):
        assert field.tile is not None
        size = field.run
        for tile, extent in zip(field.tile, field.row_shape, strict=True):
            assert 1 <= tile <= extent
            size *= tile
        assert size <= 512 << 10
    assert file_table("blur", 1_000).fields[0].path == "frames/blur_file/data"


def test_frames_of_one_length_are_chunks_and_others_lie_across_short_ones() -> None:
    assert chunk_steps([88] * 9) == 88
    assert chunk_steps([200]) == 200
    assert chunk_steps([100_000]) == 32
    assert chunk_steps([301]) == 43, "which divides it: the last chunk is not padded"
    assert chunk_steps([88, 56]) == 36
