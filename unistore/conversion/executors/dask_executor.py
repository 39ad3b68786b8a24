"""Steps on an existing dask cluster: ``--scheduler``."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from unistore.conversion.executors.dask_cluster import DaskCluster
from unistore.conversion.executors.dask_logs import silent
from unistore.conversion.executors.flow import run_steps
from unistore.conversion.executors.local import Job, Outcome
from unistore.conversion.memory import PROCESS, largest_need
from unistore.errors import ConversionError, InputError
from unistore.remote.url import redact_url
from unistore.system.progress import NO_PROGRESS

if TYPE_CHECKING:
    from distributed import Client

T = TypeVar("T")

TIMEOUT = "20s"
"""How long a scheduler may take to answer."""


class Dask:
    """Run steps on the ``distributed`` workers of an existing cluster, one step at a time in each process.

    The connection is made with the first step and ends when this is left. A step of a lost worker runs again
    on another; one that the cluster gives up is reported with what it was.

    Parameters
    ----------
    scheduler
        Address (``"tcp://host:8786"``, or ``"tls://…"`` with the certificates of dask's configuration), the
        JSON file that ``dask scheduler --scheduler-file`` writes, or a `distributed.Client`, which is left
        open: for certificates of its own. Its workers see the same files.
    memory
        Bytes that this process and the steps at work at once may hold; None: not bounded.
    tell
        Told, in a line, what happens to workers.

    Raises
    ------
    InputError
        If the address carries a user, a password or a query, or the client is not connected.
    """

    def __init__(
        self,
        scheduler: str | Client,
        *,
        memory: int | None = None,
        tell: Callable[[str], None] = NO_PROGRESS.tell,
    ) -> None:
        from distributed import Client

        if isinstance(scheduler, Client):
            if scheduler.asynchronous or scheduler.status != "running":
                msg = f"scheduler={scheduler!r}: expected a client that is connected, and not asynchronous"
                raise InputError(msg)
        elif not isinstance(scheduler, str) or redact_url(scheduler) != scheduler:
            shown = redact_url(scheduler) if isinstance(scheduler, str) else repr(scheduler)
            msg = f"--scheduler {shown}: expected an address alone, as in tcp://host:8786"
            raise InputError(msg)
        self._scheduler = scheduler
        self._memory = memory
        self._tell = tell
        self._stack = ExitStack()
        self._client: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client = None
        self._stack.close()

    @property
    def workers(self) -> int:
        """Workers of the cluster now; see `Executor`."""
        return len(self._connect().scheduler_info(n_workers=-1)["workers"])

    def run(self, job: Job[T], items: Iterable[T]) -> Generator[tuple[T, Outcome], None, None]:
        """Yield every item with its outcome as it is done.

        Raises
        ------
        ConversionError
            If the cluster gave a step up (names the step), or the scheduler is gone.
        InputError
            If one step alone is more than `memory`, or the scheduler's address is none.
        """
        todo = list(items)
        if not todo:
            return
        largest_need(job, todo, self._memory)
        cluster = DaskCluster(self._connect(), self._tell)
        memory = None if self._memory is None else self._memory - PROCESS
        yield from run_steps(cluster, job, todo, memory)

    def _connect(self) -> Any:
        if self._client is not None:
            return self._client
        import dask
        from distributed import Client

        with ExitStack() as stack:
            stack.enter_context(dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TB"}))
            stack.enter_context(silent())
            try:
                client = self._scheduler
                if isinstance(client, str):
                    where = {"scheduler_file" if client.endswith(".json") else "address": client}
                    client = stack.enter_context(Client(**where, timeout=TIMEOUT, set_as_default=False))
            except OSError as error:
                msg = f"{self._scheduler}: no dask scheduler answers there; start one with 'dask scheduler'"
                raise ConversionError(msg) from error
            except TypeError as error:  # it has no certificates
                msg = (
                    f"--scheduler {self._scheduler}: needs certificates: set distributed.comm.tls in dask's "
                    "configuration, or give scheduler=distributed.Client(address, security=…) from Python"
                )
                raise InputError(msg) from error
            except ValueError as error:
                msg = f"--scheduler {self._scheduler}: expected an address, as in tcp://host:8786 ({error})"
                raise InputError(msg) from error
            self._client = client
            self._stack = stack.pop_all()
        return self._client
