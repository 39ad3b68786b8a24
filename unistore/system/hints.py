"""Types that many signatures name."""

from __future__ import annotations

import os
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

PathLike: TypeAlias = str | os.PathLike[str]
Shape: TypeAlias = tuple[int, ...]
JsonObject: TypeAlias = dict[str, Any]
AnyArray: TypeAlias = NDArray[Any]
Int64s: TypeAlias = NDArray[np.int64]
Float64s: TypeAlias = NDArray[np.float64]
UInt8s: TypeAlias = NDArray[np.uint8]
Dtype: TypeAlias = np.dtype[Any]
