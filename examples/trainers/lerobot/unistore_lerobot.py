"""Train LeRobot's policies from a unistore store: a reader that `LeRobotDataset` uses in place of its own.

The root of the dataset has LeRobot's ``meta/``, whose ``info.json`` has ``"storage_format": "unistore"``, and
the store ``unistore.zarr``. `to_store.py` makes such a root. `register` adds the reader to LeRobot:
by its ``register_dataset_reader`` if this LeRobot has one, as the release after 0.6.1 will, else by a patch.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from lerobot.datasets import dataset_reader, lerobot_dataset
from lerobot.datasets.feature_utils import check_delta_timestamps, get_delta_indices

import unistore

FORMAT = "unistore"
STORE = "unistore.zarr"
DERIVED = ("index", "episode_index", "frame_index")
# Features whose columns have other names in a store
STORED_NAMES = {"next.reward": "reward", "next.done": "terminated"}

Base: Any = getattr(dataset_reader, "BaseDatasetReader", dataset_reader.DatasetReader)


class UnistoreReader(Base):
    """Reads items from a store, equal to those of LeRobot in keys, shapes, dtypes and values.

    The parameters are LeRobot's own: `meta`, `root` with ``unistore.zarr``, and those of `LeRobotDataset`.
    """

    def __init__(
        self,
        meta: Any,
        root: str | Path,
        episodes: Sequence[int] | None,
        tolerance_s: float,
        delta_timestamps: dict[str, list[float]] | None,
        image_transforms: Callable[..., Any] | None,
        *,
        return_uint8: bool = False,
        **_options: Any,  # of the Hub, of decoders, and of depth, which is an error below
    ) -> None:
        if meta.depth_keys:
            msg = f"{root}: cameras of depth are not read from a store: {', '.join(meta.depth_keys)}"
            raise NotImplementedError(msg)
        self._meta = meta
        self.episodes = episodes
        self.set_image_transforms(image_transforms)
        self.delta_indices: dict[str, list[int]] = {}
        if delta_timestamps is not None:
            check_delta_timestamps(delta_timestamps, meta.fps, tolerance_s)
            self.delta_indices = get_delta_indices(delta_timestamps, meta.fps)
        self._as_uint8 = set(meta.video_keys) if return_uint8 else set()
        self._names = {key: STORED_NAMES.get(key, key) for key in meta.features if key not in DERIVED}
        around = {name: self.delta_indices.get(key, [0]) for key, name in self._names.items()}
        self._dataset = unistore.Dataset(Path(root) / STORE, unistore.Windows(around, pad="edge"))
        if len(self._dataset) != meta.total_frames:
            counts = f"{len(self._dataset)} frames, meta/ states {meta.total_frames}"
            msg = f"{root}: the store has {counts}. fix: python to_store.py DATASET {root}"
            raise ValueError(msg)
        chosen = range(meta.total_episodes) if episodes is None else sorted(set(episodes))
        starts, stops = (meta.episodes[f"dataset_{end}_index"] for end in ("from", "to"))
        self._places = [
            (episode, frame, starts[episode] + frame)
            for episode in chosen
            for frame in range(stops[episode] - starts[episode])
        ]
        self.hf_dataset = self._places  # LeRobot 0.6 asks whether there is one

    @property
    def num_frames(self) -> int:
        """Frames of the chosen episodes."""
        return len(self._places)

    @property
    def absolute_to_relative_idx(self) -> dict[int, int] | None:
        """Number of an item by the number of its frame in the dataset. None: they are equal."""
        if self.episodes is None:
            return None
        return {index: item for item, (_, _, index) in enumerate(self._places)}

    _absolute_to_relative_idx = absolute_to_relative_idx

    @property
    def num_episodes(self) -> int:
        """Number of chosen episodes."""
        return self._meta.total_episodes if self.episodes is None else len(self.episodes)

    def try_load(self) -> bool:
        """Return True: the store is open. LeRobot 0.6 would else download the dataset."""
        return True

    def get_item(self, idx: int) -> dict[str, Any]:
        """Return one item."""
        return self.get_items([idx])[0]

    def get_items(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return several items, which are read together."""
        places = [self._places[item] for item in indices]
        samples = self._dataset.__getitems__([index for _, _, index in places])
        return [self._item(sample, place) for sample, place in zip(samples, places, strict=True)]

    def _item(self, sample: dict[str, Any], place: tuple[int, int, int]) -> dict[str, Any]:
        item: dict[str, Any] = {}
        for key, name in self._names.items():
            values = sample[name]
            if key in self._meta.camera_keys and key not in self._as_uint8:
                values = values.float() / 255
            item[key] = values if key in self.delta_indices else values[0]
            if key in self.delta_indices:
                item[f"{key}_is_pad"] = ~sample[f"{name}_valid"]
            if key in self._meta.camera_keys and self._image_transforms is not None:
                item[key] = self._image_transforms(item[key])
        numbers = zip(("episode_index", "frame_index", "index"), place, strict=True)
        item |= {key: torch.tensor(number) for key, number in numbers}
        item["task"] = self._meta.tasks.iloc[int(item["task_index"])].name
        return item


DATASET_READER = UnistoreReader


def localize_root(_repo_id: str, root: str, *_options: Any, **_more: Any) -> Path:
    """Raise: ``meta/`` has to be a local folder."""
    msg = f"{root}: no dataset of unistore is read from there. fix: give a local root that has meta/"
    raise FileNotFoundError(msg)


def register() -> None:
    """Let `LeRobotDataset` read roots whose ``info.json`` has ``"storage_format": "unistore"``."""
    try:
        from lerobot.datasets.storage import register_dataset_reader
    except ImportError:
        own = lerobot_dataset.DatasetReader
        if own is dataset_reader.DatasetReader:
            lerobot_dataset.DatasetReader = lambda **options: reader_of(options["root"], own)(**options)
    else:
        register_dataset_reader(FORMAT, __name__)


def reader_of(root: Path, own: Any) -> Any:
    """Return the class that reads a root: this reader, or LeRobot's own."""
    info = json.loads((root / "meta/info.json").read_text())
    return UnistoreReader if info.get("storage_format") == FORMAT else own
