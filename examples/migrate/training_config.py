"""Arguments of unistore from the configuration files of two older trainings.

YAML with ``DATA``, ``DATALOADER`` and ``TRAIN`` describes clips of a spike camera, JSON with the dataset
``CTWindowSparseSDF`` points of CT windows. Copy it and ``config_file.py`` beside your script, with PyYAML.

>>> config = load("gopro.yaml", store="gopro.zarr")                              # doctest: +SKIP
>>> dataset = unistore.Dataset(**config.train.dataset)                           # doctest: +SKIP
>>> loader = unistore.Loader(dataset, **config.train.loader)                     # doctest: +SKIP
>>> DataLoader(dataset, **config.train.dataloader, collate_fn=unistore.collate)  # doctest: +SKIP
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from config_file import NUMBER, Keys

import unistore
from unistore.system.workers import WorkerPlan, environment_number, plan

Arguments = dict[str, Any]

MOST_CT_WORKERS = 8
HUGE = 2**63 - 1
CLIP_KEYS = {
    "length": "DATA.CLIP_LEN",
    "crop": "DATA.CROP_SIZE",
    "voxel_bins": "DATA.NUM_VOXEL_BINS",
}
VOXEL_KEYS = ("DATA.USE_PRECOMPUTED_VOXELS", "DATA.SPIKE_DIR")
VALIDATION_KEYS = ("DATA.VAL_SPLIT", "TRAIN.VAL_BATCH_SIZE", "DATALOADER.VAL_WORKERS")
BATCH_KEYS = {"TRAIN": "TRAIN.BATCH_SIZE", "VAL": "TRAIN.VAL_BATCH_SIZE"}
PREFETCH_KEYS = {"TRAIN": "DATALOADER.TRAIN_PREFETCH_FACTOR", "VAL": "DATALOADER.VAL_PREFETCH_FACTOR"}
PREFETCH = {"TRAIN": 4, "VAL": 2}


@dataclass
class Side:
    """Keyword arguments for training or for validation."""

    dataset: Arguments  # of unistore.Dataset
    loader: Arguments  # of unistore.Loader, after the dataset
    dataloader: Arguments  # of torch's DataLoader, after the dataset

    def __str__(self) -> str:
        arguments = self.dataset | self.loader
        # it may be a URL with a password
        arguments.pop("path", None)
        return str(arguments)


@dataclass
class Config:
    """Arguments from a configuration file."""

    train: Side
    validation: Side | None  # None where the file has no key for it
    conversion: Arguments  # options of unistore.convert
    workers: str  # how many, and why
    unused: list[str] = field(default_factory=list)  # dotted keys without effect, in the file's order

    def __str__(self) -> str:
        lines = [
            self.workers,
            f"training: {self.train}",
            f"validation: {self.validation}",
            f"conversion: {self.conversion}",
            # a key may hold what moves a terminal's cursor
            f"not used here: {self.unused!a}",
        ]
        return "\n".join(lines)


def load(
    path: str | Path,
    *,
    store: str | Path | None = None,
    ranks: int | None = None,
    samples: int | None = None,
    cores: float | None = None,
) -> Config:
    """Read a YAML or JSON file. Rank 0 prints the arguments to standard error.

    `store` replaces the path in the file. `ranks` are the training processes on this machine, by default
    ``LOCAL_WORLD_SIZE``. Few `samples` get few workers. `cores` are found by default.
    Raises `unistore.InputError` with a line for each problem of the file.
    """
    if ranks is None:
        ranks = environment_number("LOCAL_WORLD_SIZE", 1)
    machine = Machine(ranks, samples, cores)
    machine.share("auto")  # raises for wrong arguments before the file is blamed
    keys = Keys(Path(path))
    is_ct = keys.has("dataset", "dataset.name", "dataset.args")
    config = read_ct(keys, machine) if is_ct else read_spike(keys, machine)
    keys.raise_problems()
    for side in filter(None, (config.train, config.validation)):
        if store is not None:
            side.dataset["path"] = str(store)
    config.unused = keys.unused
    if os.environ.get("RANK", "0") == "0":
        print(config, file=sys.stderr)
    return config


class Machine(NamedTuple):
    """What decides how many workers each rank gets."""

    ranks: int
    samples: int | None
    cores: float | None

    def share(self, workers: str | int) -> WorkerPlan:
        """Share a number of workers, or a part of the cores, among the ranks."""
        return plan(workers, self.ranks, self.samples, cores=self.cores)

    def workers(self, own: str | None, default: int) -> int:
        """Return the workers of one side on each rank: those of its own key, or `default`."""
        if own is None or own == "auto":
            return default
        # a number is that of each rank, a part of the cores is shared
        if own.isdigit():
            return int(own)
        return plan(own, self.ranks, cores=self.cores).per_rank


def read_spike(keys: Keys, machine: Machine) -> Config:
    """Read the keys of a spike training."""
    train_workers, validation_workers, reason = spike_workers(keys, machine)
    train = spike_side(keys, "TRAIN", train_workers)
    validation = None
    if keys.has(*VALIDATION_KEYS):
        reason += f" + {validation_workers} validation"
        validation = spike_side(keys, "VAL", validation_workers)
        split = validation.dataset.get("split")
        if split is not None and split == train.dataset.get("split"):
            keys.refuse("DATA.VAL_SPLIT", "is the same as DATA.TRAIN_SPLIT")
    conversion: Arguments = {}
    if describes_clips(keys):
        conversion = keys.some(str, voxel_dir="DATA.VOXEL_CACHE_DIRNAME")
        # voxels that exist are stored, or counted from the spikes on reading
        if not keys.take("DATA.USE_PRECOMPUTED_VOXELS", bool, bool(conversion)):
            conversion["voxel_dir"] = "none"
        conversion |= keys.some(str, spike_dir="DATA.SPIKE_DIR")
    return Config(train, validation, conversion, reason)


def describes_clips(keys: Keys) -> bool:
    """Return whether a file says what a clip is."""
    return keys.has(*CLIP_KEYS.values(), *VOXEL_KEYS)


def spike_side(keys: Keys, name: str, workers: int) -> Side:
    """Read the keys of one side, TRAIN or VAL."""
    is_train = name == "TRAIN"
    dataset = keys.some(str, path="DATA.ROOT", split=f"DATA.{name}_SPLIT")
    dataset["seed"] = keys.take("SEED", int, 0, most=HUGE)
    if describes_clips(keys):
        sizes = keys.some(int, least=1, **CLIP_KEYS)
        dataset["samples"] = unistore.Clips(**sizes, random=is_train)
        dataset["names"] = {"voxel": "spike_vox"}
    loader = {
        "batch_size": keys.take(BATCH_KEYS[name], int, 1, least=1),
        "shuffle": is_train,
        "pin_memory": keys.take("DATALOADER.PIN_MEMORY", bool, False),
        "num_workers": workers,
        "prefetch_factor": keys.take(PREFETCH_KEYS[name], int, PREFETCH[name], least=1),
    }
    persistent = keys.take("DATALOADER.PERSISTENT_WORKERS", bool, False)
    side = make_side(dataset, loader, persistent)
    if keys.take("DATA.USE_RAM_CACHE", bool):
        side.loader["cache"] = "all"
        gibibytes = keys.take("DATA.CACHE_SIZE_GB", NUMBER)
        if gibibytes is not None:
            side.loader["cache"] = round(gibibytes * 2**30)
    return side


def make_side(dataset: Arguments, loader: Arguments, persistent: bool) -> Side:
    """Return the arguments of one side, for our loader and for torch's."""
    dataloader = dict(loader)
    if loader["num_workers"] > 0:
        dataloader["persistent_workers"] = persistent
    else:
        # torch refuses it where it starts no worker
        del dataloader["prefetch_factor"]
    return Side(dataset, loader | {"seed": dataset["seed"]}, dataloader)


def spike_workers(keys: Keys, machine: Machine) -> tuple[int, int, str]:
    """Return the workers for training and for validation on each rank, and why."""
    total = keys.workers("DATALOADER.TOTAL_WORKERS") or "auto"
    train = keys.workers("DATALOADER.TRAIN_WORKERS")
    validation = keys.workers("DATALOADER.VAL_WORKERS")
    old = keys.workers("DATALOADER.NUM_WORKERS")
    if old and keys.has("DATALOADER.TOTAL_WORKERS", "DATALOADER.TRAIN_WORKERS"):
        message = "is given together with newer keys for the number of workers"
        keys.refuse("DATALOADER.NUM_WORKERS", message)
    train = train or old
    if train == "0" and keys.take("DATALOADER.PERSISTENT_WORKERS", bool):
        message = "is true, but there are no training workers to persist"
        keys.refuse("DATALOADER.PERSISTENT_WORKERS", message)
    shared = machine.share(total)
    train_workers = machine.workers(train, shared.per_rank)
    # training waits while validation reads
    fifth = max(1, round(shared.per_rank / 5))
    few = min(fifth, shared.per_rank // 2)
    validation_workers = machine.workers(validation, few)
    if total.isdigit() and train_workers * machine.ranks > max(int(total), machine.ranks):
        message = f"is {total}, less than {machine.ranks} × {train_workers} training workers"
        keys.refuse("DATALOADER.TOTAL_WORKERS", message)
    reason = shared.reason
    if train or validation:
        reason = "as the file says"
    return train_workers, validation_workers, f"loader workers: {reason}: {train_workers} train"


def read_ct(keys: Keys, machine: Machine) -> Config:
    """Read the keys of a CT training."""
    name = keys.take("dataset.name", str, "")
    if name != "CTWindowSparseSDF":
        keys.refuse("dataset.name", f"is {name[:40]!r}, expected CTWindowSparseSDF")
    dataset = keys.some(str, path="dataset.args.roots") | {"seed": 0}
    points = keys.some(str, window="dataset.args.window_type")
    points |= keys.some(int, min_points="dataset.args.min_points")
    points |= keys.some(int, least=1, max_points="dataset.args.max_points")
    if points.get("min_points", 0) > points.get("max_points", HUGE):
        keys.refuse("dataset.args.min_points", "is above dataset.args.max_points")
        del points["min_points"]
    dataset["samples"] = unistore.SparsePoints(**points)
    conversion = keys.some(int, least=1, resolution="dataset.args.resolution")
    if "window" in points:
        conversion["window"] = (points["window"],)
    shared = machine.share("auto")
    workers = min(shared.per_rank, MOST_CT_WORKERS)
    loader = {
        "batch_size": keys.take("trainer.args.batch_size_per_gpu", int, 1, least=1),
        "shuffle": True,
        "pin_memory": False,
        "num_workers": workers,
        "prefetch_factor": 4,
    }
    side = make_side(dataset, loader, persistent=False)
    if keys.take("dataset.args.cache_data", bool):
        side.loader["cache"] = "all"
    reason = f"loader workers: {shared.reason}, at most {MOST_CT_WORKERS}: {workers} train"
    return Config(side, None, conversion, reason)
