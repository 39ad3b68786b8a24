"""Formats of packages that name a native library: it is called in worker processes, which it may end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import unistore
from unistore.cli.main import main
from unistore.errors import InputError
from unistore.system.foreign import SECONDS

pytestmark = pytest.mark.timeout(300)
CRASHES = ("b.native", "is damaged: it crashes libnative (signal 11)", "damaged")
HANGS = ("c.native", "is damaged: it hangs libnative", "damaged")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readings are ended after a second."""
    monkeypatch.setenv(SECONDS, "1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two sound files, one that crashes the library and one whose rows hang it."""
    folder = tmp_path / "sources"
    folder.mkdir()
    for name, word in {"a": b"SOUND", "b": b"CRASH", "c": b"HANGS", "d": b"SOUND"}.items():
        (folder / f"{name}.native").write_bytes(word + name.encode() * 4)
    return folder


@pytest.mark.parametrize("workers", [0, 2])
def test_a_crash_or_a_hang_is_a_problem_of_its_file(folder: Path, tmp_path: Path, workers: int) -> None:
    store = tmp_path / "some.zarr"
    report = unistore.convert(folder, store, "bytes", workers=workers, on_error="skip")
    assert [(each["file"], each["reason"], each["kind"]) for each in report.skipped] == [CRASHES, HANGS]
    values = unistore.open_zarr(store)["values/values"][...]
    assert np.array_equal(values, np.frombuffer(b"aaaadddd", "u1"))


def test_all_of_them_are_told(folder: Path, tmp_path: Path) -> None:
    (folder / "c.native").write_bytes(b"CRASHc")
    with pytest.raises(InputError) as refused:
        unistore.convert(folder, tmp_path / "all.zarr", "bytes", workers=0)
    problems = [(problem.location, problem.message, problem.kind) for problem in refused.value.problems]
    assert problems == [CRASHES, ("c.native", *CRASHES[1:])]


def test_comparison_with_sources(folder: Path, tmp_path: Path) -> None:
    for name in ("b", "c"):
        (folder / f"{name}.native").unlink()
    unistore.convert(folder, tmp_path / "out.zarr", "bytes")
    assert unistore.verify(tmp_path / "out.zarr", against=folder).ok
    (folder / "d.native").write_bytes(b"HANGSdddd")
    verified = unistore.verify(tmp_path / "out.zarr", against=folder)
    assert [(each.location, each.message) for each in verified.problems] == [("d.native", HANGS[1])]


def test_inspect(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["inspect", str(folder)])
    assert "b.native: is damaged: it crashes libnative (signal 11)" in capsys.readouterr().out
