"""Cases of grown stores of two parts, which have every other source each, and a cache of stores."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import unistore
from tests.support import cases
from unistore.growing.growth import growing
from unistore.store.versions import describe_part

WIDTHS = {"a": 3, "b": 5, "c": 5, "d": 3}


def rows_padded(folder: Path) -> cases.Case:
    for name, width in WIDTHS.items():
        np.savez(folder / f"{name}.npz", x=np.ones((4, width), "f4" if width > 3 else "f2"), y=np.ones(4))
    return cases.Case("rows", [folder], {"columns": "union"})


def robots_padded(folder: Path) -> cases.Case:
    for name, width in WIDTHS.items():
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file["data/demo_0/actions"] = np.ones((4, 2))
            file["data/demo_0/states"] = np.ones((4, width), "f4" if width > 3 else "f2")
    return cases.Case("trajectory", [folder], {"columns": "union"})


def robots_of_which_some_have_attributes(folder: Path) -> cases.Case:
    for number in range(4):
        with h5py.File(folder / f"{number}.h5", "w") as file:
            file["data/demo_0/actions"] = np.ones((4, 2))
            if number % 2:  # those of one part, as JSON and to the last bit
                file["data/demo_0"].attrs["task"] = "lift"
                file["data/demo_0"].attrs["gain"] = np.float32(number)
    return cases.Case("trajectory", [folder], {})


def robots_with_a_ragged_clock(folder: Path) -> cases.Case:
    for number in range(4):
        with h5py.File(folder / f"{number}.h5", "w") as file:
            file["data/demo_0/actions"] = np.ones((4, 2))
            scans = file.create_dataset("data/demo_0/scan", (6 + number,), h5py.vlen_dtype("f4"))
            for row in range(len(scans)):
                scans[row] = np.arange(row % 3 + 1, dtype="f4")
    return cases.Case("trajectory", [folder], {"rate": {"scan": "50", "steps": "30"}})


CASES: list[Callable[[Path], cases.Case]] = [
    rows_padded,
    robots_padded,
    robots_with_a_ragged_clock,
    cases.rows_npz,
    cases.cloud_indices,
    cases.ct_sparse,
    cases.spike_tiles,
    cases.robot_flat,
    cases.events_of_two_cameras,
]


Make = Callable[[Path], cases.Case]


def add_part(store: Path, other: Path) -> None:
    """Move a sealed store into another one, as a part that is not checked against it."""
    with growing(store) as growth:
        shutil.move(other, growth.new_store)
        schemas = list(growth.version.schemas)
        part = describe_part(unistore.Store(growth.new_store), schemas)
        growth.commit([*growth.version.parts, part], schemas, unistore.Store(growth.new_store))


@pytest.fixture(scope="session")
def make_joined(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Make], tuple[cases.Case, Path]]:
    """``make_joined(make)``: a case, and the folder of its grown ``s.zarr`` and its ``one.zarr``."""

    @cache
    def made(make: Make) -> tuple[cases.Case, Path]:
        folder = tmp_path_factory.mktemp(make.__name__)
        (folder / "src").mkdir()
        case = make(folder / "src")
        unistore.convert(case.sources, folder / "one.zarr", case.family, **case.options)
        names = unistore.Store(folder / "one.zarr").text("sources/path")
        for name, others in (("s.zarr", names[1::2]), ("p.zarr", names[::2])):
            unistore.convert(case.sources, folder / name, case.family, exclude=others, **case.options)
        add_part(folder / "s.zarr", folder / "p.zarr")
        return case, folder

    return made


@pytest.fixture
def joined(make_joined: Any, tmp_path: Path) -> Callable[[Make], cases.Case]:
    """``joined(make)``: the case; both stores are copied into the folder of the test."""

    def copied(make: Make) -> cases.Case:
        case, folder = make_joined(make)
        for name in ("s.zarr", "one.zarr"):
            shutil.copytree(folder / name, tmp_path / name)
        return case

    return copied


@pytest.fixture(name="cache")
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which stores of source files are kept; nothing is there."""
    monkeypatch.setenv("UNISTORE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "stores"
