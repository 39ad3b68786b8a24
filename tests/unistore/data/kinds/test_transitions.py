"""Transitions, windows and the replay buffer, against episodes kept in plain arrays."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import unistore
from tests.support.programs import in_child
from unistore.errors import InputError
from unistore.schemas.trajectory.fields import CHANNEL

LENGTHS = (5, 1, 8, 3)
FLAT_IMAGES = ("left_wrist_image", "right_image", "global_image")


@dataclass
class Episodes:
    """A trajectory store and what is in it."""

    path: Path
    columns: dict[str, NDArray[Any]]
    final: dict[str, NDArray[Any]]
    offsets: NDArray[np.int64]
    following: dict[str, NDArray[Any]] = field(default_factory=dict)

    def after(self, key: str, step: int) -> NDArray[Any]:
        """Next observation, by the rules of the format."""
        episode = int(np.searchsorted(self.offsets, step, side="right")) - 1
        if key in self.following:
            return self.following[key][step]
        if step + 1 < self.offsets[episode + 1]:
            return self.columns[f"observation/{key}"][step + 1]
        if self.columns["next_valid"][step]:
            return self.final[key][episode]
        return self.columns[f"observation/{key}"][step]


def record(
    make_store: Any,
    *,
    final: bool = True,
    stored_next: bool = False,
    jpeg: bool = False,
    splits: Any = None,
    resized: int | None = None,
    names: dict[str, str] | None = None,
) -> Episodes:
    rng = np.random.default_rng(6)
    offsets = np.cumsum([0, *LENGTHS])
    total = int(offsets[-1])
    last = offsets[1:] - 1
    valid = np.ones(total, np.bool_)
    valid[last] = False
    if final:
        valid[last[[0, 2]]] = True
    terminated = np.zeros(total, np.bool_)
    terminated[last[[0, 3]]] = True
    columns: dict[str, NDArray[Any]] = {
        "action": rng.random((total, 4)),
        "reward": rng.random(total).astype(np.float32),
        "terminated": terminated,
        "truncated": np.zeros(total, np.bool_),
        "next_valid": valid,
        "observation/joint": rng.random((total, 6)).astype(np.float32),
        "step": np.arange(total, dtype=np.int64),
    }
    for name in FLAT_IMAGES:
        columns[f"observation/{name}"] = rng.integers(0, 255, (total, 6, 7, 3)).astype(np.uint8)
    keys = [name.removeprefix("observation/") for name in columns if name.startswith("observation/")]
    last_seen = {
        key: np.stack([columns[f"observation/{key}"][0] + 1 + e for e in range(len(LENGTHS))]) for key in keys
    }
    arrays: dict[str, Any] = {f"steps/{name}": values for name, values in columns.items()}
    axes = {f"steps/observation/{name}": ("step", "y", "x", CHANNEL) for name in FLAT_IMAGES}
    following = {}
    if final:
        arrays |= {f"episodes/final_observation/{key}": values for key, values in last_seen.items()}
    if stored_next:
        following = {"joint": rng.random((total, 6)).astype(np.float32)}
        arrays["steps/next_observation/joint"] = following["joint"]
    attributes = {}
    if jpeg:
        frames = arrays.pop("steps/observation/global_image")
        encoded = [cv2.imencode(".png", frame[:, :, ::-1])[1] for frame in frames]
        group = "steps/observation/global_image_jpeg"
        arrays[f"{group}/data"] = np.concatenate(encoded)
        arrays[f"{group}/offsets"] = np.cumsum([0, *map(len, encoded)])
        attributes[f"{group}/data"] = {"shape": [6, 7, 3], "colour": "standard", "dtype": "uint8"}
    arrays |= {
        "episodes/offsets": offsets,
        "episodes/source": np.array([0, 0, 1, 1], np.int32),
        "episodes/name": ["demo_0", "demo_1", "demo_0", "demo_1"],
        "sources/path": ["a.hdf5", "b.hdf5"],
    }
    if resized is not None:
        for path in [path for path in arrays if path.rpartition("/")[2] in FLAT_IMAGES]:
            sets = np.stack([cv2.resize(image, (resized, resized)) for image in arrays[path]])
            arrays[f"{path}_{resized}"] = sets
            if path in axes:
                axes[f"{path}_{resized}"] = axes[path]
    for old, new in (names or {}).items():
        for path in [path for path in arrays if path.rpartition("/")[2] == old]:
            values = arrays.pop(path)
            its_axes = axes.pop(path, None)
            if new:
                arrays[path.removesuffix(old) + new] = values
            if new and its_axes is not None:
                axes[path.removesuffix(old) + new] = its_axes
    path = make_store(
        "trajectory",
        arrays,
        count=len(LENGTHS),
        table="episodes",
        splits=splits,
        axes=axes,
        attributes=attributes,
    )
    return Episodes(path, columns, last_seen, offsets, following)


@pytest.mark.parametrize("stored_next", [False, True])
@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("jpeg", [False, True])
def test_transitions_equal_the_plain_arrays_and_their_next_observations(
    make_store: Any, stored_next: bool, final: bool, jpeg: bool
) -> None:
    episodes = record(make_store, final=final, stored_next=stored_next, jpeg=jpeg)
    dataset = unistore.Dataset(episodes.path)
    assert dataset.samples == unistore.Transitions()
    assert len(dataset) == sum(LENGTHS)
    order = [16, 3, 4, 5, 4, 0, 13, 12]
    for sample, step in zip(dataset.__getitems__(order), order, strict=True):
        for name, values in episodes.columns.items():
            found = sample["steps.step" if name == "step" else name.replace("/", ".")]
            expected = np.moveaxis(values[step], -1, 0) if values.ndim == 4 else values[step]
            assert np.array_equal(found.numpy(), expected), name
        for key in ("joint", *FLAT_IMAGES):
            expected = episodes.after(key, step)
            found = sample[f"next.observation.{key}"].numpy()
            assert np.array_equal(found, np.moveaxis(expected, -1, 0) if expected.ndim == 3 else expected)
    keys = {f"{prefix}observation.{key}" for prefix in ("", "next.") for key in ("joint", *FLAT_IMAGES)}
    rest = {"index", "action", "reward", "terminated", "truncated", "next_valid", "steps.step"}
    assert set(dataset[0]) == keys | rest


def test_fields_select_the_keys_of_transitions(make_store: Any) -> None:
    episodes = record(make_store)
    wanted = ["next.observation.global_image", "source", "episode", "episode_name", "step"]
    sample = unistore.Dataset(episodes.path, fields=wanted)[7]
    assert list(sample) == ["index", *wanted]
    assert (sample["source"], sample["episode"], sample["episode_name"], sample["step"]) == (
        "b.hdf5",
        2,
        "demo_0",
        1,
    )
    expected = episodes.after("global_image", 7)
    assert np.array_equal(sample["next.observation.global_image"].permute(1, 2, 0).numpy(), expected)
    single = unistore.Dataset(episodes.path, fields=["next.observation.joint", "observation.joint"])
    assert np.array_equal(single[4]["next.observation.joint"].numpy(), episodes.after("joint", 4))


def test_only_valid_leaves_out_invalid_steps_and_splits_select_episodes(make_store: Any) -> None:
    path = record(make_store, splits={"train": [2, 0], "val": [1, 3]}).path
    kept = unistore.Dataset(path, unistore.Transitions(only_valid=True), ["steps.step"])
    assert [int(sample["steps.step"]) for sample in kept] == [0, 1, 2, 3, 4, *range(6, 17)]
    train = unistore.Dataset(path, fields=["steps.step"], split="train")
    assert [int(sample["steps.step"]) for sample in train] == [0, 1, 2, 3, 4, *range(6, 14)]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_the_replay_tuple_contains_transitions_as_a_training_loop_wants_them(
    make_store: Any, prefetch: int
) -> None:
    episodes = record(make_store)
    with unistore.ReplayBuffer(episodes.path, seed=3, prefetch=prefetch) as replay:
        assert len(replay) == 16
        left, right, far, joint, action, next_left, _, _, next_joint, reward, not_done = replay.sample(40)
        actions = episodes.columns["action"]
        assert torch.equal(replay.action_mean, torch.from_numpy(actions.mean(axis=0)).float())
        assert torch.equal(replay.action_std, torch.from_numpy(actions.std(axis=0)).float())
    assert left.shape == right.shape == far.shape == (40, 3, 6, 7)
    assert left.dtype == torch.uint8
    assert (joint.dtype, action.dtype, reward.shape, not_done.shape) == (
        torch.float32,
        torch.float32,
        (40, 1),
        (40, 1),
    )
    step_of = {row.tobytes(): step for step, row in enumerate(episodes.columns["observation/joint"])}
    steps = [step_of[row.numpy().tobytes()] for row in joint]
    assert 5 not in steps
    assert len(set(steps)) > 10
    for at, step in enumerate(steps):
        assert np.array_equal(
            left[at].permute(1, 2, 0).numpy(), episodes.columns["observation/left_wrist_image"][step]
        )
        assert np.array_equal(
            next_left[at].permute(1, 2, 0).numpy(), episodes.after("left_wrist_image", step)
        )
        assert np.array_equal(next_joint[at].numpy(), episodes.after("joint", step))
        assert np.array_equal(action[at].numpy(), episodes.columns["action"][step].astype(np.float32))
        assert reward[at, 0] == episodes.columns["reward"][step]
        assert not_done[at, 0] == 1 - episodes.columns["terminated"][step]


def test_replay_is_seeded_whatever_is_prefetched(make_store: Any) -> None:
    path = record(make_store).path

    def drawn(seed: int, prefetch: int) -> list[list[int]]:
        fields = ["steps.step"]
        with unistore.ReplayBuffer(
            path, output="dict", fields=fields, seed=seed, prefetch=prefetch, limit=9
        ) as replay:
            return [replay.sample(size)["steps.step"].tolist() for size in (8, 8, 5, 8)]

    assert drawn(1, 0) == drawn(1, 3)
    assert drawn(1, 0) != drawn(2, 0)
    assert max(map(max, drawn(1, 2))) <= 9


def test_replay_batches_that_are_held_stay_as_they_are(make_store: Any) -> None:
    with unistore.ReplayBuffer(record(make_store).path, output="dict", device="cpu") as replay:
        views, copies = [], []
        for _ in range(30):
            view = replay.sample(16)["observation.global_image"][2:, :, 1:]
            views.append(view)
            copies.append(view.clone())
            if len(views) > 5:
                assert torch.equal(views.pop(0), copies.pop(0))
    assert all(torch.equal(view, copy) for view, copy in zip(views, copies, strict=True))


def test_a_closed_replay_buffer_raises_an_error(make_store: Any) -> None:
    path = record(make_store).path
    replay = unistore.ReplayBuffer(unistore.Store(path), output="dict", split=None)
    batch = replay.sample(4)
    assert batch["next.observation.joint"].shape == (4, 6)
    replay.close()
    replay.close()
    with pytest.raises(ValueError, match="closed"):
        replay.sample(4)


def test_replay_holds_few_bytes_of_a_transition(make_store: Any) -> None:
    steps = 60_000
    ends = np.arange(0, steps + 1, 500)
    arrays = {
        "steps/observation/joint": np.ones((steps, 16), np.float32),
        "steps/action": np.ones((steps, 4), np.float32),
        "steps/reward": np.ones(steps, np.float32),
        "steps/terminated": np.zeros(steps, np.bool_),
        "steps/truncated": np.zeros(steps, np.bool_),
        "steps/next_valid": ~np.isin(np.arange(steps), ends[1:] - 1),
        "episodes/offsets": ends,
    }
    path = make_store("trajectory", arrays, count=len(ends) - 1, table="episodes")
    unistore.ReplayBuffer(path, output="dict", prefetch=0).sample(256)  # what is imported and kept once
    tracemalloc.start()
    try:
        buffer = unistore.ReplayBuffer(path, output="dict", prefetch=0)
        buffer.sample(256)
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(buffer) == steps - len(ends) + 1
    assert held < 250 * len(buffer)  # 500 MB for 2 million
    assert not hasattr(buffer, "add")


def test_replay_images_are_resized_as_opencv_resizes_them(make_store: Any) -> None:
    episodes = record(make_store, resized=4)
    for size in (4, 5):
        plain = unistore.ReplayBuffer(episodes.path, seed=2, prefetch=0)
        small = unistore.ReplayBuffer(episodes.path, seed=2, prefetch=0, image_size=size)
        for full, found in zip(plain.sample(9), small.sample(9), strict=True):
            if full.ndim == 4:
                images = full.permute(0, 2, 3, 1).numpy()
                expected = np.stack([cv2.resize(np.ascontiguousarray(each), (size, size)) for each in images])
                assert np.array_equal(found.permute(0, 2, 3, 1).numpy(), expected)
            else:
                assert torch.equal(full, found)


@pytest.mark.parametrize("kept", [(), ("joint",), ("joint", *FLAT_IMAGES[:2])])
def test_replay_refuses_a_store_without_all_observations_of_its_tuple(make_store: Any, kept: Any) -> None:
    others = {name: f"other_{name}" for name in ("joint", *FLAT_IMAGES) if name not in kept}
    path = record(make_store, names=others).path
    with pytest.raises(InputError, match=r"--map observation/global_image=DATASET"):
        unistore.ReplayBuffer(path)
    with unistore.ReplayBuffer(path, output="dict") as replay:
        assert len(replay.sample(2)["observation.other_global_image"]) == 2


def draws_of_ranks(path: Path, world_size: int, **options: Any) -> list[list[list[int]]]:
    """Transitions of three batches, for each rank."""
    draws = []
    for rank in range(world_size):
        options |= {"rank": rank, "world_size": world_size}
        with unistore.ReplayBuffer(path, output="dict", fields=["index"], seed=7, **options) as replay:
            draws.append([replay.sample(12 // world_size)["index"].tolist() for _ in range(3)])
    return draws


@pytest.mark.parametrize("weights", [None, np.arange(16)])
@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_of_a_replay_draw_together_what_one_draws(
    make_store: Any, world_size: int, weights: Any
) -> None:
    path = record(make_store).path
    (alone,) = draws_of_ranks(path, 1, weights=weights)
    ranks = draws_of_ranks(path, world_size, weights=weights)
    assert len({str(batches) for batches in ranks}) == world_size
    assert [[*itertools.chain(*batches)] for batches in zip(*ranks, strict=True)] == alone


def test_replay_draws_transitions_by_their_weights(make_store: Any) -> None:
    path = record(make_store).path
    weights = np.zeros(16)
    weights[[2, 11]] = 1, 3
    with unistore.ReplayBuffer(path, output="dict", weights=weights) as replay:
        counts = np.bincount(replay.sample(4000)["index"].numpy(), minlength=16)
    assert counts[[2, 11]] == pytest.approx([1000, 3000], abs=120)
    assert counts.sum() == counts[[2, 11]].sum()
    listed = unistore.ReplayBuffer(path, output="dict", indices=[11, 5, 2, 11], weights=[2, 0, 1, 1])
    counts = np.bincount(listed.sample(4000)["index"].numpy(), minlength=16)
    assert counts[[2, 5, 11]] == pytest.approx([1000, 0, 3000], abs=120)
    assert counts.sum() == 4000
    both = unistore.ReplayBuffer([path, path], output="dict", weights=np.tile(weights, 2), limit=16)
    assert set(both.sample(200)["index"].tolist()) == {2, 11}
    with pytest.raises(InputError, match=r"weights: must be 32 numbers, .* or 2, one for each store, got 3"):
        unistore.ReplayBuffer([path, path], output="dict", weights=[1, 2, 3])
    with pytest.raises(InputError, match="weights: must be at least one finite number"):
        unistore.ReplayBuffer(path, output="dict", weights=-weights)


def test_replay_draws_only_the_given_indices(make_store: Any) -> None:
    path = record(make_store).path
    fields = ["steps.step"]
    with unistore.ReplayBuffer(path, output="dict", fields=fields, indices=[9, 3, 3], prefetch=0) as replay:
        assert len(replay) == 2
        steps = unistore.Dataset(path, unistore.Transitions(only_valid=True), ["steps.step"])
        assert set(replay.sample(50)["steps.step"].tolist()) == {
            int(steps[at]["steps.step"]) for at in (3, 9)
        }
    for wrong in ([], [16], [-1], [0.5]):
        with pytest.raises(InputError, match=r"indices: must be .* from 0 to 15"):
            unistore.ReplayBuffer(path, indices=wrong)


def test_replay_draws_from_several_stores_by_their_weights(make_store: Any) -> None:
    paths = [record(make_store).path for _ in range(3)]
    with unistore.ReplayBuffer(paths, output="dict", weights=[3, 1, 0], prefetch=0) as replay:
        assert len(replay) == 48
        index = replay.sample(4000)["index"].numpy()
        assert np.bincount(index // 16, minlength=3) == pytest.approx([3000, 1000, 0], abs=120)
        assert set(index) == set(range(32))
        one = unistore.ReplayBuffer(paths[0], output="dict")
        assert torch.allclose(replay.action_mean, one.action_mean)
        assert torch.allclose(replay.action_std, one.action_std)
    with pytest.raises(InputError, match="has no samples, but its weight is 1"):
        unistore.ReplayBuffer(paths, weights=[1, 1, 1], indices=[0, 20])


def test_replay_goes_on_from_a_state(make_store: Any) -> None:
    path = record(make_store).path
    with unistore.ReplayBuffer(path, output="dict", seed=4) as replay:
        replay.sample(6)
        state = json.loads(json.dumps(replay.state_dict()))
        expected = [replay.sample(6)["index"].tolist() for _ in range(3)]
    with unistore.ReplayBuffer(path, output="dict", seed=4) as replay:
        replay.sample(6)
        replay.sample(6)
        replay.load_state_dict(state)
        assert [replay.sample(6)["index"].tolist() for _ in range(3)] == expected
    with pytest.raises(InputError, match="was saved with another seed"):
        unistore.ReplayBuffer(path, seed=5).load_state_dict(state)
    with pytest.raises(InputError, match="was saved with other stores, split, indices, limit or weights"):
        unistore.ReplayBuffer(path, seed=4, limit=3).load_state_dict(state)
    with pytest.raises(InputError, match="is not a state of a ReplayBuffer"):
        unistore.ReplayBuffer(path, seed=4).load_state_dict({"served": 1})


def test_a_state_of_a_replay_serves_every_rank(make_store: Any) -> None:
    options = {"output": "dict", "fields": ["index"], "world_size": 2}
    path = record(make_store).path
    ranks = [unistore.ReplayBuffer(path, rank=rank, **options) for rank in (0, 1)]
    for replay in ranks:
        replay.sample(6)
    state = ranks[0].state_dict()
    assert state == ranks[1].state_dict()
    expected = [replay.sample(6)["index"].tolist() for replay in ranks]
    for rank in (0, 1):
        resumed = unistore.ReplayBuffer(path, rank=rank, **options)
        resumed.load_state_dict(state)
        assert resumed.sample(6)["index"].tolist() == expected[rank]
    with pytest.raises(InputError, match="state: was saved with another number of ranks"):
        unistore.ReplayBuffer(path, output="dict").load_state_dict(state)


def test_a_replay_takes_ranks_that_are_initialised_after_it_was_made(
    make_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"output": "dict", "fields": ["index"], "seed": 5}
    path = record(make_store).path
    with unistore.ReplayBuffer(path, **options) as replay:
        replay.sample(6)  # batches of one process are prefetched now
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
        drawn = replay.sample(6)["index"].tolist()
        assert (replay.rank, replay.world_size, replay.state_dict()["world_size"]) == (1, 2, 2)
    with unistore.ReplayBuffer(path, **options, rank=1, world_size=2) as stated:
        stated.sample(6)
        assert drawn == stated.sample(6)["index"].tolist()


def test_threads_share_a_replay_buffer(make_store: Any) -> None:
    path = record(make_store).path
    with unistore.ReplayBuffer(path, output="dict", fields=["action"], seed=5) as replay:
        expected = sorted(replay.sample(4)["action"].tolist() for _ in range(90))
    with unistore.ReplayBuffer(path, output="dict", fields=["action"], seed=5) as replay:
        with ThreadPoolExecutor(3) as threads:
            jobs = [threads.submit(replay.sample, 4) for _ in range(90)]
        assert sorted(job.result()["action"].tolist() for job in jobs) == expected


def test_a_forked_child_is_told_to_make_its_own_buffer(make_store: Any) -> None:
    with unistore.ReplayBuffer(record(make_store).path, output="dict", seed=5) as replay:
        replay.sample(4)
        told = "ValueError: this ReplayBuffer was made in another process"
        assert in_child(lambda: replay.sample(4)).startswith(told)
        assert in_child(replay.close) == "None"
        assert len(replay.sample(4)["action"]) == 4


def test_changed_weights_apply_from_the_next_draw_and_are_in_the_state(make_store: Any) -> None:
    episodes = record(make_store)
    count = len(unistore.Dataset(episodes.path, unistore.Transitions(only_valid=True)))

    def buffer(weights: Any = None, **options: Any) -> unistore.ReplayBuffer:
        return unistore.ReplayBuffer(
            episodes.path, output="dict", fields=["step"], weights=weights, **options
        )

    with buffer() as changing, buffer(prefetch=0) as plain:
        numbers = [changing.sample(8)["step"].tolist(), changing.sample(8)["step"].tolist()]
        assert numbers == [plain.sample(8)["step"].tolist(), plain.sample(8)["step"].tolist()]
        assert "weights" not in changing.state_dict()
        only = np.zeros(count)
        only[3] = 0.1
        for each in (changing, plain):
            each.set_weights(only)
        drawn = changing.sample(50)["step"]
        assert drawn.unique().tolist() == plain.sample(50)["step"].unique().tolist()
        assert len(drawn.unique()) == 1
        rng = np.random.default_rng(1)
        changing.set_weights(torch.from_numpy(rng.random(count)))
        state = changing.state_dict()
        assert state["weights"].numpy().nbytes == 4 * count
        expected = [changing.sample(9)["step"].tolist() for _ in range(4)]
        with pytest.raises(InputError, match=f"must be {count} numbers, .* got 3"):
            changing.set_weights([1, 2, 3])
        with pytest.raises(InputError, match="are all zero"):
            changing.set_weights(np.zeros(count))
        with pytest.raises(InputError, match="at least one finite number"):
            changing.set_weights(np.full(count, np.nan))
    with buffer() as resumed:
        resumed.load_state_dict(state)
        assert [resumed.sample(9)["step"].tolist() for _ in range(4)] == expected
        resumed.load_state_dict({name: value for name, value in state.items() if name != "weights"})
        assert [resumed.sample(9)["step"].tolist() for _ in range(4)] != expected


def test_a_kind_names_the_store_that_it_does_not_fit(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(4))
    unistore.convert(tmp_path / "a.npz", tmp_path / "a.zarr")
    message = "Episodes cannot read this rows store, which has no episodes/offsets"
    with pytest.raises(InputError, match=message):
        unistore.Dataset(tmp_path / "a.zarr", unistore.Episodes())
