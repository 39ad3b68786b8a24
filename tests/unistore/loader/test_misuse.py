"""Loaders used by several threads and by forked children, and states that no run can have."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.needs_torch import needs_torch
from tests.support.programs import in_child
from tests.unistore.loader.conftest import Batched
from unistore.errors import LoaderError
from unistore.loader import Loader

OVER = "this iteration has ended"


@needs_torch
@pytest.mark.parametrize("workers", [0, 2])
def test_three_threads_share_one_iterator(workers: int) -> None:
    seen: list[int] = []
    with Loader(Batched(800), 8, shuffle=True, num_workers=workers) as loader:
        iterator = iter(loader)

        def take() -> None:
            for batch in iterator:
                seen.extend(batch["index"].tolist())

        run_together([take] * 3)
        assert sorted(seen) == list(range(800))
        assert loader.state_dict()["epoch"] == 1


def run_together(jobs: list[Callable[[], None]]) -> None:
    failed: list[BaseException] = []

    def guarded(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


@needs_torch
@pytest.mark.parametrize("workers", [0, 2])
def test_a_thread_may_close_what_another_one_iterates(workers: int) -> None:
    loader = Loader(Batched(20_000), 8, shuffle=True, num_workers=workers)
    ends: list[str] = []
    started = threading.Event()

    def iterate() -> None:
        try:
            for _ in loader:
                started.set()
        except LoaderError as error:
            ends.append(str(error))

    thread = threading.Thread(target=iterate)
    thread.start()
    started.wait()
    loader.close()
    thread.join()
    assert len(ends) == 1
    assert ends[0].startswith(OVER)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_forked_child_is_told_and_may_iterate_anew(workers: int) -> None:
    with Loader(Batched(), 8, shuffle=True, num_workers=workers, seed=3) as loader:
        iterator = iter(loader)
        first = next(iterator)["index"].tolist()
        assert in_child(lambda: next(iterator)).startswith(f"LoaderError: {OVER}")
        assert in_child(loader.state_dict) == str(loader.state_dict())
        assert in_child(lambda: sum(len(batch["index"]) for batch in loader)) == "200"
        assert in_child(loader.close) == "None"
        rest = [index for batch in iterator for index in batch["index"].tolist()]
        assert sorted(first + rest) == list(range(200))


@needs_torch
def test_a_child_forked_while_a_thread_waits_for_a_batch_does_not_wait() -> None:
    with Loader(Batched(), 8, shuffle=True, num_workers=0) as loader:
        assert loader._lock.acquire()  # what a thread would hold
        try:
            said = in_child(lambda: threading.Thread(target=loader.close).start() or "closed")
            assert in_child(lambda: sum(len(batch["index"]) for batch in loader)) == "200"
        finally:
            loader._lock.release()
        assert said == "closed"


IMPOSSIBLE: list[dict[str, Any]] = [
    {"epoch": 10**30},
    {"epoch": -1},
    {"epoch": True},
    {"epoch": 1.0},
    {"epoch": "1"},
    {"epoch": None},
    {"delivered": 10**30},
    {"delivered": -1},
    {"delivered": 201},
    {"delivered": False},
    {"version": True},
    {"version": 10**30},
    {"version": [1]},
    {"digest": None},
    {"digest": "of others"},
    {"order": []},
    {"order": {}},
    {"order": {1: 2, "kind": "blocks"}},
    {"order": {"kind": "blocks", "group": 0}},
    {"order": {"kind": "blocks", "group": 10**30, "lanes": -1, "deal": "x"}},
    {"order": {"kind": ["blocks"], "length": np.arange(3)}},
]


@pytest.mark.parametrize("shuffle", [True, False, "blocks"])
def test_impossible_states_are_refused_and_change_nothing(shuffle: Any) -> None:
    with Loader(Batched(), 8, shuffle, num_workers=0) as loader:
        before = loader.state_dict()
        for change in IMPOSSIBLE:
            with pytest.raises(LoaderError, match=r"state"):
                loader.load_state_dict({**before, **change})
            assert loader.state_dict() == before, change
        assert sum(len(batch["index"]) for batch in loader) == 200
