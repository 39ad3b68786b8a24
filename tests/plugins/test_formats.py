"""A format of a package serves the families of unistore that its arrays fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

import unistore
from tests.plugins.conftest import forget_installed
from unistore import plugin
from unistore.converters.adapter import formats
from unistore.converters.adapter.formats import formats_for
from unistore.converters.detection import survey
from unistore.converters.registry import families
from unistore.errors import InputError
from unistore.testing import check_format

RANDOM = np.random.default_rng(5)
CLOUD = {
    "x": RANDOM.normal(size=50),
    "y": RANDOM.normal(size=50),
    "z": RANDOM.normal(size=50),
    "classification": RANDOM.integers(0, 4, 50, "u1"),
}
VOLUME = {"density": RANDOM.integers(-900, 900, (6, 8, 10), "i2")}
TABLE = {"speed": RANDOM.normal(size=(20, 3)).astype("f4"), "gear": RANDOM.integers(0, 6, 20, "i4")}
EPISODE = {
    "actions": RANDOM.normal(size=(30, 2)).astype("f4"),
    "observations": RANDOM.normal(size=(30, 5)).astype("f4"),
    "terminals": np.arange(30) % 10 == 9,
}
CASES = {"point_cloud": CLOUD, "ct": VOLUME, "rows": TABLE, "trajectory": EPISODE}
STORED = {
    "point_cloud": {"points/classification": CLOUD["classification"]},
    "ct": {"volumes/image": VOLUME["density"][None]},
    "rows": {"rows/speed": TABLE["speed"], "rows/gear": TABLE["gear"]},
    "trajectory": {"steps/action": EPISODE["actions"], "steps/observation/state": EPISODE["observations"]},
}


def pack(path: Path, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any] | None = None) -> Path:
    path.parent.mkdir(exist_ok=True)
    opened = {name: plugin.Array(values) for name, values in arrays.items()}
    formats.formats()["pack"].write(path, opened, metadata or {})
    return path


def test_the_pack_format_keeps_its_promises(tmp_path: Path) -> None:
    check_format(
        formats.formats()["pack"], pack(tmp_path / "a.pack", TABLE, {"by": "me"}), TABLE, {"by": "me"}
    )


@pytest.mark.nightly
@pytest.mark.parametrize("family", CASES)
def test_each_family_takes_the_files_that_fit(family: str, tmp_path: Path) -> None:
    pack(tmp_path / "in/a.pack", CASES[family])
    taken = survey([tmp_path / "in"]).detected()
    assert [found.family for found in taken] == [family]
    store = tmp_path / "a.zarr"
    unistore.convert(tmp_path / "in", store)
    for path, expected in STORED[family].items():
        np.testing.assert_array_equal(unistore.Store(store).array(path).read(), expected)
    assert not unistore.verify(store, against=tmp_path / "in").problems
    array = min(CASES[family])
    pack(tmp_path / "in/a.pack", CASES[family] | {array: CASES[family][array][::-1]})
    assert unistore.verify(store, against=tmp_path / "in").problems
    unistore.export(store, tmp_path / "out")
    unistore.convert(tmp_path / "out", tmp_path / "again.zarr", family)
    for path, expected in STORED[family].items():
        np.testing.assert_array_equal(unistore.Store(tmp_path / "again.zarr").array(path).read(), expected)


def test_rows_keep_metadata_and_give_the_same_file_back(tmp_path: Path) -> None:
    given = pack(tmp_path / "in/a.pack", TABLE, {"unit": "m/s"})
    unistore.convert(given.parent, tmp_path / "a.zarr")
    unistore.export(tmp_path / "a.zarr", tmp_path / "out")
    check_format(formats.formats()["pack"], tmp_path / "out/a.pack", TABLE, {"unit": "m/s"})


def test_a_file_that_fits_no_family_is_skipped(tmp_path: Path) -> None:
    pack(tmp_path / "a.pack", {"names": np.array([b"a", b"b"])})
    assert not survey([tmp_path]).detected()


class Tuned(formats.Hdf5):
    """Some format; only its name, ending and answer matter."""

    name = "tuned"
    suffixes = (".pack",)
    offered = True


class Unnamed(plugin.Format):
    """A format that no family names, and that none is offered."""

    name = "unnamed"
    suffixes = (".unnamed",)
    offered = False

    def recognise(self, file: plugin.SourceFile) -> plugin.Claim:
        return plugin.sure("begins with NAME") if file.head(4) == b"NAME" else plugin.no("is another")

    def open(self, file: plugin.SourceFile) -> AbstractContextManager[plugin.OpenFile]:
        raise AssertionError(file.name)


@pytest.fixture
def another(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(formats, "OWN", (*formats.OWN, Tuned, Unnamed))
    forget_installed()
    yield
    forget_installed()


@pytest.mark.usefixtures("another")
def test_a_file_that_two_formats_are_sure_of_is_refused(tmp_path: Path) -> None:
    pack(tmp_path / "a.pack", TABLE)
    with pytest.raises(InputError, match="could be pack or tuned"):
        unistore.convert(tmp_path / "a.pack", tmp_path / "a.zarr", "rows")


def test_a_family_that_names_the_format_is_asked_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans = families()["scans"]
    monkeypatch.setattr(scans, "formats", ("pack",))
    volume = RANDOM.integers(-9, 9, (1, 4, 5, 6), "i2")
    pack(tmp_path / "a.pack", {"density": volume, "mask": volume.astype("u1")})
    assert [found.family for found in survey([tmp_path]).detected()] == ["scans"]


def test_formats_that_only_their_families_know_are_not_offered() -> None:
    rows = {one.name for one in formats_for(families()["rows"]())}
    assert rows >= {"pack", "wav"}
    assert rows.isdisjoint({"raw", "png", "jpeg"})


class Silent(formats.Hdf5):
    """A format with an ending of its own that leaves damaged files to others."""

    name = "silent"
    suffixes = (".silent",)

    def recognise(self, file: plugin.SourceFile) -> plugin.Claim:
        is_whole = file.head(8) == b"\x89HDF\r\n\x1a\n"
        return plugin.sure("begins as HDF5") if is_whole else plugin.no("does not begin as HDF5")


class SilentJson(Silent):
    suffixes = (".json",)


class SilentRaw(Silent):
    suffixes = (".dat",)


@pytest.mark.parametrize(("kind", "may_be_silent"), [(Silent, False), (SilentJson, True), (SilentRaw, True)])
def test_a_damaged_file_with_an_ending_of_its_own_is_not_left_out_in_silence(
    kind: type[plugin.Format], may_be_silent: bool, tmp_path: Path
) -> None:
    path = tmp_path / f"a{kind.suffixes[0]}"
    with h5py.File(path, "w") as file:
        for name, values in TABLE.items():
            file[name] = values
    if may_be_silent:
        check_format(kind(), path, TABLE)
        return
    with pytest.raises(AssertionError, match=r"a\.silent is not recognised once its first 16 bytes are zero"):
        check_format(kind(), path, TABLE)


def test_a_damaged_beginning_in_a_folder_is_a_problem(tmp_path: Path) -> None:
    pack(tmp_path / "in/a.pack", TABLE)
    damaged = pack(tmp_path / "in/b.pack", TABLE)
    damaged.write_bytes(bytes(16) + damaged.read_bytes()[16:])
    with pytest.raises(InputError, match=r"b\.pack: does not begin with PACK"):
        unistore.convert(tmp_path / "in", tmp_path / "a.zarr")
    assert not (tmp_path / "a.zarr").exists()


@pytest.mark.usefixtures("another")
def test_a_file_of_a_format_that_no_family_reads_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "a.unnamed").write_bytes(b"NAME")
    (tmp_path / "b.unnamed").write_bytes(b"other")
    reasons = {path.name: answer.reason for path, answer in survey([tmp_path])}
    assert reasons == {
        "a.unnamed": "unnamed, which no installed family reads",
        "b.unnamed": "of an unknown format",
    }
    with pytest.raises(InputError) as error:
        unistore.convert(tmp_path, tmp_path / "a.zarr", "rows")
    assert "name of the family" not in str(error.value)
