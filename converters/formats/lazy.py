"""Values of an array that a function reads when it is sliced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray


class LazyRows:
    """Rows of a shape and dtype that are known before they are read. ``read(lo, hi)`` gives some of them."""

    def __init__(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], read: Callable[[int, int], NDArray[Any]]
    ) -> None:
        self.shape, self.dtype = shape, dtype
        self._read = read

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        lo, hi, step = rows.indices(self.shape[0])
        return self._read(lo, max(lo, hi))[::step]
