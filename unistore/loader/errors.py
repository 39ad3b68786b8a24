"""What goes wrong while loading.

::

    UnistoreError
    └── LoaderError                the loader cannot go on, or was used wrongly
        ├── SampleError            a sample could not be read; names it, its source, the worker's traceback
        └── WorkerDiedError        a worker process ended on its own
"""

from __future__ import annotations

from unistore.errors import UnistoreError

__all__ = ["LoaderError", "SampleError", "WorkerDiedError"]


class LoaderError(UnistoreError):
    """The loader cannot go on, or was used wrongly."""


class SampleError(LoaderError):
    """A sample, or the batch it belongs to, could not be made.

    The exception that the dataset raised is ``__cause__`` where it could be sent.

    Attributes
    ----------
    sample
        Index of the sample in the dataset, or None where only the whole batch fails.
    source
        Where the sample comes from, in the dataset's own words; empty where the dataset cannot tell.
    worker_traceback
        The traceback as the worker saw it.
    """

    def __init__(self, message: str, sample: int | None, source: str, worker_traceback: str) -> None:
        super().__init__(f"{message}\n\n{worker_traceback}" if worker_traceback else message)
        self.message = message
        self.sample = sample
        self.source = source
        self.worker_traceback = worker_traceback

    def __reduce__(self) -> tuple[type[SampleError], tuple[str, int | None, str, str]]:
        return type(self), (self.message, self.sample, self.source, self.worker_traceback)


class WorkerDiedError(LoaderError):
    """A worker process ended on its own: killed, out of memory, or crashed in native code."""
