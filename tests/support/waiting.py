"""How long tests wait: as long as a quiet machine needs, times how busy this one is.

A test has one limit (``timeout`` in pyproject.toml, or a mark), which `patience` stretches when it starts. So
processes, threads and answers are waited for without limits of their own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from unistore.system.machine import usable_cores

CORES = usable_cores()


def slowness() -> float:
    """Return how many runnable processes share a core that this process may use, at least 1."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return max(1.0, load / CORES)


def patience(seconds: float) -> float:
    """Return what a limit of so many seconds on a quiet machine is on this one."""
    return seconds * slowness()


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Wait until a condition holds; fail with `what` if it does not within a minute of a quiet machine."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < patience(60), what
        time.sleep(0.005)
