"""Progress bars on standard error."""

from __future__ import annotations

import time
from typing import Self

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from unistore.cli.output import SHOWN, console, safe, say
from unistore.system.sizes import size

__all__ = ["ProgressBar"]


class ProgressBar:
    """A bar a stage on standard error: what is done, MB/s, time left.

    Without a terminal it prints one line a stage, so that logs stay readable; with ``--verbose`` another
    one when it is done, with ``--quiet`` none. After an error or Ctrl-C the bar of the last stage stays.
    """

    def __init__(self) -> None:
        self._console = console(err=True)
        self._progress = Progress(
            TextColumn("{task.description:<8}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=SHOWN.quiet or not self._console.is_terminal,
        )
        self._task: TaskID | None = None
        self._stage, self._total, self._began = "", 0, 0.0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._end()
        else:
            for task in self._progress.task_ids[:-1]:
                self._progress.remove_task(task)
        self._progress.stop()

    def begin(self, stage: str, total: int) -> None:
        """A stage of `total` bytes begins."""
        self._end()
        self._stage, self._total, self._began = stage, total, time.perf_counter()
        self._task = self._progress.add_task(stage, total=total)
        if not (SHOWN.quiet or self._console.is_terminal):
            say(f"{stage} {size(total)}", err=True)

    def advance(self, amount: int) -> None:
        """`amount` more bytes are done."""
        if self._task is not None:
            self._progress.advance(self._task, amount)

    def _end(self) -> None:
        """Say how long a stage took, where that is asked for."""
        if SHOWN.verbose and self._stage:
            seconds = time.perf_counter() - self._began
            rate = f"{size(self._total / seconds)}/s" if seconds else ""
            self.tell(f"{self._stage}: {size(self._total)} in {seconds:.2f} s, {rate}")

    def tell(self, line: str) -> None:
        """Print a line above the bar."""
        self._console.print(safe(line), markup=False, highlight=False, soft_wrap=True)
