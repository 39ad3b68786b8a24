"""The sources and stores that tests of export use, and copies of stores that may be damaged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def copy_case(make_case: Callable[[str], tuple[Any, Path]], tmp_path: Path) -> Callable[[str], Any]:
    """``copy_case(name)``: the case and a copy of its store, to be damaged."""

    def copy(name: str) -> tuple[Any, Path]:
        case, store = make_case(name)
        target = tmp_path / f"{name}.zarr"
        shutil.copytree(store, target)
        return case, target

    return copy


@pytest.fixture
def tree() -> Callable[[Path], dict[str, bytes]]:
    """``tree(folder)``: every file of a folder by its path."""

    def read(folder: Path) -> dict[str, bytes]:
        files = (path for path in folder.rglob("*") if path.is_file())
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}

    return read
