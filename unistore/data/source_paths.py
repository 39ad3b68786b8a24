"""Paths that a Dataset is given: stores stay as they are, source files become the store made of them."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from unistore.errors import InputError
from unistore.remote.url import local_folder
from unistore.store.names import FIRST_VERSION, MANIFEST, ROOT
from unistore.system.arguments import wrong_argument
from unistore.system.types import PathLike

_STORE_FILES = (ROOT, MANIFEST, FIRST_VERSION)
# Imported by name, with the first source files: it converts, which a Dataset of a store never does
_CACHE = "unistore.growing.source_cache"


def store_paths(paths: Sequence[PathLike], convert: Mapping[str, Any] | None) -> list[PathLike]:
    """Return the paths of stores as they are, or that of the one store made of the given source files.

    Raises
    ------
    InputError
        If stores and source files are mixed, or there are `convert` options and no source files.
    """
    sources = [path for path in paths if _is_source(path)]
    if not sources:
        if convert is not None:
            message = "holds options of a conversion, and the path is a store or does not exist"
            raise wrong_argument("convert", message, "leave it out, or give source files")
        return list(paths)
    if len(sources) < len(paths):
        others = ", ".join(os.fspath(path) for path in paths if path not in sources)
        msg = f"source files are given together with a store, or a path that does not exist: {others}"
        raise InputError(msg)
    folders = [local_folder(path) for path in sources]
    store: str = import_module(_CACHE).store_of_sources(folders, convert or {})
    return [store]


def _is_source(path: PathLike) -> bool:
    folder = local_folder(path)
    if folder is None:
        return False
    if not os.path.lexists(folder):
        return glob.has_magic(folder)
    place = Path(folder)
    return not place.is_dir() or not any((place / name).exists() for name in _STORE_FILES)
