"""Locks and caches are given up in a forked child, where a lock may have been copied held."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

__all__ = ["renew_after_fork"]


class Renewable(Protocol):
    """Something to renew in a forked child."""

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
