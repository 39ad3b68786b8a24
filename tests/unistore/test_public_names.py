"""The public names of ``unistore``: one table, shadowed by no module, and nothing beside them."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import unistore

SOURCE = Path(unistore.__file__)
ROOT = Path(__file__).parents[2]


def in_a_fresh_process(code: str, *arguments: object) -> str:
    command = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=SOURCE.parent.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_exported_names() -> None:
    assert unistore.__all__ == sorted(unistore.__all__)
    assert {name for name in unistore.__all__ if callable(getattr(unistore, name))} == set(unistore.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Datasett'"):
        unistore.Datasett  # type: ignore[attr-defined]  # noqa: B018


def test_the_version_is_that_of_the_package() -> None:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert unistore.__version__ == version("unistore") == told
    assert "__version__" in dir(unistore)


def test_type_checkers_are_told_the_same_names_from_the_same_modules() -> None:
    told = {
        alias.asname: (node.module, alias.name)
        for node in ast.walk(ast.parse(SOURCE.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("unistore.")
        for alias in node.names
    }
    expected = {name: (f"unistore.{module}", name) for name, module in unistore._HOME.items()}
    expected["convert"] = "unistore.conversion.signatures", "convert"  # a stub with the options of families
    assert told == expected


def test_dir_shows_public_names_alone() -> None:
    code = (
        "import unistore, unistore.zarr3\n"
        "unistore.Problem, unistore.Store\n"
        "print(*(name for name in dir(unistore) if not (name[:2] == name[-2:] == '__')))"
    )
    assert in_a_fresh_process(code).split() == unistore.__all__
    assert {"__all__", "__doc__", "__file__", "__name__"} <= set(dir(unistore))


def test_no_module_shadows_a_public_name() -> None:
    code = (
        "import importlib, pkgutil, types\n"
        "import unistore\n"
        "modules = [found.name for found in pkgutil.walk_packages(unistore.__path__, 'unistore.')]\n"
        "modules = [name for name in modules if not name.endswith(('__main__', '._kernel'))]\n"  # not Python
        "for name in modules: importlib.import_module(name)\n"
        "assert len(modules) > 150, modules\n"
        "for name in unistore.__all__:\n"
        "    assert not isinstance(getattr(unistore, name), types.ModuleType), name\n"
        "print(type(unistore).__name__)"
    )
    assert in_a_fresh_process(code) == "module\n", "a class of its own does not pickle"


def test_a_task_that_names_unistore_is_pickled(tmp_path: Path) -> None:
    """As dask and Ray pickle the functions of ``__main__``: by value, with the globals that they name."""
    sent, store = tmp_path / "task", tmp_path / "not-there.zarr"
    dump = (
        "import pathlib, sys, cloudpickle, unistore\n"
        "unistore.Dataset; unistore.verify\n"
        "def task(path):\n"
        "    try:\n"
        "        return unistore.verify(path)\n"
        "    except unistore.StoreError as error:\n"
        "        return type(error).__name__\n"
        "pathlib.Path(sys.argv[1]).write_bytes(cloudpickle.dumps(task))"
    )
    in_a_fresh_process(dump, sent)
    run = (
        "import pathlib, pickle, sys\n"
        "print(pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())(sys.argv[2]))"
    )
    assert in_a_fresh_process(run, sent, store) == "NoStoreError\n"
