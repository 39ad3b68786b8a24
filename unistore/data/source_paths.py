"""Paths that a Dataset is given: stores, or source files, which become a store in the cache."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from unistore.errors import InputError
from unistore.remote.url import local_folder
from unistore.store.names import FIRST_VERSION, MANIFEST, ROOT
from unistore.system.arguments import Arguments, wrong_argument
from unistore.system.machine import absolute
from unistore.system.types import PathLike

_STORE_FILES = (ROOT, MANIFEST, FIRST_VERSION)
# Imported by name, with the first source files or options: a Dataset of a store never converts
_CACHE = "unistore.growing.source_cache"
_OPTIONS = "unistore.growing.source_options"


def conversion_options(
    caller: Callable[..., Any], convert: Any, keywords: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Return the options of a conversion, from `convert` and from keywords.

    Parameters
    ----------
    caller : callable
        Function that was called, whose arguments a message lists.
    convert : mapping or None
        The argument `convert`.
    keywords : mapping
        Other keywords.

    Returns
    -------
    mapping or None
        None: no options were given.

    Raises
    ------
    TypeError
        If a keyword is neither an argument of the caller nor an option of a conversion.
    InputError
        If `convert` is not a mapping, or an option is given both ways.
    """
    if keywords:
        import_module(_OPTIONS).check_keywords(caller, keywords)
    check = Arguments()
    is_mapping = isinstance(convert, Mapping) and all(isinstance(name, str) for name in convert)
    check.expect("convert", convert, is_mapping, 'a mapping such as {"voxel_size": 0.2}', none=True)
    check.raise_problems()
    if convert is None:
        return keywords or None
    if twice := [name for name in keywords if name in convert]:
        message = "is given twice, as a keyword and in convert"
        raise wrong_argument(", ".join(twice), message, "remove one of the two")
    return {**convert, **keywords}


def store_paths(paths: Sequence[PathLike], convert: Mapping[str, Any] | None) -> list[PathLike]:
    """Return the paths of the stores that a Dataset reads.

    Patterns are replaced by their matches. Source files become one store, which is converted unless it is
    in the cache.

    Parameters
    ----------
    paths : sequence of path
        Stores, or files, folders and patterns.
    convert : mapping or None
        Options of the conversion of source files. None: the defaults.

    Raises
    ------
    InputError
        If a pattern has no match, stores and source files are mixed, or there are options and no source
        files.
    """
    matches: list[PathLike] = []
    for path in paths:
        matches += _matches(path)
    sources = [path for path in matches if _is_source(path)]
    if not sources:
        if convert is not None:
            message = "is an option to convert source files, but the path is a store or does not exist"
            fix = "remove it, or give source files"
            raise wrong_argument(", ".join(convert) or "convert", message, fix)
        return matches
    if len(sources) < len(matches):
        others = ", ".join(os.fspath(path) for path in matches if path not in sources)
        message = "is a store or does not exist, but the other paths are source files"
        raise InputError.at(others, message, "give only stores, or only source files", "option")
    given = [local_folder(path) for path in paths]
    found = [absolute(path) for path in sources]
    store: str = import_module(_CACHE).store_of_sources(given, found, convert or {})
    return [store]


def _matches(path: PathLike) -> list[PathLike]:
    """Return what a pattern matches, sorted. A path that exists is no pattern."""
    folder = local_folder(path)
    if folder is None or os.path.lexists(folder) or not glob.has_magic(folder):
        return [path]
    matches: list[PathLike] = [*sorted(glob.glob(folder, recursive=True))]  # noqa: PTH207  Path.glob takes hidden files
    if not matches:
        raise InputError.at(os.fspath(path), "no file or folder matches this pattern", "check the path")
    return matches


def _is_source(path: PathLike) -> bool:
    folder = local_folder(path)
    if folder is None or not os.path.lexists(folder):
        return False
    place = Path(folder)
    return not place.is_dir() or not any((place / name).exists() for name in _STORE_FILES)
