"""``unistore.remove`` and ``unistore.versions``: versions without sources, and what versions there are."""

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
    """One version of a store: its number and names, what it has, and what changed since the one before."""

    number: int
    tags: tuple[str, ...]
    sources: int
    samples: int
    parts: int
    added: int  # sources
    removed: int  # sources


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """What a removal did: the new version, the sources that it lacks, and the samples that are left."""

    store: str
    version: int
    sources: tuple[str, ...]
    samples: int


def remove(store: PathLike, pattern: str | Sequence[str]) -> Removed:
    """Make a version of a store without some of its sources. Their bytes stay until `unistore.compact`.

    Parameters
    ----------
    store
        Folder or URL of the store.
    pattern
        Names of sources, or patterns: ``"lab_a/*"``. ``*`` stands for slashes, too.

    Raises
    ------
    InputError
        If a pattern matches no source, or nothing would be left.
    """
    check = Arguments()
    check.names("pattern", pattern)
    check.raise_problems()
    patterns = [pattern] if isinstance(pattern, str) else list(pattern)
    with growing(store) as growth:
        known, _ = known_sources(growth)
        chosen: dict[str, None] = {}
        problems = []
        for one in patterns:
            names = [name for name in known if name == one or fnmatchcase(name, one)]
            chosen |= dict.fromkeys(names)
            if not names:
                message = f"matches no source of {growth.store}"
                fix = f"as {first_few([*known])}"
                problems.append(Problem(one, message, fix, "option"))
        if problems:
            raise InputError(problems)
        schemas: list[Attributes] = list(growth.version.schemas)
        parts = without_sources(growth, [known[name] for name in chosen], schemas)
        if not parts:
            msg = f"{growth.store}: nothing would be left; remove the folder to remove the store"
            raise InputError(msg)
        version = growth.commit(parts, schemas)
    return Removed(store=growth.store, version=version.number, sources=tuple(chosen), samples=version.samples)


def versions(store: PathLike, *, tag: str | None = None, version: int | None = None) -> list[VersionSummary]:
    """Return the versions of a store, the oldest first. A store that never grew has one.

    Parameters
    ----------
    store
        Folder or URL of the store.
    tag
        Give this name to a version first, for ever: ``unistore.Dataset(store, version=tag)``.
    version
        Number of the version to name. None: the newest.

    Raises
    ------
    StoreError
        If there is no store, or a version is damaged.
    InputError
        If the name is invalid, or that of another version.
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
