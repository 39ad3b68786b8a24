"""Find all groups and datasets of an HDF5 file."""

# Links, virtual datasets and external storage may point anywhere: they are followed inside the given roots
# only.

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from unistore.converters.common.exclusion import ProblemCollector
from unistore.converters.common.faults import UNREADABLE, WRITE_AGAIN, is_read_error
from unistore.converters.files.hdf5 import library as h5py
from unistore.converters.files.hdf5.file import (
    FAILURES,
    check_sources,
    file_of,
    member,
    names_in,
)
from unistore.converters.files.paths import is_inside, real_path
from unistore.errors import InputError, Location, Problem, Where, location_of, printable
from unistore.system.foreign import begin_reading, opening

# Column names and index of a pandas object, beside its ``values`` or ``block0_values``
_PANDAS_AXES = re.compile(r"axis\d+|block\d+_items|index")


@dataclass(slots=True)
class Tree:
    """Groups and datasets of a file."""

    # Open datasets by path inside the file, without leading slash, in the file's name order.
    datasets: dict[str, h5py.Dataset] = field(default_factory=dict)
    groups: list[str] = field(default_factory=list)  # paths of all groups but the root
    # Other files that links and virtual datasets lead to, all inside the roots.
    files: set[Path] = field(default_factory=set)
    # Links that leave the roots or are broken, objects that cannot be opened.
    problems: list[Problem] = field(default_factory=list)
    # Paths of what only the library that wrote the file needs.
    bookkeeping: list[str] = field(default_factory=list)


def walk(
    group: h5py.Group,
    name: Where,
    roots: Sequence[Path],
    skip: Collection[str] = frozenset(),
) -> Tree:
    """Find all groups and datasets below a group, each once.

    Bookkeeping of PyTables, pandas and MATLAB (indices, axes, references) is left out.

    Parameters
    ----------
    group : h5py.Group
        The group.
    name : Location or str
        Its place, for messages.
    roots : sequence of Path
        Paths that the user gave. Links may not lead outside of them.
    skip : collection of str
        Paths that are not entered.

    Raises
    ------
    InputError
        If a part cannot be read, because the content of the file is then not known.
    """
    walker = _Walker(name, roots, skip, h5py.h5o.get_info(group.id).fileno)
    walker.descend(group, "")
    unreadable = [problem for problem in walker.tree.problems if problem.kind == UNREADABLE]
    if unreadable:
        raise InputError(unreadable)
    if walker.tree.files:
        walker.tree.files.discard(real_path(file_of(group)))
    return walker.tree


@dataclass
class _Walker:
    """Fills a `Tree`. A recursive closure would be a reference cycle, which keeps linked files open."""

    name: Where
    roots: Sequence[Path]
    skip: Collection[str]
    own_file: int
    tree: Tree = field(default_factory=Tree)
    visited: set[object] = field(default_factory=set)

    def descend(self, group: h5py.Group, prefix: str) -> None:
        begin_reading()
        info = h5py.h5o.get_info(group.id)
        if (info.fileno, info.addr) in self.visited:
            return
        self.visited.add((info.fileno, info.addr))
        tree = self.tree
        if info.fileno != self.own_file:
            tree.files.add(real_path(file_of(group)))
        collected = ProblemCollector(tree.problems)
        keys = names_in(group, location_of(self.name, prefix))
        bookkeeping = _bookkeeping(group, keys)
        for key in keys:
            path = f"{prefix}{key}"
            if key in bookkeeping:
                tree.bookkeeping.append(path)
                continue
            location = location_of(self.name, path)
            with collected.attempt(location):
                item = follow(group, key, location, self.roots)
                if isinstance(item, Problem):
                    tree.problems.append(item)
                elif isinstance(item, h5py.Dataset):
                    _add_dataset(tree, path, item, location, self.roots)
                    if h5py.h5o.get_info(item.id).fileno != info.fileno:
                        tree.files.add(real_path(file_of(item)))
                elif isinstance(item, h5py.Group):
                    tree.groups.append(path)
                    if path not in self.skip:
                        self.descend(item, f"{path}/")


def _bookkeeping(group: h5py.Group, keys: Sequence[str]) -> set[str]:
    ignored = {key for key in keys if key.startswith("_i_") and key.removeprefix("_i_") in keys}
    ignored |= {key for key in keys if key in ("#refs#", "#subsystem#") and not group.name.strip("/")}
    axes = {key for key in keys if _PANDAS_AXES.fullmatch(key)}
    return ignored | axes if axes and "pandas_type" in group.attrs else ignored


def _add_dataset(
    tree: Tree, path: str, dataset: h5py.Dataset, location: Location, roots: Sequence[Path]
) -> None:
    """Add a dataset and the files of its values, unless it is virtual and these are out of reach."""
    # HDF5 looks for external files in the working directory, and for virtual sources beside the file.
    files = {real_path(Path(entry[0])) for entry in dataset.external or ()}
    if dataset.is_virtual:
        names = [source.file_name for source in dataset.virtual_sources() if source.file_name != "."]
        files |= {real_path(file_of(dataset).parent / name) for name in names}
    problems = []
    for file in sorted(files):
        wrong = _check_target(file, location, "stores its values in", roots)
        if wrong is None:
            tree.files.add(file)
        else:
            problems.append(wrong)
    tree.problems += problems
    if dataset.is_virtual:
        if problems:
            return
        try:
            tree.files |= check_sources(dataset, roots=roots)
        except FAILURES as error:
            if is_read_error(error):
                raise
            fix = "replace the virtual dataset by one that contains the data"
            tree.problems.append(Problem.at(location, str(error), fix, "link"))
            return
    tree.datasets[path] = dataset


def follow(group: h5py.Group, key: str, location: Location, roots: Sequence[Path]) -> object:
    """Open a member of a group, or return the problem of a link that leads out of the roots."""
    kind = group.id.links.get_info(key.encode("utf-8", "surrogateescape")).type
    if kind not in (h5py.h5l.TYPE_HARD, h5py.h5l.TYPE_SOFT, h5py.h5l.TYPE_EXTERNAL):
        message = "is a user-defined link, and only hard, soft and external links are read"
        return Problem.at(location, message, "replace it by the data", "link")
    if kind == h5py.h5l.TYPE_EXTERNAL:
        target = file_of(group).parent / group.get(key, getlink=True).filename
        if (problem := _check_target(target, location, "is a link into", roots)) is not None:
            return problem
        context: AbstractContextManager[None] = opening(target, location)
    else:
        context = nullcontext()
    try:
        with context:
            item = member(group, key)
    except FAILURES as error:
        if is_read_error(error):
            raise
        reason = error.args[0] if error.args else type(error).__name__
        if kind == h5py.h5l.TYPE_HARD:
            return Problem.at(location, f"cannot be opened: {reason}", WRITE_AGAIN, "damaged")
        link_target = group.get(key, getlink=True).path
        message = f"is a link to {link_target!r}, which cannot be opened: {reason}"
        return Problem.at(location, message, "correct or remove the link", "link")
    if kind == h5py.h5l.TYPE_HARD:
        return item
    # A link may lead through further links: what counts is the file that was reached.
    return _check_target(file_of(item), location, "is a link into", roots) or item


def members_of(group: h5py.Group) -> dict[str, Literal["array", "group"]]:
    """Members of a group, of hard links only."""
    members: dict[str, Literal["array", "group"]] = {}
    for name in names_in(group, location_of(file_of(group).name, group.name)):
        key = name.encode()
        if group.id.links.get_info(key).type == h5py.h5l.TYPE_HARD:
            kind = h5py.h5o.get_info(group.id, key).type
            members[name] = "array" if kind == h5py.h5o.TYPE_DATASET else "group"
    return members


def unlinked(group: h5py.Group, *names: str) -> h5py.HLObject | None:
    """Return a member of a group, or of that member, …, or None if there is none, or a link leads to it."""
    path = ""
    try:
        for name in names:
            path = f"{path}/{name}".lstrip("/")
            info = group.id.links.get_info(path.encode("utf-8", "surrogateescape"))
            if info.type != h5py.h5l.TYPE_HARD:
                return None
        return member(group, path)
    except FAILURES as error:
        if is_read_error(error):
            raise
        return None


def _check_target(target: Path, location: Location, what: str, roots: Sequence[Path]) -> Problem | None:
    shown = printable(str(target))
    if not is_inside(target, roots):
        folder = shlex.quote(printable(str(real_path(target).parent)))
        message = f"{what} {shown}, which is outside the given paths"
        fix = f"give the folder {folder}, too, or copy the data into this file"
        return Problem.at(location, message, fix, "link")
    if not target.is_file():
        fix = "copy that file, too, or correct the link"
        return Problem.at(location, f"{what} {shown}, which does not exist", fix, "link")
    return None
