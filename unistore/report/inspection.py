"""``unistore.inspect``: what is at a path, and what to do with it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from unistore.converters.registry import families
from unistore.errors import InputError, Problem, first_few
from unistore.remote.storage import local_path
from unistore.report.blocks import Block, to_text, verdict_blocks
from unistore.report.sealed import describe_store
from unistore.report.sealed_blocks import store_blocks
from unistore.report.unsealed import (
    BUILD_SUFFIX,
    describe_unfinished,
    describe_zarr,
    is_store,
    is_zarr,
    stores_inside,
    unfinished_blocks,
    zarr_blocks,
)
from unistore.store.names import REPAIR, build_folder
from unistore.store.reader import Store
from unistore.system.sizes import count_of

_ARCHIVES = (".zip", ".tar", ".tgz", ".bz2", ".xz", ".zst", ".7z", ".rar")


@dataclass(frozen=True, slots=True, repr=False)
class Inspection:
    """What was found at a path. ``str()`` and ``print()`` show it.

    Attributes
    ----------
    kind
        ``"store"``, ``"unfinished"`` (a conversion under way or stopped), ``"source"``, ``"zarr"`` (any
        other Zarr hierarchy) or ``"unknown"``.
    path
        The path as given.
    details
        Everything that is known, as JSON values. A store has ``family``, ``format_version``, ``samples``,
        ``main_table``, ``splits``, ``sources``, ``arrays``, ``stored_bytes``, ``raw_bytes``, ``ratio``,
        ``options``, ``created_with``, ``statistics``, ``seal``, ``measures``, ``remarks`` and ``snippet``;
        its seal ``agrees`` with manifest and root, or not: files are not read, but for a bounded part of the
        values. A source that can be read has ``family``, ``layout``, ``reason``, ``command``, ``families``
        (these and the number of files, of each family that is there), ``verdicts`` (files taken, left out and
        refused, by reason) and, where there is one family and nothing is wrong, ``sources``, ``tables``,
        ``raw_bytes``, ``memory`` (bytes), ``options``, ``notes``.
    problems
        What is wrong with sources.
    blocks
        What is shown.
    """

    kind: Literal["store", "unfinished", "source", "zarr", "unknown"]
    path: str
    details: Mapping[str, Any]
    problems: tuple[Problem, ...] = ()
    blocks: Sequence[Block] = ()

    @property
    def is_good(self) -> bool:
        """Whether the path is recognised and nothing is wrong."""
        agrees = self.kind != "store" or self.details["seal"]["agrees"]
        return self.kind != "unknown" and not self.problems and agrees

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values: ``kind``, ``path``, the details, ``problems``."""
        problems = [problem.to_json() for problem in self.problems]
        return {"kind": self.kind, "path": self.path, **self.details, "problems": problems}

    def to_html(self, samples: Sequence[int] = ()) -> str:
        """A self-contained page of HTML; of a store with pictures of samples.

        Parameters
        ----------
        samples
            Numbers of samples to be shown besides the first, middle, last and those that stand out: rows of
            the store's sample table.

        Raises
        ------
        InputError
            If a sample does not exist, more than 24 are requested, or any of what is not a store.
        """
        from unistore.report.page import render_page

        return render_page(self.kind, self.path, self.details, self.blocks, samples)

    def __str__(self) -> str:
        return to_text(self.blocks)

    def __repr__(self) -> str:
        facts = dict(fact for block in self.blocks[:1] for fact in block.facts)
        shown = [facts[name] for name in ("family", "samples") if name in facts]
        wrong = len(self.problems) or len(self.details.get("remarks", ()))
        shown += [count_of(wrong, "problem" if self.problems else "remark")] if wrong else []
        return f"Inspection({self.kind} {self.path!r}{''.join(f', {each}' for each in shown)})"

    def _repr_html_(self) -> str:
        from unistore.pictures import notebook_html

        remarks = [("", remark) for remark in self.details.get("remarks", ())]
        facts = [fact for block in self.blocks[:1] for fact in block.facts] + remarks
        return notebook_html(repr(self), facts, [(Store(self.path), None)] if self.kind == "store" else [])


def inspect(path: str | os.PathLike[str]) -> Inspection:
    """Look at a path without changing anything.

    Parameters
    ----------
    path
        A store or the URL of one, a folder that a conversion left, a source file or folder, or anything else.

    Raises
    ------
    InputError
        If nothing is there.
    StoreError
        If it is a store that is unfinished, of another format, or damaged.

    Examples
    --------
    >>> print(unistore.inspect("train.zarr"))  # doctest: +SKIP
    """
    given, target = os.fspath(path), local_path(path)
    if target is None:
        return _store(given)
    build = target if target.name.endswith(BUILD_SUFFIX) and target.is_dir() else build_folder(target)
    if build == target or (build.is_dir() and not (target / "zarr.json").exists()):
        details = describe_unfinished(build)
        return Inspection("unfinished", given, details, blocks=unfinished_blocks(str(build), details))
    if not given or not target.exists():
        raise InputError(Problem(given, "no such file or folder", "check the path", "missing"))
    if target.is_dir() and is_zarr(target):
        if is_store(target):
            return _store(given)
        details = describe_zarr(target)
        return Inspection("zarr", given, details, blocks=zarr_blocks(given, details))
    from unistore.conversion.executors.apart import Apart
    from unistore.conversion.executors.asking import asking
    from unistore.converters.survey import survey
    from unistore.report.sources import describe_sources, link_blocks, problem_blocks, source_blocks

    with Apart() as executor:
        surveyed = survey([target], asking(executor))
    if surveyed.detected():
        details, problems = describe_sources(target, surveyed)
        return Inspection("source", given, details, problems, source_blocks(given, details, problems))
    verdicts = [each.to_json() for each in surveyed.verdicts()]
    if refused := tuple(surveyed.refused()):
        blocks = [*problem_blocks([("source", given)], refused), *link_blocks(target, refused)]
        return Inspection("source", given, {"verdicts": verdicts}, refused, blocks)
    inside = stores_inside(target)
    message, cure = _why_unknown(target, inside)
    if unread := surveyed.unread():
        message = f"{'; '.join(unread[:3])}; {message}"
    block = Block(facts=[("unknown", given)], lines=(f"{message}; {cure}",))
    blocks = [block, *(verdict_blocks(verdicts) if target.is_dir() else ())]
    problem = Problem(given, message, cure, "unknown")
    return Inspection("unknown", given, {"inside": inside, "verdicts": verdicts}, (problem,), blocks)


def _store(given: str) -> Inspection:
    details = describe_store(given)
    return Inspection("store", given, details, blocks=store_blocks(given, details))


def _why_unknown(target: Path, inside: Sequence[str]) -> tuple[str, str]:
    """Message and cure."""
    from unistore.converters.files.paths import is_inside

    if target.name.endswith(f".{REPAIR}"):
        store = target.name.removesuffix(f".{REPAIR}")
        return f"the folder in which a repair of {store} works, or was stopped", "repair again, or remove it"
    if inside:
        return f"a folder with Zarr hierarchies inside: {first_few(inside, 5)}", "inspect one of them"
    if target.is_dir() and not any(target.iterdir()):
        return "an empty folder", "check the path"
    if target.suffix.lower() in _ARCHIVES:
        return "an archive", "unpack it, and inspect the folder"
    link = next((path for path in target.rglob("*") if not is_inside(path, [target])), None)
    if link is not None:
        return f"{link.relative_to(target)} is a link out of this folder", "inspect what it leads to"
    known = ", ".join(sorted(each.command for each in families().values()))
    message = f"not a store, and not recognised as sources of any family ({known})"
    return message, "name the family to learn what is missing, as in unistore convert FAMILY SRC... DST"
