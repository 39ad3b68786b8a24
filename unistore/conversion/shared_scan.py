"""Answers about source files that the first of several jobs asks for and the others read: one scan."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path
from stat import S_ISDIR
from typing import Any

import xxhash

from unistore.conversion.build import wait_turn
from unistore.conversion.lock import Lock, check_plain
from unistore.conversion.plan import versions
from unistore.conversion.records import from_json, to_json
from unistore.converters.protocol import ParallelMap
from unistore.errors import writing_failed
from unistore.system.progress import NO_PROGRESS, Progress
from unistore.zarr3.durable import write_file

ANSWERS = "answers"  # folder in the build folder

# What documents that this module did not write, or not whole, may raise
_NO_RECORDS = (
    AttributeError,
    ImportError,
    LookupError,
    MemoryError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
)


def shared_scan(
    ask: ParallelMap,
    build_folder: Path,  # that the jobs of a conversion share
    paths: Sequence[Path],  # files and folders that hold all that answers depend on
    progress: Progress = NO_PROGRESS,
) -> ParallelMap:
    """Return a function that asks unless another job did, or waits while it does."""
    return partial(_ask_once, ask, build_folder, paths, progress)


def _ask_once(
    ask: ParallelMap,
    build_folder: Path,
    paths: Sequence[Path],
    progress: Progress,
    function: Any,
    items: Sequence[Any],
    /,
    *,
    threads: int = 1,
) -> Iterator[Any]:
    name = _digest(function, items, paths)
    path = build_folder / ANSWERS / name
    lines = _lines(ask(function, items, threads=threads))  # nothing is asked before it is iterated over
    try:
        check_plain(build_folder, ignore=("old",))
        _write_once(path, lines, Lock(build_folder / f"lock-{ANSWERS}"), progress)
    except OSError as error:
        raise writing_failed(error, build_folder) from error
    count = 0
    with suppress(*_NO_RECORDS):
        for answer in islice(_recorded(path), len(items)):
            yield answer
            count += 1
    if count < len(items):  # answers that are no records of unistore, or the file was removed
        yield from ask(function, items[count:], threads=threads)


def _write_once(path: Path, content: Iterator[bytes], lock: Lock, progress: Progress) -> None:
    is_told = False
    while not path.exists():
        if lock.take():
            try:
                if not path.exists():
                    write_file(path.parent, path.name, content)
            finally:
                lock.release()
            continue
        if not is_told:
            is_told = True
            progress.tell("waiting: another job is scanning the sources")
        wait_turn()


def _digest(function: Any, items: Sequence[Any], paths: Sequence[Path]) -> str:
    # The question, and the state of every file that its answers may depend on. A file that is rewritten with
    # its size and modification time has another status change time
    digest = xxhash.xxh3_128(repr(versions()).encode())
    for value in chain([function], items):
        digest.update(pickle.dumps(value))
    for path in paths:
        for below in [path, *sorted(path.rglob("*"))]:
            state = below.lstat()
            digest.update(f"{below}\0".encode())
            if not S_ISDIR(state.st_mode):  # names below it say all
                digest.update(f"{state.st_size} {state.st_mtime_ns} {state.st_ctime_ns}\0".encode())
    return digest.hexdigest()


def _lines(answers: Iterator[Any]) -> Iterator[bytes]:
    with suppress(TypeError):  # a record of another package: each job asks for it and those behind it
        for answer in answers:
            yield json.dumps(to_json(answer)).encode() + b"\n"


def _recorded(path: Path) -> Iterator[Any]:
    with path.open("rb") as file:
        for line in file:
            yield from_json(json.loads(line))
