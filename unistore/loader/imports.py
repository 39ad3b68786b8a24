"""Safe forks in processes whose other threads import: a child must not inherit a half-imported module.

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

IMPORT_TIMEOUT = 10.0
"""Seconds to wait for imports of other threads; one of them may itself wait for this thread."""


@contextmanager
def no_imports_running() -> Iterator[None]:
    """Context to fork in: no other thread is importing, and none can begin to.

    The child has to call `release_import_lock`.
    """
    deadline = time.monotonic() + IMPORT_TIMEOUT
    _imp.acquire_lock()
    while _others_import() and time.monotonic() < deadline:
        _imp.release_lock()
        time.sleep(0.001)
        _imp.acquire_lock()
    try:
        yield
    finally:
        _imp.release_lock()


def release_import_lock() -> None:
    """Release the import lock in a child that was forked inside `no_imports_running`."""
    if _imp.lock_held():
        _imp.release_lock()


def _others_import() -> bool:
    """Whether another thread holds the lock of a module; False where Python does not tell."""
    bootstrap: Any = getattr(importlib, "_bootstrap", None)
    locks = [reference() for reference in list(getattr(bootstrap, "_module_locks", {}).values())]
    return any(getattr(lock, "owner", None) not in (None, threading.get_ident()) for lock in locks)
