"""New locks and empty caches in forked children: a lock held at the fork is never released in the child."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Renewable(Protocol):
    """Has locks and caches."""

    def renew(self) -> None:
        """Replace every lock and drop every cache."""


_alive: weakref.WeakSet[Renewable] = weakref.WeakSet()


def renew_after_fork(renewable: Renewable) -> None:
    """Call ``renewable.renew()`` in every child forked while it lives."""
    _alive.add(renewable)


def _renew_all() -> None:
    for renewable in list(_alive):
        renewable.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
