"""Clips of spike frames in training configurations: YAML with ``DATA.CLIP_LEN`` and others."""

from __future__ import annotations

from typing import Any

from unistore.converters.config_keys import Keys, SampleKeys


def _read(keys: Keys) -> dict[str, Any]:
    return {
        "length": keys.take("DATA.CLIP_LEN", int, least=1),
        "crop": keys.take("DATA.CROP_SIZE", int, least=1),
        "voxel_bins": keys.take("DATA.NUM_VOXEL_BINS", int, least=1),
    }


def _convert(keys: Keys) -> dict[str, Any]:
    """Voxels that exist are stored as they are; else they are counted from the spikes on reading."""
    folders = {"spike_dir": keys.take("DATA.SPIKE_DIR", str)}
    voxels = keys.take("DATA.VOXEL_CACHE_DIRNAME", str)
    stored = keys.take("DATA.USE_PRECOMPUTED_VOXELS", bool, default=voxels is not None)
    return {**folders, "voxel_dir": voxels if stored else "none"}


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
    names={"voxel": "spike_vox"},
    convert=_convert,
    draws=True,
)
