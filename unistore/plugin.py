"""The one module to import from if you add a format, a family or a sample kind.

A package registers its classes as entry points::

    [project.entry-points."unistore.formats"]
    wav = "unistore_audio:Wav"

    [project.entry-points."unistore.families"]
    audio = "unistore_audio:Audio"

    [project.entry-points."unistore.kinds"]
    window = "unistore_audio:Window"

A `Format` opens a file as named arrays. A `Family` decides which arrays make a sample, and its `Schema`
describes the stores that are made of them. A `Kind` decides what a sample is when a store is read.
unistore does the rest: detection, conversion with many workers, checks, resuming, ``verify``, ``export``,
pages, and reading.

`unistore.testing` has checks for the test suite of such a package.
"""

from __future__ import annotations

from unistore.system.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
