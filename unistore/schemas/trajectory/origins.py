"""What the attributes of an array of steps state about its column in the sources, and about its frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from unistore.schemas.indices import StoreView, contradiction
from unistore.system.types import Dtype, Shape

_FRAME_DTYPES = ("uint8", "uint16")
_MAX_FRAME_VALUES = 1 << 30  # Largest number of values of a frame: more than any image decoder supports


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnOrigin:
    """A column in the sources.

    Attributes
    ----------
    datasets : tuple of str
        Names of its datasets. Empty: no source has it.
    forms : tuple of str
        How the sources have its rows: ``("plain",)``, ``("channels_first",)``.
    components : tuple of str
        Names of the numbers in a row. Empty: not stated.
    offsets : tuple of str
        Names of the datasets that divide ragged rows. Empty: not stated.
    """

    datasets: tuple[str, ...]
    forms: tuple[str, ...]
    components: tuple[str, ...] = ()
    offsets: tuple[str, ...] = ()

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> ColumnOrigin | None:
        """Return what the attributes of an array state. None: it is not a column of the sources.

        `KeyError` if they state datasets, but not how these have the rows.
        """
        return cls.stated(attributes) if "source_dataset" in attributes else None

    @classmethod
    def stated(cls, attributes: Mapping[str, Any]) -> ColumnOrigin:
        """Return what the attributes of a column of the sources state. `KeyError` if they lack it."""
        return cls(
            datasets=tuple(attributes["source_dataset"]),
            forms=tuple(attributes["source_form"]),
            components=tuple(attributes.get("components", ())),
            offsets=tuple(attributes.get("source_offsets", ())),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the attributes of its array."""
        attributes = {"source_dataset": list(self.datasets), "source_form": list(self.forms)}
        if self.components:
            attributes["components"] = list(self.components)
        if self.offsets:
            attributes["source_offsets"] = list(self.offsets)
        return attributes

    @property
    def dataset(self) -> str:
        """Name of its first dataset, without slashes around it. Empty: no source has it."""
        return self.datasets[0].strip("/") if self.datasets else ""


class FrameForm(NamedTuple):
    """The form of the frames of a column of compressed images or video, once they are decoded.

    Attributes
    ----------
    dtype : numpy.dtype
        Dtype of the values.
    shape : tuple of int
        Shape of a frame: height, width, and channels if there are several.
    """

    dtype: Dtype
    shape: Shape

    @classmethod
    def of(cls, store: StoreView, path: str) -> FrameForm:
        """Return the form of the frames of a column.

        Parameters
        ----------
        store : StoreView
            The store.
        path : str
            Path of the ``data`` of the column.

        Raises
        ------
        StoreError
            If the attributes state no form that frames can have.
        """
        attributes = store.array(path).attributes
        shape: Any = attributes.get("shape")
        dtype = attributes.get("dtype", "uint8")
        if not _is_frame_shape(shape) or dtype not in _FRAME_DTYPES:
            forms = f"{' or '.join(_FRAME_DTYPES)} of shape [y, x, channel]"
            message = f"its frames are {dtype!r} of shape {shape!r}, expected {forms}"
            raise contradiction(store, path, message)
        return cls(np.dtype(dtype), tuple(shape))


def _is_frame_shape(shape: Any) -> TypeGuard[list[int]]:
    extents = isinstance(shape, list) and all(type(extent) is int and extent > 0 for extent in shape)
    return extents and 2 <= len(shape) <= 3 and prod(shape) <= _MAX_FRAME_VALUES
