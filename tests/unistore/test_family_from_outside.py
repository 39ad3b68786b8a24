"""A format and a family in a package of their own, installed from wheels, far from the checkout.

The package is what stands in the blocks of ``docs/write-a-format.md`` and ``docs/write-a-family.md``. It and
unistore are built as wheels and installed into a fresh environment, which finds the other dependencies where
this one has them. Values are compared with what the files were made of, by zarr-python and plain numpy.
"""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import textwrap
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray

from tests.support.programs import printed
from tests.support.store_files import tree

ROOT = Path(__file__).parents[2]
FORMAT, FAMILY = (ROOT / "docs" / f"write-a-{what}.md" for what in ("format", "family"))
SAMPLES = 50
PINGS = {
    "train/a.ping": (96, 700),
    "train/b.ping": (192, 1),
    "train/c.ping": (96, 431),
    "val/d.ping": (200, 300),
}
"""Sample rate and pings of each file."""


@dataclass(frozen=True)
class Installed:
    """The environment in which unistore and the family are installed, and a folder elsewhere to work in."""

    python: Path
    folder: Path
    pings: dict[str, NDArray[np.uint16]]

    def unistore(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        return self._run([str(self.python.with_name("unistore")), *arguments], code)

    def script(self, text: str, *arguments: str) -> str:
        """What a program prints."""
        file = self.folder / "program.py"
        file.write_text(textwrap.dedent(text))
        forks = "ignore:This process"  # Python 3.12 warns of forks beside threads
        return self._run([str(self.python), "-W", "error", "-W", forks, str(file), *arguments], 0).stdout

    def _run(self, command: list[str], code: int) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV_"))}
        done = subprocess.run(command, cwd=self.folder, env=kept, capture_output=True, text=True, check=False)
        assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
        return done


def package() -> dict[str, str]:
    """Files of the pages: a name in bold and code, and the block that follows."""
    pages = FORMAT.read_text() + FAMILY.read_text()
    files = dict(re.findall(r"^\*\*`([\w./]+)`\*\*\n\n```\w+\n(.*?)^```$", pages, re.MULTILINE | re.DOTALL))
    (further,) = re.findall(r"below `suffixes`:\n\n```\n(.*?)^```$", pages, re.MULTILINE | re.DOTALL)
    name, line = "unistore_sonar/pings.py", '    suffixes = (".ping",)\n'
    assert files[name].count(line) == 1
    return files | {name: files[name].replace(line, line + further)}


def blocks(page: Path, language: str) -> list[str]:
    """The blocks of a page in a language."""
    found: list[str] = re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return found


def wheel(folder: Path, destination: Path) -> Path:
    """Build a wheel as pip does without isolation: by the package's own build backend."""
    code = "import sys, setuptools.build_meta as backend; backend.build_wheel(sys.argv[1])"
    before = set(destination.glob("*.whl"))
    printed("-c", code, destination, cwd=folder)
    (made,) = set(destination.glob("*.whl")) - before
    return made


def write(path: Path, rate: int, echoes: NDArray[np.uint16]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = b"PING" + struct.pack("<HHII", 1, rate, echoes.shape[1], len(echoes))
    path.write_bytes(header + echoes.astype("<u2").tobytes())


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    for needed in ("setuptools", "pip"):
        try:
            importlib.metadata.version(needed)
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f"{needed} is not installed, and without it no wheel can be built or installed")
    place = tmp_path_factory.mktemp("outside")
    source = place / "source"
    source.mkdir()
    shutil.copytree(ROOT / "unistore", source / "unistore", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name, text in package().items():
        (place / "sonar" / name).parent.mkdir(parents=True, exist_ok=True)
        (place / "sonar" / name).write_text(text)
    (place / "wheels").mkdir()
    wheels = [wheel(folder, place / "wheels") for folder in (source, place / "sonar")]
    with zipfile.ZipFile(wheels[0]) as content:
        assert {"unistore/converters/registry.py", "unistore/schemas/tables.py"} <= set(content.namelist())
    python = environment(place / "venv", wheels)
    rng = np.random.default_rng(0)
    pings = {
        name: rng.integers(0, 4096, (count, SAMPLES)).astype(np.uint16) for name, (_, count) in PINGS.items()
    }
    found = Installed(python, place / "work", pings)
    found.folder.mkdir()
    for name, echoes in pings.items():
        write(found.folder / "pings" / name, PINGS[name][0], echoes)
    found.unistore("convert", "pings", "reference.zarr")
    return found


def environment(folder: Path, wheels: list[Path]) -> Path:
    """A fresh environment with the wheels; its Python."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index"]
    done = subprocess.run(
        [*install, "--quiet", "--disable-pip-version-check", *map(str, wheels)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (packages,) = folder.glob("lib/python*/site-packages")
    others = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (packages / "others.pth").write_text(
        "\n".join(others)
    )  # found after its own; their .pth files are not read
    return python


def test_the_package_is_short_and_imports_the_one_module() -> None:
    modules = {name: text for name, text in package().items() if name.endswith(".py")}
    assert len(modules["unistore_sonar/pings.py"].splitlines()) <= 60
    assert len(modules["unistore_sonar/__init__.py"].splitlines()) <= 150
    imported = {
        node.module
        for text in modules.values()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom)
    }
    ours = {module for module in imported if str(module).split(".")[0] == "unistore"}
    assert ours == {"unistore.plugin"}


@pytest.mark.nightly
def test_commands_and_code_of_the_page_run_with_the_installed_package(installed: Installed) -> None:
    (console,) = blocks(FAMILY, "console")
    for line in console.splitlines():
        prompt, program, *arguments = shlex.split(line)
        assert (prompt, program) == ("$", "unistore")
        installed.unistore(*arguments)
    load, check = blocks(FAMILY, "python")[-2:]
    windows = "import unistore\nprint(unistore.Dataset('pings.zarr', 'Window(pings=1)')[0]['echoes'].shape)"
    expected = ["50 torch.Size([16]) 17", "50 torch.Size([3]) 4", "torch.Size([1, 50])"]
    assert installed.script(f"{load}\n{windows}").splitlines() == expected
    for name in ("checked", "one"):
        (installed.folder / name).mkdir()
    tests = "if __name__ == '__main__':\n    test_pings(Path('one'))\n    test_sonar(Path('checked'))\n"
    installed.script(f"{blocks(FORMAT, 'python')[-1]}\n{check}\n{tests}")
    page = (installed.folder / "pings.html").read_text()
    assert page.count("<img") >= 4
    assert "64 pings, the largest" in page
    assert tree(installed.folder / "again") == tree(installed.folder / "pings")
    low = zarr.open_group(installed.folder / "low.zarr", mode="r")["sources/rate"]
    assert low[:].tolist() == [96, 96]


@pytest.mark.nightly
def test_the_store_of_the_installed_family_equals_the_values_written(installed: Installed) -> None:
    store = zarr.open_group(installed.folder / "reference.zarr", mode="r")
    np.testing.assert_array_equal(store["pings/echoes"][:], np.concatenate(list(installed.pings.values())))
    assert store["sources/rate"][:].tolist() == [rate for rate, _ in PINGS.values()]
    counts = [-(-count // 64) for _, count in PINGS.values()]
    assert store["tracks/source"][:].tolist() == np.repeat(range(4), counts).tolist()
    assert store["tracks/offsets"][:12].tolist() == [*range(0, 700, 64), 700]
    assert store.attrs["unistore"]["family"] == "sonar"
