"""The parent's side of a worker process: its start, its configuration, its exit."""

from __future__ import annotations

import contextlib
import pickle
import signal
import warnings
from multiprocessing.context import BaseContext
from typing import Any

from unistore.errors import LoaderError
from unistore.loader.channel import open_channel
from unistore.loader.imports import no_imports_running
from unistore.loader.production import Request
from unistore.loader.wire import Message, encode
from unistore.loader.worker import WorkerConfig, main
from unistore.memory.segments import Arena, SharedGrowth
from unistore.memory.slabs import Slab


class WorkerProcess:
    """A worker process, its channel, and the tasks and slabs that it has."""

    def __init__(self, number: int, context: BaseContext, inherited: WorkerConfig | None) -> None:
        self.number = number
        self.channel, theirs = open_channel()
        self.known: set[int] = set()
        self.forget: list[int] = []
        self.tasks: dict[tuple[int, int], Request] = {}
        self.lent: dict[int, Slab] = {}
        self.queued = 0
        process: Any = context.Process(  # type: ignore[attr-defined]
            target=main, args=(number, theirs, inherited), name=f"unistore-loader-{number}", daemon=True
        )
        self.process = process
        try:
            with warnings.catch_warnings():
                # Python 3.12 warns of forking while other threads run; workers touch nothing that these hold
                warnings.filterwarnings("ignore", message=".*use of fork", category=DeprecationWarning)
                with no_imports_running() if inherited is not None else contextlib.nullcontext():
                    process.start()
        except BaseException:
            self.channel.close()
            raise
        finally:
            theirs.close()


def encode_config(config: WorkerConfig, growth: SharedGrowth) -> Message | None:
    """Pickle a WorkerConfig into shared memory, once for all workers; None if it cannot be pickled so.

    multiprocessing would copy them through a pipe to each worker, and wait for ever where a large dataset is
    sent to a worker that has already died. Only what may be sent in no other way (locks, queues, sockets)
    goes there.
    """
    try:
        return encode(config, Arena(None, growth))
    except BaseException as error:
        growth.close()
        growth.sizes.clear()
        if isinstance(error, RuntimeError):
            return None
        if isinstance(error, (pickle.PicklingError, AttributeError, TypeError)):
            msg = (
                "dataset, collate_fn or worker_init_fn cannot be sent to a worker that is not forked: "
                f"{error}; define functions and classes at the top of a module"
            )
            raise LoaderError(msg) from error
        raise


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
