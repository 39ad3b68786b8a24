"""A store gives nnU-Net the patches that its own files give it. Run by ``make trainers-nnunet``."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torchvision_operators  # noqa: F401
from nnunetv2.run.run_training import get_trainer_from_args, maybe_load_checkpoint
from nnunetv2.training.dataloading.data_loader import nnUNetDataLoader
from nnunetv2.training.dataloading.nnunet_dataset import nnUNetDatasetBlosc2
from synthetic import environment, preprocess, write_raw
from to_store import to_store
from unistore_trainer import UnistoreDataset

HERE = Path(__file__).parent
PATCH = (16, 24, 20)
CHUNKS = {"chunks": (1, 16, 32, 32), "blocks": (1, 8, 16, 16)}


def write_case(folder: Path, name: str, channels: int, labels: tuple[int, int], seed: int) -> None:
    """Write a case as nnU-Net's preprocessing does."""
    random = np.random.default_rng(seed)
    shape = tuple(random.integers(20, 50, 3).tolist())
    image = random.normal(size=(channels, *shape)).astype("f4")
    label = random.integers(*labels, (1, *shape), "i2", endpoint=True)
    locations = {number: np.argwhere(label == number) for number in (1, 2)}
    nnUNetDatasetBlosc2.save_case(image, label, {"class_locations": locations}, str(folder / name), **CHUNKS)


@pytest.fixture(params=[(1, (0, 1)), (2, (-1, 2))], ids=["one channel, bits", "two channels, labels below 0"])
def folder(request, tmp_path):
    folder = tmp_path / "nnUNetPlans_3d_fullres"
    folder.mkdir()
    for number in range(4):
        write_case(folder, f"case_{number}", *request.param, number)
    return folder


def test_cases_equal_those_of_nnunets_own_files_after_these_are_deleted(folder):
    own = nnUNetDatasetBlosc2(str(folder))
    cases = {name: [part[:] for part in own.load_case(name)[:2]] for name in own.identifiers}
    to_store(folder)
    for path in folder.glob("*.b2nd"):
        path.unlink()
    stored = UnistoreDataset(str(folder))
    assert stored.identifiers == own.identifiers == UnistoreDataset.get_identifiers(str(folder))
    box = (slice(None), slice(3, 17), slice(5, 6), slice(2, 19))
    for name, (image, label) in cases.items():
        stored_image, stored_label, previous, properties = stored.load_case(name)
        assert previous is None
        assert list(properties["class_locations"]) == [1, 2]
        assert stored_image.dtype == image.dtype
        assert np.issubdtype(stored_label.dtype, np.signedinteger)
        for ours, values in ((stored_image, image), (stored_label, label)):
            assert ours.shape == values.shape
            np.testing.assert_array_equal(ours[:], values)
            np.testing.assert_array_equal(ours[box], values[box])
            np.testing.assert_array_equal(ours[-1:, :2], values[-1:, :2])
            with pytest.raises(IndexError, match="steps other than 1"):
                ours[:, ::2]


def test_a_missing_store_names_the_script_that_makes_it(folder):
    for opening in (UnistoreDataset, UnistoreDataset.get_identifiers):
        with pytest.raises(FileNotFoundError, match=r"fix: python to_store.py .*nnUNetPlans_3d_fullres"):
            opening(str(folder))


def test_batches_are_equal_for_the_same_seed(folder):
    to_store(folder)
    labels = SimpleNamespace(all_labels=[0, 1, 2], has_ignore_label=False)
    streams = []
    for dataset_class in (nnUNetDatasetBlosc2, UnistoreDataset):
        dataset = dataset_class(str(folder), None, folder_with_segs_from_previous_stage=None)
        loader = nnUNetDataLoader(dataset, 2, PATCH, PATCH, labels, oversample_foreground_percent=0.5)
        np.random.seed(7)
        streams.append([next(loader) for _ in range(20)])
    own, ours = streams
    for expected, batch in zip(own, ours, strict=True):
        assert list(batch["keys"]) == list(expected["keys"])
        assert torch.equal(batch["data"], expected["data"])
        assert torch.equal(batch["target"], expected["target"])
    assert len({batch["data"].sum().item() for batch in own}) == len(own)


def test_a_cascade_is_an_error(folder):
    with pytest.raises(NotImplementedError, match="cascade"):
        UnistoreDataset(str(folder), None, folder_with_segs_from_previous_stage="stage")


def test_training_and_resuming_give_the_results_of_nnunets_own_files(tmp_path, monkeypatch):
    for name, value in {**environment(tmp_path), "nnUNet_extTrainer": str(HERE)}.items():
        monkeypatch.setenv(name, value)
    write_raw(tmp_path / "raw/Dataset001_Noise", 5, (40, 48, 24), ["CT"])
    folder = preprocess(1, (16, 32, 32))
    monkeypatch.setenv("nnUNet_n_proc_DA", "0")
    torch.set_num_threads(1)  # sums of several threads differ in their last digit

    def train(trainer_name: str, *, goes_on: bool = False) -> Any:
        device = torch.device("cpu")
        trainer = get_trainer_from_args(
            "1", "3d_fullres", 0, trainer_name, continue_training=goes_on, device=device
        )
        maybe_load_checkpoint(trainer, goes_on, validation_only=False)
        trainer.run_training()
        return trainer

    own = train("nnUNetTrainerShort")
    to_store(folder)
    for path in folder.glob("*.b2nd"):
        path.unlink()
    ours = train("nnUNetTrainerUnistoreShort")
    ours.perform_actual_validation()
    summary = json.loads(Path(ours.output_folder, "validation/summary.json").read_text())
    assert list(summary["mean"]) == ["1", "2"]
    monkeypatch.setenv("nnUNet_results", str(tmp_path / "resumed"))
    monkeypatch.setenv("STOP_AFTER", "1")
    with pytest.raises(KeyboardInterrupt):
        train("nnUNetTrainerUnistoreShort")
    monkeypatch.delenv("STOP_AFTER")
    resumed = train("nnUNetTrainerUnistoreShort", goes_on=True)
    for name, weights in own.network.state_dict().items():
        assert torch.equal(ours.network.state_dict()[name], weights), name
        assert torch.equal(resumed.network.state_dict()[name], weights), name
