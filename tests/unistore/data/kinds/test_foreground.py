"""Boxes around voxels of labels, masks and windows, against the volumes that were converted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import unistore
from unistore.data.kinds import volumes
from unistore.errors import InputError
from unistore.order.permutation import EpochIndex
from unistore.store.reader import Store

MOST = 40
SIZE = (6, 9, 8)


def labels_of(number: int) -> NDArray[np.uint8]:
    """A large class 1, a class 3 of a few voxels, and in the second volume alone one voxel of class 7."""
    labels = np.zeros((16 + number, 20, 24 - number), np.uint8)
    labels[2:9, 3:15, 4:19] = 1
    labels[10, 5, 6:11] = 3
    if number == 1:
        labels[0, 19, 22] = 7
    return labels


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An nnU-Net folder of three volumes; the labels of the last one are empty."""
    folder = tmp_path_factory.mktemp("sources")
    for name in ("imagesTr", "labelsTr"):
        (folder / name).mkdir()
    rng = np.random.default_rng(4)
    for number in range(3):
        labels = labels_of(number) if number < 2 else np.zeros((9, 10, 11), np.uint8)
        image = rng.integers(-1000, 1000, labels.shape).astype(np.int16)
        # One file in each order of axes in memory.
        np.save(folder / "imagesTr" / f"c{number}_0000.npy", np.asfortranarray(image) if number else image)
        np.save(folder / "labelsTr" / f"c{number}.npy", np.asfortranarray(labels) if number else labels)
    about = {"labels": {"background": 0, "liver": 1, "tumour": 3, "stone": 7}}
    (folder / "dataset.json").write_text(json.dumps(about))
    return folder


@pytest.fixture(scope="module")
def store(sources: Path) -> Path:
    path = sources.parent / "located.zarr"
    window = ("mine:100:0", "none:1:30000")
    unistore.convert(sources, path, "ct", window=window, foreground_locations=MOST)
    return path


def located(store: Path, group: str) -> dict[tuple[int, int], NDArray[Any]]:
    """Locations by volume and class."""
    opened = unistore.open_zarr(store)
    offsets = opened[f"foreground/{group}/offsets"]
    coords = opened[f"foreground/{group}/coords"][...]
    classes = offsets.attrs["class_numbers"]
    bounds = offsets[...]
    return {
        (row // len(classes), classes[row % len(classes)]): coords[bounds[row] : bounds[row + 1]]
        for row in range(len(bounds) - 1)
    }


def test_locations_are_voxels_of_their_class_in_c_order(store: Path, sources: Path) -> None:
    locations = located(store, "labels/label")
    assert locations.keys() == {(volume, number) for volume in range(3) for number in (1, 3, 7)}
    for (volume, number), coords in locations.items():
        labels = np.load(sources / "labelsTr" / f"c{volume}.npy")
        every = np.argwhere(labels == number)
        assert len(coords) == min(MOST, len(every))
        assert np.array_equal(coords, every[[bool((coords == place).all(1).any()) for place in every]])
    for (volume, number), coords in located(store, "windows/mine").items():
        image = np.load(sources / "imagesTr" / f"c{volume}_0000.npy")
        assert number == 1
        assert len(coords) == MOST
        assert (np.abs(image[tuple(coords.T)]) <= 50).all()
    assert not Store(str(store)).has("foreground/windows/none/coords")
    assert unistore.verify(store, against=[sources]).ok


def test_locations_are_a_uniform_choice_in_any_order_of_memory(tmp_path: Path) -> None:
    for order in "CF":
        (tmp_path / order).mkdir()
        np.save(tmp_path / order / "ct.npy", np.zeros((60, 50, 40), np.int16))
        np.save(tmp_path / order / "ct_seg.npy", np.asarray(np.ones((60, 50, 40), np.uint8), order=order))  # type: ignore[call-overload]
        options: dict[str, Any] = {"foreground_locations": 6000}
        unistore.convert(tmp_path / order, tmp_path / f"{order}.zarr", "ct", **options)
    (coords,) = located(tmp_path / "C.zarr", "labels/seg").values()
    (other,) = located(tmp_path / "F.zarr", "labels/seg").values()
    assert np.array_equal(coords, other)
    assert len(np.unique(coords, axis=0)) == 6000
    for axis, extent in enumerate((60, 50, 40)):
        expected = 6000 / extent
        counts = np.bincount(coords[:, axis], minlength=extent)
        # A sum of squares of that many standard normals is below this but once in ten thousand trials.
        assert ((counts - expected) ** 2 / expected).sum() < extent + 4 * np.sqrt(2 * extent) + 8


def test_a_label_of_too_many_numbers_has_no_locations(tmp_path: Path) -> None:
    np.save(tmp_path / "ct.npy", np.zeros((10, 10, 10), np.int16))
    np.save(tmp_path / "ct_seg.npy", np.arange(1000, dtype=np.uint16).reshape(10, 10, 10))
    sources = [tmp_path / "ct.npy", tmp_path / "ct_seg.npy"]
    report = unistore.convert(sources, tmp_path / "a.zarr", "ct", foreground_locations=3)
    assert any("labels/seg: a volume has more than 128 numbers" in note for note in report.notes)
    with pytest.raises(InputError, match="does not store the locations of 'seg'"):
        unistore.Dataset(tmp_path / "a.zarr", unistore.Patches(4, foreground="seg"))


def centres(sample: Mapping[str, Any], labels: NDArray[np.uint8], number: int) -> bool:
    """Whether a box lies as near to a voxel of a class as the border allows."""
    room = np.maximum(np.array(labels.shape) - SIZE, 0)
    corners = np.clip(np.argwhere(labels == number) - np.array(SIZE) // 2, 0, room)
    return bool((corners == sample["corner"].numpy()).all(axis=1).any())


@pytest.mark.parametrize("name", ["label", "labels/label", "tumour", "label:3"])
def test_boxes_are_centred_on_a_label(store: Path, name: str) -> None:
    kind = unistore.Patches(SIZE, per_volume=30, foreground=name)
    dataset = unistore.Dataset(store, kind, fields=["label", "corner", "foreground"], seed=2)
    assert "foreground" not in unistore.Dataset(store, kind).fields
    drawn = []
    for sample in dataset:
        volume, number = int(sample["index"]) // 30, int(sample["foreground"])
        drawn.append((volume, number))
        assert number == 0 or centres(sample, labels_of(volume), number)
        assert number == 0 or number in sample["label"]
    classes = {volume: [number for at, number in drawn if at == volume] for volume in range(3)}
    assert set(classes[2]) == {0}, "the volume has none, so its boxes are uniform"
    if name.startswith("label") and ":" not in name:
        assert set(classes[0]) == {1, 3}
        assert set(classes[1]) == {1, 3, 7}
        assert 6 <= classes[1].count(7) <= 15, "a class of one voxel is drawn as often as the others"
    else:
        assert set(classes[0]) == set(classes[1]) == {3}


def test_shares_of_boxes_are_foreground_and_the_others_stay_uniform(store: Path) -> None:
    shares = {"tumour": 0.25, "mine": 0.5}
    kind = unistore.Patches(SIZE, per_volume=400, foreground=shares)
    dataset = unistore.Dataset(store, kind, fields=["corner", "foreground"])
    plain = unistore.Dataset(store, unistore.Patches(SIZE, per_volume=400), fields=["corner"])
    numbers = np.array([int(sample["foreground"]) for sample in dataset.__getitems__(range(400))])
    assert abs(np.count_nonzero(numbers == 3) - 100) < 40
    assert abs(np.count_nonzero(numbers == 1) - 200) < 45
    for index in np.flatnonzero(numbers == 0)[:20].tolist():
        assert torch.equal(dataset[index]["corner"], plain[index]["corner"])


def test_draws_depend_on_seed_epoch_and_index_alone(store: Path) -> None:
    kind = unistore.Patches(SIZE, per_volume=5, foreground={"label": 0.8})
    dataset = unistore.Dataset(store, kind, fields=["corner"], seed=9)
    alone = [dataset[EpochIndex(index, 3)]["corner"].tolist() for index in range(15)]
    backwards = dataset.__getitems__([EpochIndex(index, 3) for index in reversed(range(15))])
    assert [sample["corner"].tolist() for sample in backwards][::-1] == alone
    assert [dataset[EpochIndex(index, 4)]["corner"].tolist() for index in range(15)] != alone
    for workers in (0, 2):
        with unistore.Loader(dataset, batch_size=4, shuffle=True, seed=1, num_workers=workers) as loader:
            list(loader)
            rows = {
                int(index): corner.tolist()
                for batch in loader
                for index, corner in zip(batch["index"], batch["corner"], strict=True)
            }
        assert [rows[index] for index in range(15)] == [
            dataset[EpochIndex(index, 1)]["corner"].tolist() for index in range(15)
        ]


def test_foreground_boxes_with_a_step_are_centred_in_the_coarser_grid(store: Path, sources: Path) -> None:
    kind = unistore.Patches(4, per_volume=20, step=2, foreground="tumour")
    for sample in unistore.Dataset(store, kind, fields=["image", "corner", "foreground"]):
        volume = np.load(sources / "imagesTr" / f"c{int(sample['index']) // 20}_0000.npy")[::2, ::2, ::2]
        low = sample["corner"].tolist()
        box = tuple(slice(at, at + 4) for at in low)
        assert np.array_equal(sample["image"], volume[box])
        if sample["foreground"]:
            assert low[0] == 3
            assert low[1] == 0


def test_an_unknown_foreground_or_one_without_locations_is_an_error(
    store: Path, sources: Path, tmp_path: Path
) -> None:
    for foreground in (3, {}, {"label": 0.0}, {"label": 0.7, "mine": 0.4}, {"label": "a"}):
        with pytest.raises(InputError, match="foreground: "):
            unistore.Patches(4, foreground=foreground)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="foreground: works only with random patches"):
        unistore.Patches(4, random=False, foreground="label")
    with pytest.raises(
        InputError, match=r"has no 'bone'. Fix: use one of mine, none, label, liver, tumour, stone"
    ):
        unistore.Dataset(store, unistore.Patches(4, foreground="bone"))
    unistore.convert(sources, tmp_path / "bare.zarr", "ct")
    fix = r"the locations of 'tumour'\. Fix: .*unistore convert ct SOURCES STORE --foreground-locations 10000"
    with pytest.raises(InputError, match=fix):
        unistore.Dataset(tmp_path / "bare.zarr", unistore.Patches(4, foreground="tumour"))
    with pytest.raises(
        InputError, match=r"none of these 3 volumes of .*located\.zarr has a voxel of label:5"
    ):
        len(unistore.Dataset(store, unistore.Patches(4, foreground="label:5")))
    with pytest.raises(InputError, match="the samples have no 'foreground'"):
        unistore.Dataset(store, unistore.Patches(4), fields=["foreground"])


@pytest.mark.parametrize(("name", "number"), [("liver", 1), ("organ", 1), ("organ:2", 2), ("seg:1", 1)])
def test_a_label_and_a_mask_may_name_one_number_differently(
    name: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    classes = {"labels/seg/label": {"1": "liver"}, "labels/seg/mask": {"1": "organ"}}
    arrays = {path: SimpleNamespace(attributes={"classes": of}) for path, of in classes.items()}
    store: Any = SimpleNamespace(path="a.zarr", has=lambda _: True, array=arrays.get)
    monkeypatch.setattr(volumes, "box_sources", lambda _: {"seg": "labels/seg"})
    assert volumes.find_target(store, name) == ("labels/seg", number)


def test_a_location_outside_its_volume_is_found(
    store: Path, tmp_path: Path, forge: Callable[..., None]
) -> None:
    shutil.copytree(store, tmp_path / "forged.zarr")
    path = "foreground/labels/label/coords"
    coords = np.asarray(unistore.open_zarr(store)[path][...])
    coords[5, 1] = 20
    forge(tmp_path / "forged.zarr", {path: coords})
    (problem,) = unistore.verify(tmp_path / "forged.zarr").problems
    assert problem.kind == "values"
    assert "row 5 is [" in problem.message
    assert "outside volume 0" in problem.message
