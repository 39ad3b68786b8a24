"""Settings of a conversion of any family: one record, made by `unistore.convert` and by the command line."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from unistore.conversion.build import Build, FolderBuild
from unistore.conversion.memory import step_budget
from unistore.conversion.parts import SEALING, JobPart
from unistore.conversion.split_rule import SOURCE, SplitRule, parse_split
from unistore.errors import InputError
from unistore.remote.url import local_path, require_local_path
from unistore.system.arguments import MAX_WORKERS, Arguments
from unistore.system.sizes import parse_bytes
from unistore.system.types import PathLike
from unistore.zarr3.writer import CODECS

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a conversion, checked when they are made. All are those of `unistore.convert`."""

    codec: str = "auto"
    split: str | Mapping[str, float] | SplitRule | None = None
    split_by: str = SOURCE
    split_seed: int = 0
    split_from: PathLike | None = None
    group_by: str | None = None
    overwrite: bool = False
    restart: bool = False
    work: PathLike | None = None
    workers: int = 0
    scheduler: str | Client | None = None
    memory: str | int | None = None
    on_error: str = "fail"
    wait: float | None = None
    part: str | None = None
    seal: bool = False

    def __post_init__(self) -> None:
        check = Arguments()
        check.one_of("--codec", self.codec, CODECS)
        check.one_of("--on-error", self.on_error, ("fail", "skip"))
        check.integer("--workers", self.workers, most=MAX_WORKERS)
        for name in ("overwrite", "restart", "seal"):
            check.flag(f"--{name}", getattr(self, name))
        check.path("--work", self.work, none=True)
        is_scheduler = isinstance(self.scheduler, str) or hasattr(self.scheduler, "submit")
        expected = "an address such as tcp://host:8786, or a distributed.Client"
        check.expect("--scheduler", self.scheduler, is_scheduler, expected, none=True)
        is_split = isinstance(self.split, (str, Mapping, SplitRule))
        check.expect("--split", self.split, is_split, "shares such as train=0.8,val=0.2", none=True)
        check.text("--split-by", self.split_by)
        check.integer("--split-seed", self.split_seed)
        check.path("--split-from", self.split_from, none=True)
        check.text("--group-by", self.group_by, none=True)
        check.number("--wait", self.wait, none=True)
        check.text("--part", self.part, none=True)
        for option, is_set in {"--restart": self.restart, "--on-error skip": self.skips}.items():
            if is_set and self.is_shared:
                message = "does not work with a conversion by several jobs"
                check.refuse(option, message, "remove it, or remove --part and --seal")
        if self.part is not None and self.seal:
            check.refuse("--seal", "does not work together with --part", "remove --part")
        check.raise_problems()
        _ = self.rule, self.limit, self.own_part

    @cached_property
    def rule(self) -> SplitRule | None:
        """Return how samples are assigned to splits. None: the sources name them."""
        if isinstance(self.split, SplitRule):
            return self.split
        return parse_split(self.split, self.split_by, self.split_seed, self.split_from, self.group_by)

    @cached_property
    def limit(self) -> int | None:
        """Return the bytes of all processes together. None: no limit."""
        return None if self.memory is None else parse_bytes(self.memory, "--memory")

    @cached_property
    def own_part(self) -> JobPart | None:
        """Return which of several jobs converts. None: it is the only one."""
        if self.seal:
            return SEALING
        return None if self.part is None else JobPart.parse(self.part)

    @property
    def is_shared(self) -> bool:
        """Return whether several jobs convert."""
        return self.seal or self.part is not None

    @property
    def wanted_workers(self) -> int | None:
        """Return the worker processes besides the converting one. None: those of a cluster."""
        return self.workers if self.scheduler is None else None

    @property
    def budget(self) -> int:
        """Return the bytes that one step may use to be faster, within the limit."""
        return step_budget(self.limit, self.wanted_workers)

    @property
    def skips(self) -> bool:
        """Return whether sources with problems are left out."""
        return self.on_error == "skip"

    def open_build(self, destination: PathLike, sources: Sequence[PathLike] = ()) -> Build:
        """Return the staging folder of a destination, not entered yet.

        Parameters
        ----------
        destination : path or URL
            Folder of the store, or its URL in an object store.
        sources : sequence of path, default ()
            Sources as they were given, for messages.

        Raises
        ------
        InputError
            If no store can be written there, or `work` is given for a folder.
        """
        build = self._build_of(destination)
        build.sources = tuple(os.fspath(source) for source in sources)
        return build

    def _build_of(self, destination: PathLike) -> Build:
        if self.work is not None:
            require_local_path(self.work, "the folder of --work")
        folder = local_path(destination)
        if folder is None:
            from unistore.conversion.object_build import ObjectBuild

            work = None if self.work is None else Path(self.work)
            url = os.fspath(destination)
            return ObjectBuild(url, work=work, restart=self.restart, part=self.own_part)
        if self.work is not None:
            message = "is only for a destination in a bucket"
            option = f"--work {self.work}"
            fix = (
                f"leave --work out; unistore builds {folder} in its own parent folder and renames it when "
                "done"
            )
            raise InputError.at(option, message, fix, "option")
        path = Path(os.path.abspath(folder))  # noqa: PTH100  links stay links
        return FolderBuild(path, restart=self.restart, part=self.own_part)


DEFAULTS = Settings()
