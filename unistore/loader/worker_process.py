"""The parent's side of a worker process: its start, its configuration, its exit."""

from __future__ import annotations

import contextlib
import pickle
import signal
import warnings
from collections import deque
from multiprocessing.context import BaseContext
from typing import Any

from unistore.errors import LoaderError
from unistore.loader.channel import open_channel
from unistore.loader.production import BatchConfig, Request
from unistore.loader.wire import Message, encode
from unistore.loader.worker import main
from unistore.memory.segments import Arena, SharedGrowth
from unistore.memory.slabs import Slab


class WorkerProcess:
    """A worker process, its channel, and the tasks and slabs that it has.

    Attributes
    ----------
    sent
        Tasks that are not answered yet: their generation, and the request.
    lent
        Slabs by number.
    queued
        Bytes of indices in `sent`.
    """

    def __init__(self, number: int, context: BaseContext, inherited: BatchConfig | None) -> None:
        self.number = number
        self.channel, theirs = open_channel()
        self.sent: deque[tuple[int, Request]] = deque()
        self.lent: dict[int, Slab] = {}
        self.queued = 0
        self._mapped: set[int] = set()
        process: Any = context.Process(  # type: ignore[attr-defined]
            target=main, args=(number, theirs, inherited), name=f"unistore-loader-{number}", daemon=True
        )
        self.process = process
        try:
            with warnings.catch_warnings():
                # Python 3.12 warns of forking while other threads run; workers touch nothing that these hold
                warnings.filterwarnings("ignore", message=".*use of fork", category=DeprecationWarning)
                process.start()
        except BaseException:
            self.channel.close()
            raise
        finally:
            theirs.close()

    def lend(self, slab: Slab) -> list[int]:
        """Note that the worker has a slab; return its descriptor, unless the worker has mapped it."""
        self.lent[slab.number] = slab
        if slab.number in self._mapped or slab.descriptor is None:
            return []
        self._mapped.add(slab.number)
        return [slab.descriptor]

    def queue(self, generation: int, request: Request) -> None:
        """Note a task that is sent."""
        self.sent.append((generation, request))
        self.queued += request.indices.nbytes

    def dequeue(self) -> tuple[int, Request]:
        """Return the task that is answered."""
        generation, request = self.sent.popleft()
        self.queued -= request.indices.nbytes
        return generation, request


def encode_config(config: BatchConfig, growth: SharedGrowth) -> Message | None:
    """Pickle a BatchConfig into shared memory, once for all workers; None if it cannot be pickled so.

    multiprocessing would copy them through a pipe to each worker, and wait for ever where a large dataset is
    sent to a worker that has already died. Only what may be sent in no other way (locks, queues, sockets)
    goes there.
    """
    try:
        return encode(config, Arena(None, growth))
    except RuntimeError:
        growth.close()
        return None
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        msg = (
            "dataset, collate_fn or worker_init_fn cannot be sent to a worker that is not forked: "
            f"{error}; define functions and classes at the top of a module"
        )
        raise LoaderError(msg) from error


def describe_exit(code: int | None) -> str:
    """How a worker ended, from its exit code, with a cure."""
    if code is None:
        return "closed its socket and does not answer"
    if code < 0:
        name = f"signal {-code}"
        with contextlib.suppress(ValueError):
            name = signal.Signals(-code).name
        cure = "lower num_workers, prefetch_factor or batch_size"
        hint = f" (out of memory? {cure})" if name == "SIGKILL" else ""
        return f"was killed by {name}{hint}"
    return (
        f"ended by itself with exit code {code}; what it printed says why "
        "(under spawn and forkserver the dataset must be importable from the module that defines it)"
    )
