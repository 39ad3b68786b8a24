"""A uniform subset of k of n rows: the same numbers from the kernel and from numpy."""

# Draw j of a subset is ``floor(n * mix(word + j * golden) / 2**64)``, j = 1, 2, …: SplitMix64 that starts at
# the word of the sample. The first k *different* draws are the subset, so every subset is equally likely up
# to the bias of one draw, below n / 2**64

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unistore.order.permutation import GOLDEN, mix
from unistore.system.kernel import kernel
from unistore.system.types import Int64s

# Up to this ratio of population to draws, a mask of bytes over the population is faster than sorting the
# draws; the kernel has one of bits
MASK_RATIO = 32
_BLOCK = 8192  # draws made at a time, so that their words stay in the processor's cache
_LOW = np.uint64(0xFFFFFFFF)
_S32 = np.uint64(32)


def subset(total: int, count: int, word: int, mask_ratio: int = MASK_RATIO) -> Int64s:
    """Return a uniform subset of ``range(total)``, (count,) int64, strictly ascending.

    It is a function of `total`, `count` and `word` (64 bits) alone. The cost depends on the smaller of the
    subset and its complement: that one is drawn. `mask_ratio` chooses the way, not the numbers.
    """
    if not 0 <= count <= total < 1 << 63:
        msg = f"cannot take {count} of {total}"
        raise ValueError(msg)
    smaller = min(count, total - count)
    library = kernel()
    if total > mask_ratio * smaller * (1 if library is None else 8):
        chosen = _sorted_draws(total, smaller, word)
        return chosen if smaller == count else np.delete(np.arange(total), chosen)
    if library is None:
        return np.flatnonzero(_marked(total, smaller, word) == (smaller == count))
    out = np.empty(count, np.int64)
    bits = np.empty(-(-total // 64), np.uint64)
    if library.unistore_draw_subset(word, total, count, bits.ctypes.data, len(bits), out.ctypes.data):
        msg = f"the kernel did not take {count} of {total}"
        raise RuntimeError(msg)
    return out


# As many numbers are drawn as are missing, again and again. That is never too many, so the same numbers are
# drawn as one by one until the set is full


def _marked(total: int, count: int, word: int) -> NDArray[np.bool_]:
    mask = np.zeros(total, np.bool_)
    drawn = 0
    missing = count
    while missing:
        for first in range(drawn, drawn + missing, _BLOCK):
            mask[_draws(total, word, first, min(_BLOCK, drawn + missing - first))] = True
        drawn += missing
        missing = count - int(np.count_nonzero(mask))
    return mask


def _sorted_draws(total: int, count: int, word: int) -> Int64s:
    chosen = np.empty(0, np.int64)
    drawn = 0
    while len(chosen) < count:
        missing = count - len(chosen)
        chosen = np.unique(np.concatenate((chosen, _draws(total, word, drawn, missing))))
        drawn += missing
    return chosen


def _draws(total: int, word: int, first: int, count: int) -> Int64s:
    # ``first`` draws were made before; the high 64 bits of the product of two words of 64
    steps = np.arange(first + 1, first + count + 1, dtype=np.uint64) * GOLDEN
    words = mix(steps + np.uint64(word))
    high, low = words >> _S32, words & _LOW
    total_high, total_low = np.uint64(total >> 32), np.uint64(total & 0xFFFFFFFF)
    middle = high * total_low + (low * total_low >> _S32)
    carried = low * total_high + (middle & _LOW)
    numbers: Int64s = (high * total_high + (middle >> _S32) + (carried >> _S32)).astype(np.int64)
    return numbers
