"""What dask logs of its own is kept off the terminal: what matters of it is told in our words."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

_LOGGERS = ("distributed", "tornado", "asyncio")
_SILENCE = logging.CRITICAL + 1


@contextmanager
def silent() -> Iterator[None]:
    """Have dask and the event loop below it log nothing meanwhile.

    Levels are set on the loggers, not on their handlers: several of dask's loggers have a level and a handler
    of their own.
    """
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    loggers += [
        logger
        for name, logger in logging.root.manager.loggerDict.items()
        if name.startswith(tuple(f"{tree}." for tree in _LOGGERS)) and isinstance(logger, logging.Logger)
    ]
    before = [(logger, logger.level) for logger in loggers]
    for logger in loggers:
        logger.setLevel(_SILENCE)
    try:
        yield
    finally:
        for logger, level in before:
            logger.setLevel(level)
