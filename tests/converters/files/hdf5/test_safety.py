"""HDF5 files that hang or crash the HDF5 library: told as damaged, and the process lives on.

That the files do so is seen in a process of its own that opens them with h5py alone.
"""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np
import pytest

import unistore
from unistore.converters.files.hdf5 import safety, structure
from unistore.converters.files.hdf5.file import open_hdf5, read_objects, read_rows
from unistore.converters.files.hdf5.helper_process import HelperProcess
from unistore.converters.files.hdf5.tree import walk
from unistore.errors import InputError

DATA = Path(__file__).parents[3] / "data"
NODE = 24
"""Bytes of a tree's node before its entries."""
FEW_SECONDS = "import sys, resource; resource.setrlimit(resource.RLIMIT_CPU, (2, 2)); import h5py; "
LOOK = "f = h5py.File(sys.argv[1]); [dict(each.attrs) for each in (f, *map(f.get, f))]"

Change = Callable[[bytearray], None]


def is_plain(path: Path) -> bool:
    with path.open("rb") as file, suppress(*structure.FAILURES):
        structure.parse(file.fileno(), path.stat().st_size, file.read(structure.HEAD_BYTES))
        return True
    return False


def write(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(3)
        file.create_dataset("chunked", data=np.arange(30), chunks=(10,))
        file.attrs["text"] = "text"
    return path


def tree(data: bytearray, kind: int) -> int:
    return next(found.start() for found in re.finditer(b"TREE", data) if data[found.start() + 4] == kind)


def own_branch(data: bytearray) -> None:
    """The root group's tree has itself for its only branch."""
    at = tree(data, 0)
    data[at + 5] = 1
    struct.pack_into("<Q", data, at + NODE + 8, at)


def own_neighbour(data: bytearray) -> None:
    at = tree(data, 0)
    struct.pack_into("<QQ", data, at + 8, at, at)


def own_neighbour_of_chunks(data: bytearray) -> None:
    at = tree(data, 1)
    struct.pack_into("<QQ", data, at + 8, at, at)


def free_space_of_nothing(data: bytearray) -> None:
    """The global heap, which holds texts and mappings of virtual datasets, ends in 0 bytes of free space."""
    at = data.index(b"GCOL") + 16
    while struct.unpack_from("<H", data, at)[0]:
        at += 16 + -(-struct.unpack_from("<Q", data, at + 8)[0] // 8) * 8
    struct.pack_into("<Q", data, at + 8, 0)


def free_list_to_itself(data: bytearray) -> None:
    _, free, start = struct.unpack_from("<QQQ", data, data.index(b"HEAP") + 8)
    struct.pack_into("<Q", data, start + free, free)


HANGS: dict[str, Change] = {
    change.__name__: change
    for change in (own_neighbour, own_neighbour_of_chunks, free_space_of_nothing, free_list_to_itself)
}


def changed(path: Path, change: Change) -> Path:
    data = bytearray(write(path).read_bytes())
    change(data)
    path.write_bytes(data)
    return path


def ends_itself(path: Path) -> bool:
    """Whether h5py alone comes to an end with a file, of whatever kind, within 2 s of processor time."""
    done = subprocess.run(
        [sys.executable, "-c", FEW_SECONDS + LOOK, str(path)], capture_output=True, check=False
    )
    return done.returncode >= 0


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Trials of files are ended after a second at most."""
    with monkeypatch.context() as patch:
        patch.setattr(safety, "_helper", HelperProcess("tests.converters.files.hdf5.impatient_trials"))
        yield
        safety._helper.stop()


@pytest.mark.parametrize("name", HANGS)
@pytest.mark.usefixtures("impatient")
def test_what_hangs_the_library_is_damaged(tmp_path: Path, name: str) -> None:
    path = changed(tmp_path / "a.h5", HANGS[name])
    assert not is_plain(path)
    began = time.monotonic()
    with pytest.raises(InputError) as raised, open_hdf5(path, "a.h5") as file:
        walk(file, "a.h5", [tmp_path])
    assert [(problem.location, problem.kind) for problem in raised.value.problems] == [("a.h5", "damaged")]
    assert "hangs the HDF5 library" in str(raised.value)
    assert time.monotonic() - began < 60


def test_the_library_hangs_indeed(tmp_path: Path) -> None:
    assert ends_itself(write(tmp_path / "sound.h5"))
    assert not ends_itself(changed(tmp_path / "a.h5", free_space_of_nothing))


def test_what_crashes_the_library_is_damaged(tmp_path: Path) -> None:
    path = changed(tmp_path / "a.h5", own_branch)
    assert not ends_itself(path)
    with (
        pytest.raises(InputError, match=r"a\.h5: is damaged: looking at it crashes .* \(signal 11\)"),
        open_hdf5(path, "a.h5"),
    ):
        pass


@pytest.mark.usefixtures("impatient")
def test_sound_files_are_tried_in_time(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        file["x"] = np.arange(3)
    assert not is_plain(tmp_path / "a.h5")
    safety.check_safe_to_open(tmp_path / "a.h5", "a.h5")


def test_a_hanging_file_beside_a_sound_one(tmp_path: Path) -> None:
    folder = tmp_path / "sources"
    folder.mkdir()
    for name in ("a.h5", "b.h5"):
        with h5py.File(folder / name, "w") as file:
            file["x"] = np.arange(3)
            file.attrs["text"] = "text"
    data = bytearray((folder / "b.h5").read_bytes())
    free_space_of_nothing(data)
    (folder / "b.h5").write_bytes(data)
    with pytest.raises(InputError, match=r"b\.h5: is damaged"):
        unistore.convert(folder, tmp_path / "all.zarr", "rows")
    report = unistore.convert(folder, tmp_path / "some.zarr", "rows", on_error="skip")
    assert [skipped["kind"] for skipped in report.skipped] == ["damaged"]
    assert len(unistore.Dataset(tmp_path / "some.zarr")) == 3


def test_remembered_until_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = changed(tmp_path / "a.h5", own_branch)
    with pytest.raises(InputError, match="is damaged"):
        safety.check_safe_to_open(path, "a.h5")
    monkeypatch.setattr(safety, "_try", lambda *_: pytest.fail("tried again"))
    with pytest.raises(InputError, match=r"again\.h5: is damaged"):
        safety.check_safe_to_open(path, "again.h5")
    write(path)
    safety.check_safe_to_open(path, "a.h5")


def test_a_trial_that_cannot_run_is_no_fault_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        file["x"] = np.arange(3)
    monkeypatch.setattr(safety, "_helper", HelperProcess("unistore.no_such_module"))
    with pytest.raises(
        InputError, match=r"a.h5: the process that opens HDF5 files first cannot run"
    ) as found:
        safety.check_safe_to_open(tmp_path / "a.h5", "a.h5")
    assert found.value.problems[0].kind == "unreadable"
    monkeypatch.undo()
    safety.check_safe_to_open(tmp_path / "a.h5", "a.h5")


def test_real_files_are_plain() -> None:
    files = [path for path in DATA.rglob("*") if path.suffix in (".h5", ".hdf5")]
    assert len(files) > 5
    assert all(map(is_plain, files))


def test_deep_trees_are_plain(tmp_path: Path) -> None:
    """1,000 members and 1,000 chunks: trees of three and two levels."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(1000):
            file.create_group(f"group {number}")
        file.create_dataset("chunked", data=np.arange(1000), chunks=(1,))
    assert is_plain(tmp_path / "a.h5")


def not_plain(path: Path, name: str) -> None:
    how = {"libver": "latest"} if name == "latest" else {}
    with h5py.File(path, "w", track_order=name == "order", **how) as file:
        file["x"] = np.arange(6.0)
        if name == "text":
            file["text"] = ["a", "bc"]
        elif name == "link":
            file["link"] = h5py.SoftLink("/x")
        elif name == "cycle":
            file["again"] = file["/"]
        elif name == "type":
            file["type"] = np.dtype("f4")
            file.create_dataset("of_the_type", data=np.zeros(2, "f4"), dtype=file["type"])
        elif name == "compound":
            file["compound"] = np.zeros(2, [("a", "f4"), ("b", "i2")])
        elif name == "virtual":
            layout = h5py.VirtualLayout((6,), "f8")
            layout[...] = h5py.VirtualSource(file["x"])
            file.create_virtual_dataset("virtual", layout)


@pytest.mark.parametrize("name", ["latest", "order", "text", "link", "cycle", "type", "compound", "virtual"])
def test_what_is_not_plain_is_read_all_the_same(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.h5"
    not_plain(path, name)
    assert not is_plain(path)
    with open_hdf5(path) as file:
        assert read_rows(file["x"], "x").tolist() == [0, 1, 2, 3, 4, 5]
        if name == "virtual":
            assert read_rows(file["virtual"], "virtual", 2, 4).tolist() == [2, 3]
        if name == "text":
            assert read_objects(file["text"], "text").tolist() == [b"a", b"bc"]


def test_plain_says_nothing_of_what_is_cut_short(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.h5").read_bytes()
    assert is_plain(tmp_path / "a.h5")
    for length in range(0, len(whole) - 300, 97):
        (tmp_path / "b.h5").write_bytes(whole[:length])
        is_plain(tmp_path / "b.h5")
    (tmp_path / "b.h5").write_bytes(whole[:2100])
    assert not is_plain(tmp_path / "b.h5")
