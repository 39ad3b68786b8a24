"""A training loop to paste: complete, right for the store, and it runs as it is."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path

from unistore.samples import natural_kind
from unistore.store.reader import Store

__all__ = ["snippet"]

_BATCH = {"rows": 64, "point_cloud": 8, "ct": 2, "spike": 4, "trajectory": 64}
_OTHER_KINDS = {
    "point_cloud": ("unistore.Segments(max_points=4096)",),
    "ct": ("unistore.Patches(96)",),
    "spike": ("unistore.Clips(length=5, crop=256)",),
    "trajectory": ("unistore.Windows(history=2, horizon=8)",),
}
_TEMPLATE = """\
import unistore
from torch.utils.data import DataLoader

if __name__ == "__main__":
    dataset = unistore.Dataset({arguments})
    # a sample has: {keys}{others}
    loader = DataLoader(dataset, batch_size={batch}, shuffle=True, num_workers=2, collate_fn=unistore.collate)
    for batch in loader:
        print({{key: getattr(value, "shape", value) for key, value in batch.items()}})
        break
"""


def snippet(store: Store, splits: Mapping[str, int]) -> str:
    """Code that loads batches of the store's natural samples; empty if it has none.

    Parameters
    ----------
    splits
        Samples by split name; ``train`` is loaded, or else the first that has any.
    """
    held = [name for name, count in splits.items() if count]
    if store.sample_count == 0 or (splits and not held):
        return ""
    arguments = _quoted(str(Path(store.path).absolute()))
    if held:
        arguments += f", split={_quoted('train' if 'train' in held else held[0])}"
    others = "".join(f"\n    # or: samples={kind}" for kind in _OTHER_KINDS.get(store.modality, ()))
    keys = ", ".join(("index", *natural_kind(store).select(store, None)))
    return _TEMPLATE.format(
        arguments=arguments,
        keys="\n    # ".join(textwrap.wrap(keys, 80, break_on_hyphens=False)),
        others=others,
        batch=_BATCH.get(store.modality, 8),
    )


def _quoted(text: str) -> str:
    """A Python string literal; JSON's escapes are Python's too."""
    return json.dumps(text)
