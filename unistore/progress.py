"""Progress bars in terminals and notebooks."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from unistore.errors import printable
from unistore.remote.url import redact_urls
from unistore.system.arguments import wrong_argument
from unistore.system.progress import COUNTS, NO_PROGRESS, Progress
from unistore.system.sizes import size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

# Interval at which bars in a notebook are drawn
_REFRESH_SECONDS = 0.2


# Interval of lines where there is no terminal
REPORT_SECONDS = 30.0


@contextmanager
def resolve_progress(progress: Progress | bool | None) -> Iterator[Progress]:
    """Return the callbacks of an argument, None for a bar in a terminal or notebook."""
    if progress is None:
        progress = sys.stderr.isatty() or _in_notebook()
    if isinstance(progress, bool):
        if not progress:
            yield NO_PROGRESS
            return
        with ProgressBar() as bar:
            yield bar
    elif all(callable(getattr(progress, name, None)) for name in ("begin", "advance", "tell")):
        yield progress
    else:
        message = f"must be True, False, None, or have begin, advance and tell, got {progress!r}"
        raise wrong_argument("progress", message)


def _in_notebook() -> bool:
    if "IPython" not in sys.modules:
        return False
    from rich.console import Console

    return Console().is_jupyter


class ProgressBar:
    """One bar for each stage: bytes done, MB/s, time left."""

    # Without a terminal it prints a line for each stage, and every half minute how far it is. After an error
    # or Ctrl-C the bar of the last stage stays

    def __init__(
        self,
        *,
        # show nothing but `tell`; print how long each stage took
        quiet: bool = False,
        verbose: bool = False,
        # returns the console of rich to draw on; None: one on standard error
        console: Callable[[], Console] | None = None,
    ) -> None:
        self._quiet = quiet
        self._verbose = verbose
        self._notebook: Any = None
        self._bars: Bars | None = None
        if not quiet and _in_notebook():
            from IPython.display import display

            self._bars = _bars(None)
            self._notebook = display(self._bars, display_id=True)
        elif not quiet and sys.stderr.isatty():
            self._bars = _bars(console)
        self._task: TaskID | None = None
        self._stage = ""
        self._total = 0
        self._done = 0
        self._began = 0.0
        self._drawn = 0.0
        self._left = threading.Event()

    def __enter__(self) -> Self:
        if self._bars is not None and self._notebook is None:
            self._bars.start()
        if self._bars is None and not self._quiet:
            threading.Thread(target=self._report, name="unistore-progress", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._left.set()
        if kind is None:
            self._end()
        if self._bars is None:
            return
        if kind is not None:
            for task in self._bars.task_ids[:-1]:
                self._bars.remove_task(task)
        self._draw(now=True)
        self._bars.stop()

    def begin(self, stage: str, total: int) -> None:
        """Begin a stage of `total` bytes."""
        self._end()
        self._stage = stage
        self._total = total
        self._done = 0
        self._began = time.perf_counter()
        if self._bars is not None:
            self._task = self._bars.add_task(stage, total=total)
            self._draw(now=True)
        elif not self._quiet:
            self.tell(f"{stage} {size(total)}")

    def advance(self, amount: int) -> None:
        """Count `amount` more bytes as done."""
        self._done += amount
        if self._bars is not None and self._task is not None:
            self._bars.advance(self._task, amount)
            self._draw()

    def tell(self, line: str) -> None:
        """Print a line above the bar."""
        safe = printable(redact_urls(line))
        if self._bars is None or self._notebook is not None:
            print(safe, file=sys.stderr)
        else:
            self._bars.console.print(safe, markup=False, highlight=False, soft_wrap=True)

    def _report(self) -> None:
        while not self._left.wait(REPORT_SECONDS):
            done = min(self._done, self._total)
            if self._stage and done < self._total:
                rate = done / (time.perf_counter() - self._began)
                left = f"{duration((self._total - done) / rate)} left" if rate else "nothing finished yet"
                share = f"{100 * done // self._total} % of {size(self._total)}"
                self.tell(f"{self._stage}: {share}, {size(rate)}/s, {left}")

    def _end(self) -> None:
        if self._verbose and self._stage:
            seconds = time.perf_counter() - self._began
            rate = f"{size(self._total / seconds)}/s" if seconds else ""
            self.tell(f"{self._stage}: {size(self._total)} in {seconds:.2f} s, {rate}")

    def _draw(self, *, now: bool = False) -> None:
        # Bars of a terminal are redrawn by a thread of rich
        if self._notebook is not None and (now or time.perf_counter() > self._drawn + _REFRESH_SECONDS):
            self._notebook.update(self._bars)
            self._drawn = time.perf_counter()


def duration(seconds: float) -> str:
    """Return a length of time as ``"40 s"``, ``"12 min"``, ``"3.5 h"``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


class JsonLog:
    """Writes one JSON object a line to standard error for each stage, step and message."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._stage = ""
        self._total = 0
        self._done = 0
        self._began = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end(None if kind is None else kind.__name__)

    def begin(self, stage: str, total: int) -> None:
        """Begin a stage of `total` bytes."""
        self._end(None)
        self._stage = stage
        self._total = total
        self._done = 0
        self._began = time.perf_counter()
        self._write("begin")

    def advance(self, amount: int) -> None:
        """Write that a step of so many bytes is done."""
        self._done += amount
        self._write("step", step_bytes=amount)

    def tell(self, line: str) -> None:
        """Write a message."""
        self._write("message", message=line)

    def _end(self, error: str | None) -> None:
        if self._stage:
            seconds = round(time.perf_counter() - self._began, 3)
            counts = {name: COUNTS[name] for name in ("retries", "cache_hits", "waited_ms")}
            self._write("end", seconds=seconds, error=error, **counts)
        self._stage = ""

    def _write(self, event: str, **fields: object) -> None:
        record = {"time": round(time.time(), 3), "event": event, "store": self._store, "stage": self._stage}
        record |= {"bytes": self._done, "total_bytes": self._total, **fields}
        print(json.dumps(redact_urls(record)), file=sys.stderr, flush=True)


def _bars(console: Callable[[], Console] | None) -> Bars:
    # Importing rich takes as long as converting a small file
    from rich import progress as rich
    from rich.console import Console

    columns = (rich.BarColumn, rich.DownloadColumn, rich.TransferSpeedColumn, rich.TimeRemainingColumn)
    return rich.Progress(
        rich.TextColumn("{task.description:<8}"),
        *(column() for column in columns),
        console=Console(stderr=True) if console is None else console(),
    )
