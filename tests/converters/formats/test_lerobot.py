"""LeRobot datasets: values as LeRobot's own class returns them (`tools/oracles/lerobot_samples.py`)."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

import unistore
from unistore.converters.formats.lerobot import LeRobot
from unistore.converters.formats.video import Frames
from unistore.converters.opened import OpenFile, SourceFile
from unistore.errors import InputError
from unistore.testing import check_format

SAMPLES = Path(__file__).parents[2] / "data/lerobot"
LENGTHS = [7, 5, 9]
FROM_LEROBOT = {"next.reward": "reward", "next.done": "terminated"}
DERIVED = {"frame_index", "episode_index", "index"}


@contextmanager
def opened(root: Path) -> Iterator[OpenFile]:
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
    unistore.convert(SAMPLES / version, store, family="trajectory", workers=0)
    steps = unistore.Dataset(store, unistore.Transitions())
    samples = list(steps)
    with np.load(SAMPLES / f"{version}.npz") as dump:
        assert len(steps) == len(dump["index"])
        for name in set(dump.files) - DERIVED:
            key = FROM_LEROBOT.get(name, name)
            ours = np.stack([np.asarray(sample[key]) for sample in samples])
            np.testing.assert_array_equal(ours, dump[name], err_msg=name)
        texts = [json.loads(text) for text in steps.store.text("episodes/attributes")]
        first_steps = np.cumsum([0, *LENGTHS[:-1]])
        assert [text["tasks"] for text in texts] == [[task] for task in dump["task"][first_steps]]
    assert unistore.verify(store, against=SAMPLES / version).receipt is not None


def test_tasks_of_a_table_with_a_named_index_are_read(tmp_path: Path) -> None:
    """LeRobot 0.6 calls the column `task`, LeRobot 0.4 gives it no name."""
    root = Path(shutil.copytree(SAMPLES / "v3", tmp_path / "v3"))
    path = root / "meta/tasks.parquet"
    table = pq.read_table(path)
    assert table.schema.names == ["task_index", "__index_level_0__"]
    pq.write_table(table.rename_columns(["task_index", "task"]).replace_schema_metadata(), path)
    with opened(root) as named, opened(SAMPLES / "v3") as unnamed:
        assert named.of_groups == unnamed.of_groups
        assert named.of_groups[""]["tasks"] == table["__index_level_0__"].to_pylist()


def renumber_tasks(root: Path, numbers: Sequence[int]) -> None:
    """Give the tasks of a dataset of version 2.1 other numbers, in `meta/` and in the rows."""
    lines = [{"task_index": new, "task": f"do task {old}"} for old, new in enumerate(numbers)]
    (root / "meta/tasks.jsonl").write_text("\n".join(map(json.dumps, lines)))
    for path in root.glob("data/*/*.parquet"):
        table = pq.read_table(path)
        place = table.column_names.index("task_index")
        column = pa.array([numbers[old] for old in table["task_index"].to_pylist()])
        pq.write_table(table.set_column(place, "task_index", column), path)


@pytest.mark.parametrize("numbers", [(1, 2), (0, 5), (1, 0), (-1, 0)])
def test_tasks_are_found_by_their_numbers(v21: Path, numbers: tuple[int, int], tmp_path: Path) -> None:
    """Their place in meta/tasks.jsonl is another one if a dataset is a part of a larger one."""
    renumber_tasks(v21, numbers)
    unistore.convert(v21, tmp_path / "toy.zarr", workers=0)
    steps = unistore.Dataset(tmp_path / "toy.zarr", unistore.Transitions())
    expected = np.repeat([f"do task {task}" for task in (0, 1, 0)], LENGTHS)
    assert [sample["task"] for sample in steps] == expected.tolist()
    unistore.export(tmp_path / "toy.zarr", tmp_path / "exported", to="lerobot")
    with opened(tmp_path / "exported") as dataset:
        texts = np.concatenate([dataset.arrays[f"data/episode_00000{number}/task"][:] for number in range(3)])
    assert texts.tolist() == expected.tolist()


def test_a_task_that_is_listed_twice_is_one_unless_its_texts_differ(v21: Path) -> None:
    tasks = v21 / "meta/tasks.jsonl"
    tasks.write_text(tasks.read_text() * 2)
    with opened(v21) as dataset:
        assert dataset.arrays["data/episode_000001/task"][:].tolist() == ["do task 1"] * LENGTHS[1]
    tasks.write_text(tasks.read_text().replace("do task 1", "do task 2", 1))
    with (
        pytest.raises(InputError, match="two texts for the task_index 1: 'do task 2' and 'do task 1'"),
        opened(v21),
    ):
        pass


def test_a_changed_value_is_noticed(v21: Path, tmp_path: Path) -> None:
    store = tmp_path / "toy.zarr"
    unistore.convert(v21, store, workers=0)
    path = v21 / "data/chunk-000/episode_000001.parquet"
    table = pq.read_table(path)
    changed = pa.array([0.5, *table["next.reward"].to_pylist()[1:]], pa.float32())
    pq.write_table(
        table.set_column(table.schema.get_field_index("next.reward"), "next.reward", changed), path
    )
    verified = unistore.verify(store, against=v21)
    assert "row 7: 0.0 and 0.5, 1 of 21 values differ" in str(verified.problems)


@pytest.mark.parametrize("damaged", [False, True])
def test_checksums_of_pages_are_verified(v21: Path, tmp_path: Path, damaged: bool) -> None:
    path = v21 / "data/chunk-000/episode_000001.parquet"
    table = pq.read_table(path)
    pq.write_table(table, path, write_page_checksum=True, use_dictionary=False, compression="none")
    actions = np.stack(table["action"].to_numpy())
    if damaged:
        content = bytearray(path.read_bytes())
        content[content.index(actions[3].tobytes())] ^= 1
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"episode_000001\.parquet: is damaged: .*CRC checksum"):
            unistore.convert(v21, tmp_path / "toy.zarr", workers=0)
    else:
        unistore.convert(v21, tmp_path / "toy.zarr", workers=0)
        steps = unistore.Dataset(tmp_path / "toy.zarr", unistore.Transitions())
        np.testing.assert_array_equal(
            [steps[LENGTHS[0] + row]["action"] for row in range(len(actions))], actions
        )


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


Change = Callable[[Path], object]
VIDEOS = "videos/chunk-000/observation.images.top/episode_00000{}.mp4"
TABLES = "data/chunk-000/episode_00000{}.parquet"


def copied(pattern: str, source: int, target: int) -> Change:
    return lambda root: shutil.copy(root / pattern.format(source), root / pattern.format(target))


def removed(name: str) -> Change:
    return lambda root: (root / name).unlink()


def rewritten(name: str, text: str) -> Change:
    return lambda root: (root / name).write_text(text)


def backwards(root: Path) -> None:
    path = root / "meta/episodes.jsonl"
    path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))


def with_info(**values: Any) -> Change:
    return lambda root: change_info(root, **values)


HOSTILE = ("../../outside.parquet", "{episode_index.__class__}", "{episode_index:09999d}")
OTHER_INFO = ("[]", '{"codebase_version": "v3.0"}', '{"codebase_version": "v2.1", "fps": "')
OTHER_TASK = rewritten("meta/tasks.jsonl", '{"task_index": 0, "task": "another"}\n')
WRONG: list[tuple[Change, str]] = [
    (copied(VIDEOS, 1, 2), r"episode_000002\.mp4: ends after 0\.50 s, but step 8 is at 0\.80 s"),
    (with_info(fps=20), r"is not at 0\.0500 s"),
    (copied(TABLES, 2, 1), "row 0 does not belong to episode 1"),
    (copied(TABLES, 1, 0), "has 5 rows, but 7 are needed"),
    (removed(TABLES.format(0)), r"episode_000000\.parquet"),
    (removed("meta/tasks.jsonl"), r"tasks\.jsonl"),
    (backwards, "out of order is number 0"),
    (OTHER_TASK, "has the task 'do task 0', which meta/tasks does not list"),
    (with_info(codebase_version="v2.0"), r"v2\.0.*convert_dataset_v20_to_v21"),
    (with_info(codebase_version="v1.6"), r"v1\.6.*v1_to_v2"),
    *((with_info(data_path=place), "needs") for place in HOSTILE),
    *((rewritten("meta/info.json", text), "do not describe a dataset") for text in OTHER_INFO),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_each_damage_of_a_dataset_is_a_problem_that_names_it(v21: Path, change: Change, message: str) -> None:
    (v21.parent / "outside.parquet").write_bytes(b"PAR1")
    change(v21)
    assert any(re.search(message, problem) for problem in problems_of(v21))


@pytest.mark.parametrize(
    ("change", "episode", "time"), [(copied(VIDEOS, 1, 2), 2, "0.5000"), (with_info(fps=20), 0, "0.0500")]
)
def test_a_missing_video_frame_is_an_error_that_names_its_time(
    v21: Path, change: Change, episode: int, time: str
) -> None:
    change(v21)
    with opened(v21) as dataset, pytest.raises(InputError, match=f"no frame at {time} s"):
        dataset.arrays[f"data/episode_00000{episode}/observation.images.top"][:]


def test_frames_shown_before_the_key_frame_that_a_seek_finds_are_read(tmp_path: Path) -> None:
    """MPEG-4 in MP4 with B-frames: a key frame is decoded before frames that are shown earlier."""
    path = tmp_path / "a.mp4"
    shown = np.random.default_rng(0).integers(0, 255, (24, 4, 6, 3), "u1").repeat(8, 1).repeat(8, 2)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10, options={"g": "6", "bf": "2"})
        stream.height, stream.width, stream.pix_fmt = 32, 48, "yuv420p"
        for image in shown:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())
    with av.open(str(path)) as container:
        expected = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(expected) == len(shown)
    frames = Frames(SourceFile(path, path.name), (32, 48), 0.0, len(expected), 10)
    for step, image in enumerate(expected):
        np.testing.assert_array_equal(frames[step : step + 1], image[None], err_msg=f"step {step}")


def test_hidden_files_that_macos_leaves_are_not_tables(dataset: Path) -> None:
    with opened(dataset) as sound:
        expected = sound.arrays.keys()
    for path in [*dataset.rglob("*.parquet")]:
        path.with_name(f"._{path.name}").write_bytes(b"\0\5\x16\7")
    with opened(dataset) as found:
        assert found.arrays.keys() == expected
        assert set(found.left_out) == DERIVED


@pytest.mark.parametrize("key", ["is_depth_map", "video.is_depth_map"])
def test_a_video_of_depths_is_an_error_until_it_is_ignored(dataset: Path, key: str, tmp_path: Path) -> None:
    """Its frames have 12 bits and would be read as colours of 8."""
    camera = "observation.images.top"
    info = json.loads((dataset / "meta/info.json").read_text())
    info["features"][camera]["info"] = {key: True}
    change_info(dataset, features=info["features"])
    with pytest.raises(InputError, match=rf"{camera}: is a video of depths.*add --ignore {camera}"):
        unistore.convert(dataset, tmp_path / "toy.zarr", workers=0)
    unistore.convert(dataset, tmp_path / "toy.zarr", workers=0, ignore=camera)
    sample = unistore.Dataset(tmp_path / "toy.zarr", unistore.Transitions())[0]
    assert "observation.images.wrist" in sample
    assert camera not in sample


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


def unlist_last(root: Path) -> None:
    """Remove the last episode from ``meta/``; its rows stay."""
    change_info(root, total_episodes=2, total_frames=12)
    if (root / "meta/episodes.jsonl").exists():
        lines = (root / "meta/episodes.jsonl").read_text().splitlines(keepends=True)
        (root / "meta/episodes.jsonl").write_text("".join(lines[:2]))
    else:
        (path,) = root.glob("meta/episodes/*/*.parquet")
        pq.write_table(pq.read_table(path).slice(0, 2), path)


def test_rows_that_no_episode_lists_are_named(dataset: Path, tmp_path: Path) -> None:
    store = tmp_path / "before.zarr"
    report = unistore.convert(dataset, store)
    assert not any("not in an episode" in note for note in report.notes)
    before = unistore.Store(store).array("steps/action").read(0, 12)
    unlist_last(dataset)
    report = unistore.convert(dataset, tmp_path / "out.zarr")
    rows = "rows 0 to 8 of data/chunk-000/episode_000002.parquet (9 rows)"
    if dataset.name == "v3":
        rows = "rows 12 to 20 of data/chunk-000/file-000.parquet (9 rows)"
    assert f"not stored, because they are not in an episode that meta/ lists: {rows}" in report.notes
    assert np.array_equal(unistore.Store(tmp_path / "out.zarr").array("steps/action").read(), before)
    receipt = unistore.verify(tmp_path / "out.zarr", against=dataset).receipt
    assert receipt is not None
    assert rows in receipt.left_out


@pytest.mark.parametrize("is_there", [True, False], ids=["short", "absent"])
def test_rows_in_another_file_than_meta_says_are_found(is_there: bool, tmp_path: Path) -> None:
    root = Path(shutil.copytree(SAMPLES / "v3", tmp_path / "v3"))
    unistore.convert(root, tmp_path / "before.zarr")
    table = root / "data/chunk-000/file-000.parquet"
    rows = pq.read_table(table)
    moved = root / "data/chunk-000/file-007.parquet"
    if is_there:  # rows of the last episode are elsewhere
        pq.write_table(rows.slice(0, 12), table)
        pq.write_table(rows.slice(12), moved)
    else:
        table.rename(moved)
    report = unistore.convert(root, tmp_path / "out.zarr")
    assert "were read from data/chunk-000/file-007.parquet" in " ".join(report.notes)
    before, after = (unistore.Store(tmp_path / name) for name in ("before.zarr", "out.zarr"))
    for path in before.paths():
        if path.startswith("steps/"):
            assert np.array_equal(before.array(path).read(), after.array(path).read()), path
    assert unistore.verify(tmp_path / "out.zarr", against=root).ok
    pq.write_table(rows.slice(12, 8), moved)  # a row is nowhere
    with pytest.raises(InputError, match="file-000"):
        unistore.convert(root, tmp_path / "cut.zarr")


def test_names_of_features_come_back_in_an_export(dataset: Path, tmp_path: Path) -> None:
    unistore.convert(dataset, tmp_path / "a.zarr", "trajectory", workers=0)
    store = unistore.Store(tmp_path / "a.zarr")
    assert store.array("steps/observation/state").attributes["components"] == ["a", "b", "c", "d"]
    for name, column in FROM_LEROBOT.items():
        assert store.array(f"steps/{column}").attributes["source_dataset"] == [name]
    unistore.export(tmp_path / "a.zarr", tmp_path / "again", to="lerobot")
    before, after = (
        json.loads((root / "meta/info.json").read_text())["features"]
        for root in (dataset, tmp_path / "again")
    )
    assert before.keys() - after.keys() == set()
    for name in ("observation.state", *FROM_LEROBOT):
        assert after[name]["names"] == before[name]["names"]
        assert after[name]["dtype"] == before[name]["dtype"]


def change_feature(root: Path, name: str, **values: Any) -> None:
    info = json.loads((root / "meta/info.json").read_text())
    info["features"][name].update(values)
    change_info(root, features=info["features"])


@pytest.mark.parametrize("names", [list("abdc"), list("efgh"), None])
def test_datasets_whose_numbers_have_another_order_are_not_joined(
    names: list[str] | None, tmp_path: Path
) -> None:
    """Other names may be of the same joints; the same names in another order are not."""
    for version in ("v21", "v3"):
        shutil.copytree(SAMPLES / version, tmp_path / "in" / version)
    change_feature(tmp_path / "in/v3", "observation.state", names=names)
    if names is not None and sorted(names) == list("abcd"):
        other = r"number 2 is 'c', but 'd' in v3/meta/info\.json"
        with pytest.raises(InputError, match=rf"v21/.* observation/state in another order: {other}"):
            unistore.convert(tmp_path / "in", tmp_path / "toy.zarr", workers=0)
        return
    unistore.convert(tmp_path / "in", tmp_path / "toy.zarr", workers=0)
    assert len(unistore.Dataset(tmp_path / "toy.zarr", unistore.Transitions())) == 2 * sum(LENGTHS)


def test_a_video_without_names_of_its_axes_has_height_before_width(v21: Path) -> None:
    with opened(v21) as dataset:
        expected = dataset.arrays["data/episode_000001/observation.images.top"][0:3]
    change_feature(v21, "observation.images.top", names=None)
    with opened(v21) as dataset:
        found = dataset.arrays["data/episode_000001/observation.images.top"]
        assert not found.problems()
        np.testing.assert_array_equal(found[0:3], expected)


@pytest.mark.parametrize("names", [["a", "b"], {"x": ["a"], "y": ["b", "c", "d"]}, "abcd", None])
def test_names_that_do_not_fit_the_number_of_components_are_ignored(
    v21: Path, tmp_path: Path, names: Any
) -> None:
    info = json.loads((v21 / "meta/info.json").read_text())
    info["features"]["observation.state"]["names"] = names
    change_info(v21, features=info["features"])
    unistore.convert(v21, tmp_path / "a.zarr", "trajectory", workers=0)
    assert "components" not in unistore.Store(tmp_path / "a.zarr").array("steps/observation/state").attributes


def test_statistics_of_the_dataset_are_kept_if_asked(tmp_path: Path) -> None:
    root = Path(shutil.copytree(SAMPLES / "v3", tmp_path / "v3"))
    text = (root / "meta/stats.json").read_text()
    unistore.convert(root, tmp_path / "a.zarr", "trajectory", workers=0)
    (metadata,) = unistore.Store(tmp_path / "a.zarr").text("sources/attributes")
    assert "stats.json" not in json.loads(metadata)
    unistore.convert(root, tmp_path / "b.zarr", "trajectory", workers=0, keep_stats=True)
    (metadata,) = unistore.Store(tmp_path / "b.zarr").text("sources/attributes")
    assert json.loads(metadata)["stats.json"] == text
    unistore.export(tmp_path / "b.zarr", tmp_path / "again")
    (exported,) = (tmp_path / "again").rglob("stats.json")
    assert exported.read_text() == text
    without, kept = (unistore.verify(tmp_path / name, against=root).receipt for name in ("a.zarr", "b.zarr"))
    assert without is not None
    assert kept is not None
    assert kept.values - without.values == len(text.encode())
    assert kept.files == without.files + 1


def test_keep_stats_without_statistics_is_an_error(v21: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"needs the file stats\.json"):
        unistore.convert(v21, tmp_path / "a.zarr", "trajectory", workers=0, keep_stats=True)
