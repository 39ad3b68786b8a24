"""Executors of tests that disturb the steps of a conversion."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from unistore.conversion.executors.local import Serial
from unistore.conversion.job import DeriveJob, ShardJob


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
