"""Executors of tests that disturb the steps of a conversion."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from unistore.conversion.executors.local import Serial
from unistore.conversion.job import ShardJob
from unistore.conversion.spill import DeriveJob


class Disturbing(Serial):
    """Runs steps in this process, in order; `disturbed` those that derive sources and write shards."""

    def run(self, job: Any, items: Any) -> Any:
        """Run the steps of a job; those that scan and read samples are left alone."""
        if isinstance(job, DeriveJob) or (isinstance(job, ShardJob) and not job.reads_parts):
            return self.disturbed(job, items)
        return super().run(job, items)

    @abstractmethod
    def disturbed(self, job: Any, items: Any) -> Iterator[Any]:
        """Run the steps of a job."""


class Disturbed(Disturbing):
    """Does something before a step, once so many are done."""

    def __init__(self, after: int, disturb: Callable[[], object]) -> None:
        self._left = after
        self._disturb = disturb

    def disturbed(self, job: Any, items: Any) -> Iterator[Any]:
        for item in items:
            if self._left == 0:
                self._disturb()
            self._left -= 1
            yield item, job(item)


class Stopping(Disturbing):
    """Stands for Ctrl-C: stops once so many steps are done."""

    def __init__(self, after: int) -> None:
        self.left = after

    def disturbed(self, job: Any, items: Any) -> Iterator[Any]:
        for item, outcome in Serial().run(job, items):
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            yield item, outcome
