"""What may import what: the table of modules, held with ast; and what `import unistore` loads."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import unistore

ROOT = Path(unistore.__file__).parent
HEAVY = {"torch", "dask", "distributed", "h5py", "zarr", "cv2", "obstore", "tensorstore"}

FORBIDDEN: dict[str, set[str]] = {
    "unistore.errors": HEAVY | {"unistore", "numpy"},
    "unistore.schemas": HEAVY
    | {
        "unistore.store",
        "unistore.zarr3",
        "unistore.converters",
        "unistore.conversion",
        "unistore.data.dataset",
    },
    "unistore.zarr3": HEAVY
    | {
        "unistore.store",
        "unistore.schemas",
        "unistore.converters",
        "unistore.conversion",
        "unistore.data.dataset",
    },
    "unistore.conversion.layout": HEAVY | {"unistore.store", "unistore.zarr3", "unistore.converters"},
    "unistore.remote": HEAVY
    | {
        "unistore.converters",
        "unistore.conversion",
        "unistore.data.dataset",
        "unistore.data.kinds",
        "unistore.schemas",
        "unistore.store.reader",
    },
    "unistore.store": HEAVY
    | {"unistore.converters", "unistore.conversion", "unistore.data.dataset", "unistore.data.kinds"},
    "unistore.converters": (HEAVY - {"h5py"})
    | {
        "unistore.store",
        "unistore.zarr3",
        "unistore.conversion",
        "unistore.data.dataset",
        "unistore.data.kinds",
    },
    "unistore.conversion.plan": HEAVY
    | {"unistore.store", "unistore.converters", "unistore.conversion", "unistore.data.dataset"},
    "unistore.conversion": HEAVY - {"dask", "distributed"} | {"unistore.data.dataset", "unistore.data.kinds"},
    "unistore.data.packed": HEAVY | {"unistore"},
    "unistore.system.malloc": HEAVY | {"unistore", "numpy"},
    "unistore.order.randomness": HEAVY | {"unistore"},
    "unistore.data.kinds": (HEAVY - {"cv2"})
    | {"unistore.converters", "unistore.conversion", "unistore.data.dataset", "unistore.conversion.plan"},
    "unistore.order.permutation": HEAVY | {"unistore.converters", "unistore.conversion", "unistore.store"},
    "unistore.data.dataset": (HEAVY - {"torch"})
    | {"unistore.converters", "unistore.conversion", "unistore.cli"},
    "unistore.data.sample": (HEAVY - {"torch"})
    | {"unistore.converters", "unistore.conversion", "unistore.cli"},
    "unistore.data.collate": (HEAVY - {"torch"})
    | {"unistore.converters", "unistore.conversion", "unistore.cli"},
    "unistore.data.tensors": (HEAVY - {"torch"})
    | {"unistore.converters", "unistore.conversion", "unistore.cli"},
    "unistore.loader": (HEAVY - {"torch"}) | {"unistore.converters", "unistore.conversion", "unistore.cli"},
    "unistore.data.kinds.replay": (HEAVY - {"torch"})
    | {"unistore.converters", "unistore.conversion", "unistore.cli"},
}
"""For each module or package, what neither it nor its submodules may import anywhere, functions included."""

INSIDE_FUNCTIONS = {
    "unistore": {"zarr"},
    "unistore.remote": {"obstore", "zarr"},
    "unistore.store": {"zarr"},
    "unistore.converters": {"cv2"},
    "unistore.errors": set(),
}
"""Exceptions: heavy imports allowed inside functions only."""

ONLY_DASK = {"unistore.conversion"}
"""Who may import dask at all, besides the command line."""


def modules() -> dict[str, Path]:
    found = {}
    for folder, package in ((ROOT, "unistore"), (ROOT / "converters", None), (ROOT / "schemas", None)):
        for path in sorted(folder.resolve().rglob("*.py")):
            parts = path.relative_to(folder.resolve()).with_suffix("").parts
            name = ".".join(
                (package or f"unistore.{folder.name}", *(part for part in parts if part != "__init__"))
            )
            found[name] = path
    return found


MODULES = modules()


@cache
def imports(path: Path) -> tuple[set[str], set[str]]:
    """Modules imported at the top of a file, and anywhere in it; type checking blocks left out."""
    tree = ast.parse(path.read_text())
    inside_functions = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        for node in ast.walk(block)
    }
    top, anywhere = set(), set()
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        anywhere.update(names)
        if id(node) not in inside_functions:
            top.update(names)
    return top, anywhere


def within(name: str, packages: set[str]) -> set[str]:
    return {package for package in packages if name == package or name.startswith(f"{package}.")}


@pytest.mark.parametrize("package", FORBIDDEN)
def test_the_table_of_imports(package: str) -> None:
    checked = [name for name in MODULES if within(name, {package})]
    assert checked or package == "unistore.data.kinds.replay", f"no module {package}"
    wrong = []
    for name in checked:
        top, anywhere = imports(MODULES[name])
        late = INSIDE_FUNCTIONS.get(package, set())
        for imported in sorted(anywhere):
            banned = within(imported, FORBIDDEN[package] - {"unistore"})
            if "unistore" in FORBIDDEN[package] and within(imported, {"unistore"}):
                banned = {"unistore"}
            if banned - late or (banned and imported in top):
                wrong.append(f"{name} imports {imported}")
    assert not wrong


def test_modules_outside_the_table_are_light() -> None:
    """The command line, configuration and whatever is new: nothing heavy before a function asks for it."""
    others = [name for name in MODULES if not within(name, set(FORBIDDEN))]
    heavy = {name: found for name in others if (found := heavy_at_top(name))}
    assert not heavy


def heavy_at_top(name: str) -> set[str]:
    return {imported for imported in imports(MODULES[name])[0] if within(imported, HEAVY)}


def test_only_the_executor_imports_dask() -> None:
    importers = {
        name
        for name, path in MODULES.items()
        if any(within(i, {"dask", "distributed"}) for i in imports(path)[1])
    }
    assert {name for name in importers if not within(name, ONLY_DASK | {"unistore.cli"})} == set()


def loaded_by(statement: str) -> set[str]:
    code = f"{statement}\nimport sys; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT.parent
    )
    return set(done.stdout.split())


def test_import_unistore_is_light() -> None:
    assert not loaded_by("import unistore") & (HEAVY | {"numpy", "numcodecs"})


def test_the_dataset_needs_neither_dask_nor_h5py_nor_zarr() -> None:
    loaded = loaded_by(
        "import unistore; unistore.Dataset; unistore.collate; unistore.Patches; unistore.Shuffle"
    )
    assert "torch" in loaded
    assert not loaded & (HEAVY - {"torch"})
