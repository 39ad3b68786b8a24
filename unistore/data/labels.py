"""Counts of the labels of samples, and weights of classes that follow from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from unistore.data.kinds.protocol import SampleIndices, SampleReader
from unistore.errors import first_few
from unistore.system.arguments import wrong_argument
from unistore.system.types import Int64s

# Samples whose labels are read together
_TOGETHER = 16


def count_labels(reader: SampleReader, key: str, chosen: Int64s, epoch: int, seed: int) -> dict[int, int]:
    """Count labels for `Dataset.label_counts`.

    Parameters
    ----------
    reader : SampleReader
        Reader of the samples.
    key : str
        Key of the labels.
    chosen : int64 array of shape (n,)
        Samples to read.
    epoch, seed : int
        Epoch and seed of random samples.
    """
    counts: Counter[int] = Counter()
    for lo in range(0, len(chosen), _TOGETHER):
        index = chosen[lo : lo + _TOGETHER]
        indices = SampleIndices(index, np.full(len(index), epoch), seed)
        values = reader.read(indices, np.empty)[key].values
        if values.dtype.kind not in "biu":
            message = f"{key!r} is {values.dtype}, but labels must be integers"
            raise wrong_argument("key", message)
        for label, count in zip(*np.unique(values, return_counts=True), strict=True):
            counts[int(label)] += int(count)
    return dict(sorted(counts.items()))


def class_weights(key: str, counts: Mapping[int, int], classes: int | None) -> list[float]:
    """Return weights for `Dataset.class_weights`, which documents `classes`, the result and errors.

    Parameters
    ----------
    key : str
        Key of the labels, for messages.
    counts : mapping of int to int
        Label to count.
    """
    if not counts:
        raise wrong_argument(key, "has no labels", "choose a key, split or subset with labels")
    most = max(counts) + 1 if classes is None else classes
    outside = [label for label in counts if not 0 <= label < most]
    if outside:
        first = outside[0]
        lowest = min(outside)
        shown = first_few([*map(str, outside)], 8)
        message = f"contains the labels {shown}, but {most} classes allow only 0 to {most - 1}"
        fix = f'give classes={max(counts) + 1}, or unlabelled={first} if {first} means "no class"'
        if lowest < 0:
            fix = f'give unlabelled={lowest} if {lowest} means "no class"'
        raise wrong_argument(key, message, fix)
    weights = [0.0] * most
    mean = sum(counts.values()) / len(counts)
    for label, count in counts.items():
        weights[label] = mean / count
    return weights
