"""Value rules of plain arrays: none beyond those of every store, since any number may stand in a row."""

from __future__ import annotations

from unistore.schemas.rules import Rule

__all__ = ["RULES"]

RULES: tuple[Rule, ...] = ()
