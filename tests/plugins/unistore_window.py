"""Windows of ragged samples as a package of somebody else: a kind of samples for stores of any family."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from unistore import plugin


@dataclass(frozen=True, kw_only=True)
class Window(plugin.Kind):
    """Rows of one column, so many of each sample at a random place; shorter samples give theirs."""

    rows: int = 100
    column: str = "frames/pcm"
    per_sample: int = 1

    def keys(self, store) -> Sequence[str]:
        if not store.has(self.column):
            raise plugin.InputError(f"{store.path}: has no {self.column}")
        return (self.column.rpartition("/")[2], "start")

    def counts(self, store) -> np.ndarray:
        return np.full(store.sample_count, self.per_sample)

    def read(self, store, keys: Sequence[str], picks: plugin.SampleRows) -> Mapping[str, object]:
        offsets = store.array(f"{store.sample_table}/offsets")
        lo = offsets.read_rows(picks.rows)
        lengths = offsets.read_rows(picks.rows + 1) - lo
        room = np.maximum(lengths - self.rows, 0)
        start = picks.below(room[:, None] + 1)[:, 0]
        taken = np.minimum(lengths, self.rows)
        array = store.array(self.column)
        values = picks.allocate((int(taken.sum()), *array.shape[1:]), array.dtype)
        array.read_ranges(lo + start, lo + start + taken, values)
        ends = np.concatenate([[0], np.cumsum(taken)])
        return {self.column.rpartition("/")[2]: plugin.Packed(values, ends), "start": start}
