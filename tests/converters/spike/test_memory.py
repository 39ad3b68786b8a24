"""Recordings larger than memory: looked at in blocks, refused from their size."""

from __future__ import annotations

import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.support.family_converters import spike as spike_converter
from tests.support.spike_recordings import record, stream
from unistore.conversion.dry_run import dry_run
from unistore.conversion.settings import Settings
from unistore.conversion.signatures import convert
from unistore.converters.adapter.formats import FileToOpen, formats
from unistore.converters.opened import SourceFile
from unistore.converters.source_scan import scan_sources
from unistore.converters.spike import frames as reading
from unistore.converters.spike.frames import Extent, FrameArray, Spikes
from unistore.errors import InputError
from unistore.schemas.spike.fields import voxelize

SIZE = {"height": 360, "width": 640}
MB = 1_000_000


@contextmanager
def at_most(nbytes: int) -> Iterator[None]:
    """Require that Python and NumPy hold at most so many bytes more than before."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] <= nbytes
    finally:
        tracemalloc.stop()


def array_of(path: Path, form: str, key: str) -> FrameArray:
    """An array of a file, to be read."""
    return FrameArray(FileToOpen(SourceFile(path, path.name), formats()[form]), key)


def sparse_stream(path: Path, nbytes: int) -> Path:
    """Write a stream that takes no disk: some spikes, then darkness."""
    with path.open("wb") as file:
        file.write(b"\x0f" * 1000)
        file.truncate(nbytes)
    return path


@pytest.mark.parametrize("steps", [10_000, 1_000_000])
def test_a_stream_of_any_length_takes_the_memory_of_a_shard(tmp_path: Path, steps: int) -> None:
    path = sparse_stream(tmp_path / "a.dat", steps * 28_800)
    settings = Settings(memory=400 * MB)
    with at_most(40 * MB):
        assert dry_run(spike_converter(**SIZE), [path], settings).peak.bytes < 400 * MB
        with pytest.raises(InputError, match=r"200\.0 MB, .* for a shard of the table 'spikes'"):
            convert(path, tmp_path / "out.zarr", "spike", memory="200MB", **SIZE)
    assert [each.name for each in tmp_path.iterdir()] == ["a.dat"]


def test_a_compressed_member_is_read_in_blocks_of_little_memory(tmp_path: Path) -> None:
    header = {"descr": "|u1", "fortran_order": False, "shape": (600, 360, 640)}
    archive = zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1)
    with archive, archive.open("spk.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for _ in range(600):
            file.write(bytes(360 * 640))
    with at_most(60 * MB):
        scan = scan_sources(spike_converter(), [tmp_path])
        assert scan.sources[0].reading == 0
        out = np.ones((600, 360, 80), np.uint8)
        Spikes(array_of(tmp_path / "a.npz", "npz", "spk"), Extent(600, 360, 640), "array", flip=False).read(
            out
        )
    assert not out.any()


@pytest.mark.parametrize("step", [3, 40, 49], ids=["scan", "remark", "reading"])
def test_values_other_than_0_and_1_are_a_problem_at_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr(reading, "BLOCK", 1000)
    spikes = np.zeros((50, 10, 16), np.uint8)
    sources = tmp_path / "in"
    sources.mkdir()
    np.savez(sources / "sound.npz", spk=spikes)
    spikes[step, 3, 3] = 7
    np.savez(sources / "a.npz", spk=spikes)
    with pytest.raises(InputError) as refused:
        convert(sources, tmp_path / "out.zarr", "spike")
    (problem,) = refused.value.problems
    assert (problem.location, problem.kind, problem.source) == ("a.npz", "values", "a.npz")
    assert problem.message == "spk contains values up to 7, but spikes are 0 or 1"
    report = convert(sources, tmp_path / "out.zarr", "spike", on_error="skip")
    assert [entry["left_out"] for entry in report.skipped] == ["a.npz"]


@pytest.mark.parametrize("layout", ["packed", "bytes"])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("block", [1, 700])
def test_blocks_rows_and_counts_of_a_recording_equal_numpy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, flip: bool, block: int
) -> None:
    monkeypatch.setattr(reading, "BLOCK", block)
    spikes = record(23, 12, 21)
    path = tmp_path / "a.dat"
    path.write_bytes(stream(spikes, layout, flip))
    array, extent = array_of(path, "raw", "bytes"), Extent(23, 12, 21)
    opened = Spikes(array, extent, layout, flip)
    packed = np.packbits(np.pad(spikes, ((0, 0), (0, 0), (0, 3))), axis=-1, bitorder="little")
    np.testing.assert_array_equal(np.concatenate(list(opened.blocks())), packed)
    for first, last in ((0, 23), (0, 9), (5, 20), (16, 17), (22, 23)):
        out = np.zeros((last - first, 12, 3), np.uint8)
        opened.read(out, first)
        np.testing.assert_array_equal(out, packed[first:last])
    for bins in (1, 5, 23, 30):
        expected = np.zeros((bins, 12, 21), np.uint8)
        for step in range(23):
            expected[step * bins // 23] += spikes[step]
        np.testing.assert_array_equal(opened.counted(bins), expected)
        assert opened.counted(bins).dtype == voxelize(packed, 21, bins).dtype
