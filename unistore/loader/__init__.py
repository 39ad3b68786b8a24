"""The loader: batches that workers prepare in shared memory, in an order that can be resumed."""

from __future__ import annotations

from unistore.errors import LoaderError, SampleError, WorkerDiedError
from unistore.loader.loader import Loader

__all__ = ["Loader", "LoaderError", "SampleError", "WorkerDiedError"]
