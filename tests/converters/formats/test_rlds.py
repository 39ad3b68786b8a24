"""RLDS in TFRecord: values as TensorFlow Datasets returns them (`tools/oracles/rlds_samples.py`)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import unistore
from unistore.converters.formats.rlds import Rlds
from unistore.converters.opened import OpenFile, SourceFile
from unistore.errors import InputError
from unistore.testing import check_format

SAMPLES = Path(__file__).parents[2] / "data/rlds"
LENGTHS = {"train": [6, 4, 8], "val": [5]}
TRAIN = "toy-train.tfrecord-00000-of-00001"
TEXT = "language_instruction"
JPEG_LEVELS = 8
"""Most by which TensorFlow's JPEG decoder, which trades exactness for speed, differs from OpenCV's."""


@pytest.fixture
def train(tmp_path: Path) -> Path:
    folder = shutil.copytree(SAMPLES / "toy/1.0.0", tmp_path / "toy")
    return Path(folder) / TRAIN


@contextmanager
def opened(path: Path) -> Iterator[OpenFile]:
    with Rlds().open(SourceFile(path, path.name, (path.parent,))) as found:
        yield found


def read_all(path: Path) -> None:
    Rlds().recognise(SourceFile(path, path.name))
    with opened(path) as found:
        for array in found.arrays.values():
            array[:]


def test_a_store_has_what_tensorflow_datasets_returns(tmp_path: Path) -> None:
    store = tmp_path / "toy.zarr"
    unistore.convert(SAMPLES / "toy", store)
    with np.load(SAMPLES / "toy.npz") as loaded:
        dump = dict(loaded)
    for split, lengths in LENGTHS.items():
        steps = unistore.Dataset(store, unistore.Transitions(), split=split)
        assert len(steps) == sum(lengths)
        samples = list(steps)
        names = [name.partition("/")[2] for name in dump if name.startswith(f"{split}/")]
        assert [sample[TEXT] for sample in samples] == dump[f"{split}/{TEXT}"].tolist()
        for name in set(names) - {TEXT}:
            key = {"is_terminal": "terminated"}.get(name, name.replace("/", "."))
            ours = np.stack([sample[key].numpy() for sample in samples])
            expected = dump[f"{split}/{name}"]
            if name == "observation/image":
                distance = np.abs(ours.transpose(0, 2, 3, 1).astype(int) - expected)
                assert distance.max() <= JPEG_LEVELS
            else:
                np.testing.assert_array_equal(ours, expected.reshape(ours.shape), err_msg=name)
    texts = [json.loads(text) for text in steps.store.text("episodes/attributes")]
    first_steps = np.cumsum([0, *LENGTHS["train"][:-1]])
    expected = [*dump[f"train/{TEXT}"][first_steps], dump[f"val/{TEXT}"][0]]
    assert [text[TEXT] for text in texts] == expected
    assert texts[0]["episode_metadata/file_path"].startswith("train/")
    assert unistore.verify(store, against=SAMPLES / "toy").receipt is not None


def test_the_format_keeps_its_promises(train: Path) -> None:
    expected = {"mask/train": np.array([f"episode_{number}" for number in range(3)])}
    stops = np.cumsum(LENGTHS["train"])
    with np.load(SAMPLES / "toy.npz") as dump, opened(train) as found:
        for episode, stop in enumerate(stops):
            start = stop - LENGTHS["train"][episode]
            group = f"data/episode_{episode}"
            for name in [name.removeprefix("train/") for name in dump if name.startswith("train/")]:
                if name in ("observation/image", "observation/depth"):
                    expected[f"{group}/{name}"] = found.arrays[f"{group}/{name}"][:]
                else:
                    rows = dump[f"train/{name}"][start:stop]
                    is_text = rows.dtype.kind == "U"
                    rows = np.array([text.encode() for text in rows], object) if is_text else rows
                    expected[f"{group}/{name}"] = rows
    check_format(Rlds(), train, expected)


def test_a_file_cut_short_is_refused_at_any_length(train: Path) -> None:
    content = train.read_bytes()
    for length in range(0, len(content), len(content) // 40):
        train.write_bytes(content[:length])
        with pytest.raises(
            InputError, match=r"ends inside record|record at byte .* is damaged|does not begin|is empty"
        ):
            read_all(train)


@pytest.mark.parametrize("place", [0.2, 0.5, 0.8])
def test_a_flipped_byte_is_found_by_the_checksums(train: Path, place: float) -> None:
    content = bytearray(train.read_bytes())
    content[int(len(content) * place)] ^= 0x40
    train.write_bytes(content)
    with pytest.raises(
        InputError,
        match=rf"{TRAIN}.*(checksum of its record|not a tf\.train\.Example|record at byte .* is damaged)",
    ):
        read_all(train)


def test_a_missing_or_malformed_features_json_is_an_error(train: Path) -> None:
    features = train.parent / "features.json"
    features.write_text('{"featuresDict": {"features": {}}}')
    with pytest.raises(InputError, match="lists no steps"):
        read_all(train)
    features.write_text("[")
    with pytest.raises(InputError, match="does not describe features"):
        read_all(train)
    features.unlink()
    with pytest.raises(InputError, match=r"needs the file features\.json"):
        read_all(train)


def test_values_that_do_not_fit_the_shape_of_their_feature_are_an_error(train: Path) -> None:
    features = train.parent / "features.json"
    features.write_text(features.read_text().replace('"7"', '"9"'))
    with pytest.raises(InputError, match=r"steps/.* of record 0 has 42 values, not the shape \(6, 9\)"):
        read_all(train)


def test_texts_that_differ_a_step_are_kept_a_step(train: Path) -> None:
    content = train.read_bytes()
    changed = content.replace(b"pick 0", b"pick 9", 1)
    assert changed != content
    length = int.from_bytes(content[:8], "little")
    crc = masked_crc(changed[12 : 12 + length])
    train.write_bytes(changed[: 12 + length] + crc.to_bytes(4, "little") + changed[16 + length :])
    with opened(train) as found:
        assert found.group_metadata("data/episode_0")[TEXT] == ["pick 9", "pick 0"]
        rows = found.arrays[f"data/episode_0/{TEXT}"][:].tolist()
    assert rows[0] == b"pick 9"
    assert set(rows[1:]) == {b"pick 0"}


def varint(number: int) -> bytes:
    head, rest = number & 0x7F, number >> 7
    return bytes([head | 0x80]) + varint(rest) if rest else bytes([head])


def field(number: int, content: bytes) -> bytes:
    """Return a field of bytes of a protocol buffer."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def write_episode(folder: Path, features: dict[str, Any], lists: dict[str, bytes]) -> None:
    """Write a data set of one episode, from lists of values that are protocol buffers."""
    steps = {"sequence": {"feature": {"featuresDict": {"features": features}}}}
    text = json.dumps({"featuresDict": {"features": {"steps": steps}}})
    (folder / "features.json").write_text(text)
    entries = [
        field(1, field(1, f"steps/{name}".encode()) + field(2, values)) for name, values in lists.items()
    ]
    raw = field(1, b"".join(entries))
    length = len(raw).to_bytes(8, "little")
    checksums = [masked_crc(part).to_bytes(4, "little") for part in (length, raw)]
    (folder / TRAIN).write_bytes(length + checksums[0] + raw + checksums[1])


def floats(values: np.ndarray) -> bytes:
    return field(2, field(1, values.astype("<f4").tobytes()))


def tensor(dtype: str, *shape: int) -> dict[str, Any]:
    stated = {"dtype": dtype, "encoding": "none", "shape": {"dimensions": list(map(str, shape))}}
    return {"pythonClassName": "tensor_feature.Tensor", "tensor": stated}


def float_image() -> dict[str, Any]:
    stated = {"dtype": "float32", "encodingFormat": "png", "shape": {"dimensions": ["-1", "-1", "1"]}}
    return {"pythonClassName": "image_feature.Image", "image": stated}


def png_of_floats(image: np.ndarray) -> bytes:
    """Encode as TensorFlow Datasets does: the four bytes of a float32 are red, green, blue and alpha."""
    bytes_of_pixels = image.astype("<f4").view("u1").reshape(*image.shape[:2], 4)
    return cv2.imencode(".png", cv2.cvtColor(bytes_of_pixels, cv2.COLOR_RGBA2BGRA))[1].tobytes()


def test_images_of_floats_are_read_as_floats(tmp_path: Path) -> None:
    depth = np.random.default_rng(0).normal(size=(3, 4, 5, 1)).astype("f4")
    depth[0, 0, 0] = np.inf
    files = field(1, b"".join(field(1, png_of_floats(image)) for image in depth))
    lists = {"action": floats(np.arange(6)), "depth": files}
    folder = tmp_path / "toy"
    folder.mkdir()
    write_episode(folder, {"action": tensor("float32", 2), "depth": float_image()}, lists)
    with opened(folder / TRAIN) as found:
        array = found.arrays["data/episode_0/depth"]
        np.testing.assert_array_equal(array[1:3], depth[1:])
    unistore.convert(folder, tmp_path / "toy.zarr", workers=0)
    steps = unistore.Dataset(tmp_path / "toy.zarr", unistore.Transitions())
    np.testing.assert_array_equal(np.stack([steps[row]["depth"].numpy() for row in range(3)]), depth)
    assert unistore.verify(tmp_path / "toy.zarr", against=folder).receipt is not None


def test_images_of_floats_that_differ_in_size_are_an_error(tmp_path: Path) -> None:
    images = [np.zeros((4, 5, 1)), np.zeros((4, 6, 1))]
    files = field(1, b"".join(field(1, png_of_floats(image)) for image in images))
    lists = {"action": floats(np.arange(4)), "depth": files}
    write_episode(tmp_path, {"action": tensor("float32", 2), "depth": float_image()}, lists)
    with pytest.raises(
        InputError, match=r"image 1 of steps/depth of record 0 has the shape \(4, 6, 4\), not"
    ):
        read_all(tmp_path / TRAIN)


def test_a_dtype_that_numpy_does_not_have_is_left_out_by_name(tmp_path: Path) -> None:
    lists = {"action": floats(np.arange(6)), "scale": floats(np.arange(3))}
    write_episode(tmp_path, {"action": tensor("float32", 2), "scale": tensor("bfloat16")}, lists)
    with opened(tmp_path / TRAIN) as found:
        assert found.left_out == {"scale": "because its type bfloat16 is not supported"}
        assert found.arrays["data/episode_0/action"].shape == (3, 2)


def masked_crc(raw: bytes) -> int:
    import google_crc32c

    crc = google_crc32c.value(raw)
    return (((crc >> 15) | (crc << 17) & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF
