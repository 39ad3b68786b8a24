"""CT windows in training configurations: JSON with ``dataset.name`` and ``dataset.args``."""

from __future__ import annotations

from typing import Any

from unistore.converters.config_keys import Keys, SampleKeys


def _read(keys: Keys) -> dict[str, Any]:
    window = keys.take("dataset.args.window_type", str)
    min_points = keys.take("dataset.args.min_points", int, least=0)
    max_points = keys.take("dataset.args.max_points", int, least=1)
    if min_points is not None and max_points is not None and min_points > max_points:
        keys.refuse(
            "dataset.args.min_points", f"is {min_points}, above dataset.args.max_points, {max_points}"
        )
    return {"window": window, "min_points": min_points, "max_points": max_points}


def _convert(keys: Keys) -> dict[str, Any]:
    """Options of the conversion: the window, and the resolution where a case has several volumes."""
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
