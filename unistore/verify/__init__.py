"""Stores held against their manifest, their schema and their sources, and mended from these."""

from unistore.verify.receipt import Receipt
from unistore.verify.repair import repair
from unistore.verify.run import Verified, verify

__all__ = ["Receipt", "Verified", "repair", "verify"]
