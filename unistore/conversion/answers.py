"""Answers about source files that the first of several jobs asks for and the others read: one scan."""

from __future__ import annotations

import pickle
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from enum import Enum
from functools import partial
from itertools import chain, islice
from pathlib import Path
from stat import S_ISDIR
from typing import Any

import xxhash

from unistore.conversion.build import TURN_SECONDS
from unistore.conversion.lock import Lock, check_plain
from unistore.conversion.new_store import versions
from unistore.converters.protocol import Ask
from unistore.errors import writing_failed
from unistore.system.packed import BLOCK
from unistore.system.progress import NO_PROGRESS, Progress
from unistore.zarr3.durable import write_file

ANSWERS = "answers"  # folder in the build folder

_NO_RECORDS = (pickle.UnpicklingError, AttributeError, EOFError, ImportError, LookupError)
_RECORDS = (tuple, Enum)
# What arrays and paths in records are made by
_MAKER = re.compile(
    r"numpy\.(ndarray|dtype)|numpy\._?core\.(multiarray|numeric)\.(_reconstruct|scalar|_frombuffer)"
    r"|pathlib\.PosixPath"
)


def asked_once(
    ask: Ask,
    build_folder: Path | None,  # of a conversion in parts; None: no other job asks
    paths: Sequence[Path],  # files and folders that hold all that answers depend on
    progress: Progress = NO_PROGRESS,
) -> Ask:
    """Return a function that asks unless another job did, or waits while it does."""
    return ask if build_folder is None else partial(_ask_once, ask, build_folder, paths, progress)


def _ask_once(
    ask: Ask,
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
    packed = _packed(ask(function, items, threads=threads))  # nothing is asked before it is iterated over
    try:
        check_plain(build_folder, ignore=("old",))
        _write_once(path, packed, Lock(build_folder / f"lock-{ANSWERS}"), progress)
    except OSError as error:
        raise writing_failed(error, build_folder) from error
    count = 0
    with suppress(*_NO_RECORDS, OSError, TypeError, ValueError):
        for answer in islice(_recorded(path), len(items)):
            yield answer
            count += 1
    if count < len(items):  # records of a package, or the file was removed
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
            progress.tell("another job scans the sources: waiting for it")
        time.sleep(TURN_SECONDS)


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


def _packed(answers: Iterator[Any]) -> Iterator[bytes]:
    while block := list(islice(answers, BLOCK)):
        yield pickle.dumps(block, pickle.HIGHEST_PROTOCOL)


def _recorded(path: Path) -> Iterator[Any]:
    with path.open("rb") as file:
        while file.peek(1):
            yield from RecordUnpickler(file).load()


class RecordUnpickler(pickle.Unpickler):
    """Unpickles records of unistore, arrays and paths, and calls nothing else."""

    # A build folder may come from elsewhere: out of an archive

    def find_class(self, module: str, name: str) -> Any:
        """Return a class that may be made."""
        is_maker = _MAKER.fullmatch(f"{module}.{name}")
        if is_maker or module.startswith("unistore."):
            found = super().find_class(module, name)
            is_class = isinstance(found, type)
            if is_maker or (is_class and (is_dataclass(found) or issubclass(found, _RECORDS))):
                return found
        msg = f"{module}.{name} is no record"
        raise pickle.UnpicklingError(msg)
