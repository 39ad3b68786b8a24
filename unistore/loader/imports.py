"""Forking beside threads that import: a child must not inherit a module that is half imported.

Python holds a lock for every module while it is being imported. A forked child inherits the locks that other
threads hold at this moment, and these threads are not there to let them go: its first import of such a module
never returns. numpy and torch import parts of themselves when first needed, so that a thread which merely
reads samples is enough.
"""

from __future__ import annotations

import _imp
import importlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["imports_settled", "let_import"]

PATIENCE = 10.0
"""Seconds that imports of other threads are waited for: one of them may be waiting for this thread."""


@contextmanager
def imports_settled() -> Iterator[None]:
    """Fork within: no other thread is in the middle of an import, and none begins one meanwhile.

    The child has to call `let_import`.
    """
    deadline = time.monotonic() + PATIENCE
    _imp.acquire_lock()
    while _others_import() and time.monotonic() < deadline:
        _imp.release_lock()
        time.sleep(0.001)
        _imp.acquire_lock()
    try:
        yield
    finally:
        _imp.release_lock()


def let_import() -> None:
    """Let all threads of a child import that was forked within `imports_settled`."""
    if _imp.lock_held():
        _imp.release_lock()


def _others_import() -> bool:
    """Whether another thread holds the lock of a module; False where Python does not tell."""
    bootstrap: Any = getattr(importlib, "_bootstrap", None)
    locks = [reference() for reference in list(getattr(bootstrap, "_module_locks", {}).values())]
    return any(getattr(lock, "owner", None) not in (None, threading.get_ident()) for lock in locks)
