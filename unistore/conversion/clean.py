"""`clean`: list and remove what unfinished conversions have left."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from unistore.conversion.lock import Lock, check_own, check_plain, owner_of
from unistore.conversion.shared_scan import ANSWERS
from unistore.errors import ConversionError, InputError
from unistore.remote.url import local_path, parse_url
from unistore.store.names import BUILD_MARK, FIRST_VERSION, ROOT, build_folder, copies_folder
from unistore.system.arguments import Arguments
from unistore.system.types import PathLike
from unistore.zarr3.durable import is_there

_FOLDERS = (build_folder, copies_folder)
_OWN = ("journal*.jsonl", "lock*", ANSWERS)
_SUFFIXES = tuple(folder(Path("x")).name.removeprefix("x") for folder in _FOLDERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """Files of an unfinished conversion.

    Attributes
    ----------
    path : str
        Its staging folder, or the URL of the prefix that it writes to.
    files, bytes : int
        Number of files or objects, and their size.
    kept : str, default ""
        Why it is not removed. Empty: it may be removed.
    removed : bool, default False
        Whether it was removed.
    """

    path: str
    files: int
    bytes: int
    kept: str = ""
    removed: bool = False


def clean(path: PathLike, *, remove: bool = False) -> list[Leftover]:
    """List the unfinished conversions at a path and below it, and remove them on request.

    Parameters
    ----------
    path : path or URL
        Destination of a conversion, or a folder or prefix with several.
    remove : bool, default False
        Remove them. Running conversions are kept, and staging folders that contain a store which was
        being replaced. In an object store, which cannot tell whether a conversion is running, `path` must
        be its destination.

    Returns
    -------
    list of Leftover
        The unfinished conversions.

    Raises
    ------
    InputError
        If there is no such folder, or the URL is not one of an object store.
    ConversionError
        If files cannot be removed.

    Examples
    --------
    >>> for leftover in unistore.clean("stores/"):  # doctest: +SKIP
    ...     print(leftover.path, leftover.bytes)
    """
    check = Arguments()
    check.path("path", path)
    check.flag("remove", remove)
    check.raise_problems()
    folder = local_path(path)
    if folder is None:
        return list(_clean_bucket(os.fspath(path), remove))
    return list(_clean_folders(folder, remove))


def _clean_folders(path: Path, remove: bool) -> Iterator[Leftover]:
    beside = [folder(path) for folder in _FOLDERS]
    builds = [folder for folder in beside if folder.is_dir()]
    unlisted: list[OSError] = []
    if path.is_dir() and not path.is_symlink():
        for folder, names, _ in os.walk(path, onerror=unlisted.append):
            builds += [Path(folder, name) for name in names if name.endswith(_SUFFIXES)]
            names[:] = [name for name in names if not name.endswith((*_SUFFIXES, ".zarr"))]
    elif not builds:
        message = "there is no such folder, and no unfinished conversion to it"
        raise InputError.at(str(path), message, "check the path", "option")
    for build in builds:
        found = _describe(build)
        removed = remove and not found.kept and _remove(build)
        yield replace(found, removed=removed)
    for error in unlisted:
        kept = f"cannot be listed ({error.strerror}), so it may contain unfinished conversions"
        yield Leftover(path=str(error.filename), files=0, bytes=0, kept=kept)


def _describe(build: Path) -> Leftover:
    kept = ""
    try:
        check_plain(build)
        check_own(build, build)
    except ConversionError as error:
        kept = str(error)
    owners = filter(None, map(owner_of, sorted(build.glob("lock*"))))
    if owner := next(owners, None):
        kept = f"{owner} is using it"
    elif is_there(build / "old"):
        kept = f"{build / 'old'} is a store that was being replaced; run the same convert command to finish"
    elif not any(file for pattern in _OWN for file in build.glob(pattern)):
        kept = "it has no journal, so it may not be from unistore"
    files = [file for file in build.rglob("*") if file.is_file() and not file.is_symlink()]
    nbytes = sum(file.stat().st_size for file in files)
    return Leftover(path=str(build), files=len(files), bytes=nbytes, kept=kept)


def _remove(build: Path) -> bool:
    # The journals go last, so that a removal that was killed is found again
    lock = Lock(build / "lock")
    if not lock.take():
        return False
    try:
        for path in build.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
        shutil.rmtree(build)
    except OSError as error:
        msg = f"{error.filename or build}: cannot be removed: {error.strerror or error}"
        raise ConversionError(msg) from error
    finally:
        lock.release()
    return True


def _clean_bucket(url: str, remove: bool) -> Iterator[Leftover]:
    from unistore.conversion.object_build import check_writable, place_of_owner, writing_client

    location = parse_url(url)
    check_writable(location)
    client = writing_client(location)
    sizes = client.list()
    prefixes = [key.removesuffix(BUILD_MARK) for key in sizes if key.rpartition("/")[2] == BUILD_MARK]
    outer = "/"
    for prefix in sorted(prefixes):
        if prefix.startswith(outer):  # of a conversion for a store that grows
            continue
        outer = prefix
        mark = f"{prefix}{BUILD_MARK}"
        keys = [key for key in sizes if key.startswith(prefix)]
        if not sizes.keys().isdisjoint((f"{prefix}{ROOT}", f"{prefix}{FIRST_VERSION}")):
            keys = [mark]  # a finished store, or one that grew, of which the mark alone is left over
        kept = "" if not prefix else f"to remove it: unistore clean {location}/{prefix[:-1]} --remove"
        removed = remove and not kept
        owner = place_of_owner(client.get(mark))
        if removed:
            client.delete([key for key in keys if key != mark])
            client.delete([mark])
        yield Leftover(
            path=f"{location}/{prefix}".rstrip("/") + f" (begun {owner})",
            files=len(keys),
            bytes=sum(sizes[key] for key in keys),
            kept=kept,
            removed=removed,
        )
