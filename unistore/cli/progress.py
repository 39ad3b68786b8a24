"""Progress on a terminal: bytes, rate, time left. A line a stage when piped."""

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

__all__ = ["Bar"]


class Bar:
    """A bar a stage on standard error: what is done, MB/s, time left.

    Without a terminal it prints one line a stage, so that logs stay readable.
    """

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
        """So many more bytes are done."""
        if self._task is not None:
            self._progress.advance(self._task, amount)

    def tell(self, line: str) -> None:
        """Print a line above the bar."""
        self._console.print(safe(line), markup=False, highlight=False, soft_wrap=True)
