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
    from rich.text import Text

# Interval at which bars in a notebook are drawn
_REFRESH_SECONDS = 0.2


# Interval of lines where there is no terminal, and least interval of those of steps in a log
REPORT_SECONDS = 30.0
_STEP_SECONDS = 1.0


@contextmanager
def resolve_progress(progress: Progress | bool | None) -> Iterator[Progress]:
    """Return the callbacks for the argument `progress` of a function; see `unistore.convert`."""
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
        message = f"must be True, False, None, or an object with begin, advance and tell, got {progress!r}"
        raise wrong_argument("progress", message)


def _in_notebook() -> bool:
    if "IPython" not in sys.modules:
        return False
    from rich.console import Console

    return Console().is_jupyter


class Stage:
    """How far a stage is, and how long it takes.

    `total` 0: nothing is counted.
    """

    def __init__(
        self, name: str, total: int, *, counts_bytes: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = name
        self.total = total
        self.counts_bytes = counts_bytes
        self.done = 0
        self._clock = clock
        self._began = clock()

    @property
    def seconds(self) -> float:
        """Return how long the stage has taken until now."""
        return self._clock() - self._began

    def amount(self, number: float) -> str:
        """Return bytes or a number of files as text: ``"2.0 MB"``, ``"1,200"``."""
        if self.counts_bytes:
            return size(number)
        return f"{number:,.0f}" if number >= 10 or number == int(number) else f"{number:.1f}"

    def line(self) -> str:
        """Return how far the stage is, its rate and the time left: ``"writing: 25 % of 2.0 MB, …"``."""
        seconds = self.seconds
        done = min(self.done, self.total)
        if done >= self.total:
            counted = f"{self.amount(self.total)}, " if self.total else ""
            return f"{self.name}: {counted}{duration(seconds)} so far"
        rate = done / seconds if seconds > 0 else 0.0
        left = f"{duration((self.total - done) / rate)} left" if rate else "nothing finished yet"
        share = f"{100 * done // self.total} % of {self.amount(self.total)}"
        return f"{self.name}: {share}, {self.amount(rate)}/s, {left}"


class _Reporter:
    """Calls a function every half minute, in a thread."""

    def __init__(self, report: Callable[[], None]) -> None:
        self._report = report
        self._left = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="unistore-progress", daemon=True).start()

    def stop(self) -> None:
        self._left.set()

    def _run(self) -> None:
        while not self._left.wait(REPORT_SECONDS):
            self._report()


class ProgressBar:
    """One bar for each stage: bytes done, MB/s, time left.

    Without a terminal, it prints a line for each stage, and progress every half minute. After an error or
    Ctrl-C, the bar of the last stage stays. Bars of stages that count files go when the stage ends.

    Parameters
    ----------
    quiet : bool, default False
        Show only messages.
    verbose : bool, default False
        Print how long each stage took.
    console : callable, optional
        Returns the console of rich to draw on. None: one on standard error.
    """

    def __init__(
        self,
        *,
        # show nothing but `tell`; print how long each stage took
        quiet: bool = False,
        verbose: bool = False,
        # returns the console of rich to draw on; None: one on standard error
        console: Callable[[], Console] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._quiet = quiet
        self._verbose = verbose
        self._clock = clock
        self._notebook: Any = None
        self._bars: Bars | None = None
        if not quiet and _in_notebook():
            from IPython.display import display

            self._bars = _bars(None)
            self._notebook = display(self._bars, display_id=True)
        elif not quiet and sys.stderr.isatty():
            self._bars = _bars(console)
        self._task: TaskID | None = None
        self._stage: Stage | None = None
        self._drawn = 0.0
        self._reporter = _Reporter(self.report)

    def __enter__(self) -> Self:
        if self._bars is not None and self._notebook is None:
            self._bars.start()
        if self._bars is None and not self._quiet:
            self._stage = Stage("starting", 0, counts_bytes=False, clock=self._clock)
            self._reporter.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._reporter.stop()
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
        self._begin(Stage(stage, total, clock=self._clock))
        if self._bars is None and not self._quiet:
            self.tell(f"{stage} {size(total)}")

    def begin_items(self, stage: str, total: int) -> None:
        """Begin a stage of `total` files or sources, 0 if nothing is counted."""
        self._begin(Stage(stage, total, counts_bytes=False, clock=self._clock))

    def _begin(self, stage: Stage) -> None:
        self._end()
        self._stage = stage
        if self._bars is not None:
            total = stage.total if stage.total or stage.counts_bytes else None
            self._task = self._bars.add_task(stage.name, total=total, stage=stage)
            self._draw(now=True)

    def advance(self, amount: int) -> None:
        """Count `amount` more bytes, or files, as done."""
        if self._stage is not None:
            self._stage.done += amount
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

    def report(self) -> None:
        """Print how far the stage is."""
        if self._stage is not None:
            self.tell(self._stage.line())

    def _end(self) -> None:
        stage = self._stage
        if stage is None:
            return
        if self._verbose and stage.counts_bytes:
            seconds = stage.seconds
            rate = f"{size(stage.total / seconds)}/s" if seconds else ""
            self.tell(f"{stage.name}: {size(stage.total)} in {seconds:.2f} s, {rate}")
        if self._bars is not None and self._task is not None and not stage.counts_bytes:
            self._bars.remove_task(self._task)
        self._stage = None
        self._task = None

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
    """Writes one JSON object a line to standard error for each stage, step and message.

    Stages that count files, as scanning, have lines only if they take half a minute.
    """

    def __init__(self, store: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._stage = Stage("", 0, clock=clock)
        self._waiting = 0  # bytes of steps that no line has
        self._written = clock()
        self._reporter = _Reporter(self.report)

    def __enter__(self) -> Self:
        self._reporter.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._reporter.stop()
        self._end(None if kind is None else kind.__name__)

    def begin(self, stage: str, total: int) -> None:
        """Begin a stage of `total` bytes."""
        self._end(None)
        self._stage = Stage(stage, total, clock=self._clock)
        self._write("begin")

    def begin_items(self, stage: str, total: int) -> None:
        """Begin a stage of `total` files or sources, 0 if nothing is counted."""
        self._end(None)
        self._stage = Stage(stage, total, counts_bytes=False, clock=self._clock)

    def advance(self, amount: int) -> None:
        """Count `amount` more bytes as done, and write a line of them once a second at most."""
        self._stage.done += amount
        self._waiting += amount
        is_due = self._clock() >= self._written + _STEP_SECONDS
        if self._stage.counts_bytes and (is_due or self._stage.done >= self._stage.total):
            self._write_step()

    def tell(self, line: str) -> None:
        """Write a message."""
        self._write("message", message=line)

    def report(self) -> None:
        """Write how far the stage is."""
        if self._stage.name:
            self._write("progress", message=self._stage.line())

    def _write_step(self) -> None:
        self._write("step", step_bytes=self._waiting)
        self._waiting = 0
        self._written = self._clock()

    def _end(self, error: str | None) -> None:
        stage = self._stage
        if stage.name and (stage.counts_bytes or error):
            if self._waiting and stage.counts_bytes:
                self._write_step()
            counts = {name: COUNTS[name] for name in ("retries", "cache_hits", "waited_ms")}
            self._write("end", seconds=round(stage.seconds, 3), error=error, **counts)
        self._stage = Stage("", 0, clock=self._clock)
        self._waiting = 0

    def _write(self, event: str, **fields: object) -> None:
        stage = self._stage
        record = {"time": round(time.time(), 3), "event": event, "store": self._store, "stage": stage.name}
        if stage.counts_bytes:
            record |= {"bytes": stage.done, "total_bytes": stage.total}
        else:
            record |= {"items": stage.done, "total_items": stage.total}
        print(json.dumps(redact_urls({**record, **fields})), file=sys.stderr, flush=True)


def _bars(console: Callable[[], Console] | None) -> Bars:
    # Importing rich takes as long as converting a small file
    from rich import progress as rich
    from rich.console import Console
    from rich.text import Text

    class Amount(rich.DownloadColumn):
        """What is done of a stage, in bytes or files."""

        def render(self, task: rich.Task) -> Text:
            stage: Stage = task.fields["stage"]
            if stage.counts_bytes:
                return super().render(task)
            text = f"{stage.amount(task.completed)}/{stage.amount(stage.total)}" if stage.total else ""
            return Text(text, style="progress.download")

    class Rate(rich.TransferSpeedColumn):
        """Bytes or files a second."""

        def render(self, task: rich.Task) -> Text:
            stage: Stage = task.fields["stage"]
            speed = task.finished_speed or task.speed
            if stage.counts_bytes or speed is None:
                return super().render(task) if stage.counts_bytes else Text("")
            return Text(f"{stage.amount(speed)}/s", style="progress.data.speed")

    return rich.Progress(
        rich.TextColumn("{task.description:<8}"),
        rich.BarColumn(),
        Amount(),
        Rate(),
        rich.TimeRemainingColumn(),
        console=Console(stderr=True) if console is None else console(),
    )
