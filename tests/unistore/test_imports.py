"""The text of all modules: what may import what, names of families and classes, kinds of problems."""

from __future__ import annotations

import ast
import multiprocessing
import pkgutil
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

import unistore
from tests.support.needs_torch import needs_torch
from tests.support.programs import printed
from unistore import plugin

ROOT = Path(unistore.__file__).parent
HEAVY = {
    *("torch", "dask", "distributed", "h5py", "zarr", "cv2", "matplotlib", "tensorstore"),
    *("obstore", "huggingface_hub"),
}

LOW = {"errors", "schemas", "system"}
STORES = LOW | {"zarr3", "remote", "store"}
ROOMS: dict[str, set[str]] = {
    "errors": set(),
    "schemas": {"errors", "system"},
    "system": {"errors"},
    "zarr3": {"errors", "system"},
    "memory": {"errors", "system"},
    "order": {"errors", "system"},
    "html": {"errors", "system", "schemas", "converters", "remote"},
    "progress": {"errors", "system", "remote"},
    "converters": LOW,
    "families": LOW | {"converters", "plugin"},
    "plugin": LOW | {"converters", "data"},
    "remote": {"errors", "system", "zarr3"},
    "store": (STORES - {"store"}) | {"html"},
    "data": STORES | {"memory", "order", "converters", "html", "progress"},
    "loader": {"errors", "system", "memory", "order", "data", "html"},
    "conversion": STORES | {"converters", "progress"},
    "growing": STORES | {"converters", "conversion", "data", "progress"},
    "exporting": STORES | {"converters", "conversion", "progress"},
    "side": STORES | {"converters", "conversion", "data", "progress"},
    "integrity": STORES | {"converters", "conversion", "data", "exporting", "progress"},
    "report": STORES | {"converters", "conversion", "order", "data", "growing", "loader", "html", "progress"},
    "unistore": STORES
    | {"order", "data", "loader", "conversion", "exporting", "growing", "integrity", "report", "side"},
    "cli": STORES
    | {"converters", "conversion", "exporting", "growing", "integrity", "html", "progress", "report"},
    "testing": {"errors", "system", "converters", "unistore"},
    "__main__": {"cli"},
}
"""For each room, the other rooms of unistore that it may import, in functions and for types too."""

AT_TOP: dict[str, set[str]] = {
    "unistore.converters": {"h5py"},
    "unistore.data.dataset": {"torch"},
    "unistore.data.kinds.replay": {"torch"},
    "unistore.data.collate": {"torch"},
    "unistore.data.normalize": {"torch"},
    "unistore.data.stitch": {"torch"},
    "unistore.loader.collating": {"torch"},
    "unistore.loader.worker_pool": {"torch"},
}
"""Heavy imports that a module or package may make when it is imported itself."""

IN_FUNCTIONS: dict[str, set[str]] = {
    "unistore.conversion.executors": {"dask", "distributed"},
    "unistore.converters": {"cv2", "h5py"},
    "unistore.data.kinds": {"cv2"},
    "unistore.exporting": {"cv2", "h5py"},
    "unistore.loader": {"torch"},
    "unistore.html": {"cv2"},
    "unistore.remote": {"huggingface_hub", "obstore"},
    "unistore.store": {"zarr"},
}
"""Heavy imports that a module or package may make inside functions; `unistore` itself: zarr."""

NEVER: dict[str, set[str]] = {
    "unistore.errors": {"numpy"},
    "unistore.system.machine": {"numpy", "unistore"},
    "unistore.order.permutation": {"unistore"},
    "unistore.data.packed": {"unistore"},
    "unistore.conversion.plan": {"unistore.store", "unistore.zarr3", "unistore.converters"},
    "unistore.data.kinds": {"unistore.data.dataset"},
}
"""What single modules and packages may not import beyond that, `unistore.data.kinds.replay` apart."""

BY_FORMATS = {"array", "claims", "common", "family", "files", "formats", "opened", "views"}
BY_FAMILIES = BY_FORMATS | {
    "family_types",
    "options",
    "preview",
    "protocol",
    "registry",
    "scan_types",
    "adapter",
}
"""What formats and families of this package import of `unistore.converters`: what reads files and describes
sources, not what asks about them and scans them. Packages of others import `unistore.plugin` alone."""

THROUGH_THE_DOOR = ("ct", "point_cloud", "spike", "trajectory")
"""Families of this package that import what packages of others may: the plugin, and formats and errors."""

FAMILIES = {path.parent.name for path in (ROOT / "schemas").glob("*/__init__.py")}


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(("unistore", *(part for part in parts if part != "__init__")))] = path
    return found


MODULES = modules()


@cache
def parsed(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


@pytest.fixture(scope="module", autouse=True)
def forget() -> Iterator[None]:
    """Free what was parsed: a million objects."""
    yield
    parsed.cache_clear()


@cache
def imports(module: str) -> tuple[set[str], set[str], set[str]]:
    """Names imported at the top of a module, at the top or in functions, and for types too."""
    top, run, anywhere = set[str](), set[str](), set[str]()

    def visit(node: ast.AST, inside: tuple[set[str], ...]) -> None:
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            inside = (anywhere,)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = tuple(names for names in inside if names is not top)
        for found in inside:
            found.update(names)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):  # which imports stand in
                visit(child, inside)

    visit(parsed(module), (top, run, anywhere))
    stub = MODULES[module].with_suffix(".pyi")
    if stub.exists():  # names that are imported when they are used
        visit(ast.parse(stub.read_text()), (anywhere,))
    return top, run, anywhere


def within(name: str, packages: set[str]) -> set[str]:
    return {package for package in packages if name == package or name.startswith(f"{package}.")}


def room(module: str) -> str:
    if within(module, {f"unistore.converters.{name}" for name in FAMILIES}):
        return "families"
    return module.split(".")[1] if "." in module else module


def own_imports(module: str) -> set[str]:
    """Modules of unistore that a module imports; of ``from package import module`` the latter."""
    names = {name for name in imports(module)[2] if within(name, {"unistore"})}
    found = {name for name in names if name in MODULES}
    return {name for name in found if not any(other.startswith(f"{name}.") for other in names & found)}


@cache
def edges() -> set[tuple[str, str]]:
    """Every module and what it imports of unistore."""
    return {(module, imported) for module in MODULES for imported in own_imports(module)} - {
        (module, module) for module in MODULES
    }


def circles(pairs: Iterator[tuple[str, str]] | set[tuple[str, str]]) -> list[list[str]]:
    """Nodes that lead to each other, once each: the strongly connected parts of more than one node."""
    leads: dict[str, set[str]] = {}
    for one, other in pairs:
        if one != other:
            leads.setdefault(one, set()).add(other)
    reached = {node: reachable(leads, node) for node in leads}
    found = {
        frozenset(other for other in reached[node] if node in reached.get(other, ()))
        for node in leads
        if node in reached[node]
    }
    return sorted(sorted(circle) for circle in found)


def reachable(leads: Mapping[str, set[str]], start: str) -> set[str]:
    found, waiting = set[str](), [start]
    while waiting:
        for node in leads.get(waiting.pop(), set()) - found:
            found.add(node)
            waiting.append(node)
    return found


def test_circles_finds_every_cycle_of_imports() -> None:
    assert circles({("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "d")}) == [["a", "b", "c"]]


def test_every_room_is_in_the_table() -> None:
    assert {room(module) for module in MODULES} == set(ROOMS)


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_imports_only_rooms_below_it(name: str) -> None:
    wrong = [
        f"{module} imports {imported}"
        for module, imported in sorted(edges())
        if room(module) == name and room(imported) not in ROOMS[name] | {name}
    ]
    assert not wrong


BY_NAME = {
    ("unistore.data.source_paths", "unistore.growing.source_cache"),
    ("unistore.data.source_paths", "unistore.growing.source_options"),
}
"""Modules of rooms above that a module loads by name: a Dataset of files converts them, and one of a store
never does."""


def test_rooms_above_are_loaded_by_name_only_where_the_table_says_so() -> None:
    found = {
        (module, node.value)
        for module in MODULES
        for node in ast.walk(parsed(module))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in MODULES
    }
    found = {(one, other) for one, other in found if other != "unistore"}  # a word as any other
    above = {(one, other) for one, other in found if room(other) not in ROOMS[room(one)] | {room(one)}}
    assert above == BY_NAME


def test_no_circles_between_rooms() -> None:
    allowed = {(name, other) for name, others in ROOMS.items() for other in others}
    assert not circles(allowed), "in the table"
    assert not circles({(inner_room(one), inner_room(other)) for one, other in edges()})


def inner_room(module: str) -> str:
    """As `room`, with each folder and each module of converters as a room of its own."""
    is_converter = within(module, {"unistore.converters"})
    return ".".join(module.split(".")[:3]) if is_converter else room(module)


def test_no_circles_between_modules() -> None:
    assert not circles(edges())


def test_nothing_but_the_command_line_imports_the_command_line() -> None:
    importers = {module for module, imported in edges() if room(imported) == "cli"}
    assert {module for module in importers if room(module) not in ("cli", "__main__")} == set()


def family(module: str) -> set[str]:
    """The family whose package of converters or schemas a module belongs to."""
    _, *parts = module.split(".")
    return FAMILIES & set(parts[1:2]) if room(module) in ("families", "schemas") else set()


def test_nothing_imports_a_family_but_itself() -> None:
    """Kinds of samples may, of its schema."""
    wrong = [
        f"{module} imports {imported}"
        for module, imported in sorted(edges())
        if family(imported) - family(module)
        and not (room(imported) == "schemas" and within(module, {"unistore.data.kinds"}))
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("package", "folders"),
    [("formats", BY_FORMATS), *((name, {name, *BY_FAMILIES}) for name in sorted(FAMILIES))],
)
def test_families_and_formats_keep_to_the_seam(package: str, folders: set[str]) -> None:
    allowed = {f"unistore.converters.{folder}" for folder in folders}
    wrong = [
        f"{module} imports {imported}"
        for module, imported in sorted(edges())
        if within(module, {f"unistore.converters.{package}"}) and room(imported) == "converters"
        if not within(imported, allowed)
    ]
    assert not wrong


@pytest.mark.parametrize("name", THROUGH_THE_DOOR)
def test_a_family_imports_the_plugin(name: str) -> None:
    own = {f"unistore.converters.{name}", f"unistore.schemas.{name}"}
    shared = {"unistore.plugin", "unistore.errors", "unistore.system.types", "unistore.converters.formats"}
    wrong = [
        f"{module} imports {imported}"
        for module, imported in sorted(edges())
        if within(module, {f"unistore.converters.{name}"}) and not within(imported, own | shared)
    ]
    assert not wrong


def test_each_name_of_the_plugin_has_two_families_or_is_in_the_guides() -> None:
    """A name that one family alone uses is written for guests, in the guides, or belongs to the family."""
    families: dict[str, set[str]] = {name: set() for name in plugin.__all__}
    for module in MODULES:
        for node in ast.walk(parsed(module)):
            if isinstance(node, ast.ImportFrom) and node.module == "unistore.plugin":
                for name in node.names:
                    families[name.name].add(module.split(".")[2])
    guides = ("write-a-family", "write-a-format", "eeg-as-a-package", "reference/families")
    text = "".join((ROOT.parent / "docs" / f"{guide}.md").read_text() for guide in guides)
    words = set(re.findall(r"\w+", text))
    table = text.split("## Names of the plugin")[1].split("\n## ")[0]
    listed = [re.findall(r"`(\w+)`", line.split("|")[1]) for line in table.splitlines() if line[:3] == "| `"]
    assert {name for names in listed for name in names} <= set(families)
    assert len(families) <= 90
    assert [name for name, users in families.items() if len(users) < 2 and name not in words] == []


def test_internals_of_multiprocessing_are_left_alone() -> None:
    """Their protocols change: that of `multiprocessing.reduction` did in Python 3.14."""
    inside = {f"multiprocessing.{module.name}" for module in pkgutil.iter_modules(multiprocessing.__path__)}
    internal = inside - {"multiprocessing.connection", "multiprocessing.context"}
    wrong = [f"{name} imports {found}" for name in MODULES for found in sorted(imports(name)[2] & internal)]
    assert "multiprocessing.reduction" in internal
    assert not wrong


@pytest.mark.parametrize("package", NEVER)
def test_no_package_imports_what_the_table_forbids(package: str) -> None:
    checked = [name for name in MODULES if within(name, {package}) and name != "unistore.data.kinds.replay"]
    assert checked, f"no module {package}"
    wrong = [
        f"{name} imports {imported}"
        for name in checked
        for imported in sorted(imports(name)[1])
        if within(imported, NEVER[package])
    ]
    assert not wrong


def test_heavy_libraries_are_imported_only_where_the_tables_allow() -> None:
    """None at the top of a module or in functions but those of the tables."""
    wrong = []
    for name in MODULES:
        top, run, _ = imports(name)
        at_top = set[str]().union(*(AT_TOP[package] for package in within(name, set(AT_TOP))))
        late = set[str]().union(*(IN_FUNCTIONS[package] for package in within(name, set(IN_FUNCTIONS))))
        if name == "unistore":
            late = {"zarr"}
        wrong += [f"{name} imports {i} at its top" for i in sorted(top) if within(i, HEAVY - at_top)]
        wrong += [f"{name} imports {i}" for i in sorted(run) if within(i, HEAVY - at_top - late)]
    assert not wrong


def loaded_by(statement: str) -> set[str]:
    code = f"{statement}\nimport sys; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    output = printed("-c", code, cwd=ROOT.parent)
    return set(output.split())


def test_import_unistore_is_light() -> None:
    assert not loaded_by("import unistore") & (HEAVY | {"numpy", "numcodecs"})


@needs_torch
def test_the_dataset_needs_neither_dask_nor_h5py_nor_zarr() -> None:
    loaded = loaded_by(
        "import unistore; unistore.Dataset; unistore.collate; unistore.Patches; unistore.Shuffle"
    )
    assert "torch" in loaded
    assert not loaded & (HEAVY - {"torch"})


def test_a_class_name_is_defined_in_one_place() -> None:
    places: dict[str, list[str]] = {}
    for module in MODULES:
        for node in ast.walk(parsed(module)):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(module)
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


WORDS = re.compile(r"\b(point[_-]cloud|trajectory|spikes?|ct)\b")
"""Names of families in texts; ``rows`` is a word of its own meaning."""
NAME_FAMILIES = {"unistore.conversion.signatures", "unistore.data.kinds"}
"""Written by a tool from what families declare, and sample kinds of one family."""


def test_core_names_no_family() -> None:
    wrong = []
    for module in MODULES:
        if family(module) or within(module, NAME_FAMILIES):
            continue
        allowed: list[ast.expr] = []
        for node in ast.walk(parsed(module)):
            if isinstance(node, ast.Expr):
                allowed.append(node.value)  # a docstring
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_OURS":
                allowed += [part for part in ast.walk(node.value) if isinstance(part, ast.Constant)]
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and WORDS.search(node.value):
                wrong.append((module, node))
        wrong = [found for found in wrong if found[1] not in allowed]
    assert [(module, node.value) for module, node in wrong] == []


def kinds_of_problems() -> set[str]:
    """Every kind that the text of a program gives a problem, also by functions with a parameter `kind`."""
    constants = {
        ast.unparse(node.targets[0]): node.value
        for module in MODULES
        for node in parsed(module).body
        if isinstance(node, ast.Assign)
    }
    kinds = {"invalid"}
    for module, path in MODULES.items():
        lines = path.read_text().splitlines()
        nodes = list(ast.walk(parsed(module)))
        places = {"Problem": 3, "at": 3, "problem": 2}
        for node in nodes:
            if isinstance(node, ast.FunctionDef) and "Problem" in str(lines[node.lineno : node.end_lineno]):
                parameters = [argument.arg for argument in node.args.args if argument.arg != "self"]
                places |= {node.name: parameters.index("kind")} if "kind" in parameters else {}
        for node in nodes:
            called = ""
            if isinstance(node, ast.Call):
                called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if isinstance(node, ast.Call) and called in places:
                values = node.args[places[called] :][:1]
                values += [keyword.value for keyword in node.keywords if keyword.arg == "kind"]
                for value in values:
                    kinds |= strings(constants.get(ast.unparse(value), value))
    return kinds


def strings(node: ast.AST) -> set[str]:
    if isinstance(node, ast.IfExp):
        return strings(node.body) | strings(node.orelse)
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()


def test_every_kind_of_error_has_a_heading_in_the_guide() -> None:
    guide = (ROOT / "cli" / "errors.md").read_text()
    assert (ROOT.parent / "docs" / "errors.md").read_text() == guide, "cp unistore/cli/errors.md docs/"
    kinds = kinds_of_problems()
    assert len(kinds) > 70
    assert sorted(re.findall(r"^### (.+)$", guide, re.MULTILINE)) == sorted(kinds)
