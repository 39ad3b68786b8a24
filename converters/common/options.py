"""Types and help texts of options that several families have."""

from __future__ import annotations

from typing import Literal

__all__ = ["COLUMNS", "MAP", "Columns"]

Columns = Literal["exact", "union", "intersection"]
"""What to do when sources have different columns: refuse, fill what is missing, take the common ones."""

COLUMNS = "What to do with fields that only some files have: refuse, fill, leave out."
MAP = "Where a field is, if its own name does not tell: x=cloud/East."
