"""Augmentations of whole batches with libraries of the field, for ``Loader(device=…, batch_transform=…)``.

They run where the batch is: on the device of the Loader. Nothing seeds their numbers for a resumed run.
"""

from __future__ import annotations

import math
from typing import Any

import kornia.augmentation as kornia
import torch
from monai import transforms

_flip = kornia.RandomDepthicalFlip3D(p=0.5)


def flip_patches(batch: dict[str, Any]) -> dict[str, Any]:
    """Flip half of the patches of a batch along their depth with kornia, image and label together.

    Parameters
    ----------
    batch : dict
        ``image`` and ``tumour`` (B, D, H, W).
    """
    image = _flip(batch["image"][:, None].float())
    label = _flip(batch["tumour"][:, None].float(), params=_flip._params)
    return batch | {"image": image[:, 0], "tumour": label[:, 0].to(batch["tumour"].dtype)}


_rotate = transforms.Compose(
    [
        transforms.RandRotate90d(["image", "tumour"], prob=0.5, spatial_axes=(1, 2)),
        transforms.RandScaleIntensityd("image", factors=0.1, prob=1.0),
    ]
)


def rotate_patches(batch: dict[str, Any]) -> dict[str, Any]:
    """Turn each patch by 90° or not, and scale its values, with MONAI, which transforms one sample at a time.

    Parameters
    ----------
    batch : dict
        ``image`` and ``tumour`` (B, D, H, W), with H = W.
    """
    pairs = zip(batch["image"][:, None].float(), batch["tumour"][:, None], strict=True)
    samples = [_rotate({"image": image, "tumour": label}) for image, label in pairs]
    stacked = {key: torch.stack([sample[key].as_tensor()[0] for sample in samples]) for key in samples[0]}
    return batch | stacked


def turn_clouds(batch: dict[str, Any]) -> dict[str, Any]:
    """Turn each cloud of a packed batch about the vertical axis by an angle of its own.

    Parameters
    ----------
    batch : dict
        ``xyz`` (sum N, 3), and ``offsets`` (B + 1,), which state where each cloud begins.
    """
    xyz, counts = batch["xyz"], batch["offsets"].diff()
    angles = 2 * math.pi * torch.rand(len(counts), device=xyz.device)
    cosines = angles.cos().repeat_interleave(counts)
    sines = angles.sin().repeat_interleave(counts)
    x, y, z = xyz.unbind(1)
    return batch | {"xyz": torch.stack((cosines * x - sines * y, sines * x + cosines * y, z), 1)}
