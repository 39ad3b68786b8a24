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
    right = check.integer("rank", rank, none=True)
    right &= check.integer("world_size", world_size, 1, none=True)
    if not right:
        return 0, 1
    if rank is None and world_size is None:
        rank, world_size = _surrounding_ranks()
    rank, world_size = rank or 0, 1 if world_size is None else world_size
    if not 0 <= rank < world_size:
        check.refuse("rank", f"rank {rank} of {world_size}: must be at least 0 and below")
    return int(rank), int(world_size)


def _surrounding_ranks() -> tuple[int, int]:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return environment_number("RANK", 0, least=0), environment_number("WORLD_SIZE", 1)
    return 0, 1
