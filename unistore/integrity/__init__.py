"""Stores held against their manifest, their schema and their sources, and mended from these."""

from unistore.integrity.receipt import Receipt
from unistore.integrity.repair import repair
from unistore.integrity.run import Verified, verify

__all__ = ["Receipt", "Verified", "repair", "verify"]
