"""What a schema needs to know of an array in order to judge it: its shape and its dtype."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["ArrayInfo"]


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """Shape and dtype of one array of a store.

    Attributes
    ----------
    shape
        All axes, axis 0 (rows) first.
    dtype
        numpy dtype name in native form: ``"int32"``.
    """

    shape: tuple[int, ...]
    dtype: str

    @property
    def kind(self) -> str:
        """Letter of numpy for the kind of number: ``"f"``, ``"i"``, ``"u"``, ``"b"``, ``"c"``."""
        return np.dtype(self.dtype).kind
