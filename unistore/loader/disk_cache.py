"""``cache="disk"``: decoded samples of a dataset in one file of its `cache_dir`, for every later run."""

# The file is that of the cache in memory, complete and followed by its xxh3-128. Its name is a digest of all
# that samples depend on. One process makes it while the others of the machine wait for its lock. It is
# renamed once all is on disk, so it is complete or absent, and never changes afterwards

from __future__ import annotations

import json
import mmap
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from unistore.errors import InputError, Problem
from unistore.loader.cache import CacheFile, aligned, index_end
from unistore.loader.cached import dump_sample, keeps_samples
from unistore.loader.fetch import Fetch
from unistore.system import own_files
from unistore.system.own_files import NotOwnError, open_own_file, open_own_folder
from unistore.system.sizes import parse_bytes, size

_FORMAT = 2
_DIGEST_BYTES = 16
_SAMPLES_AT_ONCE = 64
_OTHERS_WRITE = 0o022
_NAME = re.compile(r"samples-[0-9a-f]{32}")


def check_disk_cache(dataset: Any, fetch: Fetch) -> None:
    """Raise an InputError unless the samples of a dataset can be kept on disk."""
    if dataset.cache_options["cache_dir"] is None:
        message = "is 'disk', and the Dataset has no folder for it"
        raise _refused(message, "Dataset(…, cache_dir=FOLDER)")
    if not keeps_samples(dataset, fetch):
        message = f"is 'disk', which keeps samples, and those of {dataset.samples} differ in each epoch"
        if dataset.repeats:
            message = "is 'disk', which keeps samples before any transform and collate_fn"
        raise _refused(message, "cache='all' keeps decoded chunks")


def _refused(message: str, cure: str) -> InputError:
    return InputError(Problem("cache", message, cure, "option"))


def disk_cache_file(dataset: Any, fetch: Fetch) -> CacheFile:
    """Open the file of the samples of a dataset, made first if there is none or it is damaged."""
    path = Path(dataset.cache_options["cache_dir"])
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = open_own_folder(path, _OTHERS_WRITE)
        try:
            with _locked(f"{_name(dataset)}.lock", folder):
                return _open_or_make(dataset, fetch, folder)
        finally:
            os.close(folder)
    except (OSError, NotOwnError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        message = f"cannot be kept in {path} ({reason})"
        raise _refused(message, "free space there, or choose another cache_dir of your own") from error


def _name(dataset: Any) -> str:
    seals = [part.store.side_seals for part in dataset.parts]
    identity = [_FORMAT, dataset.digest, len(dataset), dataset.fields, dataset.names, seals]
    return f"samples-{xxhash.xxh3_128_hexdigest(json.dumps(identity, sort_keys=True).encode())}"


@contextmanager
def _locked(name: str, folder: int) -> Iterator[None]:
    descriptor = open_own_file(name, folder, os.O_CREAT)
    try:
        own_files.lock(descriptor)
        yield
    finally:
        own_files.close(descriptor)


def _open_or_make(dataset: Any, fetch: Fetch, folder: int) -> CacheFile:
    name = _name(dataset)
    descriptor = _open_complete(name, folder, len(dataset))
    if descriptor is None:
        limit = parse_bytes(dataset.cache_options["cache_limit"], "cache_limit")
        _make(dataset, fetch, name, folder, limit)
        _evict(name, folder, limit)
        descriptor = open_own_file(name, folder)
    return CacheFile(len(dataset), 0, descriptor)


def _open_complete(name: str, folder: int, samples: int) -> int | None:
    try:
        descriptor = open_own_file(name, folder)
    except FileNotFoundError:
        return None
    end = os.fstat(descriptor).st_size - _DIGEST_BYTES
    if end >= index_end(samples) and _digest(descriptor, end) == os.pread(descriptor, _DIGEST_BYTES, end):
        os.utime(descriptor)
        return descriptor
    os.close(descriptor)
    warnings.warn(f"{name} in cache_dir is damaged, and is made again", stacklevel=2)
    return None


def _digest(descriptor: int, end: int) -> bytes:
    with mmap.mmap(descriptor, end, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ) as mapped:
        return xxhash.xxh3_128_digest(mapped)


def _make(dataset: Any, fetch: Fetch, name: str, folder: int, limit: int) -> None:
    part = f"{name}.part"
    descriptor = open_own_file(part, folder, os.O_CREAT | os.O_TRUNC)
    try:
        with os.fdopen(descriptor, "wb") as file:
            offsets = np.zeros(1 + len(dataset), np.int64)
            file.seek(index_end(len(dataset)))
            for first in range(0, len(dataset), _SAMPLES_AT_ONCE):
                index = np.arange(first, min(first + _SAMPLES_AT_ONCE, len(dataset)))
                batch = fetch(index, 0, np.empty)
                for number, sample in enumerate(index.tolist()):
                    offsets[1 + sample] = file.tell()
                    for values in dump_sample(batch, number):
                        file.write(values.ljust(aligned(len(values)), b"\0"))
                if file.tell() > limit:
                    message = f"has {sample + 1:,} of {len(dataset):,} samples in cache_limit, {size(limit)}"
                    raise _refused(message, "give a larger cache_limit, or cache='all'")
            end = file.tell()
            offsets[0] = end - index_end(len(dataset))
            file.seek(0)
            file.write(offsets.tobytes())
            file.seek(end)
            file.flush()
            os.ftruncate(descriptor, end)
            file.write(_digest(descriptor, end))
            file.flush()
            os.fsync(descriptor)
        os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)
    except BaseException:
        os.unlink(part, dir_fd=folder)
        raise


def _evict(name: str, folder: int, limit: int) -> None:
    # Files of other samples, the least recently used first. Who has one open goes on reading it
    states = {other: os.stat(other, dir_fd=folder) for other in os.listdir(folder) if _NAME.fullmatch(other)}
    total = sum(state.st_size for state in states.values())
    for other in sorted(states, key=lambda other: states[other].st_mtime):
        if total > limit and other != name:
            os.unlink(other, dir_fd=folder)
            total -= states[other].st_size
