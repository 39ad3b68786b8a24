"""A format of any package serves recordings, too: shown by two made up here.

``.spk``: 10 bytes of header (``SPK1``, T, H, W as little-endian u2), then bits, most significant first, rows
padded to whole bytes, top row first. ``.datz``: a headerless stream, compressed with gzip.
"""

from __future__ import annotations

import gzip
import json
import pickle
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray

import unistore
from tests.detection import detect
from unistore import export, plugin, verify
from unistore.conversion.convert import convert
from unistore.converters.common.exclusion import Exclusion
from unistore.converters.files.paths import list_files
from unistore.converters.formats.raw import Raw
from unistore.converters.scanning import scan_sources
from unistore.converters.spike.family import Spike
from unistore.converters.spike.family import converter as spike_converter
from unistore.converters.spike.spikes import PixelSpikes
from unistore.errors import InputError

# The first format.

HEADER = struct.Struct("<4s3H")


@dataclass
class SpkPixels:
    """Pixels of a ``.spk`` file."""

    file: plugin.SourceFile
    shape: tuple[int, int, int]
    dtype = np.dtype(np.uint8)

    def __getitem__(self, steps: slice) -> NDArray[np.uint8]:
        lo, hi, _ = steps.indices(self.shape[0])
        _, height, width = self.shape
        step_bytes = height * -(-width // 8)
        content = self.file.bytes()[HEADER.size + lo * step_bytes : HEADER.size + hi * step_bytes]
        return np.unpackbits(content.reshape(hi - lo, height, -1), axis=-1)[..., :width]


class Spk(plugin.Format):
    """Spikes as bits, with their extent."""

    name = "spk"
    suffixes = (".spk",)

    def recognise(self, file: plugin.SourceFile) -> plugin.Claim:
        return plugin.sure("")

    @contextmanager
    def open(self, file: plugin.SourceFile) -> Iterator[plugin.Opened]:
        header = file.head(HEADER.size)
        if len(header) < HEADER.size or header[:4] != b"SPK1":
            raise file.problem("does not begin with SPK1", "is it a .spk file?")
        _, length, height, width = HEADER.unpack(header)
        expected = HEADER.size + length * height * -(-width // 8)
        if file.size != expected:
            message = f"holds {file.size} bytes, its header says {expected}"
            raise file.problem(message, "copy it again", "truncated")
        yield plugin.Opened({"spk": plugin.Array(SpkPixels(file, (length, height, width)))})


# The second: bytes without a header.


class Datz(Raw):
    """A stream, compressed with gzip."""

    name = "datz"
    suffixes = (".datz",)

    @contextmanager
    def open(self, file: plugin.SourceFile) -> Iterator[plugin.Opened]:
        content = np.frombuffer(gzip.decompress(file.path.read_bytes()), np.uint8)
        yield plugin.Opened({"bytes": plugin.Array(content)})

    write = plugin.Format.write


# The tests.

SIZE = {"height": 24, "width": 40}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Spike, "formats", (*Spike.formats, Spk, Datz))


def write(path: Path, spikes: NDArray[np.uint8]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(HEADER.pack(b"SPK1", *spikes.shape) + np.packbits(spikes, axis=-1).tobytes())


def random(seed: int, *shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 2, shape, "u1")


def array(store: Path, name: str) -> NDArray[Any]:
    return np.asarray(zarr.open_array(store / name, mode="r")[...])


def pixels(store: Path, frame: int, spikes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The stored frame, cut to the extent of `spikes`; what is beyond is zeros."""
    first, last = array(store, "frames/offsets")[frame : frame + 2]
    bits = np.unpackbits(array(store, "spikes/bits")[first:last], axis=-1, bitorder="little")
    length, height, width = spikes.shape
    assert len(bits) == length
    assert bits.sum() == spikes.sum()
    return bits[:, :height, :width]


def counted(spikes: NDArray[np.uint8], bins: int) -> NDArray[np.uint8]:
    voxel = np.zeros((bins, *spikes.shape[1:]), np.uint8)
    for t in range(len(spikes)):
        voxel[t * bins // len(spikes)] += spikes[t]
    return voxel


def test_detected_alone_and_beside_others(tmp_path: Path) -> None:
    write(tmp_path / "a.spk", random(0, 5, 6, 13))
    found = detect([tmp_path / "a.spk"])
    assert found is not None
    assert (found.family, found.layout) == ("spike", "array")
    assert found.reason == "a.spk holds spk (5, 6, 13)"
    np.save(tmp_path / "b.npy", np.zeros((2, 3)))
    found = detect([tmp_path])
    assert found is not None
    assert found.family == "spike"


def test_converted_alone(tmp_path: Path) -> None:
    spikes = random(0, 9, 6, 13)
    write(tmp_path / "in/a.spk", spikes)
    convert(tmp_path / "in", tmp_path / "store", "spike", voxel_bins=(4,))
    np.testing.assert_array_equal(pixels(tmp_path / "store", 0, spikes), spikes)
    np.testing.assert_array_equal(array(tmp_path / "store", "frames/voxel/4")[0], counted(spikes, 4))
    assert array(tmp_path / "store", "frames/spike_extent").tolist() == [[6, 13]]


@pytest.mark.usefixtures("in_this_process")
def test_sequences_of_several_formats(
    tmp_path: Path, sequences: Callable[..., Any], stream: Callable[..., bytes], record: Callable[..., Any]
) -> None:
    made = sequences(tmp_path / "in", {"train/a": (16, 11, 8, 8)})
    folder, spikes = tmp_path / "in/train/a/spike", [*made.spikes.values()]
    (folder / "001.dat").unlink()
    write(folder / "001.spk", spikes[1])
    (folder / "002.dat").unlink()
    (folder / "002.datz").write_bytes(gzip.compress(stream(spikes[2])))
    (folder / "003.dat").unlink()
    np.savez(folder / "003.npz", spk=spikes[3])
    grids = [counted(each, 4) for each in spikes]
    (tmp_path / "in/train/a/spike_vox").mkdir()
    for number, grid in enumerate(grids):
        np.save(tmp_path / f"in/train/a/spike_vox/{number:03d}.npy", grid)
    store = tmp_path / "store"
    report = convert(tmp_path / "in", store, "spike", voxel_bins=(5,), **SIZE)
    assert "existing voxels equal those counted from the spikes" in report.notes
    assert unistore.Store(store).text("sources/path") == [
        f"train/a/spike/{name}" for name in ("000.dat", "001.spk", "002.datz", "003.npz")
    ]
    for number, expected in enumerate(spikes):
        np.testing.assert_array_equal(pixels(store, number, expected), expected)
        np.testing.assert_array_equal(array(store, "frames/voxel/5")[number], counted(expected, 5))
        np.testing.assert_array_equal(array(store, "frames/voxel/4")[number], grids[number])
    verified = verify(store, against=[tmp_path / "in"])
    assert verified.problems == ()
    assert verified.receipt is not None
    images = 2 * 4 * 48 * 80 * 3
    streams = (spikes[0].size + spikes[2].size) // 8  # counted in bytes
    streamed = streams + spikes[1].size + spikes[3].size
    assert verified.receipt.values == streamed + images + 4 * grids[0].size


def test_a_stream_of_the_format_is_resolved_with_the_others(
    tmp_path: Path, stream: Callable[..., bytes], record: Callable[..., Any]
) -> None:
    spikes = record(23, 250, 400)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/0.datz").write_bytes(gzip.compress(stream(spikes)))
    scan = scan_sources(spike_converter(), [tmp_path / "in"])
    assert any("287,500 bytes are 23 x 250 x 400 in packed bits" in note for note in scan.notes)
    convert(tmp_path / "in", tmp_path / "store", "spike")
    np.testing.assert_array_equal(pixels(tmp_path / "store", 0, spikes), spikes)
    assert verify(tmp_path / "store", against=[tmp_path / "in"]).problems == ()
    (tmp_path / "in/0.datz").write_bytes(gzip.compress(stream(spikes)[:-1]))
    with pytest.raises(InputError, match="not a whole number of frames of any known camera"):
        scan_sources(spike_converter(), [tmp_path / "in"])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-5], "holds 65 bytes, its header says 70"),
        (lambda data: data[:6], "does not begin with SPK1"),
        (lambda data: b"XXXX" + data[4:], "does not begin with SPK1"),
    ],
)
def test_damaged_files_are_refused_or_skipped(
    tmp_path: Path, damage: Callable[[bytes], bytes], message: str
) -> None:
    good = random(1, 5, 6, 13)
    for name in ("good", "bad"):
        write(tmp_path / f"in/{name}.spk", good)
    bad = tmp_path / "in/bad.spk"
    bad.write_bytes(damage(bad.read_bytes()))
    with pytest.raises(InputError) as error:
        convert(tmp_path / "in", tmp_path / "store", "spike")
    (problem,) = error.value.problems
    assert problem.location == problem.source == "bad.spk"
    assert message in problem.message
    report = convert(tmp_path / "in", tmp_path / "store", "spike", on_error="skip")
    assert [entry["file"] for entry in report.skipped] == ["bad.spk"]
    np.testing.assert_array_equal(pixels(tmp_path / "store", 0, good), good)


def test_a_fault_of_the_format_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "0.datz").write_bytes(b"no gzip file")
    with pytest.raises(InputError) as error:
        scan_sources(spike_converter(**SIZE), [tmp_path])
    (problem,) = error.value.problems
    assert (problem.location, problem.source) == ("0.datz", "0.datz")
    assert "cannot be read: BadGzipFile" in problem.message


def test_changed_while_it_is_converted(tmp_path: Path) -> None:
    write(tmp_path / "a.spk", random(0, 5, 6, 13))
    converter = spike_converter()
    scan = scan_sources(converter, [tmp_path])
    write(tmp_path / "a.spk", random(0, 4, 6, 13))
    with pytest.raises(InputError, match=r"a\.spk: is 4 x 6 x 13 now, and was 5 x 6 x 13"):
        converter.read(scan, "spikes", 0, 0, 5, {"bits": np.zeros((5, 6, 2), "u1")})


def test_parts_and_sources_are_plain_values(tmp_path: Path) -> None:
    spikes = random(0, 5, 6, 13)
    write(tmp_path / "a.spk", spikes)
    (tmp_path / "b.datz").write_bytes(gzip.compress(bytes(range(200))))
    converter = spike_converter()
    for part in converter.find(list_files([tmp_path]), Exclusion([])).parts:
        scanned = converter.scan(pickle.loads(pickle.dumps(part)))
        assert pickle.loads(pickle.dumps(scanned)) == scanned
    scan = scan_sources(converter, [tmp_path / "a.spk"])
    detail = scan.sources[0].detail
    assert json.dumps(pickle.loads(pickle.dumps(detail))) == json.dumps(detail)
    again, scan = pickle.loads(pickle.dumps((converter, scan)))
    out = np.zeros((5, 6, 2), "u1")
    again.read(scan, "spikes", 0, 0, 5, {"bits": out})
    np.testing.assert_array_equal(out, np.packbits(spikes, axis=-1, bitorder="little"))


def test_a_mistake_of_the_family_shows_when_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "in/a.spk", random(0, 9, 6, 13))
    right = PixelSpikes.read

    def wrong(self: PixelSpikes, out: NDArray[np.uint8], first: int = 0) -> None:
        right(self, out, first)
        out[0, 0, 0] ^= 1

    monkeypatch.setattr(PixelSpikes, "read", wrong)
    convert(tmp_path / "in", tmp_path / "store", "spike")
    (problem,) = verify(tmp_path / "store", against=[tmp_path / "in"]).problems
    assert "a.spk" in problem.location
    assert "values differ" in problem.message


def test_given_back_as_npy_or_as_the_bytes_of_the_stream(
    tmp_path: Path, stream: Callable[..., bytes], record: Callable[..., Any]
) -> None:
    spikes = [random(0, 9, 24, 40), record(8, 24, 40)]
    write(tmp_path / "in/seq/spike/000.spk", spikes[0])
    (tmp_path / "in/seq/spike/001.datz").write_bytes(gzip.compress(stream(spikes[1])))
    convert(tmp_path / "in", tmp_path / "store", "spike", **SIZE)
    export(tmp_path / "store", tmp_path / "out")
    np.testing.assert_array_equal(np.load(tmp_path / "out/seq/spike/000.npy"), spikes[0])
    assert (tmp_path / "out/seq/spike/001.dat").read_bytes() == stream(spikes[1])
    again = scan_sources(spike_converter(**SIZE), [tmp_path / "out"])
    assert [source.detail.spikes.extent for source in again.sources] == [(9, 24, 40), (8, 24, 40)]


def test_clips_are_the_files_spikes(tmp_path: Path) -> None:
    spikes = [random(number, 9, 6, 13) for number in range(3)]
    for number, each in enumerate(spikes):
        write(tmp_path / f"in/seq/spike/{number:03d}.spk", each)
    convert(tmp_path / "in", tmp_path / "store", "spike")
    dataset = unistore.Dataset(tmp_path / "store", unistore.Clips(length=2, crop=None), fields=["spike"])
    assert len(dataset) == 2
    for number in range(2):
        found = np.asarray(dataset[number]["spike"])
        np.testing.assert_array_equal(found, np.stack(spikes[number : number + 2]))


def test_not_registered_it_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.spk", random(0, 5, 6, 13))
    np.savez(tmp_path / "b.npz", spk=random(0, 5, 6, 13))
    monkeypatch.setattr(Spike, "formats", Spike.formats[:-2])
    found = spike_converter().find(list_files([tmp_path]), Exclusion([]))
    assert [part.name for part in found.parts] == ["b.npz"]
    assert not found.left_out
    scan = scan_sources(spike_converter(), [tmp_path])
    assert [(path.name, why) for path, why in scan.left_out] == [("a.spk", "of no known format")]
