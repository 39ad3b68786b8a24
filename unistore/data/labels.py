"""How often labels occur in the samples of a dataset, and weights of classes from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.protocol import Picks
from unistore.data.parts import Part, bind_parts
from unistore.errors import InputError, Problem, first_few
from unistore.order.sequences import sample_indices

Names: TypeAlias = str | Sequence[str] | None

_SAMPLES = 16
"""Samples read together."""


def label_counts(dataset: Any, key: str, split: Names, subset: Any) -> dict[int, int]:
    """See `Dataset.label_counts`."""
    if split is not None and subset is not None:
        message = "was given with split, and its numbers are those of the dataset's own samples"
        raise InputError(Problem("subset", message, "give one of the two", "option"))
    if key not in dataset.fields:
        message = f"{key} is not read; there are {', '.join(dataset.fields)}"
        raise InputError(Problem("key", message, kind="option"))
    found: dict[int, int] = {}
    reader = bind_parts(_parts_of(dataset, split), [key])
    chosen = np.arange(len(reader))
    if subset is not None:
        chosen = sample_indices("subset", subset, len(reader))
    for lo in range(0, len(chosen), _SAMPLES):
        index = chosen[lo : lo + _SAMPLES]
        picks = Picks(index, np.full(len(index), dataset.epoch), dataset.seed)
        values = reader.read(picks, np.empty)[key].values
        if values.dtype.kind not in "biu":
            message = f"{key} is {values.dtype}, and labels are integers"
            raise InputError(Problem("key", message, kind="option"))
        labels, counts = np.unique(values, return_counts=True)
        for label, count in zip(labels.tolist(), counts.tolist(), strict=True):
            found[int(label)] = found.get(int(label), 0) + count
    return dict(sorted(found.items()))


def _parts_of(dataset: Any, split: Names) -> Sequence[Part]:
    """The parts of a dataset, of other splits if any are named."""
    if split is None:
        return cast("Sequence[Part]", dataset.parts)
    names = (split,) if isinstance(split, str) else tuple(split)
    parts = [part._replace(splits=names) for part in dataset.parts]
    for part in parts:
        part.check_splits()
    return parts


def class_weights(
    counts: Mapping[int, int], key: str, classes: int | None, unlabelled: int | None
) -> NDArray[np.float32]:
    """Weights of the classes of `Dataset.class_weights`, from `label_counts`."""
    counts = {label: n for label, n in counts.items() if label != unlabelled}
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
