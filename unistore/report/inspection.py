"""`inspect`: what is at a path, and what to do with it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from unistore.converters.registry import families
from unistore.errors import InputError, Problem, first_few
from unistore.remote.url import local_path, place_of
from unistore.report.blocks import source_blocks, store_blocks, unfinished_blocks, verdict_table, zarr_blocks
from unistore.report.grown import GrownReport, describe_grown, grown_blocks
from unistore.report.sealed import StoreReport, describe_store
from unistore.report.sources import (
    BUILD_SUFFIX,
    UnfinishedReport,
    ZarrReport,
    describe_unfinished,
    is_store,
    is_zarr,
    stores_inside,
)
from unistore.report.text import Block, to_text
from unistore.store.names import REPAIR, build_folder
from unistore.store.reader import Store
from unistore.store.versions import find_grown, open_stores
from unistore.system.sizes import count_of
from unistore.system.types import JsonObject, PathLike

if TYPE_CHECKING:
    from unistore.converters.detection import CountReport
    from unistore.report.sources import SourceReport


_ARCHIVES = (".zip", ".tar", ".tgz", ".bz2", ".xz", ".zst", ".7z", ".rar")


@dataclass(slots=True, kw_only=True)
class UnknownReport:
    """A path that is neither a store nor sources.

    Attributes
    ----------
    inside : list of str
        Names of Zarr folders in it.
    verdicts : list of dict
        Results of its files, with reasons.
    """

    inside: list[str]
    verdicts: list[CountReport]


@dataclass(frozen=True, slots=True, repr=False)
class Inspection:
    """What was found at a path. ``print(inspection)`` shows it; a notebook displays it.

    Attributes
    ----------
    kind : {"store", "grown", "unfinished", "source", "zarr", "unknown"}
        ``"grown"``: a versioned store. ``"unfinished"``: a conversion that is running or was stopped.
        ``"zarr"``: a Zarr hierarchy that is not a store.
    path : str
        The path, as it was given.
    report
        Everything that is known, as one record.
    problems : sequence of Problem
        Problems of sources.
    blocks : sequence of Block
        The text that is shown.
    """

    kind: Literal["store", "grown", "unfinished", "source", "zarr", "unknown"]
    path: str
    report: StoreReport | GrownReport | UnfinishedReport | SourceReport | ZarrReport | UnknownReport
    problems: Sequence[Problem] = ()
    blocks: Sequence[Block] = ()
    _place: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_place", place_of(self.path))

    @property
    def details(self) -> Mapping[str, Any]:
        """The record as JSON values.

        A store has ``family``, ``format_version``, ``samples``, ``main_table``, ``splits``, ``sources``,
        ``arrays``, ``stored_bytes``, ``raw_bytes``, ``ratio``, ``options``, ``created_with``, ``statistics``,
        ``samples_statistics`` (what ``unistore statistics`` keeps), ``seal``, ``measures``,
        ``remarks`` and ``snippet``. Its seal ``agrees`` with manifest and root, or
        not: files are not read, but for a bounded part of the values. A grown store has ``version``,
        ``versions``, ``parts``, ``samples``, ``sources``, ``splits``, ``samples_statistics``, ``remarks``,
        ``snippet``, and the ``arrays`` of its newest parts (``read_parts`` of them) together. A source that
        can be read has ``family``, ``layout``, ``reason``, ``command``,
        ``families`` (these and the number of files, of each
        family that is there), ``verdicts`` (files taken, left out and refused, by reason) and, where there is
        one family and nothing is wrong, ``sources``, ``tables``, ``raw_bytes``, ``memory`` (bytes),
        ``options``, ``notes``, ``offers`` (what further options would precompute:
        ``option``, ``gives``, ``most_bytes``).
        """
        values = asdict(self.report)
        if self.kind == "source":
            return {name: value for name, value in values.items() if value is not None}
        return values

    @property
    def is_good(self) -> bool:
        """Whether the path is recognised and there are no problems."""
        is_sealed = not isinstance(self.report, StoreReport) or bool(self.report.seal["agrees"])
        return self.kind != "unknown" and not self.problems and is_sealed

    def to_json(self) -> JsonObject:
        """Return ``kind``, ``path``, the details and ``problems`` as JSON values."""
        problems = [problem.to_json() for problem in self.problems]
        return {"kind": self.kind, "path": self.path, **self.details, "problems": problems}

    def to_html(self, samples: Sequence[int] = ()) -> str:
        """Return a self-contained HTML page, for a store with pictures of samples.

        Parameters
        ----------
        samples : sequence of int, default ()
            Samples to show in addition to the first, the middle, the last, and those that stand out: rows
            of the store's sample table.

        Returns
        -------
        str
            The page.

        Raises
        ------
        InputError
            If a sample does not exist, there are more than 24, or the path is not a store.
        """
        from unistore.report.page import render_page

        return render_page(self._place, self.report, self.blocks, samples)

    def __str__(self) -> str:
        return to_text(self.blocks)

    def __repr__(self) -> str:
        parts = [f"{self.kind} {self.path!r}"]
        facts = dict(self.blocks[0].facts) if self.blocks else {}
        if "family" in facts:
            parts.append(facts["family"])
        if self.problems:
            parts.append(count_of(len(self.problems), "problem"))
        elif self._remarks:
            parts.append(count_of(len(self._remarks), "remark"))
        return f"Inspection({', '.join(parts)})"

    @property
    def _remarks(self) -> Sequence[str]:
        return self.report.remarks if isinstance(self.report, StoreReport) else ()

    def _repr_html_(self) -> str:
        from unistore.html import notebook_html

        facts = [*self.blocks[0].facts, *(("", remark) for remark in self._remarks)]
        return notebook_html(repr(self), facts, [(Store(self._place), None)] if self.kind == "store" else [])


def inspect(path: PathLike, *, version: int | str | None = None) -> Inspection:
    """Look at a path without changing anything.

    Parameters
    ----------
    path : path or URL
        A store, a staging folder of a conversion, a source file or folder, or anything else.
    version : int or str, optional
        Number or name of the version of a versioned store. None: the newest.

    Returns
    -------
    Inspection
        A description, which you can print.

    Raises
    ------
    InputError
        If the path, or the version, does not exist.
    StoreError
        If it is a store that is unfinished, damaged, or of another format version.

    Examples
    --------
    >>> print(unistore.inspect("train.zarr"))  # doctest: +SKIP

    The command that converts files is there if the path is a source (``kind == "source"``):

    >>> unistore.inspect("recordings/").details["command"]  # doctest: +SKIP
    'unistore convert point-cloud recordings recordings.zarr'
    """
    name = os.fspath(path)
    target = local_path(path)
    if find_grown(name) is not None:
        grown = describe_grown(name, version)
        return Inspection("grown", name, grown, blocks=grown_blocks(name, grown))
    if version is not None:
        open_stores(name, version)  # a plain store is version 1
    if target is None:
        return _store(name)
    build = target if target.name.endswith(BUILD_SUFFIX) and target.is_dir() else build_folder(target)
    if build == target or (build.is_dir() and not (target / "zarr.json").exists()):
        unfinished = describe_unfinished(build)
        return Inspection("unfinished", name, unfinished, blocks=unfinished_blocks(str(build), unfinished))
    if not name or not target.exists():
        raise InputError(Problem(name, "no such file or folder", "check the path", "missing"))
    if target.is_dir() and is_zarr(target):
        if is_store(target):
            return _store(name)
        hierarchy = ZarrReport(zarr_format=3 if (target / "zarr.json").exists() else 2)
        return Inspection("zarr", name, hierarchy, blocks=zarr_blocks(name, hierarchy))
    return _other(name, target)


def _store(name: str) -> Inspection:
    store = describe_store(name)
    return Inspection("store", name, store, blocks=store_blocks(name, store))


def _other(name: str, target: Path) -> Inspection:
    from unistore.conversion.executors.local import parallel_map
    from unistore.conversion.executors.processes import Processes
    from unistore.converters.detection import survey
    from unistore.report.sources import commands_behind_links, describe_sources

    with Processes() as executor:
        surveyed = survey([target], parallel_map(executor))
    sources, problems = describe_sources(target, surveyed)
    if sources.families or problems:
        blocks = source_blocks(name, sources, problems)
        if not sources.families:
            for title, code in commands_behind_links(target, problems):
                blocks.append(Block(f"then convert it: {title}", code=code))
        return Inspection("source", name, sources, tuple(problems), blocks)
    inside = stores_inside(target)
    message, fix = _why_unknown(target, inside)
    message = "; ".join([*surveyed.unread()[:3], message])
    blocks = [Block(facts=[("unknown", name)], lines=(f"{message}.", f"fix: {fix}"))]
    if target.is_dir():
        blocks += verdict_table(sources.verdicts)
    unknown = UnknownReport(inside=inside, verdicts=sources.verdicts)
    return Inspection("unknown", name, unknown, (Problem(name, message, fix, "unknown"),), blocks)


def _why_unknown(target: Path, inside: Sequence[str]) -> tuple[str, str]:
    from unistore.converters.files.paths import is_inside

    if target.name.endswith(f".{REPAIR}"):
        store = target.name.removesuffix(f".{REPAIR}")
        message = f"this is the folder of a repair of {store}, which is running or was stopped"
        return message, "wait, run the repair again, or remove the folder"
    if inside:
        return (
            f"this folder contains stores or Zarr hierarchies: {first_few(inside, 5)}",
            "inspect one of them",
        )
    if target.is_dir() and not any(target.iterdir()):
        return "the folder is empty", "check the path"
    if target.suffix.lower() in _ARCHIVES:
        return "this is an archive", "unpack it, and inspect the folder"
    link = next((path for path in target.rglob("*") if not is_inside(path, [target])), None)
    if link is not None:
        return f"{link.relative_to(target)} is a link out of this folder", "inspect the target of the link"
    commands = ", ".join(sorted(family.command() for family in families().values()))
    message = f"this is not a store, and no family recognises its files ({commands})"
    return message, "to learn why, name the family: unistore convert FAMILY SRC... DST"
