"""``DataLoader(…)`` becomes ``Loader(…)`` by one word: every parameter of torch's works or is refused."""

from __future__ import annotations

import inspect
import operator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import unistore
from unistore.errors import InputError
from unistore.loader import Loader
from unistore.loader.fetch import BatchFetch, choose_fetch

pytestmark = pytest.mark.usefixtures("nothing_left")

TORCH = inspect.signature(DataLoader).parameters
OURS = inspect.signature(Loader).parameters


def started(number: int) -> None:
    torch.manual_seed(number)


def gathered(samples: list[Any]) -> list[int]:
    return [sample["label"] for sample in samples]


MEANT: dict[str, Any] = {
    "batch_size": 7,
    "shuffle": True,
    "sampler": range(5),
    "num_workers": 1,
    "collate_fn": gathered,
    "pin_memory": False,
    "drop_last": True,
    "worker_init_fn": started,
    "multiprocessing_context": "fork",
    "prefetch_factor": 2,
    "persistent_workers": True,
}
"""A value of torch's that is meant, of every parameter that works."""

WITHOUT_MEANING: dict[str, tuple[Any, str]] = {
    "batch_sampler": ([[1, 2], [3]], "give batch_size, and shuffle or sampler"),
    "timeout": (30, "WorkerDiedError"),
    "generator": (torch.Generator(), "give seed"),
    "pin_memory_device": ("cuda", "pin_memory=True"),
    "in_order": (False, "remove it"),
}
"""A value of every other parameter, and a part of what to write instead."""


def test_every_parameter_of_torch_works_or_is_refused() -> None:
    assert {*MEANT, *WITHOUT_MEANING, "dataset"} == set(TORCH)
    positional = [name for name, known in TORCH.items() if known.kind is known.POSITIONAL_OR_KEYWORD]
    assert list(OURS)[: len(positional)] == positional, "torch's positions are ours"


@pytest.mark.parametrize("name", MEANT)
def test_each_supported_parameter_gives_the_batches_of_torch(data: Any, name: str) -> None:
    options = {"num_workers": 1, "batch_size": 4, name: MEANT[name]}
    deciding = ("batch_size", "shuffle", "sampler", "collate_fn", "drop_last")
    theirs = DataLoader(data.Plain(23), **{each: options[each] for each in deciding if each in options})
    with Loader(data.Plain(23), **options) as ours:
        lengths = [len(batch if isinstance(batch, list) else batch["label"]) for batch in ours]
    assert lengths == [len(batch if isinstance(batch, list) else batch["label"]) for batch in theirs]


def test_all_parameters_by_position_give_the_batches_of_torch(data: Any) -> None:
    given = (data.Plain(23), 4, False, None, None, 0, gathered, False, True, 0, started, None, None)
    with Loader(*given) as ours:
        assert list(ours) == list(DataLoader(*given))


@pytest.mark.parametrize("name", WITHOUT_MEANING)
def test_a_parameter_without_meaning_is_an_error_with_a_fix(data: Any, name: str) -> None:
    value, fix = WITHOUT_MEANING[name]
    with pytest.raises(InputError) as caught:
        Loader(data.Batched(), 4, **{name: value})
    (problem,) = caught.value.problems
    assert problem.location == name
    assert problem.message.endswith(f", but Loader has no option {name}; PyTorch's DataLoader has")
    assert fix in problem.advice


@pytest.mark.parametrize("workers", [0, 1])
def test_without_a_batch_size_samples_come_one_by_one(data: Any, workers: int) -> None:
    theirs = DataLoader(data.Plain(3), batch_size=None)
    with Loader(data.Plain(3), batch_size=None, num_workers=workers) as ours:
        assert (ours.batch_size, ours.batch_sampler, len(ours)) == (None, None, len(theirs))
        assert ours.collate_fn is theirs.collate_fn
        for mine, expected in zip(ours, theirs, strict=True):
            assert mine.keys() == expected.keys()
            assert torch.equal(mine["image"], expected["image"])
            assert torch.equal(mine["array"], expected["array"])
            for name in ("label", "name", "pair"):
                assert type(mine[name]) is type(expected[name])
                assert mine[name] == expected[name]
    by_label = {"batch_size": None, "collate_fn": operator.itemgetter("label")}
    with Loader(data.Plain(3), num_workers=workers, **by_label) as ours:
        assert list(ours) == list(DataLoader(data.Plain(3), **by_label)) == [0, 1, 2]


def test_whole_batches_by_default_only_where_ranks_share_a_shuffle(data: Any) -> None:
    def drops(**options: Any) -> bool:
        return Loader(data.Batched(), 8, num_workers=0, **options).drop_last

    ranks = {"rank": 0, "world_size": 2}
    assert not drops(shuffle=True)
    assert drops(shuffle=True, **ranks)
    assert drops(shuffle="blocks", **ranks)
    assert not drops(**ranks)
    assert not drops(subset=range(50), **ranks)
    assert not drops(shuffle=True, drop_last=False, **ranks)
    assert drops(drop_last=True)


def test_our_collations_read_whole_batches(data: Any) -> None:
    for collate in (None, unistore.collate, unistore.Collate("list")):
        assert isinstance(choose_fetch(data.Batched(), collate, 0), BatchFetch)
    assert not isinstance(choose_fetch(data.Batched(), unistore.Collate("padded"), 0), BatchFetch)
