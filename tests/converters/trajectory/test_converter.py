"""Trajectories against plain h5py on real robosuite files, and on synthetic files in the other layouts."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import pytest

import unistore
from tests.support.cases import DATA
from tests.support.converter_contract import check_contract, convert_in_memory
from tests.support.family_converters import trajectory
from unistore.converters.families import specs_of
from unistore.converters.registry import get_family
from unistore.converters.source_scan import scan_sources
from unistore.errors import AddOptions, InputError
from unistore.schemas.array_specs import ArrayInfo
from unistore.schemas.tables import text_values

RANDOM = np.random.default_rng(3)


def text(converted, path: str) -> list[str]:
    return text_values(converted.arrays[f"{path}/data"], converted.arrays[f"{path}/offsets"])


def write(path: Path, attributes: dict | None = None, **datasets) -> dict[str, np.ndarray]:
    """Synthetic file: ``data__demo_0__actions=…`` is dataset ``data/demo_0/actions``."""
    with h5py.File(path, "w") as file:
        for name, values in datasets.items():
            file[name.replace("__", "/")] = values
        file.attrs.update(attributes or {})
    return {name.replace("__", "/"): values for name, values in datasets.items()}


def ends(lengths: list[int]) -> np.ndarray:
    flags = np.zeros(sum(lengths), bool)
    flags[np.cumsum(lengths) - 1] = True
    return flags


def check_schema(converted) -> None:
    infos = {path: ArrayInfo(values.shape, values.dtype.name) for path, values in converted.arrays.items()}
    count = len(converted.scan.sources)
    names = {"data": ArrayInfo((9,), "uint8"), "offsets": ArrayInfo((count + 1,), "int64")}
    infos |= {f"sources/path/{name}": info for name, info in names.items()}
    assert specs_of(get_family("trajectory")).problems(infos, converted.finalized.samples) == []


# Real files -----------------------------------------------------------------------------------------------

REAL = {
    "samples/trajectory/robosuite030_SawyerLift_demo.hdf5": [1058, 837],
    "trajectory/robosuite100_lift_panda_demo.hdf5": [412],
}


@pytest.mark.parametrize("name", REAL)
def test_real_robosuite_files_are_stored_value_for_value(name: str) -> None:
    path = DATA / name
    oracle: dict[str, list[np.ndarray]] = {}
    empty = {}
    with h5py.File(path) as file:
        for demo in ("demo_1", "demo_2")[: len(REAL[name])]:
            for key, dataset in file["data"][demo].items():
                if dataset.shape[1] == 0:
                    empty[key] = "float64"
                else:
                    column = "action" if key == "actions" else key
                    oracle.setdefault(f"steps/{column}", []).append(dataset[:])
        env = file["data"].attrs["env"]
    converted = check_contract(
        trajectory(), [path], {column: np.concatenate(parts) for column, parts in oracle.items()}
    )
    check_schema(converted)
    flags = {"steps/terminated", "steps/truncated", "steps/next_valid"}
    assert {p for p in converted.arrays if p.startswith("steps/")} == oracle.keys() | flags
    assert np.diff(converted.arrays["episodes/offsets"]).tolist() == REAL[name]
    assert text(converted, "episodes/name") == ["demo_1", "demo_2"][: len(REAL[name])]
    assert converted.finalized.samples == len(REAL[name])
    np.testing.assert_array_equal(converted.arrays["steps/next_valid"], ~ends(REAL[name]))
    np.testing.assert_array_equal(converted.arrays["steps/truncated"], ends(REAL[name]))
    assert not converted.arrays["steps/terminated"].any()
    groups = converted.finalized.groups
    assert groups["episodes"]["attributes"]["env"] == env
    assert groups["steps"].get("empty_datasets", {}) == empty
    assert json.loads(text(converted, "episodes/attributes")[0])["model_file"] == "model_1.xml"
    assert json.loads(text(converted, "sources/attributes")[0])["env"] == env


# robomimic ------------------------------------------------------------------------------------------------


def demos(path: Path, lengths: dict[str, int], *, following: bool = True, masks: dict | None = None) -> dict:
    """Synthetic robomimic file; returns what was written by ``demo/dataset``."""
    written: dict[str, np.ndarray] = {}
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_name": "Lift", "type": 1})
        data.attrs["total"] = sum(lengths.values())
        for demo, steps in lengths.items():
            group = data.create_group(demo)
            group.attrs["num_samples"] = steps
            dones = np.zeros(steps, np.int64)
            dones[-1] = 1
            state = RANDOM.normal(size=(steps + 1, 9))
            image = RANDOM.integers(0, 256, (steps + 1, 40, 36, 3), np.uint8)
            shift = image[1:] if following else RANDOM.integers(0, 256, (steps, 40, 36, 3), np.uint8)
            parts = {
                "actions": RANDOM.normal(size=(steps, 7)),
                "rewards": RANDOM.normal(size=steps),
                "dones": dones,
                "states": RANDOM.normal(size=(steps, 32)),
                "obs/object": state[:-1],
                "obs/agentview_image": image[:-1],
                "next_obs/object": state[1:],
                "next_obs/agentview_image": shift,
                "datagen_info/eef_pose": RANDOM.normal(size=(steps, 4, 4)),
            }
            for name, values in parts.items():
                group.create_dataset(name, data=values, compression="gzip" if "image" in name else None)
                written[f"{demo}/{name}"] = values
            group["src_demo_inds"] = np.arange(3)
        for name, listed in (masks or {}).items():
            file[f"mask/{name}"] = np.array(listed, "S")
    return written


COLUMNS = {
    "steps/action": "actions",
    "steps/reward": "rewards",
    "steps/states": "states",
    "steps/observation/object": "obs/object",
    "steps/observation/agentview_image": "obs/agentview_image",
    "steps/datagen_info/eef_pose": "datagen_info/eef_pose",
}


def joined(written: dict, order: list[str], dataset: str) -> np.ndarray:
    return np.concatenate([written[f"{demo}/{dataset}"] for demo in order])


def test_robomimic_is_stored_with_order_masks_attributes_and_final_observations(tmp_path: Path) -> None:
    lengths = {"demo_1": 5, "demo_10": 3, "demo_2": 8, "demo_11": 1}
    order = ["demo_1", "demo_2", "demo_10", "demo_11"]
    masks = {"train": ["demo_10", "demo_1"], "valid": ["demo_2"]}
    written = demos(tmp_path / "low.hdf5", lengths, masks=masks)
    oracle = {path: joined(written, order, dataset) for path, dataset in COLUMNS.items()}
    last = [written[f"{demo}/next_obs/agentview_image"][-1] for demo in order]
    oracle["episodes/final_observation/agentview_image"] = np.stack(last)
    oracle["episodes/final_observation/object"] = np.stack(
        [written[f"{demo}/next_obs/object"][-1] for demo in order]
    )
    oracle["steps/terminated"] = ends([lengths[demo] for demo in order])
    oracle["steps/truncated"] = np.zeros(17, bool)
    oracle["steps/next_valid"] = np.ones(17, bool)
    oracle["episodes/offsets"] = np.array([0, 5, 13, 16, 17])
    oracle["episodes/mask/train"] = np.array([True, False, True, False])
    converted = check_contract(trajectory(), [tmp_path / "low.hdf5"], oracle)
    check_schema(converted)
    assert not [path for path in converted.arrays if "next_observation" in path]
    assert text(converted, "episodes/name") == order
    assert converted.finalized.split_names == ("train", "valid", "other")
    assert converted.finalized.splits.tolist() == [0, 1, 0, 2]
    shared = converted.finalized.groups["episodes"]["attributes"]
    assert json.loads(shared["env_args"]) == {"env_name": "Lift", "type": 1}
    assert (shared["total"], shared["src_demo_inds"]) == (17, [0, 1, 2])
    own = [json.loads(line)["num_samples"] for line in text(converted, "episodes/attributes")]
    assert own == [5, 8, 3, 1]
    assert {path for path, field in converted.fields.items() if field.statistics} == {
        "steps/action",
        "steps/reward",
        "steps/observation/object",
    }


def test_next_observations_that_do_not_follow_are_kept_whole(tmp_path: Path) -> None:
    order = ["demo_0", "demo_1"]
    written = demos(tmp_path / "a.hdf5", {"demo_0": 4, "demo_1": 6}, following=False)
    image = joined(written, order, "next_obs/agentview_image")
    final = np.stack([written[f"{demo}/next_obs/object"][-1] for demo in order])
    oracle = {"steps/next_observation/agentview_image": image, "episodes/final_observation/object": final}
    converted = check_contract(trajectory(), [tmp_path / "a.hdf5"], oracle)
    check_schema(converted)
    assert "episodes/final_observation/agentview_image" not in converted.arrays
    assert converted.arrays["steps/next_valid"].all()


def test_one_changed_next_observation_stores_them_whole_for_all_files(tmp_path: Path) -> None:
    demos(tmp_path / "a.hdf5", {"demo_0": 4})
    demos(tmp_path / "b.hdf5", {"demo_0": 4, "demo_1": 5})
    with h5py.File(tmp_path / "b.hdf5", "r+") as file:
        file["data/demo_1/next_obs/object"][2, 0] = -file["data/demo_1/next_obs/object"][2, 0]
    converted = convert_in_memory(trajectory(), [tmp_path])
    assert converted.arrays["steps/next_observation/object"].shape == (13, 9)
    assert converted.arrays["episodes/final_observation/agentview_image"].shape == (3, 40, 36, 3)
    assert converted.arrays["episodes/source"].tolist() == [0, 1, 1]


# Flat and D4RL --------------------------------------------------------------------------------------------


def flat(
    path: Path, lengths: list[int], *, singular: bool = False, column_rewards: bool = True, cut: int = 0
) -> dict:
    """Synthetic flat file with three cameras, one of them channels first; `cut` steps follow unfinished."""
    steps = sum(lengths) + cut
    terminals = np.zeros(steps, np.float32)
    terminals[np.cumsum(lengths) - 1] = 1
    rewards = RANDOM.normal(size=(steps, 1) if column_rewards else steps).astype(np.float32)
    s = "" if singular else "s"
    return write(
        path,
        observations__left_wrist_image=RANDOM.integers(0, 256, (steps, 48, 64, 3), np.uint8),
        observations__right_image=RANDOM.integers(0, 256, (steps, 3, 48, 64), np.uint8),
        observations__global_image=RANDOM.integers(0, 256, (steps, 48, 64, 3), np.uint8),
        observations__joint=RANDOM.normal(size=(steps, 16)).astype(np.float32),
        **{f"action{s}": RANDOM.normal(size=(steps, 4)).astype(np.float32)},
        **{f"reward{s}": rewards, f"terminal{s}": terminals if singular else terminals[:, None]},
    )


@pytest.mark.parametrize("singular", [False, True])
def test_a_flat_file_is_cut_into_episodes_at_its_terminals(tmp_path: Path, *, singular: bool) -> None:
    written = flat(
        tmp_path / "offline.hdf5", [7, 1, 12], singular=singular, column_rewards=not singular, cut=5
    )
    s = "" if singular else "s"
    stops = ends([7, 1, 12, 5])
    terminated = stops.copy()
    terminated[-1] = False
    oracle = {
        "steps/action": written[f"action{s}"],
        "steps/reward": written[f"reward{s}"].reshape(-1),
        "steps/observation/joint": written["observations/joint"],
        "steps/observation/left_wrist_image": written["observations/left_wrist_image"],
        "steps/observation/right_image": written["observations/right_image"].transpose(0, 2, 3, 1),
        "steps/terminated": terminated,
        "steps/truncated": stops & ~terminated,
        "steps/next_valid": ~stops,
        "episodes/offsets": np.array([0, 7, 8, 20, 25]),
    }
    converted = check_contract(trajectory(), [tmp_path / "offline.hdf5"], oracle)
    check_schema(converted)
    assert converted.fields["steps/observation/right_image"].axes == (
        "step",
        "right_image_y",
        "right_image_x",
        "channel",
    )
    assert [table.name for table in converted.scan.tables] == ["steps", "steps/observation"]
    assert any(
        "4 episodes by terminal" in note and "the last one ends with the file" in note
        for note in converted.scan.notes
    )
    assert text(converted, "episodes/name")[2] == "offline:2"


def test_timeouts_of_d4rl_truncate_episodes(tmp_path: Path) -> None:
    steps = 30
    terminals, timeouts = np.zeros(steps, bool), np.zeros(steps, bool)
    terminals[[9, 29]] = timeouts[19] = True
    written = write(
        tmp_path / "hopper.hdf5",
        observations=RANDOM.normal(size=(steps, 11)).astype(np.float32),
        next_observations=RANDOM.normal(size=(steps, 11)).astype(np.float32),
        actions=RANDOM.normal(size=(steps, 3)).astype(np.float32),
        rewards=RANDOM.normal(size=steps).astype(np.float32),
        terminals=terminals,
        timeouts=timeouts,
        infos__qpos=RANDOM.normal(size=(steps, 6)),
        metadata__algorithm="SAC",
        metadata__policy__weight=RANDOM.normal(size=(256, 11)),
    )
    oracle = {
        "steps/observation/state": written["observations"],
        "steps/next_observation/state": written["next_observations"],
        "steps/infos/qpos": written["infos/qpos"],
        "steps/terminated": terminals,
        "steps/truncated": timeouts,
        "steps/next_valid": np.ones(steps, bool),
        "episodes/offsets": np.array([0, 10, 20, 30]),
    }
    converted = check_contract(trajectory(), [tmp_path / "hopper.hdf5"], oracle)
    check_schema(converted)
    assert converted.finalized.groups["episodes"]["attributes"] == {"metadata/algorithm": "SAC"}
    left_out = "not stored, because it is not per step and too large for an attribute: metadata/policy/weight"
    assert left_out in converted.scan.notes


# Several files --------------------------------------------------------------------------------------------


def test_episodes_of_several_files_are_joined_in_natural_order(tmp_path: Path) -> None:
    """A folder of ACT episodes (synthetic): episode_10 after episode_9."""
    lengths = {k: 3 + k % 5 for k in (0, 1, 2, 9, 10)}
    parts = {
        k: write(
            tmp_path / f"episode_{k}.hdf5",
            {"sim": False, "task": f"task {k % 2}", "success": k != 9},
            observations__qpos=RANDOM.normal(size=(n, 14)),
            observations__qvel=RANDOM.normal(size=(n, 14)),
            observations__effort=RANDOM.normal(size=(n, 14)),
            observations__images__cam_high=RANDOM.integers(0, 256, (n, 48, 64, 3), np.uint8),
            action=RANDOM.normal(size=(n, 14)).astype(np.float32),
        )
        for k, n in lengths.items()
    }
    oracle = {
        f"steps/{column}": np.concatenate([part[name] for part in parts.values()])
        for column, name in {
            "action": "action",
            "observation/qpos": "observations/qpos",
            "observation/effort": "observations/effort",
            "observation/images/cam_high": "observations/images/cam_high",
        }.items()
    }
    oracle["episodes/success"] = np.array([1, 1, 1, 0, 1], np.int8)
    converted = check_contract(trajectory(), [tmp_path], oracle)
    check_schema(converted)
    assert text(converted, "episodes/name") == [f"episode_{k}" for k in lengths]
    assert np.diff(converted.arrays["episodes/offsets"]).tolist() == list(lengths.values())
    assert converted.finalized.groups["episodes"]["attributes"] == {"sim": False}
    tasks = [json.loads(line)["task"] for line in text(converted, "episodes/attributes")]
    assert tasks == ["task 0", "task 1", "task 0", "task 1", "task 0"]
    starts = converted.arrays["episodes/offsets"]
    for lo, hi in pairwise(starts.tolist()):
        assert not converted.arrays["steps/next_valid"][hi - 1]
        assert converted.arrays["steps/next_valid"][lo : hi - 1].all()


def test_intersection_drops_what_differs_in_shape(tmp_path: Path) -> None:
    actions = [RANDOM.normal(size=(4, 2)) for _ in range(3)]
    for number, width in enumerate((47, 71, 15)):
        arrays = {"data__demo_0__actions": actions[number], "data__demo_0__states": np.ones((4, width))}
        write(tmp_path / f"{number}.h5", **arrays)
    with pytest.raises(InputError, match=r"states: float64 \(47,\) in 0.h5"):
        scan_sources(trajectory(), [tmp_path])
    oracle = {"steps/action": np.concatenate(actions)}
    common = check_contract(trajectory(columns="intersection"), [tmp_path], oracle)
    assert "steps/states" not in common.arrays
    notes = scan_sources(trajectory(columns="intersection"), [tmp_path]).notes
    assert "not stored, because sources differ in it (--columns intersection): states" in notes


def test_overlapping_masks_are_kept_but_only_the_usual_ones_split(tmp_path: Path) -> None:
    masks = {"train": ["demo_0"], "valid": ["demo_1"], "easy": ["demo_0", "demo_1"]}
    demos(tmp_path / "a.hdf5", {"demo_0": 2, "demo_1": 2}, masks=masks)
    converted = convert_in_memory(trajectory(), [tmp_path / "a.hdf5"])
    assert converted.finalized.split_names == ("train", "valid")
    assert converted.arrays["episodes/mask/easy"].all()


def test_a_mapped_dataset_is_taken_though_a_pattern_leaves_it_out(tmp_path: Path) -> None:
    values = np.arange(12.0).reshape(6, 2)
    arrays = {"cmd": values, "cmd_raw": values + 1, "rewards": np.zeros(6), "observations": values + 2}
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, array in arrays.items():
            file[name] = array
    options = {"map": {"action": "cmd"}, "ignore": ("cmd*",)}
    unistore.convert(tmp_path / "a.h5", tmp_path / "a.zarr", "trajectory", **options)
    store = unistore.Store(tmp_path / "a.zarr")
    assert np.array_equal(store.array("steps/action").read(), values)
    assert not [path for path in store.arrays() if "cmd" in path]


def test_a_file_without_actions_is_an_error_that_offers_its_arrays(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["sensors/position"] = np.zeros((6, 3))
        file["control/cmd"] = np.ones((6, 2))
    with pytest.raises(InputError) as caught:
        unistore.convert(tmp_path / "a.h5", tmp_path / "a.zarr", "trajectory")
    fixes = [fix for fix in caught.value.problems[0].fixes if isinstance(fix, AddOptions)]
    assert [fix.arguments for fix in fixes] == [
        ("--map", "action=control/cmd"),
        ("--map", "action=sensors/position"),
    ]
