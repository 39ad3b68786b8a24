"""Join predictions for the cells of a grid to volumes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from typing import Any, Literal

import numpy as np
import torch

from unistore.data.dataset import Dataset
from unistore.data.kinds.volumes import GridCell, Patches, PatchReader
from unistore.errors import InputError, Problem
from unistore.system.arguments import Arguments
from unistore.system.types import Shape

# Standard deviation of gaussian weights, in edges of a box, as sliding windows of the field have it
_SIGMA = 1 / 8


def stitch(
    dataset: Dataset,
    predictions: Iterable[tuple[Any, Any]],
    weights: Literal["constant", "gaussian"] = "constant",
) -> Iterator[tuple[int, Any]]:
    """Join predictions for the cells of a grid to volumes: their weighted mean if cells overlap.

    A volume is yielded when all its cells have arrived, and then dropped. If predictions come in the
    order of the grid, one or two volumes are in memory.

    Parameters
    ----------
    dataset : Dataset
        Samples of ``Patches(…, random=False)``.
    predictions : iterable of (index, values)
        ``index`` (B,): the samples. Values (B, d, h, w) or (B, C, d, h, w) with any C, as NumPy arrays or
        tensors on any device. Cells may come in any order, each once.
    weights : {"constant", "gaussian"}, default "constant"
        ``"constant"``: all voxels of a cell have the same weight. ``"gaussian"``: voxels in the middle of
        a cell have the largest weight, with a standard deviation of an eighth of its edges.

    Yields
    ------
    number : int
        Number of the volume, as samples of ``Volumes()`` of the same stores and split are numbered.
    volume : array or Tensor
        Its values, (D, H, W) or (C, D, H, W), at the extent of the volume in voxels of the grid; float32,
        or float64 for float64 predictions; of the library and on the device of the predictions.

    Raises
    ------
    InputError
        If the samples are not a grid. If values are not floating-point, or do not have the shape of the
        cells. If a cell comes twice, or some are missing at the end.

    Examples
    --------
    >>> grid = unistore.Dataset("ct.zarr", unistore.Patches(96, random=False, overlap=0.5))  # doctest: +SKIP
    >>> loader = unistore.Loader(grid, batch_size=4, shuffle=False)  # doctest: +SKIP
    >>> outputs = ((batch["index"], model(batch["image"])) for batch in loader)  # doctest: +SKIP
    >>> for number, volume in unistore.stitch(grid, outputs, weights="gaussian"):  # doctest: +SKIP
    ...     np.save(f"{number}.npy", volume)
    """
    check = Arguments()
    kind = dataset.samples
    is_grid = isinstance(kind, Patches) and not kind.random
    check.expect("dataset", kind, is_grid, "a Dataset of samples=unistore.Patches(…, random=False)")
    check.one_of("weights", weights, ("constant", "gaussian"))
    check.raise_problems()
    assert isinstance(kind, Patches)
    return _joined(_Grid(dataset), predictions, kind.shape, _weights(kind.shape, weights))


def _joined(
    grid: _Grid, predictions: Iterable[tuple[Any, Any]], shape: Shape, weights: torch.Tensor
) -> Iterator[tuple[int, Any]]:
    unfinished: dict[int, _Sum] = {}
    for index, values in predictions:
        numbers = torch.as_tensor(index).cpu().numpy().reshape(-1)
        batch = torch.as_tensor(values).detach()
        is_of_boxes = batch.ndim in (4, 5) and tuple(batch.shape[-3:]) == shape
        if not is_of_boxes or len(batch) != len(numbers):
            expected = f"({len(numbers)}, …, {', '.join(map(str, shape))})"
            message = f"have the shape {tuple(batch.shape)}, but {expected} is expected, as of the patches"
            raise _refusal(message, "shape")
        if not batch.is_floating_point():
            message = f"are {batch.dtype}, but class numbers cannot be averaged where patches overlap"
            raise _refusal(message, "dtype", "stitch the scores, then take argmax")
        for sample, values_of_cell in zip(numbers.tolist(), batch, strict=True):
            cell = grid.cell(sample)
            if cell.volume not in unfinished:
                unfinished[cell.volume] = _Sum(values_of_cell, cell, weights)
            unfinished[cell.volume].add(sample, values_of_cell, cell.corner)
            if not unfinished[cell.volume].missing:
                volume = unfinished.pop(cell.volume).mean()
                yield cell.volume, volume if isinstance(values, torch.Tensor) else volume.numpy()
    if unfinished:
        missing = sum(part.missing for part in unfinished.values())
        message = f"end although {missing:,} patches of {len(unfinished):,} volumes are missing"
        fix = "read the whole grid: shuffle=False, drop_last=False, and one rank"
        raise _refusal(message, "missing", fix)


class _Grid:
    def __init__(self, dataset: Dataset) -> None:
        self._first = dataset.store_offsets
        self._readers: list[PatchReader] = []
        self._volumes_before = [0]
        for part in dataset.read_parts:
            units = part.units()
            reader = part.bind(("corner",))
            assert isinstance(reader, PatchReader)
            self._readers.append(reader)
            volumes = part.store.sample_count if units is None else len(units)
            self._volumes_before.append(self._volumes_before[-1] + volumes)

    def cell(self, sample: int) -> GridCell:
        if not 0 <= sample < self._first[-1]:
            message = f"have the index {sample:,}, but the Dataset has {self._first[-1]:,} samples"
            raise _refusal(message, "index")
        store = int(np.searchsorted(self._first, sample, side="right")) - 1
        cell = self._readers[store].cell(sample - int(self._first[store]))
        return cell._replace(volume=self._volumes_before[store] + cell.volume)


class _Sum:
    def __init__(self, values: torch.Tensor, cell: GridCell, weights: torch.Tensor) -> None:
        dtype = torch.float64 if values.dtype == torch.float64 else torch.float32
        self._sum = torch.zeros((*values.shape[:-3], *cell.extent), dtype=dtype, device=values.device)
        self._weights = torch.zeros_like(self._sum[(0,) * (values.ndim - 3)])
        self._cell_weights = weights.to(self._sum)
        self.missing = cell.cells
        self._came: set[int] = set()

    def add(self, sample: int, values: torch.Tensor, corner: Shape) -> None:
        if sample in self._came:
            message = f"sample {sample:,} was given twice"
            raise _refusal(message, "duplicate", "read each sample once, with shuffle=False")
        if values.shape[:-3] != self._sum.shape[:-3]:
            channels = tuple(values.shape[:-3]), tuple(self._sum.shape[:-3])
            message = (
                f"sample {sample:,} has {channels[0]} channels, but others of its volume have {channels[1]}"
            )
            raise _refusal(message, "shape")
        self._came.add(sample)
        self.missing -= 1
        depth, height, width = (
            slice(low, low + edge) for low, edge in zip(corner, values.shape[-3:], strict=True)
        )
        total = self._sum[..., depth, height, width]
        weights = self._weights[depth, height, width]
        inside: Any = (..., *map(slice, weights.shape))  # a cell may reach beyond its volume
        weight = self._cell_weights[inside]
        total += values[inside] * weight
        weights += weight

    def mean(self) -> torch.Tensor:
        # In the memory of the sum
        return self._sum.div_(self._weights)


def _refusal(message: str, kind: str, fix: str = "") -> InputError:
    return InputError(Problem("predictions", message, fix, kind))


def _weights(shape: Shape, weights: str) -> torch.Tensor:
    if weights == "constant":
        return torch.ones(tuple(shape), dtype=torch.float64)
    curves = []
    for edge in shape:
        distance = (torch.arange(edge, dtype=torch.float64) - (edge - 1) / 2) / (edge * _SIGMA)
        curves.append(torch.exp(-(distance**2) / 2))
    return reduce(torch.multiply, torch.meshgrid(*curves, indexing="ij"))
