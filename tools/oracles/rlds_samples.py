"""Write a small RLDS dataset by TensorFlow Datasets, and what it returns of it.

Run by ``make oracles`` in an environment of its own.

    python tools/oracles/rlds_samples.py tests/data/rlds
"""

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import tensorflow_datasets as tfds

LENGTHS = {"train": (6, 4, 8), "val": (5,)}
IMAGE = (16, 24, 3)
STEP = {
    "observation": {
        "image": tfds.features.Image(shape=IMAGE, encoding_format="jpeg"),
        "depth": tfds.features.Image(shape=(*IMAGE[:2], 1), dtype=np.uint16, encoding_format="png"),
        "state": tfds.features.Tensor(shape=(7,), dtype=np.float32),
        "gripper": tfds.features.Scalar(dtype=np.int64),
        "touch": tfds.features.Tensor(shape=(2, 3), dtype=np.uint8),
    },
    "action": tfds.features.Tensor(shape=(7,), dtype=np.float32),
    "reward": tfds.features.Scalar(dtype=np.float32),
    "discount": tfds.features.Scalar(dtype=np.float32),
    "is_first": tfds.features.Scalar(dtype=np.bool_),
    "is_last": tfds.features.Scalar(dtype=np.bool_),
    "is_terminal": tfds.features.Scalar(dtype=np.bool_),
    "language_instruction": tfds.features.Text(),
}


class Toy(tfds.core.GeneratorBasedBuilder):
    """A few episodes of noise."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        steps = tfds.features.Dataset(tfds.features.FeaturesDict(STEP))
        metadata = tfds.features.FeaturesDict({"file_path": tfds.features.Text()})
        features = tfds.features.FeaturesDict({"steps": steps, "episode_metadata": metadata})
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, _):
        return {split: self._episodes(split) for split in LENGTHS}

    def _generate_examples(self):
        raise NotImplementedError

    def _episodes(self, split):
        random = np.random.default_rng(len(split))
        for episode, length in enumerate(LENGTHS[split]):
            steps = [step(random, number, length, episode) for number in range(length)]
            yield episode, {"steps": steps, "episode_metadata": {"file_path": f"{split}/{episode}.npy"}}


def step(random, number, length, episode):
    """Return one step of an episode."""
    ramp = np.add.outer(np.arange(IMAGE[0]) * 8, np.arange(IMAGE[1]) * 4)[..., None]
    return {
        "observation": {
            "image": (ramp + np.array([0, 40, 80]) + number).astype(np.uint8),
            "depth": (ramp * 50 + number).astype(np.uint16),
            "state": random.normal(size=7).astype(np.float32),
            "gripper": number - 3,
            "touch": random.integers(0, 256, (2, 3), dtype=np.uint8),
        },
        "action": random.normal(size=7).astype(np.float32),
        "reward": np.float32(number == length - 1),
        "discount": np.float32(1),
        "is_first": number == 0,
        "is_last": number == length - 1,
        "is_terminal": number == length - 1 and episode % 2 == 0,
        "language_instruction": f"pick {episode}",
    }


def main():
    """Write the dataset, and one dump of all of its splits."""
    folder = Path(sys.argv[1])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with TemporaryDirectory() as scratch:
        builder = Toy(data_dir=scratch)
        builder.download_and_prepare()
        shutil.copytree(builder.data_dir, folder / "toy/1.0.0")
    found = {}
    for split in LENGTHS:
        for episode in tfds.as_numpy(builder_from(folder / "toy/1.0.0").as_dataset(split=split)):
            for row in episode["steps"]:
                for name, value in flat(row):
                    found.setdefault(f"{split}/{name}", []).append(value)
    arrays = {name: np.array(values) for name, values in found.items()}
    texts = {
        name: values.astype("U") if values.dtype.kind == "S" else values for name, values in arrays.items()
    }
    np.savez_compressed(folder / "toy.npz", **texts)


def builder_from(folder):
    """Open a dataset as it lies in a folder."""
    return tfds.builder_from_directory(str(folder))


def flat(row, start=""):
    """Yield the values of a step by their path."""
    for name, value in row.items():
        if isinstance(value, dict):
            yield from flat(value, f"{start}{name}/")
        else:
            yield f"{start}{name}", value


if __name__ == "__main__":
    main()
