"""What is exported becomes the same store again, in every layout of every family."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from unistore import export

OF_THE_FILES = (
    "sources/bytes",
    "sources/path",
    "sources/files",
    "sources/layout",
    "sources/digest",
    "sources/header",
)
"""Arrays that describe the source files themselves."""


def content(store: Path) -> dict[str, np.ndarray]:
    """Every array, read by zarr-python."""
    root = json.loads((store / "zarr.json").read_text())["attributes"]["unistore"]
    names = [name for name in root["fields"] if not name.startswith(OF_THE_FILES)]
    return {name: np.asarray(zarr.open_array(store / name, mode="r")[...]) for name in names}


def test_the_export_converts_to_equal_content(
    case_name: str, make_case: Callable[..., Any], tmp_path: Path
) -> None:
    case, store = make_case(case_name)
    done = export(store, tmp_path / "export")
    files = [path for path in (tmp_path / "export").rglob("*") if path.is_file()]
    assert done.files == len(files) > 0
    assert done.bytes == sum(path.stat().st_size for path in files)
    again = content(case.convert(tmp_path / "again.zarr", [tmp_path / "export"]))
    before = content(store)
    assert set(again) == set(before)
    for name, values in before.items():
        assert again[name].dtype == values.dtype, name
        assert again[name].shape == values.shape, name
        assert again[name].tobytes() == values.tobytes(), name


def test_two_exports_are_the_same_bytes(
    family_case: str, make_case: Callable[..., Any], tmp_path: Path
) -> None:
    _, store = make_case(family_case)
    trees = []
    for number in range(2):
        root = tmp_path / str(number)
        export(store, root)
        trees.append({p.relative_to(root): p.read_bytes() for p in root.rglob("*") if p.is_file()})
    assert trees[0] == trees[1]
