"""Meta that MONAI and TorchIO want, of samples of CT stores: a transform for each, by one affine.

``unistore.Dataset("ct.zarr", unistore.Patches(96), ["image", "affine", "spacing"], transform=to_monai)``
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

import unistore

# A store's world is (z, y, x) toward head, back and left. Theirs is (x, y, z) toward right, front and head.
TO_RAS = torch.tensor([[0, 0, -1, 0], [0, -1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1]], dtype=torch.float64)


def ras_affine(sample: Mapping[str, Any]) -> torch.Tensor:
    """Return the matrix (4, 4) from (depth, height, width, 1) of a sample to mm, in NIfTI's RAS."""
    affine = TO_RAS @ sample["affine"]
    if not bool(affine.isfinite().all()):
        raise unistore.InputError("the sample's source does not say where its voxels lie: read no affine")
    return affine


def to_monai(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Turn volumes of a sample into MetaTensors (1, D, H, W) with ``affine`` and ``spacing``."""
    from monai.data import MetaTensor

    meta = {"spacing": sample["spacing"]}
    affine = ras_affine(sample)
    return {
        key: MetaTensor(value[None], affine=affine, meta=dict(meta)) if value.ndim == 3 else value
        for key, value in sample.items()
    }


def to_torchio(sample: Mapping[str, Any]) -> Any:
    """Turn a sample into a Subject: ``image`` a ScalarImage, other volumes LabelMaps."""
    import torchio

    affine = ras_affine(sample).numpy()
    images = {}
    for key, value in sample.items():
        if value.ndim == 3:
            of_kind = torchio.ScalarImage if key == "image" else torchio.LabelMap
            images[key] = of_kind(tensor=value[None], affine=affine)
    return torchio.Subject(**images)
