"""The converter of each family, called with its options."""

from __future__ import annotations

from functools import partial

from unistore.converters.families import converter_of
from unistore.converters.registry import get_family

ct, events, point_cloud, rows, spike, trajectory = (
    partial(converter_of, get_family(name))
    for name in ("ct", "events", "point_cloud", "rows", "spike", "trajectory")
)
