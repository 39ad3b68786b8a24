"""The number of loader workers: a share of the cores that this process may use."""

# A container's quota or a batch system's affinity mask may be well below ``os.cpu_count()``, and more
# workers than cores gain nothing. Few samples get few workers, as each costs a process with caches of its
# own

from __future__ import annotations

import math
import os
import re
import sys
from dataclasses import dataclass

from unistore.system.arguments import MAX_COUNT, MAX_EPOCH, MAX_WORKERS, Arguments, is_integer, wrong_argument
from unistore.system.machine import usable_cores

SHARE = 0.8  # Share of the usable cores that ``"auto"`` takes; the rest is for training itself
FEW_SAMPLES = ((50, 2), (201, 4))  # (samples, workers): with fewer samples, at most so many workers per rank

_FRACTION = re.compile(r"\s*cpu\s*\*\s*([0-9]{0,4}\.?[0-9]{1,9})\s*")


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """``num_workers`` of the loader of each rank, and the reason for it."""

    per_rank: int  # 0: read in the training process
    reason: str


def plan(
    # "auto": 0.8 of the usable cores. "cpu*0.9": that share. A number: the total, which is not reduced
    workers: str | int = "auto",
    ranks: int = 1,  # training processes on this machine; the total is split evenly between them
    # of the dataset, if known: below 50 at most 2 workers a rank, up to 200 at most 4, never more than
    # samples
    samples: int | None = None,
    *,
    cores: float | None = None,  # usable cores; None: detect them
) -> WorkerPlan:
    """Decide how many workers the loader of each rank gets."""
    check = Arguments()
    check.integer("ranks", ranks, 1)
    check.integer("samples", samples, most=MAX_EPOCH, none=True)
    check.number("cores", cores, none=True)
    check.raise_problems()
    usable = usable_cores() if cores is None else cores
    total, why = _total(workers, usable)
    per_rank = max(total // ranks, min(total, 1))
    steps = [why]
    if ranks > 1:
        steps.append(f"{per_rank} for each of {ranks} ranks")
    if samples is not None and isinstance(workers, str):
        most = max(1, samples // ranks)
        for bound, count in FEW_SAMPLES:
            if samples < bound:
                most = min(most, count)
        if most < per_rank:
            per_rank = most
            steps.append(f"{most} because there are only {samples} samples")
    return WorkerPlan(per_rank, ", ".join(steps))


def _total(workers: str | int, cores: float) -> tuple[int, str]:
    shown = f"{cores:g} usable cores"
    text = str(workers).strip().lower()
    if is_integer(workers) or re.fullmatch(r"[0-9]{1,9}", text):
        number = int(workers)
        check = Arguments()
        check.integer("num_workers", number, most=MAX_WORKERS)
        check.raise_problems()
        return number, f"{number} as asked{f', more than {shown}' if number > cores else ''}"
    match = _FRACTION.fullmatch(text)
    share = SHARE if text == "auto" else float(match[1]) if match else 0.0
    if share <= 0:
        message = f"must be a number, 'auto', or a share of the cores such as 'cpu*0.9', got {workers!r}"
        raise wrong_argument("num_workers", message)
    total = max(1, math.floor(cores * share + 1e-9))
    return total, f"{shown} × {share:g} = {total}"


def environment_number(name: str, default: int, least: int = 1) -> int:
    """Return an integer from an environment variable, or raise `InputError` if it is below `least`."""
    text = os.environ.get(name, str(default))
    if not (text.isascii() and text.isdigit() and least <= int(text[:20]) <= MAX_COUNT):
        message = f"is {text!r} in the environment, but a whole number of at least {least} is expected"
        raise wrong_argument(name, message, "set it to such a number, or unset it")
    return int(text)


def resolve_ranks(check: Arguments, rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return rank and number of ranks, and note in `check` what is wrong with them.

    None: from ``torch.distributed`` if it is initialised, otherwise from ``RANK`` and ``WORLD_SIZE``,
    otherwise 0 of 1.
    """
    is_rank = check.integer("rank", rank, none=True)
    is_size = check.integer("world_size", world_size, 1, none=True)
    if not (is_rank and is_size):
        return 0, 1
    if rank is None and world_size is None:
        return _surrounding_ranks(check)
    return _checked(check, rank or 0, world_size or 1)


def _checked(check: Arguments, rank: int, world_size: int) -> tuple[int, int]:
    if not 0 <= rank < world_size:
        check.refuse("rank", f"is {rank}, but with world_size={world_size} it must be 0 to {world_size - 1}")
    return int(rank), int(world_size)


def distributed_ranks() -> tuple[int, int] | None:
    """Return rank and number of ranks of ``torch.distributed``, or None if it is not initialised."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return None


def _surrounding_ranks(check: Arguments) -> tuple[int, int]:
    ranks = distributed_ranks()
    if ranks is not None:
        return ranks
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return 0, 1
    rank = environment_number("RANK", 0, least=0)
    return _checked(check, rank, environment_number("WORLD_SIZE", 1))
