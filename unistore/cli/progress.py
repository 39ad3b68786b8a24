"""Progress bars on standard error."""

from __future__ import annotations

import sys
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from unistore.cli.output import safe

__all__ = ["ProgressBar"]


class ProgressBar:
    """One bar per stage on standard error: bytes done, rate, time left; without a terminal, one line."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description:<8}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, stage: str, total: int) -> None:
        """A stage of `total` bytes begins."""
        self._task = self._progress.add_task(stage, total=total)
        if not self._console.is_terminal:
            print(f"{stage} {total / 1e6:.1f} MB", file=sys.stderr)

    def advance(self, amount: int) -> None:
        """`amount` more bytes are done."""
        if self._task is not None:
            self._progress.advance(self._task, amount)

    def tell(self, line: str) -> None:
        """Print a line above the bar."""
        self._console.print(safe(line), markup=False, highlight=False, soft_wrap=True)
