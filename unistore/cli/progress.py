"""Progress bars on standard error."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Self

from unistore.cli.output import safe

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["ProgressBar"]


class ProgressBar:
    """One bar per stage on standard error: bytes done, rate, time left; without a terminal, one line."""

    def __init__(self) -> None:
        self._progress = _progress() if sys.stderr.isatty() else None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def begin(self, stage: str, total: int) -> None:
        """A stage of `total` bytes begins."""
        if self._progress is None:
            print(f"{stage} {total / 1e6:.1f} MB", file=sys.stderr)
        else:
            self._task = self._progress.add_task(stage, total=total)

    def advance(self, amount: int) -> None:
        """`amount` more bytes are done."""
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task, amount)

    def tell(self, line: str) -> None:
        """Print a line above the bar."""
        if self._progress is None:
            print(safe(line), file=sys.stderr)
        else:
            self._progress.console.print(safe(line), markup=False, highlight=False, soft_wrap=True)


def _progress() -> Progress:
    """Rich's bar; importing rich takes as long as converting a small file."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    return Progress(
        TextColumn("{task.description:<8}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
