"""Formats of packages that name a native library: it is called in worker processes, which it may end."""

from __future__ import annotations

import json
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


FATES = {
    b"ABORT": "is damaged: it crashes libnative (signal 6)",
    b"GONE0": "is damaged: it crashes libnative (exit code 0)",
    b"GONE3": "is damaged: it crashes libnative (exit code 3)",
    b"EXITS": "cannot be read by unistore_native.Native: SystemExit: no licence",
    b"PANIC": "cannot be read by unistore_native.Native: PanicException: range end index 65587 out of range",
}


@pytest.mark.parametrize(
    ("word", "at"),
    [
        (b"PANIC", "opening"),
        (b"GONE0", "slicing"),
        *(pytest.param(word, "opening", marks=pytest.mark.nightly) for word in FATES if word != b"PANIC"),
        *(pytest.param(word, "slicing", marks=pytest.mark.nightly) for word in FATES if word != b"GONE0"),
    ],
)
def test_however_a_library_ends_it_is_a_problem_of_the_file(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], word: bytes, at: str
) -> None:
    (folder / "c.native").unlink()
    (folder / "b.native").write_bytes((word if at == "opening" else word.lower()) + b"bbbb")
    store = tmp_path / "some.zarr"
    with pytest.raises(SystemExit) as ended:
        main(["convert", "bytes", str(folder), str(store), "--on-error", "skip"])
    assert ended.value.code == 3
    report = json.loads((store / "unistore-report.json").read_text())
    assert [(each["file"], each["reason"]) for each in report["problems"]] == [("b.native", FATES[word])]
    values = unistore.open_zarr(store)["values/values"][...]
    assert np.array_equal(values, np.frombuffer(b"aaaadddd", "u1"))
    with pytest.raises(SystemExit) as refused:
        main(["convert", "bytes", str(folder), str(tmp_path / "none.zarr")])
    assert refused.value.code == 2
    main_inspect(folder)
    said = "".join(capfd.readouterr())
    assert f"b.native: {FATES[word]}" in said
    assert "Traceback" not in said
    assert "panicked" not in said


def main_inspect(folder: Path) -> None:
    with pytest.raises(SystemExit):
        main(["inspect", str(folder)])


@pytest.mark.nightly
@pytest.mark.parametrize("word", FATES)
def test_verify_names_a_source_that_ends_the_library_in_any_way(
    folder: Path, tmp_path: Path, word: bytes
) -> None:
    for name in ("b", "c"):
        (folder / f"{name}.native").unlink()
    unistore.convert(folder, tmp_path / "out.zarr", "bytes")
    (folder / "d.native").write_bytes(word.lower() + b"dddd")
    verified = unistore.verify(tmp_path / "out.zarr", against=folder)
    assert [(each.location, each.message) for each in verified.problems] == [("d.native", FATES[word])]


def test_all_files_that_crash_the_library_are_problems(folder: Path, tmp_path: Path) -> None:
    (folder / "c.native").write_bytes(b"CRASHc")
    with pytest.raises(InputError) as refused:
        unistore.convert(folder, tmp_path / "all.zarr", "bytes", workers=0)
    problems = [(problem.location, problem.message, problem.kind) for problem in refused.value.problems]
    assert problems == [CRASHES, ("c.native", *CRASHES[1:])]


def test_verify_names_a_source_that_hangs_the_library(folder: Path, tmp_path: Path) -> None:
    for name in ("b", "c"):
        (folder / f"{name}.native").unlink()
    unistore.convert(folder, tmp_path / "out.zarr", "bytes")
    assert unistore.verify(tmp_path / "out.zarr", against=folder).ok
    (folder / "d.native").write_bytes(b"HANGSdddd")
    verified = unistore.verify(tmp_path / "out.zarr", against=folder)
    assert [(each.location, each.message) for each in verified.problems] == [("d.native", HANGS[1])]


def test_inspect_names_the_file_that_crashes_the_library(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["inspect", str(folder)])
    assert "b.native: is damaged: it crashes libnative (signal 11)" in capsys.readouterr().out
