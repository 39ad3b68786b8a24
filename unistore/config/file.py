"""Configuration files as users have them, turned into arguments of `Dataset` and of loaders.

Two kinds are read as they are: YAML with ``SEED``, ``DATA.*``, ``DATALOADER.*``, ``TRAIN.*``, and JSON with
``dataset.name`` and ``dataset.args``. Which keys tell what a sample is, families say (`SampleKeys`).

>>> config = unistore.config.load("config.yaml", store="gopro.zarr")       # doctest: +SKIP
>>> dataset = unistore.Dataset(**config.train.dataset)                      # doctest: +SKIP
>>> loader = unistore.Loader(dataset, **config.train.loader)                # doctest: +SKIP
>>> DataLoader(dataset, **config.train.dataloader, collate_fn=unistore.collate)  # doctest: +SKIP
>>> config.unused                                                           # doctest: +SKIP
('DATA.K', 'TRAIN.EPOCHS', …)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from unistore.config.keys import read_keys
from unistore.converters.config_keys import Keys, SampleKeys
from unistore.converters.registry import families, is_own, leave_out, resolve
from unistore.errors import InputError
from unistore.system.arguments import Arguments
from unistore.system.workers import WorkerPlan, environment_number, plan

__all__ = ["Config", "Side", "load"]

_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Training or validation: arguments by name.

    Attributes
    ----------
    dataset
        Of `unistore.Dataset`; ``path`` only where the file or the caller names one.
    loader
        Of `unistore.Loader`, after the dataset.
    dataloader
        Of ``torch.utils.data.DataLoader``, after the dataset; add ``collate_fn=unistore.collate``.
    """

    dataset: Mapping[str, Any]
    loader: Mapping[str, Any]
    dataloader: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What a configuration file says.

    Attributes
    ----------
    train, validation
        Arguments of each side; no validation where the file does not speak of one.
    workers
        How the numbers of workers came about.
    seed
        Seed of datasets and loaders.
    conversion
        Options to convert the store with: ``unistore.convert(sources, store, "spike", **config.conversion)``.
    unused
        Dotted keys that decide nothing here, in the file's order: the training's own, and those of ways
        that a store does not need (caches of converted voxels, precomputing).
    """

    train: Side
    validation: Side | None
    workers: WorkerPlan
    seed: int
    conversion: Mapping[str, Any] = field(default_factory=dict)
    unused: tuple[str, ...] = ()


@dataclass(slots=True)
class _Draft:
    """What both kinds of file are first brought to."""

    path: str | None = None
    samples: SampleKeys | None = None
    """What a sample is; None where the file does not tell."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Of the kind of samples."""
    conversion: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    split: str | None = None
    validation_split: str | None = None
    validates: bool = False
    batch: int = 1
    validation_batch: int = 1
    workers: str | int = "auto"
    most_workers: int | None = None
    """Training workers of a rank that the file's own trainer never exceeds by itself."""
    train_workers: str | int | None = None
    validation_workers: str | int | None = None
    prefetch: int = 4
    validation_prefetch: int = 2
    pin_memory: bool = False
    persistent: bool = False
    cache: int | str | None = None


def load(
    path: str | os.PathLike[str],
    *,
    store: str | os.PathLike[str] | None = None,
    ranks: int | None = None,
    samples: int | None = None,
    cores: float | None = None,
) -> Config:
    """Read a configuration file.

    Parameters
    ----------
    path
        YAML or JSON file.
    store
        The store; in place of ``DATA.ROOT`` or ``dataset.args.roots``, which name the source files until
        somebody changes them.
    ranks
        Training processes on this machine; None: ``LOCAL_WORLD_SIZE`` of the environment, else 1.
    samples
        Samples of the training set, if known: few samples get few workers.
    cores
        Usable cores, if not to be looked up.

    Raises
    ------
    InputError
        With every key that has a wrong type or contradicts another one.
    """
    check = Arguments()
    check.path("path", path)
    check.path("store", store, none=True)
    check.settle()
    keys = read_keys(Path(path))
    draft = _read_json(keys) if keys.has("dataset.name", "dataset.args") else _read_yaml(keys)
    if store is not None:
        draft.path = os.fspath(store)
    count = environment_number("LOCAL_WORLD_SIZE", 1) if ranks is None else ranks
    workers = _plan_workers(draft, keys, count, samples, cores)
    if keys.problems or workers is None:
        raise InputError(keys.problems)
    workers.announce()
    return Config(
        train=_side(draft, workers.train, train=True),
        validation=_side(draft, workers.validation, train=False) if draft.validates else None,
        workers=workers,
        seed=draft.seed,
        conversion=draft.conversion,
        unused=keys.unused,
    )


def _read_yaml(keys: Keys) -> _Draft:
    draft = _Draft(
        path=keys.take("DATA.ROOT", str),
        seed=keys.take("SEED", int, 0, least=0),
        split=keys.take("DATA.TRAIN_SPLIT", str),
        validation_split=keys.take("DATA.VAL_SPLIT", str),
        validates=keys.has("DATA.VAL_SPLIT", "TRAIN.VAL_BATCH_SIZE", "DATALOADER.VAL_WORKERS"),
        batch=keys.take("TRAIN.BATCH_SIZE", int, 1, least=1),
        validation_batch=keys.take("TRAIN.VAL_BATCH_SIZE", int, 1, least=1),
        prefetch=keys.take("DATALOADER.TRAIN_PREFETCH_FACTOR", int, 4, least=1),
        validation_prefetch=keys.take("DATALOADER.VAL_PREFETCH_FACTOR", int, 2, least=1),
        pin_memory=keys.take("DATALOADER.PIN_MEMORY", bool, default=False),
        persistent=keys.take("DATALOADER.PERSISTENT_WORKERS", bool, default=False),
    )
    if draft.split is not None and draft.split == draft.validation_split:
        keys.refuse("DATA.VAL_SPLIT", f"is {draft.split!r}, and so is DATA.TRAIN_SPLIT")
    if keys.take("DATA.USE_RAM_CACHE", bool, default=False):
        gibibytes = keys.take("DATA.CACHE_SIZE_GB", float, least=0)
        draft.cache = "all" if gibibytes is None else round(gibibytes * _GIB)
    _read_workers(draft, keys)
    found = {name: each for name, each in _sample_keys().items() if keys.has(*each.keys)}
    if found:
        key = next(key for each in reversed(found.values()) for key in each.keys if keys.has(key))
        _take_samples(draft, found, keys, key)
    return draft


def _take_samples(draft: _Draft, found: Mapping[str, SampleKeys], keys: Keys, key: str) -> None:
    """Take what a file tells of samples, for the one family in `found`; `key` is where it tells so."""
    if len(found) > 1:
        keys.refuse(key, f"the file speaks of samples of {' and of '.join(found)}")
    draft.samples = next(iter(found.values()))
    draft.arguments, draft.conversion = (
        {name: value for name, value in read(keys).items() if value is not None}
        for read in (draft.samples.read, draft.samples.convert)
    )


def _sample_keys() -> dict[str, SampleKeys]:
    """By family, how samples stand in configurations; what a package has that cannot be imported is told."""
    found = {}
    for each in families().values():
        try:
            if each.config:
                found[each.command] = each.part("config")
        except InputError as error:
            if is_own(each.name):
                raise
            leave_out(each.command, str(error))
    return found


def _read_workers(draft: _Draft, keys: Keys) -> None:
    old, total = keys.workers("DATALOADER.NUM_WORKERS"), keys.workers("DATALOADER.TOTAL_WORKERS")
    draft.train_workers = keys.workers("DATALOADER.TRAIN_WORKERS")
    draft.validation_workers = keys.workers("DATALOADER.VAL_WORKERS")
    if old is not None and (total is not None or draft.train_workers is not None):
        keys.refuse("DATALOADER.NUM_WORKERS", "says how many workers, and so do newer keys beside it")
    elif old is not None:
        draft.train_workers = old
    draft.workers = "auto" if total is None else total
    if draft.persistent and str(draft.train_workers).strip() == "0":
        keys.refuse("DATALOADER.PERSISTENT_WORKERS", "is true, but there are no training workers to persist")


def _read_json(keys: Keys) -> _Draft:
    draft = _Draft(most_workers=8)
    name = keys.take("dataset.name", str, "")
    known = _sample_keys()
    found = {family: each for family, each in known.items() if name in each.datasets}
    if found:
        _take_samples(draft, found, keys, "dataset.name")
    else:
        expected = dict.fromkeys(dataset for each in known.values() for dataset in each.datasets)
        keys.refuse("dataset.name", f"is {name!r}, expected {' or '.join(expected)}", "value")
    if keys.take("dataset.args.cache_data", bool, default=False):
        draft.cache = "all"
    draft.path = keys.take("dataset.args.roots", str)
    draft.batch = keys.take("trainer.args.batch_size_per_gpu", int, 1, least=1)
    return draft


def _plan_workers(
    draft: _Draft, keys: Keys, ranks: int, samples: int | None, cores: float | None
) -> WorkerPlan | None:
    """Workers of this rank; what the file says for a side goes before its share of the total."""
    try:
        found = plan(draft.workers, ranks, samples, validation=draft.validates, cores=cores, quiet=True)
        train = _side_workers(draft.train_workers, ranks, cores)
        validation = _side_workers(draft.validation_workers, ranks, cores)
    except InputError as error:
        keys.problems += error.problems
        return None
    if draft.most_workers is not None and found.train > draft.most_workers:
        most = draft.most_workers
        found = replace(found, train=most, reason=f"{found.reason}, of which {most} are enough")
    if train is None and validation is None:
        return found
    train = found.train if train is None else train
    validation = found.validation if validation is None else validation
    if isinstance(draft.workers, int) and train * ranks > max(draft.workers, ranks):
        said = f"{ranks} × {train} training workers"
        keys.refuse("DATALOADER.TOTAL_WORKERS", f"is {draft.workers}, less than {said}")
    reason = f"loader workers of each rank, as the file says: {train} train + {validation} validation"
    return replace(found, train=train, validation=validation, reason=reason)


def _side_workers(asked: str | int | None, ranks: int, cores: float | None) -> int | None:
    """Workers of one rank: a number is each rank's, a part of the cores is shared; None: not said."""
    text = str(asked).strip().lower()
    if asked is None or text == "auto":
        return None
    return plan(asked, 1 if text.isdigit() else ranks, cores=cores, quiet=True).train


def _side(draft: _Draft, workers: int, *, train: bool) -> Side:
    dataset: dict[str, Any] = {"seed": draft.seed}
    if draft.path is not None:
        dataset["path"] = draft.path
    if draft.samples is not None:
        random = {"random": train} if draft.samples.draws else {}
        dataset["samples"] = resolve(draft.samples.kind)(**draft.arguments, **random)
        if draft.samples.names:
            dataset["names"] = draft.samples.names
    split = draft.split if train else draft.validation_split
    if split is not None:
        dataset["split"] = split
    common = {
        "batch_size": draft.batch if train else draft.validation_batch,
        "shuffle": train,
        "pin_memory": draft.pin_memory,
    }
    prefetch = draft.prefetch if train else draft.validation_prefetch
    loader: dict[str, Any] = {**common, "seed": draft.seed, "num_workers": workers}
    loader["prefetch_factor"] = prefetch
    if draft.cache is not None:
        loader["cache"] = draft.cache
    dataloader = {**common, "num_workers": workers}
    if workers > 0:
        dataloader |= {"prefetch_factor": prefetch, "persistent_workers": draft.persistent}
    return Side(dataset=dataset, loader=loader, dataloader=dataloader)
