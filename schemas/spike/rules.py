"""Value rules of spike recordings: none beyond those of every store."""

from __future__ import annotations

from unistore.schemas.rules import Rule

__all__ = ["RULES"]

RULES: tuple[Rule, ...] = ()
