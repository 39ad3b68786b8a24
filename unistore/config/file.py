"""Training configuration files, as arguments of `Dataset` and of loaders.

Two formats are read: YAML with ``SEED``, ``DATA.*``, ``DATALOADER.*``, ``TRAIN.*``, and JSON with
``dataset.name`` and ``dataset.args``. Each family declares the keys that describe its samples (`SampleKeys`).

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
from unistore.system.workers import WorkerPlan, announce, environment_number, plan

_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Keyword arguments for training or for validation.

    Attributes
    ----------
    dataset
        Of `unistore.Dataset`; without ``path`` if neither the file nor the caller names a store.
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
    """Arguments from a configuration file.

    Attributes
    ----------
    train, validation
        Arguments of each side; validation is None if the file has no key for it.
    workers
        Numbers of workers, and their reason.
    seed
        Seed of datasets and loaders.
    conversion
        Options to convert the store with: ``unistore.convert(sources, store, "spike", **config.conversion)``.
    unused
        Dotted keys without effect, in the file's order: those of the training itself, and those that a store
        makes needless (caches of converted voxels, precomputing).
    """

    train: Side
    validation: Side | None
    workers: WorkerPlan
    seed: int
    conversion: Mapping[str, Any] = field(default_factory=dict)
    unused: tuple[str, ...] = ()

    def __str__(self) -> str:
        sides = {"training": self.train, "validation": self.validation}
        parts = {name: {**side.dataset, **side.loader} for name, side in sides.items() if side is not None}
        lines = [self.workers.reason]
        for name, arguments in {**parts, "conversion": self.conversion}.items():
            # a path may be a URL with a password
            told = [f"{key}={value!r}" for key, value in arguments.items() if key != "path"]
            lines += [f"{name}: {', '.join(told)}"] if told else []
        return "\n".join([*lines, *([f"not used here: {', '.join(self.unused)}"] if self.unused else [])])


@dataclass(slots=True)
class _Settings:
    """Settings that both formats are read into."""

    path: str | None = None
    samples: SampleKeys | None = None
    """Kind of samples; None if the file does not name one."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Arguments of the kind of samples."""
    conversion: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    splits: tuple[str | None, str | None] = (None, None)
    """Of training and of validation, as the other pairs."""
    batches: tuple[int, int] = (1, 1)
    prefetch: tuple[int, int] = (4, 2)
    side_workers: tuple[str | int | None, str | int | None] = (None, None)
    validates: bool = False
    workers: str | int = "auto"
    most_workers: int | None = None
    """Training workers of a rank that the file's own trainer never exceeds by itself."""
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
    """Read a configuration file; what it comes to is printed to standard error, by rank 0.

    Parameters
    ----------
    path
        YAML or JSON file.
    store
        Path of the store, instead of ``DATA.ROOT`` or ``dataset.args.roots``, which may still name the source
        files.
    ranks
        Training processes on this machine; None: ``LOCAL_WORLD_SIZE`` of the environment, else 1.
    samples
        Samples of the training set, if known: few samples get few workers.
    cores
        Usable cores; None: detect them.

    Raises
    ------
    InputError
        If the file cannot be read or parsed, or keys have a wrong type or contradict each other; lists all of
        them.
    """
    check = Arguments()
    check.path("path", path)
    check.path("store", store, none=True)
    check.raise_problems()
    keys = read_keys(Path(path))
    settings = _read_json(keys) if keys.has("dataset.name", "dataset.args") else _read_yaml(keys)
    if store is not None:
        settings.path = os.fspath(store)
    count = environment_number("LOCAL_WORLD_SIZE", 1) if ranks is None else ranks
    workers = _plan_workers(settings, keys, count, samples, cores)
    if keys.problems or workers is None:
        raise InputError(keys.problems)
    found = Config(
        train=_side(settings, 0, workers.train),
        validation=_side(settings, 1, workers.validation) if settings.validates else None,
        workers=workers,
        seed=settings.seed,
        conversion=settings.conversion,
        unused=keys.unused,
    )
    announce(str(found))
    return found


def _read_yaml(keys: Keys) -> _Settings:
    def count(key: str, default: int) -> int:
        return int(keys.take(key, int, default, least=1))

    settings = _Settings(
        path=keys.take("DATA.ROOT", str),
        seed=keys.take("SEED", int, 0, least=0),
        splits=(keys.take("DATA.TRAIN_SPLIT", str), keys.take("DATA.VAL_SPLIT", str)),
        validates=keys.has("DATA.VAL_SPLIT", "TRAIN.VAL_BATCH_SIZE", "DATALOADER.VAL_WORKERS"),
        batches=(count("TRAIN.BATCH_SIZE", 1), count("TRAIN.VAL_BATCH_SIZE", 1)),
        prefetch=(count("DATALOADER.TRAIN_PREFETCH_FACTOR", 4), count("DATALOADER.VAL_PREFETCH_FACTOR", 2)),
        pin_memory=keys.take("DATALOADER.PIN_MEMORY", bool, default=False),
        persistent=keys.take("DATALOADER.PERSISTENT_WORKERS", bool, default=False),
    )
    if settings.splits[0] is not None and settings.splits[0] == settings.splits[1]:
        keys.refuse("DATA.VAL_SPLIT", f"is {settings.splits[0]!r}, the same as DATA.TRAIN_SPLIT")
    if keys.take("DATA.USE_RAM_CACHE", bool, default=False):
        gibibytes = keys.take("DATA.CACHE_SIZE_GB", float, least=0)
        settings.cache = "all" if gibibytes is None else round(gibibytes * _GIB)
    _read_workers(settings, keys)
    found = {name: each for name, each in _sample_keys().items() if keys.has(*each.keys)}
    if found:
        key = next(key for each in reversed(found.values()) for key in each.keys if keys.has(key))
        _take_samples(settings, found, keys, key)
    return settings


def _take_samples(settings: _Settings, found: Mapping[str, SampleKeys], keys: Keys, key: str) -> None:
    """Read the keys of the only family in `found`; a second family is a problem of `key`."""
    if len(found) > 1:
        keys.refuse(key, f"the file describes samples of {' and of '.join(found)}")
    settings.samples = next(iter(found.values()))
    settings.arguments, settings.conversion = (
        {name: value for name, value in read(keys).items() if value is not None}
        for read in (settings.samples.read, settings.samples.convert)
    )


def _sample_keys() -> dict[str, SampleKeys]:
    """Configuration keys of each family; warns about other packages' families that cannot be imported."""
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


def _read_workers(settings: _Settings, keys: Keys) -> None:
    old, total = keys.workers("DATALOADER.NUM_WORKERS"), keys.workers("DATALOADER.TOTAL_WORKERS")
    train, validation = keys.workers("DATALOADER.TRAIN_WORKERS"), keys.workers("DATALOADER.VAL_WORKERS")
    if old is not None and (total is not None or train is not None):
        keys.refuse("DATALOADER.NUM_WORKERS", "is given together with newer keys for the number of workers")
        old = None
    settings.side_workers = (train if old is None else old, validation)
    settings.workers = "auto" if total is None else total
    if settings.persistent and str(settings.side_workers[0]).strip() == "0":
        keys.refuse("DATALOADER.PERSISTENT_WORKERS", "is true, but there are no training workers to persist")


def _read_json(keys: Keys) -> _Settings:
    settings = _Settings(most_workers=8)
    name = keys.take("dataset.name", str, "")
    known = _sample_keys()
    found = {family: each for family, each in known.items() if name in each.datasets}
    if found:
        _take_samples(settings, found, keys, "dataset.name")
    else:
        expected = dict.fromkeys(dataset for each in known.values() for dataset in each.datasets)
        keys.refuse("dataset.name", f"is {name!r}, expected {' or '.join(expected)}", "value")
    if keys.take("dataset.args.cache_data", bool, default=False):
        settings.cache = "all"
    settings.path = keys.take("dataset.args.roots", str)
    settings.batches = (keys.take("trainer.args.batch_size_per_gpu", int, 1, least=1), 1)
    return settings


def _plan_workers(
    settings: _Settings, keys: Keys, ranks: int, samples: int | None, cores: float | None
) -> WorkerPlan | None:
    """Workers of this rank; the file's number for a side goes before its share of the total."""
    try:
        found = plan(settings.workers, ranks, samples, validation=settings.validates, cores=cores, quiet=True)
        train, validation = (_side_workers(asked, ranks, cores) for asked in settings.side_workers)
    except InputError as error:
        keys.problems += error.problems
        return None
    most = settings.most_workers
    if most is not None and found.train > most:
        found = replace(found, train=most, reason=f"{found.reason}, of which {most} are enough")
    if train is None and validation is None:
        return found
    train = found.train if train is None else train
    validation = found.validation if validation is None else validation
    if str(settings.workers).strip().isdigit() and train * ranks > max(found.total, ranks):
        needed = f"{ranks} × {train} training workers"
        keys.refuse("DATALOADER.TOTAL_WORKERS", f"is {found.total}, less than {needed}")
    reason = f"loader workers of each rank, from the file: {train} train + {validation} validation"
    return replace(found, train=train, validation=validation, reason=reason)


def _side_workers(asked: str | int | None, ranks: int, cores: float | None) -> int | None:
    """Workers of one rank: a number is each rank's, a part of the cores is shared; None: not given."""
    text = str(asked).strip().lower()
    if asked is None or text == "auto":
        return None
    return plan(asked, 1 if text.isdigit() else ranks, cores=cores, quiet=True).train


def _side(settings: _Settings, at: int, workers: int) -> Side:
    """Arguments for training (`at` is 0) or for validation (1)."""
    train, split, prefetch = at == 0, settings.splits[at], settings.prefetch[at]
    dataset: dict[str, Any] = {"seed": settings.seed}
    dataset |= {} if settings.path is None else {"path": settings.path}
    if settings.samples is not None:
        random = {"random": train} if settings.samples.draws else {}
        dataset["samples"] = resolve(settings.samples.kind)(**settings.arguments, **random)
        dataset |= {"names": settings.samples.names} if settings.samples.names else {}
    dataset |= {} if split is None else {"split": split}
    both: dict[str, Any] = {"batch_size": settings.batches[at], "shuffle": train}
    both |= {"pin_memory": settings.pin_memory, "num_workers": workers}
    loader: dict[str, Any] = {**both, "seed": settings.seed, "prefetch_factor": prefetch}
    loader |= {} if settings.cache is None else {"cache": settings.cache}
    processes = {"prefetch_factor": prefetch, "persistent_workers": settings.persistent}
    return Side(dataset=dataset, loader=loader, dataloader=both | (processes if workers > 0 else {}))
