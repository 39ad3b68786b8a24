"""A family of unistore as a package of its own: a wheel with an entry point, and unistore without the family.

The family's tests run there. They show that nothing else in unistore knows the family, and that the family
needs no more than every author has.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.programs import printed

ROOT = Path(__file__).parents[2]
# Families that are complete behind `unistore.plugin`
FAMILIES = ("spike",)
# Copied beside the packages: what tests read
BESIDE = ("tests", "tools", "docs", "examples", "benchmarks", "pyproject.toml", "README.md", "LICENSE")


@pytest.mark.nightly
@pytest.mark.parametrize("name", FAMILIES)
def test_the_tests_of_a_family_pass_with_the_family_in_a_package_of_its_own(
    name: str, tmp_path: Path
) -> None:
    for needed in ("setuptools", "pip"):
        try:
            importlib.metadata.version(needed)
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f"{needed} is not installed, and without it no wheel can be built or installed")
    house = tmp_path / "house"
    ignored = shutil.ignore_patterns("__pycache__", ".*")
    shutil.copytree(ROOT / "unistore", house / "unistore", ignore=ignored)
    for beside in BESIDE:
        copy = shutil.copytree if (ROOT / beside).is_dir() else shutil.copy
        copy(ROOT / beside, house / beside)
    moved = house / "unistore" / "converters" / name
    package = tmp_path / "package"
    shutil.move(moved, package / f"unistore_{name}")
    registry = house / "unistore" / "converters" / "registry.py"
    entry = re.compile(rf'^    "{name}": "{name}:(\w+)",\n', re.MULTILINE)
    (family,) = entry.findall(registry.read_text())
    registry.write_text(entry.sub("", registry.read_text()))
    for file in (*package.rglob("*.py"), *(house / "tests").rglob("*.py")):
        text = file.read_text()
        file.write_text(text.replace(f"unistore.converters.{name}", f"unistore_{name}"))
    (package / "pyproject.toml").write_text(
        f'[project]\nname = "unistore-{name}"\nversion = "1"\n'
        f'[project.entry-points."unistore.families"]\n{name} = "unistore_{name}:{family}"\n'
    )
    code = "import sys, setuptools.build_meta as backend; backend.build_wheel(sys.argv[1])"
    printed("-c", code, tmp_path, cwd=package)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        content.extractall(tmp_path / "site")
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "COV_"))},
        "PYTHONPATH": os.pathsep.join(map(str, (tmp_path / "site", house))),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "2", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-m", "not nightly", f"tests/converters/{name}"],
        cwd=house,
        env=environment,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    (passed,) = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) >= 60
    where = f"import unistore_{name}, unistore; print(unistore_{name}.__file__, unistore.__file__)"
    told = subprocess.run(
        [sys.executable, "-c", where], cwd=house, env=environment, capture_output=True, text=True, check=True
    )
    assert told.stdout.split() == [
        str(tmp_path / "site" / f"unistore_{name}" / "__init__.py"),
        str(house / "unistore" / "__init__.py"),
    ]
