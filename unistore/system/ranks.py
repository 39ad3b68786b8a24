"""The rank of this process: as given, of ``torch.distributed``, or of the environment."""

from __future__ import annotations

import os
import sys

from unistore.system.arguments import Arguments
from unistore.system.workers import environment_number


def resolve_ranks(check: Arguments, rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return rank and number of ranks; what is wrong with them is noted in `check`.

    If both are None, they are those of ``torch.distributed`` where it is initialised, else ``RANK`` and
    ``WORLD_SIZE``, else 0 of 1.
    """
    problems = len(check.problems)
    check.integer("rank", rank, none=True)
    check.integer("world_size", world_size, 1, none=True)
    if len(check.problems) > problems:
        return 0, 1
    if rank is None and world_size is None:
        return _surrounding_ranks(check)
    return _checked(check, rank or 0, world_size or 1)


def _checked(check: Arguments, rank: int, world_size: int) -> tuple[int, int]:
    if not 0 <= rank < world_size:
        check.refuse("rank", f"rank {rank} of {world_size}: must be at least 0 and below")
    return int(rank), int(world_size)


def _surrounding_ranks(check: Arguments) -> tuple[int, int]:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return 0, 1
    rank = environment_number("RANK", 0, least=0)
    return _checked(check, rank, environment_number("WORLD_SIZE", 1))
