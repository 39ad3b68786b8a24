"""What a store of plain arrays holds: ``rows/<name>`` (N, …), all with the same N. A sample is one row."""

from __future__ import annotations

FAMILY_NAME = "rows"
TABLE = "rows"
