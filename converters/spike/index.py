"""Index arrays of a spike store: extents, sequences, offsets of kept images."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.protocol import Source
from unistore.schemas.spike.fields import (
    IMAGE_EXTENT,
    SEQUENCE_NAME,
    SPIKE_EXTENT,
    extent_field,
    file_offsets_field,
    file_table_name,
    sequence_offsets_field,
    spike_length_field,
)
from unistore.schemas.tables import Field
from unistore.schemas.text import text_arrays

__all__ = ["index_arrays", "sequence_of_frames"]

Arrays = list[tuple[Field, NDArray[Any]]]


def index_arrays(sources: Sequence[Source]) -> Arrays:
    """All index arrays of the sources, one source for each frame."""
    details = [source.detail for source in sources]

    def stacked(of: str, name: str) -> NDArray[np.int32]:
        return np.array([detail[of][name] for detail in details], np.int32)

    if "spike" in details[0]:
        lengths, extents = np.split(stacked("spike", "extent"), [1], axis=1)
        arrays: Arrays = [(spike_length_field(), np.ascontiguousarray(lengths[:, 0]))]
        arrays.append((extent_field(SPIKE_EXTENT), np.ascontiguousarray(extents)))
    else:
        arrays = [(extent_field(SPIKE_EXTENT), stacked("voxel", "extent"))]
    images = list(details[0].get("images", {}))
    if images:
        arrays.append((extent_field(IMAGE_EXTENT), stacked("images", images[0])))
    for image in images:
        table = file_table_name(image)
        if sizes := [source.rows[table] for source in sources if table in source.rows]:
            arrays.append((file_offsets_field(image), _offsets(sizes)))
    groups = [(name, len(list(each))) for name, each in groupby(detail["sequence"] for detail in details)]
    arrays.append((sequence_offsets_field(), _offsets([length for _, length in groups])))
    names = [name for name, _ in groups]
    return arrays + text_arrays(SEQUENCE_NAME, names, axis="sequence", description="Name of the sequence")


def sequence_of_frames(sources: Sequence[Source]) -> NDArray[np.int64]:
    """Index of the first frame of each frame's recording, whose parts count as one: (F,) i8."""
    names = (source.detail.get("recording", source.detail["sequence"]) for source in sources)
    lengths = [len(list(group)) for _, group in groupby(names)]
    return np.repeat(_offsets(lengths)[:-1], lengths)


def _offsets(lengths: Sequence[int]) -> NDArray[np.int64]:
    return np.array([0, *accumulate(lengths)], np.int64)
