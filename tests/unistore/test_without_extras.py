"""The base alone: what needs a library of an extra says so before anything is read, the rest works."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import h5py
import hdf5plugin
import numpy as np
import pytest

from tests.support.extras import SOURCES
from tests.support.needs_torch import needs_torch
from tests.support.waiting import patience
from unistore.system.extras import EXTRAS

ROOT = Path(__file__).parents[2]
NOT_OF_USERS = {"docs", "test", "test-tools", "all"}
# Hides the libraries from a process and from all that it starts
HIDING = f"""
import sys
from importlib.machinery import PathFinder

class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hidden = {[module for extra in EXTRAS.values() for module in extra.modules]}
        return None if name.partition(".")[0] in hidden else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Hiding
"""


def run(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A command in a process without the libraries of any extra."""
    hiding = folder / "hiding"
    hiding.mkdir(exist_ok=True)
    (hiding / "sitecustomize.py").write_text(HIDING)
    return subprocess.run(
        [sys.executable, "-m", "unistore", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": f"{hiding}{os.pathsep}{ROOT}", "COLUMNS": "1000"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=patience(120),
    )


@needs_torch
def test_every_extra_of_the_project_is_listed_with_the_libraries_that_it_installs() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS) == set(declared) - NOT_OF_USERS
    distributions = packages_distributions()
    for name, extra in EXTRAS.items():
        required = {line.partition(">=")[0].lower() for line in declared[name]}
        for module in extra.modules:
            providers = {provider.lower() for provider in distributions[module]}
            assert providers & required, f"{module} is not installed by unistore[{name}]"


@pytest.mark.parametrize("name", SOURCES)
def test_a_missing_library_is_an_error_that_names_its_extra(tmp_path: Path, name: str) -> None:
    needs = SOURCES[name]
    (tmp_path / "source").mkdir()
    check_named(needs.extra, run(tmp_path, "inspect", needs.write(tmp_path / "source")))


def test_a_bucket_names_its_extra(tmp_path: Path) -> None:
    check_named("cloud", run(tmp_path, "inspect", "s3://bucket/train.zarr"))


@pytest.mark.parametrize(
    "words",
    [
        ["inspect", "hf://datasets/org/name/train.zarr"],
        ["convert", "hf://datasets/org/name/scan.nii.gz", "scans.zarr"],
    ],
)
def test_the_hub_names_its_extra(tmp_path: Path, words: list[str]) -> None:
    check_named("hub", run(tmp_path, *words))
    assert not (tmp_path / "scans.zarr").exists()


def test_a_cluster_names_its_extra(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(10))
    convert = ["convert", tmp_path / "a.npy", tmp_path / "a.zarr", "--scheduler", "tcp://127.0.0.1:1"]
    check_named("cluster", run(tmp_path, *convert))
    assert not (tmp_path / "a.zarr").exists()


def check_named(extra: str, done: subprocess.CompletedProcess[str]) -> None:
    """Check that a command names the extra that it needs in one line."""
    said = done.stdout + done.stderr
    assert said.count(f"pip install 'unistore[{extra}]'") == said.count("pip install") == 1, said
    assert done.returncode in (1, 2)
    assert "Traceback" not in said
    assert "unexpected" not in said


def test_the_base_alone_converts_looks_verifies_and_exports(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=(50, 8), **hdf5plugin.Blosc(cname="zstd"))
    for arguments in (
        ["convert", "a.h5", "a.zarr"],
        ["inspect", "a.zarr", "--html", "a.html"],
        ["verify", "a.zarr"],
        ["export", "a.zarr", "out"],
        ["view", "a.zarr", "--help"],
    ):
        done = run(tmp_path, *arguments)
        assert done.returncode == 0, done.stderr
    read = h5py.File(next((tmp_path / "out").rglob("*.h5")))["x"][()]
    assert np.array_equal(read, values)
    assert "not installed" not in (tmp_path / "a.html").read_text()


def test_doctor_lists_what_is_not_installed_and_what_it_would_add(tmp_path: Path) -> None:
    said = run(tmp_path, "doctor").stdout
    for name, extra in EXTRAS.items():
        assert f"pip install 'unistore[{name}]'" in said
        assert extra.adds.split(",")[0] in said
