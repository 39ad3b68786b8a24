"""LeRobot datasets: values as LeRobot's own class returns them (`tools/oracles/lerobot_samples.py`)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

import unistore
from unistore.converters.formats.lerobot import LeRobot
from unistore.converters.plugin import Opened, SourceFile
from unistore.errors import InputError
from unistore.testing import check_format

SAMPLES = Path(__file__).parents[2] / "data/lerobot"
LENGTHS = [7, 5, 9]
FROM_LEROBOT = {"next.reward": "reward", "next.done": "terminated"}
DERIVED = {"frame_index", "episode_index", "index"}


@contextmanager
def opened(root: Path) -> Iterator[Opened]:
    info = root / "meta/info.json"
    with LeRobot().open(SourceFile(info, "meta/info.json", (root,))) as dataset:
        yield dataset


@pytest.fixture(params=["v21", "v3"])
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(SAMPLES / request.param, tmp_path / request.param))


@pytest.fixture
def v21(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SAMPLES / "v21", tmp_path / "v21"))


def problems_of(root: Path) -> list[str]:
    try:
        with opened(root) as dataset:
            return [str(problem) for array in dataset.arrays.values() for problem in array.problems()]
    except InputError as error:
        return [str(problem) for problem in error.problems]


def change_info(root: Path, **values: Any) -> None:
    path = root / "meta/info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize("version", ["v21", "v3"])
def test_a_store_has_what_lerobot_returns(version: str, tmp_path: Path) -> None:
    store = tmp_path / "toy.zarr"
    unistore.convert(SAMPLES / version, store, family="trajectory")
    steps = unistore.Dataset(store, unistore.Transitions())
    with np.load(SAMPLES / f"{version}.npz") as dump:
        assert len(steps) == len(dump["index"])
        for name in set(dump.files) - DERIVED:
            key = FROM_LEROBOT.get(name, name)
            ours = np.stack([np.asarray(steps[step][key]) for step in range(len(steps))])
            np.testing.assert_array_equal(ours, dump[name], err_msg=name)
        texts = [json.loads(text) for text in steps.store.text("episodes/attributes")]
        first_steps = np.cumsum([0, *LENGTHS[:-1]])
        assert [text["tasks"] for text in texts] == [[task] for task in dump["task"][first_steps]]
    assert unistore.verify(store, against=SAMPLES / version).receipt is not None


def test_a_changed_value_is_noticed(v21: Path, tmp_path: Path) -> None:
    store = tmp_path / "toy.zarr"
    unistore.convert(v21, store)
    path = v21 / "data/chunk-000/episode_000001.parquet"
    table = pq.read_table(path)
    changed = pa.array([0.5, *table["next.reward"].to_pylist()[1:]], pa.float32())
    pq.write_table(
        table.set_column(table.schema.get_field_index("next.reward"), "next.reward", changed), path
    )
    verified = unistore.verify(store, against=v21)
    assert "row 7: 0.0 and 0.5, 1 of 21 values differ" in str(verified.problems)


def test_the_format_keeps_its_promises(dataset: Path) -> None:
    expected = {}
    with np.load(SAMPLES / f"{dataset.name}.npz") as dump:
        stops = np.cumsum(LENGTHS)
        for episode, (start, stop) in enumerate(zip(stops - LENGTHS, stops, strict=True)):
            group = f"data/episode_{episode:06d}"
            for name in set(dump.files) - DERIVED - {"observation.images.wrist"}:
                rows = dump[name][start:stop]
                rows = rows.astype(object) if rows.dtype.kind == "U" else rows
                expected[f"{group}/{name}"] = rows.transpose(0, 2, 3, 1) if rows.ndim == 4 else rows
            expected[f"{group}/observation.images.wrist"] = image_files(dataset, start, stop)
    check_format(LeRobot(), dataset / "meta/info.json", expected)


def image_files(dataset: Path, start: int, stop: int) -> NDArray[Any]:
    tables = [pq.read_table(path) for path in sorted(dataset.glob("data/*/*.parquet"))]
    column = pa.concat_tables(tables)["observation.images.wrist"].to_pylist()
    return np.array([image["bytes"] for image in column[start:stop]], object)


def test_a_sound_dataset_has_no_problems(dataset: Path) -> None:
    assert problems_of(dataset) == []


def test_a_video_that_is_too_short(v21: Path) -> None:
    videos = v21 / "videos/chunk-000/observation.images.top"
    shutil.copy(videos / "episode_000001.mp4", videos / "episode_000002.mp4")
    (problem,) = problems_of(v21)
    assert "episode_000002.mp4: ends after 0.50 s, and step 8 is at 0.80 s" in problem
    with (
        opened(v21) as dataset,
        pytest.raises(InputError, match=r"no frame at 0\.5000 s"),
    ):
        dataset.arrays["data/episode_000002/observation.images.top"][:]


def test_a_step_without_its_frame(v21: Path) -> None:
    change_info(v21, fps=20)
    found = problems_of(v21)
    assert all("is not at 0.0500 s" in problem for problem in found)
    with (
        opened(v21) as dataset,
        pytest.raises(InputError, match=r"no frame at 0\.0500 s"),
    ):
        dataset.arrays["data/episode_000000/observation.images.top"][:]


def test_rows_of_another_episode(v21: Path) -> None:
    tables = v21 / "data/chunk-000"
    shutil.copy(tables / "episode_000002.parquet", tables / "episode_000001.parquet")
    assert any("row 0 is none of episode 1" in problem for problem in problems_of(v21))


def test_a_table_that_is_too_short(v21: Path) -> None:
    tables = v21 / "data/chunk-000"
    shutil.copy(tables / "episode_000001.parquet", tables / "episode_000000.parquet")
    assert any("has 5 rows, and 7 are needed" in problem for problem in problems_of(v21))


@pytest.mark.parametrize("name", ["data/chunk-000/episode_000000.parquet", "meta/tasks.jsonl"])
def test_a_missing_file(v21: Path, name: str) -> None:
    (v21 / name).unlink()
    assert Path(name).name in problems_of(v21)[0]


def test_episodes_out_of_order(v21: Path) -> None:
    path = v21 / "meta/episodes.jsonl"
    path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))
    assert "number 0 is not in its place" in problems_of(v21)[0]


def test_a_task_that_nobody_lists(v21: Path) -> None:
    (v21 / "meta/tasks.jsonl").write_text('{"task_index": 0, "task": "another"}\n')
    assert "has task 'do task 0', which meta/tasks does not list" in problems_of(v21)[0]


@pytest.mark.parametrize(("version", "cure"), [("v2.0", "convert_dataset_v20_to_v21"), ("v1.6", "v1_to_v2")])
def test_former_versions_are_refused(v21: Path, version: str, cure: str) -> None:
    change_info(v21, codebase_version=version)
    (problem,) = problems_of(v21)
    assert version in problem
    assert cure in problem


def test_damaged_files_are_named(dataset: Path) -> None:
    for path in sorted(dataset.rglob("*")):
        if path.suffix not in (".parquet", ".mp4") or path.is_dir():
            continue
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        found = problems_of(dataset)
        assert found, path
        assert all(path.name in problem for problem in found), (path, found)
        path.write_bytes(content)


@pytest.mark.parametrize(
    "place", ["../../outside.parquet", "{episode_index.__class__}", "{episode_index:09999d}"]
)
def test_hostile_paths_lead_nowhere(v21: Path, place: str) -> None:
    (v21.parents[0] / "outside.parquet").write_bytes(b"PAR1")
    change_info(v21, data_path=place)
    assert "needs" in problems_of(v21)[0]


@pytest.mark.parametrize(
    "content", ["[]", '{"codebase_version": "v3.0"}', '{"codebase_version": "v2.1", "fps": "']
)
def test_metadata_of_another_form(v21: Path, content: str) -> None:
    (v21 / "meta/info.json").write_text(content)
    assert "do not describe a dataset" in problems_of(v21)[0]
