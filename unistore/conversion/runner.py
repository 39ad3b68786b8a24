"""Run a conversion from scan to seal; the same call after a kill continues where the journal ends."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from unistore.conversion.build import Build
from unistore.conversion.conversion import Conversion
from unistore.conversion.destination import open_build
from unistore.conversion.executors.local import Executor, Serial
from unistore.conversion.failure import writing_failed
from unistore.conversion.guard import Guard, Guards, guards_of
from unistore.conversion.memory import PROCESS, ROOM
from unistore.conversion.planning import plan_options, versions
from unistore.conversion.report import Report
from unistore.conversion.skipping import Skipping, check_mode, check_resumed, scan_sound
from unistore.conversion.splits import Shares
from unistore.converters.files.paths import real_path
from unistore.converters.protocol import Converter, Scan
from unistore.converters.scanning import LookAtAll, scan_here
from unistore.errors import InputError, Problem
from unistore.system.packed import view
from unistore.system.progress import NO_PROGRESS, Progress

__all__ = ["Report", "run"]


def run(
    converter: Converter,
    paths: Sequence[Path],
    destination: str | os.PathLike[str],
    *,
    codec: str = "auto",
    shares: Shares | None = None,
    overwrite: bool = False,
    restart: bool = False,
    work: Path | None = None,
    memory: int | None = None,
    room: int = ROOM,
    on_error: str = "fail",
    executor: Executor | None = None,
    scan_all: LookAtAll = scan_here,
    progress: Progress = NO_PROGRESS,
) -> Report:
    """Convert `paths` into a sealed store at `destination`.

    Parameters
    ----------
    codec
        ``"auto"``, or a preset for all columns: ``"fast"``, ``"balanced"``, ``"small"``, ``"none"``.
    shares
        Deal sources out to splits by these shares of the samples.
    overwrite
        Replace a store at the destination once the new one is sealed.
    restart
        Forget an unfinished conversion to this destination.
    work
        For a destination in an object store: folder that holds the build folder; None: the current one.
    memory
        Bytes that one step and its process may hold at most; executors share it out between processes.
    room
        Bytes that one step may hold to be faster, as far as `memory` lets it; see `memory.room`.
    on_error
        ``"fail"``: any problem of any source refuses all. ``"skip"``: sources (or episodes) with problems of
        their own are left out; see `unistore.conversion.skipping`.
    executor, scan_all
        Where steps run, and the scan; None: in this process.

    Raises
    ------
    InputError
        For bad sources (every problem of every file) or a destination that is taken.
    ConversionError
        If writing failed, a source changed meanwhile, or another converter is at work.
    """
    opened = open_build(destination, work=work, restart=restart)
    if not opened.folder.exists():
        opened.check(overwrite=overwrite)
    _check_apart(paths, opened)
    check_mode(on_error)
    first = scan_sound(converter, paths, skip=on_error == "skip", scan_all=scan_all)
    if shares is not None:
        shares.check(first[1])
    guards = guards_of(first[1])
    try:
        with opened as build:
            build.begin(_identity(converter, first, codec, shares), _looks(first[1], guards), paths)
            check_resumed(on_error, build.journal)
            if (moved := build.moved()) is not None:
                build.remove()
                return Report(**moved)
            build.check(overwrite=overwrite)
            build.take_up()
            skipping = Skipping(first, paths, build.journal, scan_all)
            while True:
                chosen, scan = skipping.scan()
                if shares is not None:
                    shares.check(scan)
                conversion = Conversion(
                    converter=chosen,
                    scan=scan,
                    guards=guards if scan.sources is first[1].sources else guards_of(scan),
                    build=build,
                    memory=memory,
                    room=room if memory is None else min(room, memory - PROCESS),
                    executor=executor or Serial(),
                    progress=progress,
                    round=skipping.round,
                    exhaustive=on_error == "skip",
                )
                try:
                    return conversion.execute(codec, shares)
                except InputError as error:
                    if on_error != "skip" or not all(problem.source for problem in error.problems):
                        raise
                    skipping.add(error.problems)
    except OSError as error:
        raise writing_failed(error, opened.ground) from error


def _identity(
    converter: Converter,
    first: tuple[Converter, Scan, list[Problem]],
    codec: str,
    shares: Shares | None,
) -> dict[str, Any]:
    """What must stay the same for a run to be continued."""
    _, scan, problems = first
    identity = {
        "family": scan.family,
        "converter": type(converter).__name__,
        "options": plan_options(scan, codec, shares),
        "left out": [str(problem) for problem in problems],
        "versions": versions(),
    }
    plain: dict[str, Any] = json.loads(json.dumps(identity))
    return plain


def _looks(scan: Scan, guards: Guards) -> Sequence[tuple[str, str | dict[str, str]]]:
    """Name of each source, and how its files look."""
    return view(range(len(guards)), lambda at: (scan.sources.names[at], _look(guards[at])))


def _look(guard: Guard) -> str | dict[str, str]:
    """Size and time of a source's file, or of each of its files, as people read them."""
    looks = {}
    for file in guard:
        seconds, rest = divmod(file.modified, 10**9)
        time = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").removesuffix("+00:00")
        looks[file.path] = f"{file.size} bytes, modified {time}.{rest:09d} UTC"
    if len(looks) == 1:
        return next(iter(looks.values()))
    common = os.path.commonpath(list(looks)) if looks else ""
    return {Path(path).relative_to(common).as_posix(): look for path, look in looks.items()}


def _check_apart(paths: Sequence[Path], build: Build) -> None:
    """Refuse a destination that is, holds, or lies in a source: nothing is ever written among sources."""
    for path in map(real_path, paths):
        target = build.ground.resolve()
        if path == target or target in path.parents or path in target.parents:
            msg = f"{build.ground}: {build.overlap}; the source is {path}"
            raise InputError(msg)
