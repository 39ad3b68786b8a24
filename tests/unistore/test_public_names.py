"""The public names of ``unistore``: one list, shadowed by no module, and nothing beside them."""

from __future__ import annotations

import ast
import importlib
import pickle
import pkgutil
import tomllib
import types
from importlib.metadata import version
from pathlib import Path

import pytest

import unistore
import unistore.plugin
from tests.support.programs import printed
from unistore.system.lazy import names_of_stub

SOURCE = Path(unistore.__file__)
ROOT = Path(__file__).parents[2]


def test_exported_names_are_sorted_and_exist() -> None:
    assert unistore.__all__ == sorted(unistore.__all__)
    assert {name for name in unistore.__all__ if callable(getattr(unistore, name))} == set(unistore.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Datasett'"):
        unistore.Datasett  # type: ignore[attr-defined]  # noqa: B018


def test_the_version_is_that_of_the_package() -> None:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert unistore.__version__ == version("unistore") == told
    assert "__version__" in dir(unistore)


@pytest.mark.parametrize("module", [unistore, unistore.plugin])
def test_names_are_those_that_the_stub_imports(module: types.ModuleType) -> None:
    assert module.__file__ is not None
    expected = {
        alias.asname: (node.module, alias.name)
        for node in ast.walk(ast.parse(Path(module.__file__).with_suffix(".pyi").read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert {name: (home, name) for name, home in names_of_stub(module.__file__).items()} == expected
    for name in module.__all__:
        assert getattr(module, name) is getattr(importlib.import_module(expected[name][0] or ""), name)


def test_dir_shows_public_names_alone() -> None:
    code = (
        "import unistore, unistore.zarr3\n"
        "unistore.Problem, unistore.Store\n"
        "print(*(name for name in dir(unistore) if not (name[:2] == name[-2:] == '__')))"
    )
    assert printed("-W", "error", "-c", code, cwd=ROOT).split() == unistore.__all__
    assert {"__all__", "__doc__", "__file__", "__name__"} <= set(dir(unistore))


def test_no_module_shadows_a_public_name() -> None:
    modules = [found.name for found in pkgutil.walk_packages(unistore.__path__, "unistore.")]
    for name in modules:
        if not name.endswith(("__main__", "._kernel")):
            importlib.import_module(name)
    assert len(modules) > 150
    for name in unistore.__all__:
        assert not isinstance(getattr(unistore, name), types.ModuleType), name
    assert type(unistore) is types.ModuleType, "a class of its own does not pickle"


def test_a_task_that_names_unistore_is_pickled(tmp_path: Path) -> None:
    """As dask and Ray pickle the functions of ``__main__``: by value, with the globals that they name."""
    sent, store = tmp_path / "task", tmp_path / "not-there.zarr"
    dump = (
        "import pathlib, sys, cloudpickle, unistore\n"
        "unistore.Problem; unistore.verify\n"
        "def task(path):\n"
        "    try:\n"
        "        return unistore.verify(path)\n"
        "    except unistore.StoreError as error:\n"
        "        return type(error).__name__\n"
        "pathlib.Path(sys.argv[1]).write_bytes(cloudpickle.dumps(task))"
    )
    printed("-W", "error", "-c", dump, sent, cwd=ROOT)
    assert pickle.loads(sent.read_bytes())(store) == "NoStoreError"
