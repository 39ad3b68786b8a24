"""Arguments of `Dataset` and loaders from training configuration files."""

from __future__ import annotations

from unistore.config.file import Config, Side, load

__all__ = ["Config", "Side", "load"]
