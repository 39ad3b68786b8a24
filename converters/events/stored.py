"""What a store of recordings gives back: files, their comparison, pictures."""

from __future__ import annotations

from unistore.converters.events.family import EventsFamily
from unistore.converters.seam.record import stored_parts

_PARTS = stored_parts(EventsFamily)
export = _PARTS["export"]
restore = _PARTS["restore"]
PREVIEW = _PARTS["preview"]
