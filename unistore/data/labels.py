"""How often labels occur in the samples of a dataset, and weights of classes from it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.protocol import Picks
from unistore.data.parts import bind_parts
from unistore.errors import InputError, Problem, first_few

_SAMPLES = 16
"""Samples read together."""


def label_counts(dataset: Any, key: str) -> dict[int, int]:
    """See `Dataset.label_counts`."""
    if key not in dataset.fields:
        message = f"{key} is not read; there are {', '.join(dataset.fields)}"
        raise InputError(Problem("key", message, kind="option"))
    found: dict[int, int] = {}
    reader = bind_parts(dataset.parts, [key])
    for lo in range(0, len(reader), _SAMPLES):
        index = np.arange(lo, min(lo + _SAMPLES, len(reader)))
        picks = Picks(index, np.full(len(index), dataset.epoch), dataset.seed)
        values = reader.read(picks, np.empty)[key].values
        if values.dtype.kind not in "biu":
            message = f"{key} is {values.dtype}, and labels are integers"
            raise InputError(Problem("key", message, kind="option"))
        labels, counts = np.unique(values, return_counts=True)
        for label, count in zip(labels.tolist(), counts.tolist(), strict=True):
            found[int(label)] = found.get(int(label), 0) + count
    return dict(sorted(found.items()))


def class_weights(dataset: Any, key: str, classes: int | None, unlabelled: int | None) -> NDArray[np.float32]:
    """See `Dataset.class_weights`."""
    counts = {label: n for label, n in label_counts(dataset, key).items() if label != unlabelled}
    most = max(counts, default=-1) + 1 if classes is None else classes
    outside = [label for label in counts if not 0 <= label < most]
    if outside or not counts:
        message = f"has labels {first_few([*map(str, outside)], 8)}, outside of {most} classes"
        cure = "give the value that stands for no class: unlabelled=…"
        raise InputError(Problem(key, message if outside else "has no labels", cure, "option"))
    weights = np.zeros(most, np.float32)
    mean = sum(counts.values()) / len(counts)
    for label, count in counts.items():
        weights[label] = mean / count
    return weights
