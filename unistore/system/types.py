"""Types that many signatures name."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

PathLike: TypeAlias = str | os.PathLike[str]
Shape: TypeAlias = tuple[int, ...]
JsonObject: TypeAlias = dict[str, Any]
Attributes: TypeAlias = Mapping[str, Any]  # of a store, a group or an array, and options: JSON
VersionLike: TypeAlias = int | str | None  # of a grown store, by number or name, or the newest
Buffer: TypeAlias = bytes | memoryview
AnyArray: TypeAlias = NDArray[Any]
Int64s: TypeAlias = NDArray[np.int64]
Float64s: TypeAlias = NDArray[np.float64]
UInt8s: TypeAlias = NDArray[np.uint8]
Dtype: TypeAlias = np.dtype[Any]
Rows: TypeAlias = AnyArray | Sequence[int]  # numbers of rows
