"""Training configurations that users have, as arguments of `Dataset` and of loaders."""

from __future__ import annotations

from unistore.config.file import Config, Side, load

__all__ = ["Config", "Side", "load"]
