"""Verification and repair by workers: the same findings in the same order, the same bytes."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from tests.support.cases import REAL
from tests.support.programs import call
from unistore import repair, verify
from unistore.conversion.executors.local import parallel_map
from unistore.errors import InputError
from unistore.integrity.verify import verify_with

Copy = Callable[[str], tuple[Any, Path]]
Tree = Callable[[Path], dict[str, bytes]]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step for a few files, as in a large store."""
    monkeypatch.setattr("unistore.integrity.files.BATCH_BYTES", 1 << 17)


class Backwards:
    """Stands for workers: everything is pickled on its way, and what comes last is done first."""

    def __init__(self) -> None:
        self.steps = 0

    def run(self, job: Any, items: Any) -> Iterator[Any]:
        for item in reversed(list(items)):
            self.steps += 1
            there = pickle.loads(pickle.dumps((job, item)))
            yield item, pickle.loads(pickle.dumps(there[0](there[1])))


def damage(store: Path) -> None:
    """Change a byte of every third shard, and remove one."""
    shards = sorted(path for path in store.rglob("c/*") if path.is_file() or path.is_symlink())
    shards += sorted(path for path in store.rglob("c/*/*") if path.is_file())
    for path in shards[1::3]:
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    shards[0].unlink()


def test_workers_find_the_problems_of_one_process_in_the_same_order(
    family_case: str, copy_case: Copy
) -> None:
    _, store = copy_case(family_case)
    damage(store)
    found = verify_with(Backwards(), str(store))
    assert found == verify(store)
    assert len(found.problems) > 1


def test_stopping_early_stops_the_workers() -> None:
    closed = []

    class Forwards:
        def run(self, job: Any, items: Any) -> Iterator[Any]:
            try:
                for item in items:
                    yield item, job(item)
            finally:
                closed.append(True)

    answers = parallel_map(Forwards())(abs, range(-9, -3))  # type: ignore[arg-type]
    assert [next(answers) for _ in range(3)] == [9, 8, 7]
    assert not closed
    answers.close()  # type: ignore[attr-defined]
    assert closed


def test_two_processes_verify_and_repair_like_one(
    copy_case: Copy, tree: Tree, capsys: pytest.CaptureFixture[str]
) -> None:
    case, store = copy_case("rows_hdf5")
    sound = tree(store)
    whole = json.dumps(verify(store, against=case.sources).to_json())
    sources = [str(source) for source in case.sources]
    assert call("verify", str(store), *sources, "--against", "--workers", "2", "--json") == 0
    assert json.loads(capsys.readouterr().out) == json.loads(whole)
    damage(store)
    assert repair(store, case.sources, workers=2).ok
    assert tree(store) == sound


@pytest.mark.timeout(120)
def test_a_cluster_checks_a_store(copy_case: Copy) -> None:
    case, store = copy_case(REAL[0])
    damage(store)
    options: dict[str, Any] = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    with Client(processes=False, **options) as client:
        found = verify(store, scheduler=client)
        with pytest.raises(InputError, match="--scheduler: does not work with sources"):
            verify(store, against=case.sources, scheduler=client)
    assert found == verify(store)
    assert len(found.problems) > 1
