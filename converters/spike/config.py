"""Clips of spike frames in training configurations: YAML with ``DATA.CLIP_LEN`` and others."""

from __future__ import annotations

from typing import Any

from unistore.converters.config_keys import Keys, SampleKeys

__all__ = ["CONFIG"]


def _read(keys: Keys) -> dict[str, Any]:
    return {
        "length": keys.take("DATA.CLIP_LEN", int, least=1),
        "crop": keys.take("DATA.CROP_SIZE", int, least=1),
        "voxel_bins": keys.take("DATA.NUM_VOXEL_BINS", int, least=1),
    }


CONFIG = SampleKeys(
    kind="unistore.data.kinds:Clips",
    read=_read,
    keys=(
        "DATA.CLIP_LEN",
        "DATA.CROP_SIZE",
        "DATA.NUM_VOXEL_BINS",
        "DATA.USE_PRECOMPUTED_VOXELS",
        "DATA.SPIKE_DIR",
    ),
    draws=True,
)
