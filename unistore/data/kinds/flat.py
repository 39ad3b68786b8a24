"""The flat layout of replay buffers: which observations its tuple has, and images in another size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from unistore.errors import InputError

_IMAGES = (
    ("left_image", "left_wrist_image"),
    ("right_image", "right_wrist_image"),
    ("global_image",),
)
_JOINTS = ("joint", "joints", "qpos")
"""Observations in the order of the tuple, each under the names it goes by."""


class Flat(NamedTuple):
    """Keys of the observations, and the side that images have; None: as they are stored."""

    keys: tuple[str, ...]
    size: int | None

    @property
    def fields(self) -> list[str]:
        """Keys that are read."""
        return [*self.keys, "action", *(f"next.{key}" for key in self.keys), "reward", "terminated"]

    def of(self, batch: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The tuple of a batch."""
        now = [self._ready(batch[key]) for key in self.keys]
        after = [self._ready(batch[f"next.{key}"]) for key in self.keys]
        reward = batch["reward"].float().reshape(-1, 1)
        not_done = 1.0 - batch["terminated"].float().reshape(-1, 1)
        return (*now, batch["action"].float(), *after, reward, not_done)

    def _ready(self, values: torch.Tensor) -> torch.Tensor:
        """Images in their size, everything else float32."""
        if values.dtype != torch.uint8 or values.ndim != 4:
            return values.float()
        stored = values.shape[-2:]
        return (
            values if self.size is None or stored == (self.size, self.size) else _resized(values, self.size)
        )


def flat_layout(where: str, known: Sequence[str], size: int | None) -> Flat:
    """The observations of the flat layout.

    Parameters
    ----------
    where
        The store, for messages.
    known
        Keys of its samples.
    size
        Side of the images; None: as they are stored.

    Raises
    ------
    InputError
        If some observations are missing.
    """
    sets = [_stored(names, known, size) for names in _IMAGES]
    joint = [key for name in _JOINTS if (key := f"observation.{name}") in known][:1]
    keys = [found for found in sets if found is not None]
    if len(keys) == len(sets) and joint:
        return Flat((*keys, *joint), size)
    missing = [names for names, found in zip((*_IMAGES, _JOINTS), (*sets, joint), strict=True) if not found]
    options = " ".join(f"--map observation/{names[0]}=DATASET" for names in missing)
    msg = (
        f"{where}: a tuple needs the observations {', '.join(map('|'.join, missing))}; the store has "
        f"{', '.join(known)}. Name them when converting ({options}), or take output='dict'"
    )
    raise InputError(msg)


def _stored(names: Sequence[str], known: Sequence[str], size: int | None) -> str | None:
    """Key that an image is read from: the copy of this size, else the image, else its only resized copy."""
    for name in names:
        key = f"observation.{name}"
        candidates = [f"{key}_{size}", key]
        # Stores of earlier versions have a resized copy that stands alone under its size.
        copies = [
            other for other in known if other.startswith(f"{key}_") and other[len(key) + 1 :].isdecimal()
        ]
        candidates += copies if len(copies) == 1 else []
        stored = next((candidate for candidate in candidates if candidate in known), None)
        if stored is not None:
            return stored
    return None


def _resized(images: torch.Tensor, size: int) -> torch.Tensor:
    """Images (B, 3, H, W) u1 as (B, 3, size, size), channels last in memory: bilinear, as OpenCV does it."""
    import cv2

    out = np.empty((len(images), size, size, 3), np.uint8)
    for image, target in zip(images.permute(0, 2, 3, 1).contiguous().cpu().numpy(), out, strict=True):
        cv2.resize(image, (size, size), dst=target, interpolation=cv2.INTER_LINEAR)
    return torch.from_numpy(out).permute(0, 3, 1, 2)
