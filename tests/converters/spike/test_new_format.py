"""A format of spike files is one module and one entry of `FORMATS`: shown by two made up here.

``.spk``: 10 bytes of header (``SPK1``, T, H, W as little-endian u2), then bits, most significant first, rows
padded to whole bytes, top row first. ``.datz``: a headerless stream, compressed with gzip.
"""

from __future__ import annotations

import ast
import gzip
import json
import pickle
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray

import unistore
from tests.detection import detect
from unistore import export, verify
from unistore.conversion.convert import convert
from unistore.converters.common.exclusion import Exclusion
from unistore.converters.files.libraries import ONLY, UNISTORE, Opened
from unistore.converters.files.paths import list_files
from unistore.converters.scan import LeftOut, Taken, Verdict
from unistore.converters.scanning import scan_sources
from unistore.converters.spike import layouts
from unistore.converters.spike.converter import SpikeConverter
from unistore.converters.spike.source import Extent, Format, FrameSource, StreamSource
from unistore.errors import InputError, Problem

# The module of the first format: this, and its entry in FORMATS, is all that is added.

HEADER = struct.Struct("<4s3H")


class SpkSource(FrameSource):
    """A ``.spk`` file."""

    def blocks(self) -> Iterator[NDArray[np.uint8]]:
        """Turn the bits of each byte over, one time step after the other."""
        length, height, width = self.extent
        shape = (height, -(-width // 8))
        with self.path.open("rb") as file:
            file.seek(HEADER.size)
            for _ in range(length):
                raw = np.frombuffer(file.read(shape[0] * shape[1]), np.uint8)
                if raw.size < shape[0] * shape[1]:
                    problem = Problem(self.location, "ended early while it was read", kind="truncated")
                    raise InputError(problem)
                yield np.packbits(np.unpackbits(raw), bitorder="little").reshape(1, *shape)


def open_spk(path: Path, location: str) -> SpkSource:
    with path.open("rb") as file:
        header = file.read(HEADER.size)
    if len(header) < HEADER.size or header[:4] != b"SPK1":
        raise InputError(Problem(location, "does not begin with SPK1", "is it a .spk file?", "format"))
    _, length, height, width = HEADER.unpack(header)
    expected, found = HEADER.size + length * height * -(-width // 8), path.stat().st_size
    if expected != found:
        message = f"holds {found} bytes, its header says {expected}"
        raise InputError(Problem(location, message, "copy it again", "truncated"))
    return SpkSource(path=path, location=location, extent=Extent(length, height, width))


def look_at_spk(path: Path, location: str) -> Verdict:
    return Taken("spk", f"holds {open_spk(path, location).extent} spikes")


@contextmanager
def spk_arrays(path: Path) -> Iterator[Opened]:
    length, height, width = np.fromfile(path, "<u2", 3, offset=4).tolist()
    bits = np.unpackbits(np.fromfile(path, "u1")[10:])
    yield Opened(UNISTORE, [ONLY], lambda _: bits.reshape(length, height, -1)[:, :, :width])


SPK = Format(suffixes=(".spk",), look=look_at_spk, open=open_spk, arrays=spk_arrays)

# The module of the second.


class DatzSource(StreamSource):
    """A ``.datz`` file."""

    def content(self) -> NDArray[np.uint8]:
        return np.frombuffer(gzip.decompress(self.path.read_bytes()), np.uint8)


def open_datz(path: Path, location: str) -> DatzSource:
    with gzip.open(path) as file:
        return DatzSource(path=path, location=location, size=file.seek(0, 2))


def look_at_datz(path: Path, location: str) -> Verdict:
    open_datz(path, location)
    return LeftOut("is compressed, which only a sequence's folder tells from others")


@contextmanager
def datz_arrays(path: Path) -> Iterator[Opened]:
    stream = np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8)
    yield Opened(UNISTORE, [ONLY], lambda _: stream)


DATZ = Format(
    suffixes=(".datz",),
    look=look_at_datz,
    open=open_datz,
    arrays=datz_arrays,
    headerless=True,
)

# The tests.

SIZE = {"height": 24, "width": 40}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "FORMATS", (*layouts.FORMATS, SPK, DATZ))


def write(path: Path, spikes: NDArray[np.uint8]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(HEADER.pack(b"SPK1", *spikes.shape) + np.packbits(spikes, axis=-1).tobytes())


def random(seed: int, *shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 2, shape, "u1")


def array(store: Path, name: str) -> NDArray[Any]:
    return np.asarray(zarr.open_array(store / name, mode="r")[...])


def pixels(store: Path, frame: int, spikes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The stored frame, cut to the extent of `spikes`; what is beyond is zeros."""
    bits = np.unpackbits(array(store, "frames/spike")[frame], axis=-1, bitorder="little")
    length, height, width = spikes.shape
    assert bits.sum() == spikes.sum()
    return bits[:length, :height, :width]


def counted(spikes: NDArray[np.uint8], bins: int) -> NDArray[np.uint8]:
    voxel = np.zeros((bins, *spikes.shape[1:]), np.uint8)
    for t in range(len(spikes)):
        voxel[t * bins // len(spikes)] += spikes[t]
    return voxel


def test_detected_alone_and_beside_others(tmp_path: Path) -> None:
    write(tmp_path / "a.spk", random(0, 5, 6, 13))
    found = detect([tmp_path / "a.spk"])
    assert found is not None
    assert (found.family, found.layout) == ("spike", "spk")
    assert found.reason == "a.spk holds 5 x 6 x 13 spikes"
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
    scan = scan_sources(SpikeConverter(), [tmp_path / "in"])
    assert any("287,500 bytes are 23 x 250 x 400 in packed bits" in note for note in scan.notes)
    convert(tmp_path / "in", tmp_path / "store", "spike")
    np.testing.assert_array_equal(pixels(tmp_path / "store", 0, spikes), spikes)
    assert verify(tmp_path / "store", against=[tmp_path / "in"]).problems == ()
    (tmp_path / "in/0.datz").write_bytes(gzip.compress(stream(spikes)[:-1]))
    with pytest.raises(InputError, match="not a whole number of frames of any known camera"):
        scan_sources(SpikeConverter(), [tmp_path / "in"])


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
        scan_sources(SpikeConverter(**SIZE), [tmp_path])
    (problem,) = error.value.problems
    assert (problem.location, problem.source) == ("0.datz", "0.datz")
    assert "cannot be read: BadGzipFile" in problem.message


def test_changed_while_it_is_converted(tmp_path: Path) -> None:
    write(tmp_path / "a.spk", random(0, 5, 6, 13))
    converter = SpikeConverter()
    scan = scan_sources(converter, [tmp_path])
    write(tmp_path / "a.spk", random(0, 4, 6, 13))
    with pytest.raises(InputError, match=r"a\.spk: is 4 x 6 x 13 now, and was 5 x 6 x 13"):
        converter.read(scan, "frames", 0, 0, 1, {"spike": np.zeros((1, 5, 6, 2), "u1")})


def test_parts_and_sources_are_plain_values(tmp_path: Path) -> None:
    spikes = random(0, 5, 6, 13)
    write(tmp_path / "a.spk", spikes)
    (tmp_path / "b.datz").write_bytes(gzip.compress(bytes(range(200))))
    converter = SpikeConverter()
    for part in converter.find(list_files([tmp_path]), Exclusion([])).parts:
        scanned = converter.scan(pickle.loads(pickle.dumps(part)))
        assert pickle.loads(pickle.dumps(scanned)) == scanned
    scan = scan_sources(converter, [tmp_path / "a.spk"])
    assert json.loads(json.dumps(scan.sources[0].detail)) == scan.sources[0].detail
    again, scan = pickle.loads(pickle.dumps((converter, scan)))
    out = np.zeros((1, 5, 6, 2), "u1")
    again.read(scan, "frames", 0, 0, 1, {"spike": out})
    np.testing.assert_array_equal(out[0], np.packbits(spikes, axis=-1, bitorder="little"))


def test_a_mistake_of_the_format_shows_when_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "in/a.spk", random(0, 9, 6, 13))
    right = SpkSource.read

    def wrong(self: SpkSource, out: NDArray[np.uint8]) -> None:
        right(self, out)
        out[0, 0, 0] ^= 1

    monkeypatch.setattr(SpkSource, "read", wrong)
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
    again = scan_sources(SpikeConverter(**SIZE), [tmp_path / "out"])
    assert [source.detail["spike"]["extent"] for source in again.sources] == [[9, 24, 40], [8, 24, 40]]


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


def test_only_formats_know_endings_of_spike_files() -> None:
    """Texts of the command line and keys of configurations apart."""
    folder = Path(layouts.__file__).parents[1]
    endings = tuple(suffix for each in (*layouts.FORMATS, SPK) for suffix in each.suffixes)
    modules = [
        path for path in folder.glob("*.py") if path.name not in ("__init__.py", "config.py", "options.py")
    ]
    assert len(modules) > 5
    for path in modules:
        tree = ast.parse(path.read_text())
        texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
                assert not any(each in node.value for each in endings), f"{path}:{node.lineno}"


def test_not_registered_it_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.spk", random(0, 5, 6, 13))
    np.savez(tmp_path / "b.npz", spk=random(0, 5, 6, 13))
    monkeypatch.setattr(layouts, "FORMATS", tuple(each for each in layouts.FORMATS if each is not SPK))
    found = SpikeConverter().find(list_files([tmp_path]), Exclusion([]))
    assert [part.name for part in found.parts] == ["b.npz"]
    assert [(path.name, why) for path, why in found.left_out] == [
        ("a.spk", "is no .dat, .npy, .npz, .datz file")
    ]
