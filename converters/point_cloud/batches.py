"""The PointNet family: ``data`` (B, P, 3 | 6 | 9), one row of axis 0 is one segment of P points."""

from __future__ import annotations

from collections.abc import Mapping

import h5py

from unistore.converters.common.columns import Column
from unistore.converters.files.hdf5 import file as hdf5
from unistore.converters.files.hdf5.file import place
from unistore.converters.files.hdf5.tree import Tree
from unistore.converters.point_cloud.columns import (
    form_problems,
    lengths_problem,
    name_problems,
)
from unistore.converters.point_cloud.layout import BATCHES, FEATURES, Layout, header_of
from unistore.errors import InputError, Problem, printable
from unistore.schemas.point_cloud.fields import segment_fields

__all__ = ["is_batches", "recognise_batches"]


_POINTWISE = ("label", "normal", "pid", "mask")
"""Datasets that describe points or whole segments, never anything between."""


def is_batches(tree: Tree) -> bool:
    """Whether a file holds ``data`` of the right shape."""
    data = tree.datasets.get("data")
    return data is not None and data.ndim == 3 and data.shape[2] in (3, 6, 9)


def recognise_batches(file: h5py.File, tree: Tree, name: str, mapping: Mapping[str, str]) -> Layout:
    """Choose the columns: (B, P, …) belong to points, (B,), (B, 1) and (B, k) to whole segments.

    Parameters
    ----------
    file, tree, name
        The open file, its `walk`, and how messages call it.
    mapping
        Stored names of datasets; an empty dataset name leaves the dataset of the stored name out.

    Raises
    ------
    InputError
        With every problem of the datasets.
    """
    stored, problems = _stored_names(tree, name, mapping)
    for path in ("data", *stored):
        problems += hdf5.check_dataset(tree.datasets[path], place(name, path))
    if problems:
        raise InputError(problems)
    length = lengths_problem({path: tree.datasets[path].shape for path in ("data", *stored)}, name)
    data = tree.datasets["data"]
    count, per_segment, width = data.shape
    problems = [] if length is None else [length]
    problems += form_problems(Column(data.dtype.str), place(name, "data"), coordinate=True)
    columns: dict[str, tuple[str, Column]] = {}
    whole: dict[str, tuple[str, Column]] = {}
    if width > 3:
        columns[FEATURES] = ("data", Column(data.dtype.str, (width - 3,)))
    for path, key in stored.items():
        shape, dtype = tree.datasets[path].shape, tree.datasets[path].dtype
        by_point = shape[1:2] == (per_segment,) and per_segment != 1
        if not by_point and shape[1:2] not in ((), (1,)) and key in _POINTWISE:
            message = f"has shape {shape}, expected ({count},), ({count}, 1) or ({count}, {per_segment}, …)"
            problems.append(Problem(place(name, path), message, "write the file again", "length"))
        row_shape = shape[2:] if by_point else shape[1:]
        form = Column(dtype.str, () if row_shape == (1,) else row_shape)
        problems += form_problems(form, place(name, path))
        (columns if by_point else whole)[key] = (path, form)
    problems += _name_problems(columns, whole, name)
    if problems:
        raise InputError(problems)
    return Layout(
        kind=BATCHES,
        points=count * per_segment,
        segments=count,
        xyz=("data",),
        xyz_stored=(data.dtype.str,),
        columns=columns,
        segment_columns=whole,
        header=header_of(file, name),
        files=tuple(sorted(tree.files)),
        reading=2 * sum(hdf5.chunk_memory(tree.datasets[path]) for path in ("data", *stored)),
        notes=tuple(
            f"left out, being no column: {printable(path)}"
            for path, each in tree.datasets.items()
            if not each.shape
        ),
    )


def _stored_names(tree: Tree, name: str, mapping: Mapping[str, str]) -> tuple[dict[str, str], list[Problem]]:
    """Stored name by dataset, of every dataset at the file's root but ``data``, and of those mapped."""
    wanted = {source.strip("/"): key for key, source in mapping.items() if source}
    gone = {key for key, source in mapping.items() if not source}
    problems = [
        Problem(place(name, source), f"is not there, but --map {key}={source} names it", kind="missing")
        for source, key in wanted.items()
        if source not in tree.datasets
    ]
    own = [path for path, dataset in tree.datasets.items() if "/" not in path and dataset.shape]
    stored = {path: wanted.get(path, path) for path in own if path not in gone and path != "data"}
    stored |= {source: key for source, key in wanted.items() if source in tree.datasets and source != "data"}
    return stored, problems


def _name_problems(
    columns: Mapping[str, tuple[str, Column]], whole: Mapping[str, tuple[str, Column]], name: str
) -> list[Problem]:
    paths = {key: path for key, (path, _) in (*columns.items(), *whole.items())}
    problems = name_problems(paths, (), name)
    kept = [key for key in whole if key in (*segment_fields(None), "name")]
    cure = "rename it with --map NEW=OLD"
    return problems + [
        Problem(place(name, paths[key]), f"{key!r} is kept for the index", cure, "name") for key in kept
    ]
