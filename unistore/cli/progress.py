"""Progress bars on standard error."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Self

from unistore.cli.output import OUTPUT, console, safe, say
from unistore.system.sizes import size

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["ProgressBar"]


class ProgressBar:
    """A bar a stage on standard error: what is done, MB/s, time left.

    Without a terminal it prints one line a stage, so that logs stay readable; with ``--verbose`` another
    one when it is done, with ``--quiet`` none. After an error or Ctrl-C the bar of the last stage stays.
    """

    def __init__(self) -> None:
        self._progress = None if OUTPUT.quiet or not sys.stderr.isatty() else _progress()
        self._task: TaskID | None = None
        self._stage, self._total, self._began = "", 0, 0.0

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._end()
        if self._progress is not None:
            if kind is not None:
                for task in self._progress.task_ids[:-1]:
                    self._progress.remove_task(task)
            self._progress.stop()

    def begin(self, stage: str, total: int) -> None:
        """A stage of `total` bytes begins."""
        self._end()
        self._stage, self._total, self._began = stage, total, time.perf_counter()
        if self._progress is not None:
            self._task = self._progress.add_task(stage, total=total)
        elif not OUTPUT.quiet:
            say(f"{stage} {size(total)}", err=True)

    def advance(self, amount: int) -> None:
        """`amount` more bytes are done."""
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task, amount)

    def _end(self) -> None:
        """Say how long a stage took, where that is asked for."""
        if OUTPUT.verbose and self._stage:
            seconds = time.perf_counter() - self._began
            rate = f"{size(self._total / seconds)}/s" if seconds else ""
            self.tell(f"{self._stage}: {size(self._total)} in {seconds:.2f} s, {rate}")

    def tell(self, line: str) -> None:
        """Print a line above the bar."""
        if self._progress is None:
            say(line, err=True)
        else:
            self._progress.console.print(safe(line), markup=False, highlight=False, soft_wrap=True)


def _progress() -> Progress:
    """Rich's bar; importing rich takes as long as converting a small file."""
    from rich import progress as rich

    columns = (rich.BarColumn, rich.DownloadColumn, rich.TransferSpeedColumn, rich.TimeRemainingColumn)
    name = rich.TextColumn("{task.description:<8}")
    return rich.Progress(name, *(column() for column in columns), console=console(err=True))
