"""What type checkers know of samples and batches. mypy checks this module; nothing runs it."""

from __future__ import annotations

from typing import Any, assert_type

from torch import Tensor

import unistore


def pair(sample: Any) -> tuple[Tensor, Tensor]:
    return sample["xyz"], sample["label"]


def number(samples: Any) -> int:
    return len(samples)


dataset = unistore.Dataset("clouds.zarr")
assert_type(dataset[0]["xyz"], Tensor)
assert_type(dataset[0]["source"], Any)
assert_type(dataset.at_version(1)[0]["xyz"], Tensor)
for batch in unistore.Loader(dataset, batch_size=4):
    assert_type(batch["xyz"], Tensor)

pairs = unistore.Dataset("clouds.zarr", transform=pair)
assert_type(pairs[0], tuple[Tensor, Tensor])
for joined in unistore.Loader(pairs):
    assert_type(joined, tuple[Tensor, Tensor])

for sample in unistore.Loader(dataset, batch_size=None):
    assert_type(sample["xyz"], Tensor)
for count in unistore.Loader(dataset, collate_fn=number):
    assert_type(count, int)
for item in unistore.Loader([1, 2]):
    assert_type(item, Any)
