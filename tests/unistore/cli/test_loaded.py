"""What commands load, and start: start-up is most of the time of a small conversion."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import h5py
import numpy as np
import pytest

import unistore
from tests.support.programs import printed

NEVER = {
    *("torch", "dask", "distributed", "zarr", "cv2", "obstore", "matplotlib", "rich"),
    *("asyncio", "decimal", "difflib", "hashlib", "html", "secrets", "tomllib"),
    *("unistore.exporting", "unistore.integrity", "unistore.loader", "unistore.html"),
    *("unistore.data.dataset", "unistore.remote.client"),
}
"""What no command here needs: no progress is drawn, no object store read."""
REPORTS = {"unistore.data", "unistore.report.suggestions", "unistore.conversion.dry_run"}
CONVERSION = {
    "ct": {"gather", "group", "reading", "scan"},
    "point_cloud": {"derive", "grids", "restore", "tables"},
    "spike": {"gather", "reading", "recordings", "streams"},
    "trajectory": {"gather", "read", "scan"},
}
"""Modules of the families that are not asked whether a file is theirs."""
CONVERTERS = {"unistore.converters.adapter.converter"}
"""What runs the hooks of every family."""
STEPS = {f"unistore.converters.{family}.{name}" for family, names in CONVERSION.items() for name in names}
assert all(importlib.util.find_spec(name) for name in STEPS | CONVERTERS)


def loaded(*arguments: str | Path, **environment: str) -> tuple[set[str], str]:
    """Modules that a command loaded, and numpy's number of threads."""
    code = (
        "import os, sys\nfrom unistore.cli.main import main\n"
        f"try:\n    main({[*map(str, arguments)]!r})\nexcept SystemExit as end:\n    assert not end.code\n"
        "print()\nprint(os.environ.get('OPENBLAS_NUM_THREADS', 'all'), *sys.modules)"
    )
    own = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    output = printed("-c", code, env=own | environment)
    threads, *modules = output.splitlines()[-1].split()
    return set(modules), threads


def of(modules: set[str], unwanted: set[str]) -> list[str]:
    """Unwanted modules, and packages with a module that was loaded."""
    packages = {name[:end] for name in modules for end in (*_dots(name), len(name))}
    return sorted(packages & unwanted)


def _dots(name: str) -> list[int]:
    return [at for at, letter in enumerate(name) if letter == "."]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.h5"
    with h5py.File(path, "w") as file:
        file["data"] = np.ones((200, 8), np.float32)
        file["label"] = np.arange(200) % 10
    return path


def test_a_conversion_of_npy_needs_no_hdf5(tmp_path: Path) -> None:
    np.save(tmp_path / "ct.npy", np.zeros((4, 8, 8), np.int16))
    modules, threads = loaded(
        "convert", "ct", tmp_path / "ct.npy", tmp_path / "ct.zarr", OPENBLAS_NUM_THREADS="2"
    )
    assert threads == "2", "what the user says stands"
    others = {name for name in STEPS if not name.startswith("unistore.converters.ct.")}
    assert not of(modules, (NEVER - {"hashlib"}) | REPORTS | others | {"h5py"})


def test_detecting_the_family_needs_no_more_of_the_others(rows: Path, tmp_path: Path) -> None:
    modules, threads = loaded("convert", rows, tmp_path / "rows.zarr")
    assert threads == "1"
    assert set(of(modules, CONVERTERS)) == CONVERTERS
    assert not of(modules, NEVER | REPORTS | STEPS | {"h5py"})


def test_inspecting_a_store_loads_no_converter_and_starts_no_thread(rows: Path, tmp_path: Path) -> None:
    unistore.convert(rows, tmp_path / "rows.zarr", "rows")
    modules, threads = loaded("inspect", tmp_path / "rows.zarr")
    assert not of(modules, NEVER | CONVERTERS | {"h5py"})
    assert threads == "1"


def test_inspecting_sources_of_npy_loads_neither_h5py_nor_conversion(rows: Path) -> None:
    modules, _ = loaded("inspect", rows)
    assert not of(modules, NEVER | STEPS | {"h5py"})


def test_help_loads_neither_numpy_nor_h5py() -> None:
    modules, _ = loaded("--help")
    assert not of(modules, NEVER | REPORTS | CONVERTERS | {"numpy", "h5py", "numcodecs", "xxhash"})
