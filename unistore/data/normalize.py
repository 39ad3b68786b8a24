"""`Normalize`: scale values to zero mean and unit deviation, or to -1…1, with their statistics."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

from unistore.data.statistics import Statistics
from unistore.system.arguments import Arguments, wrong_argument
from unistore.system.types import Float64s

Mode: TypeAlias = Literal["mean-std", "min-max", "quantile"]
_MODES = ("mean-std", "min-max", "quantile")
_SMALLEST = float(np.finfo(np.float32).tiny)  # A scale below this counts as 0: its inverse is no float32


class Normalize(torch.nn.Module):
    """Normalise values: a transform for samples and batches, a function for arrays, and a torch module.

    A value becomes ``(value - centre) / scale``. A constant component becomes 0. Integers become float32;
    floating-point values keep their dtype.

    Parameters
    ----------
    statistics : Statistics, or dict of str to Statistics
        Statistics of one key: the module takes and returns its values, tensors or NumPy arrays (…, A), or
        images (…, C, H, W). A dict: it takes and returns samples or batches, and leaves other keys as
        they are.
    mode : {"mean-std", "min-max", "quantile"}, default "mean-std"
        ``"mean-std"``: the mean becomes 0, the standard deviation 1. ``"min-max"``: the smallest and
        largest value become -1 and 1. ``"quantile"``: the quantiles of 1 % and 99 % become -1 and 1;
        values beyond them are not clipped.

    Raises
    ------
    InputError
        If an argument is invalid, or a component has no finite value.

    Examples
    --------
    >>> keys = ("action", "observation.joint")  # doctest: +SKIP
    >>> statistics = {key: dataset.statistics(key) for key in keys}  # doctest: +SKIP
    >>> dataset.transform = unistore.Normalize(statistics, mode="quantile")  # doctest: +SKIP
    >>> actions = dataset.transform["action"].inverse(policy(batch))  # doctest: +SKIP
    """

    centre: torch.Tensor
    scale: torch.Tensor

    def __init__(self, statistics: Statistics | Mapping[str, Statistics], mode: Mode = "mean-std") -> None:
        super().__init__()
        check = Arguments()
        check.one_of("mode", mode, _MODES)
        by_key = {} if isinstance(statistics, Statistics) else statistics
        is_right = isinstance(statistics, Statistics)
        if isinstance(statistics, Mapping) and statistics:
            is_right = all(isinstance(value, Statistics) for value in statistics.values())
        if not is_right:
            check.refuse("statistics", f"must be Statistics, or Statistics by key, got {statistics!r:.60}")
        check.raise_problems()
        self._is_inverse = False
        self.keys = tuple(by_key)
        self.of_keys = torch.nn.ModuleList([Normalize(value, mode) for value in by_key.values()])
        if isinstance(statistics, Statistics):
            centre, scale = _centre_and_scale(statistics, mode)
            self.register_buffer("centre", torch.from_numpy(_along(centre, statistics.axis)))
            self.register_buffer("scale", torch.from_numpy(_along(scale, statistics.axis)))

    def __getitem__(self, key: str) -> Normalize:
        """Return the module of one key. KeyError if there is no such key."""
        if key not in self.keys:
            raise KeyError(key)
        module = self.of_keys[self.keys.index(key)]
        assert isinstance(module, Normalize)
        return module

    @property
    def inverse(self) -> Normalize:
        """The inverse module, which restores the original values, also of constant components."""
        inverse = copy.copy(self)
        inverse._is_inverse = not self._is_inverse
        inverse._modules = dict(self._modules)
        inverse.of_keys = torch.nn.ModuleList([self[key].inverse for key in self.keys])
        return inverse

    def forward(self, values: Any) -> Any:
        """Return normalised values.

        Parameters
        ----------
        values : array, Tensor, or dict of them
            Values of one key, or a sample or batch if there are statistics by key.
        """
        if self.keys:
            changed = copy.copy(values)
            for key, module in zip(self.keys, self.of_keys, strict=True):
                changed[key] = module(values[key])
            return changed
        if isinstance(values, (np.ndarray, np.generic)):
            return self._of_tensor(torch.from_numpy(np.array(values))).numpy()
        return self._of_tensor(values)

    def _of_tensor(self, values: torch.Tensor) -> torch.Tensor:
        floating = values if values.dtype.is_floating_point else values.float()
        centre = self.centre.to(floating.device, floating.dtype)
        scale = self.scale.to(floating.device, floating.dtype)
        if self._is_inverse:
            return floating * scale + centre
        is_constant = scale == 0
        return torch.where(is_constant, 0.0, (floating - centre) / torch.where(is_constant, 1.0, scale))


def _centre_and_scale(statistics: Statistics, mode: Mode) -> tuple[Float64s, Float64s]:
    if not np.all(statistics.count):
        empty = np.sum(statistics.count == 0)
        message = f"{empty:,} components of {statistics.key!r} have no finite value"
        raise wrong_argument("statistics", message, f"leave out the key {statistics.key!r}")
    if mode == "mean-std":
        centre = statistics.mean
        scale = statistics.std
    else:
        is_range = mode == "min-max"
        low = statistics.min if is_range else statistics.q01
        high = statistics.max if is_range else statistics.q99
        centre = low + (high - low) / 2
        scale = (high - low) / 2
    return centre, np.where(scale < _SMALLEST, 0.0, scale)


def _along(values: Float64s, axis: int | None) -> Float64s:
    trailing = 0 if axis is None else -1 - axis
    return np.array(values).reshape((*np.shape(values), *[1] * trailing))
