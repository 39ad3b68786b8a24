"""Meta that MONAI and TorchIO want, of samples of CT stores: a transform for each, by one affine.

``unistore.Dataset("ct.zarr", unistore.Patches(96), FIELDS, transform=to_monai)``
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

import unistore

FIELDS = ["image", "affine", "spacing", "origin", "extent", "source"]
"""Keys of a sample that `to_monai` uses. Add masks and labels by their names."""

# A store's world is (z, y, x) toward head, back and left. Theirs is (x, y, z) toward right, front and head.
TO_RAS = torch.tensor([[0, 0, -1, 0], [0, -1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1]], dtype=torch.float64)


def ras_affine(sample: Mapping[str, Any]) -> torch.Tensor:
    """Return the matrix (4, 4) from (depth, height, width, 1) of a sample to mm, in NIfTI's RAS."""
    affine = TO_RAS @ sample["affine"]
    if not bool(affine.isfinite().all()):
        raise unistore.InputError("the sample's source does not say where its voxels lie: read no affine")
    return affine


def original_affine(sample: Mapping[str, Any], step: int = 1) -> torch.Tensor:
    """Return the matrix (4, 4) from voxels of the whole source volume to mm, in NIfTI's RAS.

    Voxels are in the order of NIfTI and ITK, (width, height, depth, 1). It is the ``original_affine`` that
    MONAI's ``LoadImage`` reads from the file.

    Parameters
    ----------
    sample : dict
        A sample with ``affine``, and with ``origin``, the place of the first voxel of its volume.
    step : int, default 1
        ``step`` of the sample kind.
    """
    affine = ras_affine(sample)
    affine[:3, :3] /= step
    affine[:3, 3] = TO_RAS[:3, :3] @ sample["origin"]
    return affine[:, [2, 1, 0, 3]]


def is_volume(value: Any) -> bool:
    """Return whether a value of a sample has one number per voxel."""
    return isinstance(value, torch.Tensor) and value.ndim == 3


def to_monai(sample: Mapping[str, Any], step: int = 1) -> dict[str, Any]:
    """Turn volumes of a sample into MetaTensors (1, D, H, W) with the meta that MONAI's transforms use.

    ``affine`` and ``spacing`` describe the sample. ``original_affine`` and ``spatial_shape`` describe the
    source, so that ``SaveImaged(resample=True)`` writes on its grid. ``filename_or_obj`` is the path of the
    source. ``original_channel_dim`` is 0: there is an axis of channels, and ``EnsureChannelFirstd`` adds no
    other one.

    Parameters
    ----------
    sample : dict
        A sample with the keys `FIELDS`.
    step : int, default 1
        ``step`` of the sample kind.
    """
    from monai.data import MetaTensor

    affine = ras_affine(sample)
    meta = {
        "filename_or_obj": sample["source"],
        "original_affine": original_affine(sample, step),
        "original_channel_dim": 0,
        "spacing": sample["spacing"],
        "spatial_shape": sample["extent"].flip(0).numpy(),
        "space": "RAS",
    }
    return {
        key: MetaTensor(value[None], affine=affine, meta=dict(meta)) if is_volume(value) else value
        for key, value in sample.items()
    }


def to_torchio(sample: Mapping[str, Any]) -> Any:
    """Turn a sample into a Subject: ``image`` a ScalarImage, other volumes LabelMaps."""
    import torchio

    affine = ras_affine(sample).numpy()
    images = {}
    for key, value in sample.items():
        if is_volume(value):
            of_kind = torchio.ScalarImage if key == "image" else torchio.LabelMap
            images[key] = of_kind(tensor=value[None], affine=affine)
    return torchio.Subject(**images)
