"""What a worker process of ``--workers N`` does: one step after the other, each answered with its outcome."""

from __future__ import annotations

import os
import pickle
import select
import threading
import traceback
from multiprocessing.connection import Connection
from typing import Any

from unistore.conversion.executors.local import do_sent
from unistore.conversion.job import Outcome
from unistore.errors import UnistoreError


def work(connection: Connection) -> None:
    """Do the steps that come through the connection, until the converter hangs up.

    A message is the pickled job (None: that of the message before) and what `sent_item` gave; its answer is
    the pickled outcome, or the exception that the step raised.
    """
    threading.Thread(target=_exit_at_hangup, args=(connection.fileno(),), daemon=True).start()
    job: Any = None
    while True:
        try:
            pickled, item = pickle.loads(connection.recv_bytes())  # noqa: S301  from our converter
        except (EOFError, ConnectionError):
            return
        try:
            if pickled is not None:
                job = pickle.loads(pickled)  # noqa: S301
            answer: Outcome | Exception = do_sent(job, item)
        except Exception as error:  # noqa: BLE001  the converter raises it
            answer = error
        try:
            connection.send_bytes(_pickled(answer))
        except ConnectionError:
            return


def _exit_at_hangup(descriptor: int) -> None:
    """End this process, whatever it is doing, when the converter hangs up."""
    poll = select.poll()
    poll.register(descriptor, 0)
    poll.poll()
    os._exit(1)


def _pickled(answer: Outcome | Exception) -> bytes:
    """An answer as bytes; an exception that does not survive the way is replaced by its words."""
    if isinstance(answer, Outcome):
        return pickle.dumps(answer)
    import cloudpickle

    trace = f"in a worker process:\n{''.join(traceback.format_exception(answer))}"
    if not isinstance(answer, UnistoreError):
        answer.add_note(trace)
    try:
        pickled: bytes = cloudpickle.dumps(answer)
        pickle.loads(pickled)  # noqa: S301  our own
    except Exception:  # noqa: BLE001  it may be of any kind
        return pickle.dumps(RuntimeError(f"{type(answer).__name__}: {answer}\n{trace}"))
    return pickled
