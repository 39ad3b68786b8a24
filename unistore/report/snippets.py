"""A training loop to paste: complete, right for the store, and it runs as it is."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping

import numpy as np

from unistore.converters.registry import get_family
from unistore.data.kinds import Clips, SampleKind
from unistore.data.parts import natural_kind
from unistore.errors import InputError, printable
from unistore.remote.storage import local_path
from unistore.store.reader import Store

__all__ = ["snippet"]

_TEMPLATE = """\
import unistore

if __name__ == "__main__":
    dataset = unistore.Dataset({arguments})
    # {about}{others}
    loader = unistore.Loader(dataset, batch_size={batch}, shuffle=True)
    for batch in loader:
        print({{key: getattr(value, "shape", value) for key, value in batch.items()}})
        break
"""
_WIDTH = 74
"""Of comments: with their indent they fit into 80 columns."""


def snippet(store: Store, splits: Mapping[str, int]) -> str:
    """Code that loads batches of the store's natural samples; empty if it has none or its family is unknown.

    Parameters
    ----------
    splits
        Samples by split name; ``train`` is loaded, or else the first that has any.
    """
    held = [name for name, count in splits.items() if count]
    if store.sample_count == 0 or (splits and not held):
        return ""
    split = None if not held else "train" if "train" in held else held[0]
    folder = local_path(store.path)
    arguments = _quoted(store.path if folder is None else str(folder.absolute()))
    if split is not None:
        arguments += f", split={_quoted(split)}"
    try:
        known, kind = get_family(store.family), natural_kind(store)
    except InputError:
        return ""
    count = _count(store, kind, split)
    if count == 0 and isinstance(kind, Clips):  # no sequence of five frames
        kind, arguments = Clips(length=1), f"{arguments}, samples=unistore.Clips(length=1)"
        count = _count(store, kind, split)
    if count == 0:
        return ""
    about = printable(f"{count:,} samples; each has: {', '.join(('index', *kind.select(store, None)))}")
    return _TEMPLATE.format(
        arguments=arguments,
        about="\n    # ".join(textwrap.wrap(about, _WIDTH, break_on_hyphens=False)),
        others="".join(f"\n    # or: samples={other}" for other in known.other_kinds),
        batch=known.batch_size,
    )


def _count(store: Store, kind: SampleKind, split: str | None) -> int:
    """Samples that a Dataset of this kind has."""
    units = None
    if split is not None:
        codes, names = store.splits()
        units = np.flatnonzero(codes == names.index(split))
    return len(kind.bind(store, kind.select(store, None), units))


def _quoted(text: str) -> str:
    """A Python string literal; JSON's escapes are Python's too."""
    return json.dumps(text)
