"""Steps on dask: processes of this machine, or an existing cluster. The only module that imports dask."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

from unistore.errors import ConversionError
from unistore.execute.job import Outcome

__all__ = ["Dask"]

T = TypeVar("T")

LOSSES = 3
"""A step whose worker died this many times is given up."""


class Dask:
    """Run steps on ``distributed`` workers, one step at a time on each.

    Entered before use. A lost worker's steps run again elsewhere; a step that loses its worker three times
    is reported with what it was.

    Parameters
    ----------
    workers
        Single-threaded processes to start on this machine (when `scheduler` is None).
    scheduler
        Address of an existing cluster (``"tcp://host:8786"``) whose workers see the same files.
    """

    def __init__(self, workers: int, scheduler: str | None = None) -> None:
        self._workers = workers
        self._scheduler = scheduler

    def __enter__(self) -> Self:
        import dask
        from distributed import Client, LocalCluster

        self._configured = dask.config.set({"distributed.scheduler.allowed-failures": LOSSES - 1})
        self._configured.__enter__()
        self._cluster: Any = None
        if self._scheduler is None:
            self._cluster = LocalCluster(
                n_workers=self._workers,
                threads_per_worker=1,
                processes=True,
                dashboard_address=None,
                memory_limit=None,
                silence_logs=50,
            )
        try:
            self._client: Any = Client(self._cluster or self._scheduler, timeout="20s", set_as_default=False)
        except OSError as error:
            msg = f"{self._scheduler}: no dask scheduler answers there; start one with 'dask scheduler'"
            raise ConversionError(msg) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()
        if self._cluster is not None:
            self._cluster.close()
        self._configured.__exit__(kind, error, trace)

    def run(self, job: Callable[[T], Outcome], items: Iterable[T]) -> Iterator[tuple[T, Outcome]]:
        """Yield every item with its outcome as it is done.

        Raises
        ------
        ConversionError
            If a step lost its worker three times; names the step.
        """
        from distributed import KilledWorker, as_completed

        todo = list(items)
        if not todo:
            return
        scattered = self._client.scatter(job, broadcast=True, hash=False)
        futures = {
            self._client.submit(_step, scattered, item, pure=False, priority=-number): item
            for number, item in enumerate(todo)
        }
        try:
            for future in as_completed(list(futures), loop=self._client.loop):
                item = futures.pop(future)
                try:
                    outcome = future.result()
                except KilledWorker as error:
                    msg = f"{item}: its worker died {LOSSES} times (out of memory?); what was done is kept"
                    raise ConversionError(msg) from error
                future.release()
                yield item, outcome
        finally:
            for future in futures:
                future.cancel()


def _step(job: Callable[[T], Outcome], item: T) -> Outcome:
    return job(item)
