"""HDF5 on a disk that refuses: an error at every write, never a crash; and Ctrl-C in the middle of one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from unistore.converters.common.exported import ExportedArray, File, array_values
from unistore.exporting.run import write_hdf5

RNG = np.random.default_rng(0)
XYZ = RNG.normal(size=(20_000, 3)).astype(np.float32)
TEXT = [RNG.integers(0, 255, count, dtype=np.uint8) for count in (0, 1, 3000, 17)]


def a_file(*, compressed: bool = False) -> File:
    """Every kind of dataset that is exported: compressed, contiguous, rows of their own length."""

    def blocks() -> Any:
        for text in TEXT:
            block = np.empty(1, object)
            block[0] = text
            yield block

    rows = ExportedArray((4,), np.dtype(object), blocks)
    parts = ExportedArray(
        XYZ.shape, XYZ.dtype, lambda: (XYZ[lo : lo + 4096] for lo in range(0, len(XYZ), 4096))
    )
    return File(
        name="a.h5",
        form="hdf5",
        source=0,
        values={"points/xyz": parts, "text": rows, "b": array_values(np.arange(1000))},
        attributes={"": {"note": "y" * 5000}, "points": {"count": 20_000}},
        compressed=compressed,
    )


@pytest.mark.parametrize("compressed", [False, True])
def test_h5py_reads_what_was_written(tmp_path: Path, compressed: bool) -> None:
    write_hdf5(a_file(compressed=compressed), tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5") as found:
        np.testing.assert_array_equal(found["points/xyz"][()], XYZ)
        np.testing.assert_array_equal(found["b"][()], np.arange(1000))
        for number, text in enumerate(TEXT):
            np.testing.assert_array_equal(found["text"][number], text)
        assert found.attrs["note"] == "y" * 5000
        assert found["points"].attrs["count"] == 20_000


REFUSING = """
import errno, itertools, os, sys, tempfile
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_hdf5 import a_file
from unistore.exporting.run import write_hdf5

refused = 0
for call in ("pwrite", "ftruncate"):
    original = getattr(os, call)
    for compressed in (False, True):
        for wanted in itertools.count():
            calls = itertools.count()
            def refuse(descriptor, data, *rest):
                if next(calls) >= wanted:
                    if call == "pwrite":
                        original(descriptor, bytes(data[: len(data) // 2]), *rest)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return original(descriptor, data, *rest)
            setattr(os, call, refuse)
            with tempfile.TemporaryDirectory() as folder:
                try:
                    write_hdf5(a_file(compressed=compressed), Path(folder, "a.h5"))
                except OSError as error:
                    assert error.errno == errno.ENOSPC and error.filename.endswith("a.h5"), error
                    refused += 1
                else:
                    break
                finally:
                    setattr(os, call, original)
print(refused)
"""


def test_a_failed_write_is_an_error_and_never_a_crash(tmp_path: Path) -> None:
    """In a process of its own, for a crash would end all tests."""
    script = [sys.executable, "-c", REFUSING, str(Path(__file__).parent)]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 30


INTERRUPTED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_hdf5 import a_file
from unistore.exporting.run import write_hdf5

original = os.pwrite
for at in (0, 3, 9):
    calls = iter(range(1_000_000))
    def pwrite(*arguments):
        if next(calls) == at:
            signal.raise_signal(signal.SIGINT)
        return original(*arguments)
    os.pwrite = pwrite
    try:
        write_hdf5(a_file(), Path(sys.argv[2], f"{at}.h5"))
    except KeyboardInterrupt:
        print("interrupted at", at)
"""


def test_an_interrupt_during_a_write_is_raised(tmp_path: Path) -> None:
    script = [sys.executable, "-c", INTERRUPTED, str(Path(__file__).parent), str(tmp_path)]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"interrupted at {at}" for at in (0, 3, 9)]


def test_an_error_in_the_values_closes_the_file(tmp_path: Path) -> None:
    def broken() -> Any:
        yield XYZ[:10]
        raise RuntimeError("the store")

    file = File(name="a.h5", form="hdf5", source=0, values={"x": ExportedArray(XYZ.shape, XYZ.dtype, broken)})
    with pytest.raises(RuntimeError, match="the store"):
        write_hdf5(file, tmp_path / "a.h5")


def test_an_error_of_close_is_raised_with_the_file_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As network file systems do."""
    wanted = tmp_path / "a.h5"

    def close(descriptor: int, original: Callable[[int], None]) -> None:
        ours = Path(f"/proc/self/fd/{descriptor}").readlink() == wanted
        original(descriptor)
        if ours:
            raise OSError(122, "Disk quota exceeded")

    original = os.close
    monkeypatch.setattr("os.close", lambda descriptor: close(descriptor, original))
    with pytest.raises(OSError, match="Disk quota exceeded") as caught:
        write_hdf5(a_file(), wanted)
    assert caught.value.filename == str(wanted)
