"""RLDS in TFRecord: values as TensorFlow Datasets returns them (`tools/oracles/rlds_samples.py`)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


def masked_crc(raw: bytes) -> int:
    import google_crc32c

    crc = google_crc32c.value(raw)
    return (((crc >> 15) | (crc << 17) & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF
