"""The one import of whoever adds a format, a family or a kind of samples.

See `unistore.converters.plugin`. `Kind`, `Packed` and `Picks` are loaded with their first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from unistore.converters.plugin import *  # noqa: F403
from unistore.converters.plugin import __all__ as _of_conversion

if TYPE_CHECKING:
    from unistore.data.kinds.protocol import Kind  # noqa: F401
    from unistore.data.kinds.protocol import UnitPicks as Picks  # noqa: F401
    from unistore.data.packed import Packed  # noqa: F401

# Module of each name that reads stores, and its name there
_OF_READING = {
    "Kind": ("unistore.data.kinds.protocol", "Kind"),
    "Packed": ("unistore.data.packed", "Packed"),
    "Picks": ("unistore.data.kinds.protocol", "UnitPicks"),
}

__all__ = sorted([*_of_conversion, *_OF_READING])  # noqa: PLE0605


if not TYPE_CHECKING:  # or every misspelt name would pass for one of ours

    def __getattr__(name: str) -> object:
        if name not in _OF_READING:
            msg = f"module 'unistore.plugin' has no attribute {name!r}"
            raise AttributeError(msg)
        module, attribute = _OF_READING[name]
        value = getattr(import_module(module), attribute)
        globals()[name] = value
        return value
