"""A store gives LeRobot the items that its own files give it. Run by ``make trainers-lerobot``."""

import importlib.util
import pickle
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from types import ModuleType

import pytest
import torch
import unistore_lerobot
from lerobot.datasets import dataset_reader
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.scripts import lerobot_train
from safetensors.torch import load_file
from synthetic import CAMERAS, write
from to_store import to_store

LENGTHS = (12, 9, 15)
AROUND = {"action": [0.0, 0.1, 0.2], "next.reward": [-0.1, 0.0], CAMERAS[0]: [-0.2, 0.0, 0.3]}
SMALL = {
    "act": "dim_model=32 n_heads=2 dim_feedforward=32 n_encoder_layers=1 n_vae_encoder_layers=1 chunk_size=4 "
    "n_action_steps=4 dropout=0 use_vae=false pretrained_backbone_weights=null",
    "diffusion": "down_dims=[16,32] horizon=4 n_action_steps=2 spatial_softmax_num_keypoints=4 "
    "crop_shape=[48,48] pretrained_backbone_weights=null",
}


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    root = tmp_path_factory.mktemp("own") / "dataset"
    write(root, LENGTHS, (64, 64))
    return root


@pytest.fixture(scope="module", params=["frames", "keep"])
def stored(request, own, tmp_path_factory):
    root = tmp_path_factory.mktemp("stored") / "root"
    to_store(own, root, video=request.param, images="keep", workers=0)
    assert sorted(path.name for path in root.iterdir()) == ["meta", "unistore.zarr"]
    return root


def opened(root, **options):
    unistore_lerobot.register()
    dataset = LeRobotDataset("local/synthetic", root=root, video_backend="pyav", **options)
    assert isinstance(dataset.reader, unistore_lerobot.UnistoreReader) == (root.name == "root")
    return dataset


def assert_same_items(ours, expected):
    assert len(ours) == len(expected)
    for item, wanted in zip(ours, expected, strict=True):
        assert item.keys() == wanted.keys()
        for key, values in wanted.items():
            if isinstance(values, str):
                assert item[key] == values
                continue
            assert (key, item[key].shape, item[key].dtype) == (key, values.shape, values.dtype)
            torch.testing.assert_close(item[key], values, rtol=0, atol=1e-6, msg=key)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"delta_timestamps": AROUND},
        {"delta_timestamps": AROUND, "episodes": [2, 0]},
        {"episodes": [1], "return_uint8": True, "image_transforms": lambda image: image[..., ::2]},
    ],
    ids=["frames", "windows", "episodes", "uint8 and a transform"],
)
def test_items_equal_those_that_lerobot_reads_from_its_own_files(own, stored, options):
    expected, ours = opened(own, **options), opened(stored, **options)
    items = [expected[number] for number in range(len(expected))]
    assert_same_items([ours[number] for number in range(len(ours))], items)
    assert_same_items(ours.reader.get_items(range(len(ours))), items)
    assert ours.num_episodes == expected.num_episodes
    assert ours.absolute_to_relative_idx == expected.absolute_to_relative_idx
    if "image_transforms" not in options:
        assert_same_items([pickle.loads(pickle.dumps(ours))[0]], items[:1])


def test_a_store_of_another_dataset_is_an_error(stored, tmp_path):
    other = tmp_path / "other"
    write(other, (5,), (64, 64))
    to_store(other, tmp_path / "root", workers=0)
    (tmp_path / "root/meta").rename(tmp_path / "unused")
    (tmp_path / "root/meta").symlink_to(stored / "meta")
    with pytest.raises(ValueError, match="has 5 frames, meta/ states 36"):
        opened(tmp_path / "root")


def test_the_reader_implements_the_interface_of_the_next_lerobot_release(stored, monkeypatch):
    """What LeRobot's main branch asks of a reader, and how it makes one."""

    class BaseDatasetReader(ABC):
        @property
        @abstractmethod
        def num_frames(self): ...

        @property
        @abstractmethod
        def num_episodes(self): ...

        @property
        @abstractmethod
        def absolute_to_relative_idx(self): ...

        @abstractmethod
        def get_item(self, idx): ...

        def set_image_transforms(self, image_transforms):
            self._image_transforms = image_transforms

    registered = {}
    storage = ModuleType("lerobot.datasets.storage")
    storage.register_dataset_reader = registered.__setitem__
    monkeypatch.setitem(sys.modules, "lerobot.datasets.storage", storage)
    monkeypatch.setattr(dataset_reader, "BaseDatasetReader", BaseDatasetReader, raising=False)
    spec = importlib.util.spec_from_file_location("coming", Path(unistore_lerobot.__file__))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.register()
    assert registered == {"unistore": "coming"}
    assert callable(module.localize_root)
    expected = opened(stored, delta_timestamps=AROUND, episodes=[2, 0])
    reader = module.DATASET_READER(
        meta=expected.meta,
        root=stored,
        episodes=[2, 0],
        delta_timestamps=AROUND,
        image_transforms=None,
        tolerance_s=1e-4,
        revision=None,
        return_uint8=False,
        depth_output_unit="mm",
        token=None,
    )
    assert isinstance(reader, BaseDatasetReader)
    assert_same_items(reader.get_items([0, 5, 26]), [expected[number] for number in (0, 5, 26)])


@pytest.mark.parametrize("policy", SMALL)
def test_training_and_resuming_give_the_weights_of_lerobots_own_files(
    own, stored, policy, tmp_path, monkeypatch
):
    monkeypatch.setattr(lerobot_train, "register_third_party_plugins", lambda: None)

    def train(*arguments):
        monkeypatch.setattr(sys, "argv", ["lerobot-train", *arguments])
        lerobot_train.main()

    def weights(output, step):
        return load_file(output / f"checkpoints/{step:06d}/pretrained_model/model.safetensors")

    for root in (own, stored):
        opened(root)
        train(
            "--dataset.repo_id=local/synthetic",
            f"--dataset.root={root}",
            "--dataset.video_backend=pyav",
            f"--policy.type={policy}",
            *(f"--policy.{option}" for option in SMALL[policy].split()),
            "--policy.device=cpu",
            "--policy.push_to_hub=false",
            f"--output_dir={tmp_path / root.name}",
            "--steps=5",
            "--save_freq=3",
            "--batch_size=2",
            "--num_workers=0",
            "--log_freq=1",
            "--seed=1",
        )
    trained, ours = (weights(tmp_path / root.name, 5) for root in (own, stored))
    for root in (own, stored):
        output = tmp_path / root.name / "checkpoints"
        (output / "000005").rename(tmp_path / f"{root.name} without a stop")
        train(f"--config_path={output}/000003/pretrained_model/train_config.json", "--resume=true")
    resumed_own, resumed = (weights(tmp_path / root.name, 5) for root in (own, stored))
    begun = weights(tmp_path / stored.name, 3)
    for name, values in trained.items():
        assert torch.equal(ours[name], values), name
        assert torch.equal(resumed[name], resumed_own[name]), name
        # LeRobot resumes the order of items, and other random numbers for noise.
        assert policy == "diffusion" or torch.equal(resumed[name], values), name
    assert any(not torch.equal(values, begun[name]) for name, values in trained.items())
