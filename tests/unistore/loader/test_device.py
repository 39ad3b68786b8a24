"""`Loader(device=)`: without an accelerator, a stand-in records what is copied on which stream."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import torch

from unistore import Loader
from unistore.loader.collating import ToDevice


def test_device_cpu_copies_nothing(data):
    with (
        Loader(data.Batched(), 10, num_workers=0) as plain,
        Loader(data.Batched(), 10, num_workers=0, device="cpu") as loader,
    ):
        for expected, batch in zip(plain, loader, strict=True):
            assert batch.keys() == expected.keys()
            assert torch.equal(batch["points"], expected["points"])
        assert loader.stats()["copies"] == 0
        batch = next(iter(loader))
        assert ToDevice("cpu", None)(batch) is batch


def test_batches_are_transformed_where_they_are_delivered(data):
    with Loader(data.Batched(), 10, num_workers=1, batch_transform=lambda batch: batch["x"] + 1) as loader:
        assert torch.equal(next(iter(loader))[:, 0], 1000 * torch.arange(10) + 1)


def test_a_batch_is_copied_on_its_own_stream_and_awaited_by_the_next_step(data, monkeypatch):
    calls = []

    @contextmanager
    def stream(chosen):
        calls.append("copy")
        yield
        calls.append("copied")

    current = SimpleNamespace(wait_stream=lambda other: calls.append(f"wait for {other}"))
    module = SimpleNamespace(
        Stream=lambda device: "side",
        stream=stream,
        current_stream=lambda device: current,
        is_available=lambda: True,
    )
    monkeypatch.setattr(torch, "cuda", module)
    monkeypatch.setattr("unistore.loader.collating.pin", lambda batch: batch)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: calls.append("keep"))
    moved = lambda tensor, device, non_blocking: tensor + 1 if non_blocking else None  # noqa: E731
    monkeypatch.setattr(torch.Tensor, "to", moved)
    with Loader(data.Batched(), 10, num_workers=1, device="cuda:1") as loader:
        batch = next(iter(loader))
    assert batch["index"].tolist() == list(range(1, 11))
    assert calls == ["copy", "copied", "wait for side", *["keep"] * len(batch)]
