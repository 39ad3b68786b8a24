"""Every dataset below a group of an HDF5 file.

External links, virtual datasets and raw external storage may point anywhere: only targets inside the given
roots are followed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import h5py

from unistore.converters.common.exclusion import Collected
from unistore.converters.files.hdf5.file import FAILURES, file_of, member, names_in, place
from unistore.converters.files.hdf5.virtual import check_sources
from unistore.converters.files.hdf5.vouching import vouch
from unistore.converters.files.paths import is_inside, real_path
from unistore.errors import Problem, printable

__all__ = ["Tree", "follow", "walk"]

_PANDAS = re.compile(r"axis\d+|block\d+_items|index")
"""Names and index of a pandas object, beside its ``values`` or ``block0_values``."""


@dataclass(slots=True)
class Tree:
    """What `walk` found.

    Attributes
    ----------
    datasets
        Open datasets by path inside the file, without leading slash, in the file's name order.
    groups
        Paths of all groups but the root.
    files
        Further files that links and virtual datasets lead to, all inside the roots.
    problems
        Links that leave the roots or lead nowhere, objects that cannot be opened.
    broken
        Paths of these: where a dataset or a group should be.
    """

    datasets: dict[str, h5py.Dataset] = field(default_factory=dict)
    groups: list[str] = field(default_factory=list)
    files: set[Path] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


def walk(group: h5py.Group, name: str, roots: Sequence[Path], skip: Collection[str] = frozenset()) -> Tree:
    """Every dataset below a group, following only links that stay inside the roots, each group once.

    What PyTables, pandas and MATLAB keep for themselves is left out: indices, axes, references.

    Parameters
    ----------
    group
        Where to begin; paths are relative to it.
    name
        How messages call the file.
    roots
        Folders or files in which targets of external links and of virtual datasets must lie.
    skip
        Paths of groups that are listed but not entered.
    """
    tree = Tree()
    _descend(group, "", name, roots, tree, set(), skip, h5py.h5o.get_info(group.id).fileno)
    if tree.files:
        tree.files.discard(real_path(file_of(group)))
    return tree


def _descend(
    group: h5py.Group,
    prefix: str,
    name: str,
    roots: Sequence[Path],
    tree: Tree,
    seen: set[object],
    skip: Collection[str],
    own: int,
) -> None:
    info = h5py.h5o.get_info(group.id)
    if (info.fileno, info.addr) in seen:
        return
    seen.add((info.fileno, info.addr))
    if info.fileno != own:
        tree.files.add(real_path(file_of(group)))
    collected = Collected(tree.problems)
    keys = names_in(group, place(name, prefix))
    inner = _bookkeeping(group, keys)
    for key in keys:
        if key in inner:
            continue
        path = f"{prefix}{key}"
        location = place(name, path)
        with collected.attempt(location):
            item = follow(group, key, location, roots)
            if isinstance(item, Problem):
                tree.problems.append(item)
                tree.broken.append(path)
            elif isinstance(item, h5py.Dataset):
                _add(tree, path, item, location, roots)
                if h5py.h5o.get_info(item.id).fileno != info.fileno:
                    tree.files.add(real_path(file_of(item)))
            elif isinstance(item, h5py.Group):
                tree.groups.append(path)
                if path not in skip:
                    _descend(item, f"{path}/", name, roots, tree, seen, skip, own)


def _bookkeeping(group: h5py.Group, keys: Sequence[str]) -> set[str]:
    """Members that a library keeps for itself: indices of PyTables, axes of pandas, references of MATLAB."""
    found = {key for key in keys if key.startswith("_i_") and key.removeprefix("_i_") in keys}
    found |= {key for key in keys if key in ("#refs#", "#subsystem#") and not group.name.strip("/")}
    axes = {key for key in keys if _PANDAS.fullmatch(key)}
    return found | axes if axes and "pandas_type" in group.attrs else found


def _add(tree: Tree, path: str, dataset: h5py.Dataset, location: str, roots: Sequence[Path]) -> None:
    """Note a dataset and the files of its values; one that is virtual only if it leads to values."""
    problems = []
    for file in sorted(_storage_files(dataset)):
        wrong = _check_target(file, location, "keeps values in", roots)
        if wrong is None:
            tree.files.add(file)
        else:
            problems.append(wrong)
    tree.problems += problems
    if dataset.is_virtual:
        if problems:
            tree.broken.append(path)
            return
        try:
            tree.files |= check_sources(dataset, roots=roots)
        except FAILURES as error:
            tree.problems.append(Problem(location, str(error), "replace it by the data", "link"))
            tree.broken.append(path)
            return
    tree.datasets[path] = dataset


def follow(group: h5py.Group, key: str, location: str, roots: Sequence[Path]) -> object:
    """Open a member of a group unless it leads out of the roots.

    Returns
    -------
    h5py.Dataset, h5py.Group, h5py.Datatype or Problem
        The member, or what forbids it.
    """
    kind = group.id.links.get_info(key.encode("utf-8", "surrogateescape")).type
    if kind not in (h5py.h5l.TYPE_HARD, h5py.h5l.TYPE_SOFT, h5py.h5l.TYPE_EXTERNAL):
        return Problem(location, "is a link of a user-defined kind", "replace it by the data", "link")
    if kind == h5py.h5l.TYPE_EXTERNAL:
        target = file_of(group).parent / group.get(key, getlink=True).filename
        if (problem := _check_target(target, location, "is a link into", roots)) is not None:
            return problem
        vouch(target, location)
    try:
        item = member(group, key)
    except FAILURES as error:
        reason = error.args[0] if error.args else type(error).__name__
        if kind == h5py.h5l.TYPE_HARD:
            return Problem(location, f"cannot be opened: {reason}", "get the file again", "damaged")
        wanted = group.get(key, getlink=True).path
        return Problem(location, f"is a link to {wanted!r}, which cannot be opened: {reason}", kind="link")
    if kind == h5py.h5l.TYPE_HARD:
        return item
    # A link may lead through further links: what counts is the file that was reached.
    return _check_target(file_of(item), location, "is a link into", roots) or item


def _check_target(target: Path, location: str, what: str, roots: Sequence[Path]) -> Problem | None:
    shown = printable(str(target))
    if not is_inside(target, roots):
        cure = "give the folder of the target too, or copy the data"
        return Problem(location, f"{what} {shown}, outside the given paths", cure, "link")
    if not target.is_file():
        return Problem(location, f"{what} {shown}, which does not exist", kind="link")
    return None


def _storage_files(dataset: h5py.Dataset) -> set[Path]:
    """Files in which the values of a dataset lie, if not in its own."""
    names = [entry[0] for entry in dataset.external or ()]
    if dataset.is_virtual:
        names += [source.file_name for source in dataset.virtual_sources() if source.file_name != "."]
    return {real_path(file_of(dataset).parent / name) for name in names}
