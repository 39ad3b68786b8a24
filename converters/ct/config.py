"""Points of CT windows in training configurations: JSON with ``dataset.name`` and ``dataset.args``."""

from __future__ import annotations

from typing import Any

from unistore.converters.config_keys import Keys, SampleKeys

__all__ = ["CONFIG"]


def _read(keys: Keys) -> dict[str, Any]:
    window = keys.take("dataset.args.window_type", str)
    least = keys.take("dataset.args.min_points", int, least=0)
    most = keys.take("dataset.args.max_points", int, least=1)
    if least is not None and most is not None and least > most:
        keys.refuse("dataset.args.min_points", f"is {least}, above dataset.args.max_points, {most}")
    return {"window": window, "min_points": least, "max_points": most}


def _convert(keys: Keys) -> dict[str, Any]:
    """Options of the conversion: the window to compute, and which of several volumes of a case to take."""
    window = keys.take("dataset.args.window_type", str)
    return {
        "window": None if window is None else (window,),
        "resolution": keys.take("dataset.args.resolution", int, least=1),
    }


CONFIG = SampleKeys(
    kind="unistore.data.kinds:SparsePoints",
    read=_read,
    convert=_convert,
    datasets=("CTWindowSparseSDF",),
)
