"""The executor of a verification or repair."""

from __future__ import annotations

from unistore.conversion.executors.apart import Apart
from unistore.conversion.executors.processes import Processes


def make_executor(workers: int) -> Apart | Processes:
    """Return the executor for so many worker processes; 0: this process, and one for foreign libraries."""
    return Processes(workers, imports=("unistore.integrity.verify",)) if workers else Apart()
