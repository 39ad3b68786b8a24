"""Copy sources in buckets, on the Hub and on web servers to this machine before they are scanned."""

# Formats read headers first and values later, some of them with libraries that need a file. So every object
# is fetched once, whole, and the conversion reads the copy. The copies lie beside the build folder and go
# when the store is sealed. A journal names those that are complete, so that a killed conversion goes on.

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from unistore.conversion.build import wait_turn
from unistore.conversion.journal import Journal
from unistore.conversion.lock import Lock, check_plain
from unistore.errors import InputError, Problem, first_few
from unistore.remote.client import RemoteObject
from unistore.remote.storage import ObjectStorage
from unistore.remote.url import BUCKETS, StoreLocation, parse_url
from unistore.store.names import file_name_problem
from unistore.system.progress import COUNTS, Progress
from unistore.system.sizes import count_of, size
from unistore.system.types import JsonObject
from unistore.zarr3.durable import AtomicFiles

_JOURNAL = "journal.jsonl"
_MAX_PROBLEMS = 20  # Problems of one URL that are told
_FILES = 256  # Copies that become durable together


def stage(urls: Sequence[str], folder: Path, progress: Progress) -> list[Path]:
    """Copy the objects of URLs into a folder, and return the path of each URL's file or folder there.

    Raises
    ------
    InputError
        For a URL without objects, keys that are no file names, a disk without room for them, an object that
        cannot be read or changed meanwhile. The same call continues.
    ConversionError
        If a copy cannot be written, or the folder holds what unistore does not make.
    """
    check_plain(folder)
    folder.mkdir(parents=True, exist_ok=True)
    lock = Lock(folder / "lock")
    is_told = False
    while not lock.take():
        if not is_told:
            progress.tell(f"waiting: another process is copying the sources to {folder}")
            is_told = True
        wait_turn()
    try:
        return [_Copies(url, folder).fetch(progress) for url in urls]
    finally:
        lock.release()


def remove_copies(folder: Path) -> None:
    """Remove the copies of sources, if there are any."""
    if (folder / _JOURNAL).is_file():
        check_plain(folder)
        shutil.rmtree(folder)


class _Copies:
    # Copies of the objects of one URL, ``FOLDER/s3/bucket/prefix/key``
    def __init__(self, url: str, folder: Path) -> None:
        self._folder = folder
        location = parse_url(url)
        self.path = Path(folder, location.scheme, location.bucket, *location.prefix.split("/"))
        self.client = ObjectStorage(location, raises=InputError)
        self.objects: Mapping[str, RemoteObject] = {}
        if location.scheme in BUCKETS:  # the others list nothing
            self.objects = self._described()
        self.is_file = not self.objects
        if self.is_file:
            above, _, name = location.prefix.rpartition("/")
            parent = StoreLocation(location.scheme, location.bucket, above)
            self.client = ObjectStorage(parent, raises=InputError)
            self.objects = {name: self.client.described(name)}
        self._root = self.path.parent if self.is_file else self.path
        self._check_names(url)

    def _described(self) -> dict[str, RemoteObject]:
        objects = self.client.all_described()
        # Web consoles make folders: empty objects of their names
        folders = _folders(objects)
        return {key: entry for key, entry in objects.items() if entry.bytes or key not in folders}

    def _check_names(self, url: str) -> None:
        folders = _folders(self.objects)
        fix = "copy the object to another key"
        problems = []
        for key in self.objects:
            if key in folders:
                problems.append(Problem(url, f"{key!r} is both an object and a folder", fix))
            elif reason := file_name_problem(key):
                problems.append(Problem(url, f"the key {key!r} cannot be a file name: {reason}", fix))
        if problems:
            raise InputError(problems[:_MAX_PROBLEMS])

    def fetch(self, progress: Progress) -> Path:
        self._root.mkdir(parents=True, exist_ok=True)
        journal = Journal(self._folder / _JOURNAL)
        try:
            missing = self._missing(journal)
            COUNTS["cache_hits"] += len(self.objects) - len(missing)
            self._check_space(missing)
            progress.begin("copying sources", sum(self.objects[key].bytes for key in missing))
            for first in range(0, len(missing), _FILES):
                keys = missing[first : first + _FILES]
                self._fetch(keys, progress)
                journal.append({"step": "copied", "of": {self._name(key): self.objects[key] for key in keys}})
        finally:
            journal.close()
        self._check_unchanged()
        return self.path

    def _name(self, key: str) -> str:
        return (self._root / key).relative_to(self._folder).as_posix()

    def _missing(self, journal: Journal) -> list[str]:
        copied: JsonObject = {}
        for record in journal.each("copied"):
            copied.update(record["of"])
        missing = []
        for key, entry in self.objects.items():
            is_recorded = copied.get(self._name(key)) == [*entry]
            if not is_recorded or not _has_size(self._root / key, entry.bytes):
                missing.append(key)
        return missing

    def _check_space(self, missing: Iterable[str]) -> None:
        needed = sum(self.objects[key].bytes for key in missing)
        free = shutil.disk_usage(self._folder).free
        if needed > free:
            message = f"the sources have {size(needed)}, but {self._folder.parent} has only {size(free)} free"
            fix = "convert some sources first and add the others with --append, or use a larger disk"
            raise InputError.at(str(self.client.location), message, fix)

    def _fetch(self, keys: Sequence[str], progress: Progress) -> None:
        contents = self.client.read_objects({key: self.objects[key].bytes for key in keys})
        with AtomicFiles(self._root) as files:
            for key, parts in zip(keys, contents, strict=True):
                files.put(key, _counted(parts, progress))
        for key in keys:
            modified = self.objects[key].modified
            os.utime(self._root / key, (modified, modified))

    def _check_unchanged(self) -> None:
        now = (
            {name: self.client.described(name) for name in self.objects}
            if self.is_file
            else self._described()
        )
        changed = [key for key, entry in self.objects.items() if now.get(key) != entry]
        if changed:
            message = f"{count_of(len(changed), 'object')} changed during the copy: {first_few(changed)}"
            raise InputError.at(str(self.client.location), message, "run the same command again")


def _folders(keys: Iterable[str]) -> set[str]:
    folders: set[str] = set()
    for key in keys:
        folders.update(str(folder) for folder in PurePosixPath(key).parents)
    return folders


def _has_size(path: Path, nbytes: int) -> bool:
    return path.is_file() and path.stat().st_size == nbytes


def _counted(parts: Iterable[bytes], progress: Progress) -> Iterator[bytes]:
    for part in parts:
        yield part
        progress.advance(len(part))
