"""The one import of whoever adds a format, a family or a kind of samples.

A package declares what it adds by entry points::

    [project.entry-points."unistore.formats"]
    wav = "unistore_audio:Wav"

    [project.entry-points."unistore.families"]
    audio = "unistore_audio:Audio"

A `Format` opens a file as named arrays. A `Family` says which arrays make a sample, and its `Schema` says
what a store of them holds. unistore does the rest: detection, conversion by many workers, checks, resuming,
``verify``, ``export``, pictures, and reading.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unistore.converters.claims import Claim, maybe, no, sure
    from unistore.converters.family import API, Chosen, Column, Cut, Family, Group, Restored, Schema
    from unistore.converters.opened import Array, Facts, Format, Head, Opened, Origin, SourceFile, as_json
    from unistore.converters.options import option
    from unistore.converters.views import View, ViewLimits, rows_view
    from unistore.data.kinds.protocol import Kind
    from unistore.data.kinds.protocol import UnitPicks as Picks
    from unistore.data.packed import Packed
    from unistore.errors import AddOptions, InputError, Problem

__all__ = [
    "API",
    "AddOptions",
    "Array",
    "Chosen",
    "Claim",
    "Column",
    "Cut",
    "Facts",
    "Family",
    "Format",
    "Group",
    "Head",
    "InputError",
    "Kind",
    "Opened",
    "Origin",
    "Packed",
    "Picks",
    "Problem",
    "Restored",
    "Schema",
    "SourceFile",
    "View",
    "ViewLimits",
    "as_json",
    "maybe",
    "no",
    "option",
    "rows_view",
    "sure",
]

# Module of each name. It is imported with the first use of the name: help needs little of it
_MODULES = {
    **dict.fromkeys(
        ("API", "Chosen", "Column", "Cut", "Family", "Group", "Restored", "Schema"),
        "unistore.converters.family",
    ),
    **dict.fromkeys(
        ("Array", "Facts", "Format", "Head", "Opened", "Origin", "SourceFile"),
        "unistore.converters.opened",
    ),
    "as_json": "unistore.converters.opened",
    **dict.fromkeys(("Claim", "maybe", "no", "sure"), "unistore.converters.claims"),
    "option": "unistore.converters.options",
    **dict.fromkeys(("View", "ViewLimits", "rows_view"), "unistore.converters.views"),
    **dict.fromkeys(("Kind", "Picks"), "unistore.data.kinds.protocol"),
    "Packed": "unistore.data.packed",
    **dict.fromkeys(("AddOptions", "InputError", "Problem"), "unistore.errors"),
}
# Those that have another name in their module
_CALLED = {"Picks": "UnitPicks"}


if not TYPE_CHECKING:  # or every misspelt name would pass for one of ours

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            msg = f"module 'unistore.plugin' has no attribute {name!r}"
            raise AttributeError(msg)
        value = getattr(import_module(_MODULES[name]), _CALLED.get(name, name))
        globals()[name] = value
        return value
