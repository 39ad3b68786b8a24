"""Spike recordings value by value, against readings that share no code with the converter."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

import unistore
from tests.support.cases import DATA
from tests.support.converter_contract import check_contract, convert_in_memory
from tests.support.family_converters import spike as spike_converter
from tests.support.spike_recordings import record, sequences, stream
from tests.support.spikes import stored_spikes
from unistore.converters.source_scan import scan_sources
from unistore.errors import InputError


def bits(packed: np.ndarray, width: int) -> np.ndarray:
    return np.unpackbits(packed, axis=-1, bitorder="little")[..., :width]


def formula(spikes: np.ndarray, bins: int) -> np.ndarray:
    """The reference formula, step by step."""
    length = len(spikes)
    voxel = np.zeros((bins, *spikes.shape[1:]), np.int64)
    for t in range(length):
        voxel[(t * bins) // length] += spikes[t]
    return voxel


def padded(rows: list[np.ndarray], dtype: str = "u1") -> np.ndarray:
    """Rows of different extents, zero-padded at the end of every axis."""
    shape = np.max([row.shape for row in rows], axis=0)
    out = np.zeros((len(rows), *shape), dtype)
    for target, row in zip(out, rows, strict=True):
        target[tuple(slice(0, extent) for extent in row.shape)] = row
    return out


@pytest.mark.parametrize("frames", ["tiles", "keep"])
def test_sequences_with_images_keep_the_contract_of_converters(tmp_path: Path, frames: str) -> None:
    made = sequences(tmp_path, {"train/a": (16, 11), "train/b": (16,), "test/c": (11,)})
    spikes = list(made.spikes.values())
    names = ["test/c/spike/000.dat", *[name for name in made.spikes if name.startswith("train")]]
    order = [list(made.spikes).index(name) for name in names]
    oracle = {
        **stored_spikes([spikes[i] for i in order]),
        "frames/voxel/5": padded([formula(spikes[i], 5) for i in order]),
        "frames/spike_extent": np.full((4, 2), (24, 40), np.int32),
        "frames/image_extent": np.full((4, 2), (48, 80), np.int32),
        "sequences/offsets": np.array([0, 1, 3, 4]),
    }
    if frames == "tiles":
        for image, kept in (("blur", made.blur), ("sharp", made.sharp)):
            oracle[f"frames/{image}"] = np.stack([kept[name] for name in names])
    else:
        for image in ("blur", "sharp"):
            files = [
                (tmp_path / name.replace("spike", image).replace(".dat", ".png")).read_bytes()
                for name in names
            ]
            oracle[f"frames/{image}_file/data"] = np.frombuffer(b"".join(files), np.uint8)
            oracle[f"frames/{image}_file/offsets"] = np.cumsum([0, *map(len, files)])
    converter = spike_converter(height=24, width=40, voxel_bins=(5,), frames=frames)
    converted = check_contract(converter, [tmp_path], oracle)
    assert [source.name for source in converted.scan.sources] == names
    assert [source.split for source in converted.scan.sources] == ["test", "train", "train", "train"]
    text = converted.arrays["sequences/name/data"].tobytes()
    assert text == b"test/ctrain/atrain/b"
    assert converted.scan.units == ["test/c", "train/a", "train/a", "train/b"], "never divided by --split"
    assert converted.finalized.sample_source.tolist() == [0, 1, 2, 3]


def test_real_stream_decodes_to_its_picture() -> None:
    converted = convert_in_memory(spike_converter(), [DATA / "spike" / "reds_frames_140_162.dat"])
    spikes = bits(converted.arrays["spikes/bits"], 400)
    assert spikes.shape == (23, 250, 400)
    truth = cv2.imread(str(DATA / "spike" / "reds_truth.png"), cv2.IMREAD_GRAYSCALE)
    assert np.corrcoef(spikes.mean(axis=0).ravel(), truth.ravel())[0, 1] >= 0.95
    assert np.corrcoef(spikes[:, ::-1].mean(axis=0).ravel(), truth.ravel())[0, 1] < 0.5, "flip matters"


def test_packed_and_bytes_give_equal_rows(tmp_path: Path) -> None:
    converted = {}
    for layout in ("packed", "bytes"):
        made = sequences(tmp_path / layout, {"train/a": (16, 11), "test/b": (24,)}, layout=layout)
        for wanted in ("auto", layout):
            converter = spike_converter(height=24, width=40, voxel_bins=(5, 10), layout=wanted)
            converted[layout, wanted] = convert_in_memory(converter, [made.root])
    first = converted.pop(("packed", "auto"))
    for each in converted.values():
        assert list(each.arrays) == list(first.arrays)
        for path, values in first.arrays.items():
            np.testing.assert_array_equal(each.arrays[path], values, path)


def test_recordings_of_several_lengths_and_resolutions_are_stored_padded(tmp_path: Path) -> None:
    rows = [record(12, 10, 21, 1), record(5, 14, 30, 2), record(9, 8, 8, 3)]
    np.savez(tmp_path / "a.npz", spk=rows[0])
    np.savez_compressed(tmp_path / "b.npz", spk=rows[1].astype(bool), other=np.zeros(3))
    np.save(tmp_path / "c.npy", np.asfortranarray(rows[2]))
    converted = check_contract(
        spike_converter(voxel_bins=(4,)),
        sorted(tmp_path.iterdir()),
        {
            **stored_spikes(rows),
            "frames/voxel/4": padded([formula(row, 4) for row in rows]),
            "frames/spike_extent": np.array([[10, 21], [14, 30], [8, 8]], np.int32),
            "sequences/offsets": np.arange(4),
        },
    )
    assert converted.arrays["spikes/bits"].shape == (12 + 5 + 9, 14, 4)
    assert converted.finalized.groups["frames"]["flip_undone"] is False


def test_bits_after_the_last_pixel_of_a_row_are_an_error(tmp_path: Path) -> None:
    spikes = record(16, 16, 13)
    (tmp_path / "a.dat").write_bytes(stream(spikes))
    check_contract(spike_converter(height=16, width=13), [tmp_path], stored_spikes([spikes]))
    content = bytearray(stream(spikes))
    content[-1] |= 128
    (tmp_path / "a.dat").write_bytes(content)
    with pytest.raises(InputError, match="rows of 13 pixels have bits after the last pixel"):
        scan_sources(spike_converter(height=16, width=13), [tmp_path])


def test_no_flip_keeps_the_row_order_of_a_stream(tmp_path: Path) -> None:
    spikes = record(8, 6, 16)
    (tmp_path / "a.dat").write_bytes(stream(spikes, flip=False))
    converted = convert_in_memory(spike_converter(height=6, width=16, flip=False), [tmp_path])
    np.testing.assert_array_equal(bits(converted.arrays["spikes/bits"], 16), spikes)
    attributes = converted.finalized.groups["frames"]
    assert (attributes["source_rows"], attributes["flip_undone"]) == ("top first", False)


def test_images_of_mixed_sizes_are_padded(tmp_path: Path) -> None:
    small = sequences(tmp_path, {"a": (8,)}, images=(20, 30))
    large = sequences(tmp_path, {"b": (8,)}, images=(48, 16))
    converted = convert_in_memory(spike_converter(height=24, width=40), [tmp_path])
    pixels = [*small.blur.values(), *large.blur.values()]
    np.testing.assert_array_equal(converted.arrays["frames/blur"], padded(pixels))
    assert converted.arrays["frames/image_extent"].tolist() == [[20, 30], [48, 16]]


def test_other_colours_are_converted_when_asked(tmp_path: Path) -> None:
    sequences(tmp_path, {"a": (8, 8, 8)}, images=None)
    (tmp_path / "a/sharp").mkdir()
    gray = np.arange(48, dtype=np.uint8).reshape(6, 8)
    deep = np.arange(144, dtype=np.uint16).reshape(6, 8, 3) * 400
    clear = np.dstack([gray, gray + 1, gray + 2, np.full_like(gray, 9)])
    for number, image in enumerate((gray, deep, clear)):
        cv2.imwrite(str(tmp_path / f"a/sharp/{number:03d}.png"), image)
    with pytest.raises(InputError) as error:
        scan_sources(spike_converter(height=24, width=40), [tmp_path])
    assert [(each.location, each.kind) for each in error.value.problems] == [
        (f"a/sharp/{number:03d}.png", "colour") for number in range(3)
    ]
    assert "is gray" in str(error.value)
    assert "16-bit rgb" in str(error.value)
    assert "rgb and alpha" in str(error.value)
    converter = spike_converter(height=24, width=40, convert_images=True)
    sharp = convert_in_memory(converter, [tmp_path]).arrays["frames/sharp"]
    np.testing.assert_array_equal(sharp[0], np.dstack([gray] * 3))
    np.testing.assert_array_equal(sharp[1], (deep >> 8)[..., ::-1])
    np.testing.assert_array_equal(sharp[2], clear[..., 2::-1])


def test_dark_and_saturated_sequences_are_remarked(tmp_path: Path) -> None:
    made = sequences(tmp_path / "s", {"a": (16,), "dark": (16,), "full": (8,)}, images=None)
    for name, byte in (("dark", 0), ("full", 255)):
        (file,) = (tmp_path / "s" / name / "spike").iterdir()
        file.write_bytes(bytes([byte]) * file.stat().st_size)
    report = unistore.convert(tmp_path / "s", tmp_path / "s.zarr", "spike", height=24, width=40)
    rate = made.spikes["a/spike/000.dat"].mean()
    assert 0 < rate < 0.9
    assert "spikes per pixel and step: 0 to 1, at the start of 3 sequences" in report.notes
    full = "nearly every pixel firing at every step at the start of full:"
    for said in ("no spike at all at the start of dark:", full):
        assert sum(said in note for note in report.notes) == 1
    found = unistore.inspect(tmp_path / "s.zarr").details
    (measure,) = [each for each in found["measures"] if each["name"] == "spikes per pixel and step"]
    assert (measure["min"], measure["median"], measure["max"]) == pytest.approx((0, rate, 1))
    assert "1 frame has no spikes per pixel and step" in found["remarks"]
    assert (
        "33 % of the frames have more than 0.9 spikes per pixel and step (look at the recordings)"
        in found["remarks"]
    )
