"""`remove` and `versions`: a version without some sources, and the list of versions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from unistore.errors import InputError, Problem, first_few
from unistore.growing.append import known_sources, without_sources
from unistore.growing.growth import growing, tag_version
from unistore.store.versions import Version, find_grown, first_version, open_stores
from unistore.system.arguments import Arguments
from unistore.system.types import Attributes, PathLike


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSummary:
    """One version of a store.

    Attributes
    ----------
    number : int
        Number, from 1.
    tags : tuple of str
        Names.
    sources : int
        Number of sources.
    samples : int
        Number of samples.
    parts : int
        Number of sealed stores that it consists of.
    added : int
        Number of sources that it has and the version before does not.
    removed : int
        Number of sources that the version before has and it does not.
    """

    number: int
    tags: tuple[str, ...]
    sources: int
    samples: int
    parts: int
    added: int
    removed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """Result of `unistore.remove`.

    Attributes
    ----------
    store : str
        The versioned store.
    version : int
        Number of the new version.
    sources : tuple of str
        Names of the removed sources.
    samples : int
        Number of samples of the new version.

    Examples
    --------
    >>> removed = unistore.remove("train.zarr", "lab_a/*")  # doctest: +SKIP
    >>> print(removed.version, removed.sources)  # doctest: +SKIP
    3 ('lab_a/1.h5', 'lab_a/2.h5')
    """

    store: str
    version: int
    sources: tuple[str, ...]
    samples: int


def remove(store: PathLike, pattern: str | Sequence[str]) -> Removed:
    """Write a version of a store without some of its sources.

    Their bytes stay on disk, and in older versions, until you write a new store with `unistore.compact`.

    Parameters
    ----------
    store : path or URL
        Folder or URL of the store.
    pattern : str or list of str
        Names of sources, or patterns: ``"lab_a/*"``. ``*`` also matches slashes.

    Returns
    -------
    Removed
        The new version and the removed sources.

    Raises
    ------
    InputError
        If a pattern matches no source, or no source would be left.

    Examples
    --------
    >>> removed = unistore.remove("train.zarr", "lab_a/*")  # doctest: +SKIP
    >>> removed.version  # doctest: +SKIP
    3
    """
    check = Arguments()
    check.names("pattern", pattern)
    check.raise_problems()
    patterns = [pattern] if isinstance(pattern, str) else list(pattern)
    with growing(store) as growth:
        known, _ = known_sources(growth.opened.opened_parts())
        chosen: dict[str, None] = {}
        problems = []
        for name_or_pattern in patterns:
            names = [name for name in known if name == name_or_pattern or fnmatchcase(name, name_or_pattern)]
            chosen |= dict.fromkeys(names)
            if not names:
                message = f"{growth.store} has no source of this name"
                fix = f"give names or patterns of its sources, such as {first_few([*known])}"
                problems.append(Problem(name_or_pattern, message, fix, "option"))
        if problems:
            raise InputError(problems)
        schemas: list[Attributes] = list(growth.version.schemas)
        parts = without_sources(growth, [known[name] for name in chosen], schemas)
        if not parts:
            message = "no source would be left"
            raise InputError.at(growth.store, message, "to remove the store, remove its folder", "option")
        version = growth.commit(parts, schemas)
    return Removed(store=growth.store, version=version.number, sources=tuple(chosen), samples=version.samples)


def versions(store: PathLike, *, tag: str | None = None, version: int | None = None) -> list[VersionSummary]:
    """Return the versions of a store, the oldest first. A single store has one version.

    Parameters
    ----------
    store : path or URL
        Folder or URL of the store.
    tag : str, optional
        Give this name to a version first. It belongs to the version forever: ``unistore.Dataset(store,
        version=tag)``. None: give no name.
    version : int, optional
        Number of the version to name. None: the newest.

    Returns
    -------
    list of VersionSummary
        The versions.

    Raises
    ------
    StoreError
        If there is no store, or a version is damaged.
    InputError
        If the name is invalid, or belongs to another version.

    Examples
    --------
    >>> versions = unistore.versions("train.zarr", tag="paper-v1")  # doctest: +SKIP
    >>> [(version.number, version.sources) for version in versions]  # doctest: +SKIP
    [(1, 120), (2, 140)]
    """
    if tag is not None:
        tag_version(store, tag, version)
    grown = find_grown(os.fspath(store))
    if grown is None:
        return _summaries([first_version(open_stores(os.fspath(store)).stores[0])], {})
    return _summaries(map(grown.read, grown.numbers()), grown.tags())


def _summaries(listed: Iterable[Version], tags: Mapping[str, int]) -> list[VersionSummary]:
    summaries = []
    before: Version | None = None
    for version in listed:
        keys = {part.key for part in before.parts} if before else set()
        added = sum(part.sources - len(part.removed) for part in version.parts if part.key not in keys)
        summaries.append(
            VersionSummary(
                number=version.number,
                tags=tuple(name for name, number in tags.items() if number == version.number),
                sources=version.sources,
                samples=version.samples,
                parts=len(version.parts),
                added=added,
                removed=(before.sources if before else 0) + added - version.sources,
            )
        )
        before = version
    return summaries
