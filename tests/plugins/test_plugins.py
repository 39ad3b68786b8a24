"""Packages of others from outside: every promise, and what is said of faults in their code."""

from __future__ import annotations

import json
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import unistore
import unistore.plugin
from unistore import plugin
from unistore.converters.registry import families
from unistore.errors import InputError, UnistoreError
from unistore.html import sample_view
from unistore.testing import check_family, check_format

pytestmark = pytest.mark.timeout(300)
RATES = {"a.wav": (8000, 20_001), "b.wav": (8000, 7), "deep/c.wav": (16_000, 50_000)}


def write_wav(path: Path, pcm: np.ndarray, rate: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setparams((pcm.shape[1], 2, rate, len(pcm), "NONE", ""))
        file.writeframes(pcm.astype("<i2").tobytes())


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    folder = tmp_path_factory.mktemp("recordings")
    rng = np.random.default_rng(0)
    pcm = {name: rng.integers(-30_000, 30_000, (frames, 2)) for name, (_, frames) in RATES.items()}
    for name, (rate, _) in RATES.items():
        write_wav(folder / name, pcm[name], rate)
    return folder, pcm


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    folder = tmp_path_factory.mktemp("events")
    rng = np.random.default_rng(1)
    columns: dict[str, list[np.ndarray]] = {"x": [], "y": [], "t": [], "p": []}
    for number, count in enumerate((20_000, 3_000)):
        parts = {
            "x": rng.integers(0, 64, count).astype("u2"),
            "y": rng.integers(0, 48, count).astype("u2"),
            "t": np.sort(rng.integers(0, 400_000, count)).astype("u4"),
            "p": rng.integers(0, 2, count).astype("u1"),
        }
        with h5py.File(folder / f"e{number}.h5", "w") as file:
            for name, values in parts.items():
                file[f"dvs/{name}"] = values
                columns[name].append(values)
            file["t_offset"] = 1_000_000 * (number + 1)
    return folder, {name: np.concatenate(values) for name, values in columns.items()}


def test_the_wav_format_keeps_its_promises(recordings: tuple[Path, dict[str, np.ndarray]]) -> None:
    from unistore_audio import Wav

    folder, pcm = recordings
    check_format(Wav(), folder / "a.wav", {"pcm": pcm["a.wav"].astype("<i2")}, {"rate": 8000})


@pytest.mark.nightly
def test_the_audio_family_keeps_every_promise(
    recordings: tuple[Path, dict[str, np.ndarray]], tmp_path: Path
) -> None:
    folder, pcm = recordings
    clips = [-(-frames // (rate // 4)) for rate, frames in RATES.values()]
    oracle = {
        "frames/pcm": np.concatenate(list(pcm.values())),
        "sources/rate": np.array([rate for rate, _ in RATES.values()]),
        "clips/source": np.repeat(np.arange(3), clips),
    }
    check_family("audio", folder, tmp_path, oracle, {"seconds": 0.25})


def test_a_store_is_read_without_its_package(
    recordings: tuple[Path, dict[str, np.ndarray]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, pcm = recordings
    store = tmp_path / "a.zarr"
    unistore.convert(folder, store, "audio")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    families.cache_clear()
    assert "audio" not in families()
    verified = unistore.verify(store)
    assert verified.ok
    assert [problem.kind for problem in verified.problems] == ["family"]
    rows = unistore.Dataset(store, samples=unistore.Rows())
    assert rows[20_005]["pcm"].tolist() == pcm["b.wav"][4].tolist()
    clips = unistore.Dataset(store, samples=unistore.Ragged())
    assert np.array_equal(clips[0]["pcm"].numpy(), pcm["a.wav"][:8000])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"t": np.zeros((5, 2), "u4")},
            r"e\.h5: dvs/t: is uint32 \(n, 2\), but must have 1 axis of int",
        ),
        ({"t": np.zeros(5, "f8")}, r"e\.h5: dvs/t: is float64 \(n\), but must have 1 axis of int or u"),
        (
            {"t": np.zeros(4, "u4")},
            r"e\.h5: its arrays differ in the length of axis 0:\n +dvs/x  5\n(.*\n)* +dvs/t  4",
        ),
        ({"t": None}, r"e\.h5: does not contain dvs/t"),
        ({"t_offset": None}, r"e\.h5: does not state t_offset"),
        ({"t": np.arange(5)[::-1]}, r"dvs/t: falls\. Fix: sort the events by time"),
    ],
)
def test_a_file_that_does_not_fit_the_schema_is_an_error(
    columns: dict[str, Any], message: str, tmp_path: Path
) -> None:
    values = {name: np.zeros(5, "u2") for name in ("x", "y", "t", "p")} | {"t_offset": np.int64(7)} | columns
    with h5py.File(tmp_path / "e.h5", "w") as file:
        for name, value in values.items():
            if value is not None:
                file[name if name == "t_offset" else f"dvs/{name}"] = value
    with pytest.raises(InputError, match=message):
        unistore.convert(tmp_path / "e.h5", tmp_path / "e.zarr", "dvs")
    assert not (tmp_path / "e.zarr").exists()


def forgets_a_column(self: Any, opened: Any, lo: int, hi: int) -> dict[str, Any]:
    return {name: opened.arrays[f"dvs/{name}"][lo:hi] for name in ("x", "y", "t")}


def gives_fewer_rows(self: Any, opened: Any, lo: int, hi: int) -> dict[str, Any]:
    return {name: opened.arrays[f"dvs/{name}"][lo : hi - 1] for name in ("x", "y", "t", "p")}


def has_a_bug(self: Any, *arguments: Any) -> Any:
    return None + 1  # type: ignore[operator]


def misses_a_key(self: Any, *arguments: Any) -> Any:
    return {}["speed"]


METHODS = ("match", "group", "cut", "rows")
FAILED = r"unistore_events\.Events failed: {}.*authors of the package unistore_events"


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("method", "fault", "message"),
    [
        ("rows", forgets_a_column, r"Events\.rows returned 0 rows of p, not"),
        ("rows", gives_fewer_rows, r"Events\.rows returned [\d,]+ rows of"),
        *((method, has_a_bug, FAILED.format("TypeError")) for method in METHODS),
        ("typical_rows", misses_a_key, FAILED.format("KeyError: 'speed'")),
    ],
)
def test_a_fault_of_the_code_names_the_plugin(
    method: str,
    fault: Any,
    message: str,
    events: tuple[Path, dict[str, np.ndarray]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from unistore_events import Events

    monkeypatch.setattr(Events, method, fault)
    with pytest.raises(InputError, match=message):
        unistore.convert(events[0], tmp_path / "e.zarr", "dvs")
    assert not (tmp_path / "e.zarr").exists()


@pytest.mark.usefixtures("in_this_process")
def test_faults_of_restore_and_view_name_the_plugin(
    events: tuple[Path, dict[str, np.ndarray]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unistore_events import Events

    store = tmp_path / "e.zarr"
    unistore.convert(events[0], store, "dvs")
    (shown,) = sample_view(unistore.Store(store), 0, plugin.ViewLimits(shown=1 << 20, read=1 << 20)).head[
        "columns"
    ]
    assert (shown["name"], shown["form"]) == ("balance of polarities", "image")
    monkeypatch.setattr(Events, "restore", misses_a_key)
    monkeypatch.setattr(Events, "view", misses_a_key)
    problems = unistore.verify(store, against=events[0]).problems
    assert {problem.kind for problem in problems} == {"plugin"}
    assert "unistore_events.Events failed: KeyError" in str(problems[0])
    with pytest.raises(InputError, match=FAILED.format("KeyError")):
        unistore.export(store, tmp_path / "exported")
    assert "unistore_events.Events failed: KeyError" in unistore.inspect(store).to_html()


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("columns", r"\.wav: pcm: row \d+ is .* 500\b"),
        ("per_source", r"sources/rate: row 0 is 8,000, .* 50,000"),
        ("per_sample", r"clips/length: row 0 is 8,000, .* 9,000"),
    ],
)
@pytest.mark.usefixtures("in_this_process")
def test_values_below_the_bounds_of_a_schema_are_not_sealed(
    part: str,
    message: str,
    recordings: tuple[Path, dict[str, np.ndarray]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from unistore_audio import Audio

    bounded = {
        "columns": {"pcm": plugin.Column(kinds="i", axes=("channel",), least=500)},
        "per_source": {"rate": plugin.Column(kinds="i", least=50_000)},
        "per_sample": {"length": plugin.Column(kinds="i", least=9000)},
    }
    whole = Audio.cut

    def cut(self: Audio, opened: plugin.OpenFile) -> Iterator[plugin.Cut]:
        for one in whole(self, opened):
            yield one._replace(numbers={"length": one.rows} if part == "per_sample" else {})

    monkeypatch.setattr(Audio, "cut", cut)
    monkeypatch.setattr(Audio, "schema", replace(Audio.schema, **{part: bounded[part]}))
    families.cache_clear()
    with pytest.raises(UnistoreError, match=message):
        unistore.convert(recordings[0], tmp_path / "a.zarr", "audio")
    assert not (tmp_path / "a.zarr").exists()


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        (
            {},
            r"e0\.h5: Events\.cut returned no numbers for sample 0, .* has start\. Fix: report .*_events",
        ),
        (
            {"start": 0, "end": 1},
            r"Events\.cut returned end, start for sample 0, but Schema\.per_sample has start",
        ),
        ({"start": 0.5}, r"Events\.cut returned the start 0\.5 for sample 0"),
        ({"start": float("nan")}, r"Events\.cut returned the start nan for sample 0, not a whole number"),
    ],
)
@pytest.mark.usefixtures("in_this_process")
def test_numbers_of_a_sample_that_differ_from_the_schema_are_an_error(
    numbers: dict[str, Any],
    message: str,
    events: tuple[Path, dict[str, np.ndarray]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from unistore_events import Events

    def cut(self: Events, opened: plugin.OpenFile) -> Iterator[plugin.Cut]:
        yield plugin.Cut(len(opened.arrays["dvs/t"]), numbers)

    monkeypatch.setattr(Events, "cut", cut)
    with pytest.raises(InputError, match=message):
        unistore.convert(events[0], tmp_path / "e.zarr", "dvs")
    assert not (tmp_path / "e.zarr").exists()


@pytest.mark.usefixtures("in_this_process")
def test_memory_that_a_family_takes_is_counted(
    recordings: tuple[Path, dict[str, np.ndarray]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unistore_audio import Audio

    unistore.convert(recordings[0], tmp_path / "a.zarr", "audio", memory="500MB")
    taken = {"a.wav": 3 << 30}
    monkeypatch.setattr(Audio, "memory", lambda _, head: taken.get(head.file.name, 0))
    with pytest.raises(InputError, match=r"500.0 MB, .* needs .* GB: .* for reading a\.wav"):
        unistore.convert(recordings[0], tmp_path / "b.zarr", "audio", memory="500MB")
    unistore.convert(recordings[0], tmp_path / "b.zarr", "audio", memory="4GB")


class Tape:
    """Values that can be read once, from the first row to the last."""

    def __init__(self, values: np.ndarray) -> None:
        self.shape, self.dtype = values.shape, values.dtype
        self._values, self._at = values, 0

    def __getitem__(self, rows: slice) -> np.ndarray:
        lo, hi, _ = rows.indices(self.shape[0])
        assert lo == self._at, f"row {lo} is read where row {self._at} follows"
        self._at = hi
        return self._values[lo:hi]


def test_a_forward_only_file_is_opened_once_for_its_values(
    recordings: tuple[Path, dict[str, np.ndarray]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unistore_audio import Wav

    folder, pcm = recordings
    plain = unistore.convert(folder, tmp_path / "plain.zarr", "audio")
    tapes: list[Tape] = []
    whole = Wav.open

    @contextmanager
    def forward(self: Wav, file: Any) -> Iterator[plugin.OpenFile]:
        with whole(self, file) as opened:
            tapes.append(Tape(np.asarray(opened.arrays["pcm"].values)))
            yield plugin.OpenFile({"pcm": plugin.Array(tapes[-1])}, opened.metadata, forward_only=True)

    monkeypatch.setattr(Wav, "open", forward)
    monkeypatch.setattr("unistore.conversion.plan.SHARD", 32 << 10)
    unistore.convert(folder, tmp_path / "tape.zarr", "audio")
    assert len([tape for tape in tapes if tape._at]) == len(pcm), "each file's values are read once"
    stored = unistore.Store(tmp_path / "tape.zarr").array("frames/pcm").read()
    assert np.array_equal(stored, np.concatenate(list(pcm.values())))
    assert plain.samples == unistore.Store(tmp_path / "tape.zarr").sample_count


def test_files_beside_a_source_are_read_inside_of_the_given_folders_alone(
    recordings: tuple[Path, dict[str, np.ndarray]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unistore_audio import Wav

    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "a.wav").write_bytes((recordings[0] / "a.wav").read_bytes())
    whole = Wav.open

    @contextmanager
    def with_notes(self: Wav, file: Any) -> Iterator[plugin.OpenFile]:
        notes = file.beside("a.txt")
        with whole(self, file) as opened:
            metadata = {**opened.metadata, "notes": notes.path.read_text()}
            yield plugin.OpenFile(opened.arrays, metadata, further=(notes,))

    monkeypatch.setattr(Wav, "open", with_notes)
    (sources / "a.txt").write_text("rain")
    unistore.convert(sources, tmp_path / "a.zarr", "audio")
    metadata = json.loads(unistore.Store(tmp_path / "a.zarr").text("sources/facts")[0])
    assert metadata == {"notes": "rain", "rate": 8000}
    assert unistore.verify(tmp_path / "a.zarr", against=sources).ok
    (tmp_path / "secret.txt").write_text("secret")
    (sources / "a.txt").unlink()
    (sources / "a.txt").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(InputError, match=r"a\.wav: needs the file a\.txt, which is outside the given paths"):
        unistore.convert(sources, tmp_path / "b.zarr", "audio")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Two logs: of b, sensor "rain" is missing, and "heat" has another dtype."""
    folder = tmp_path / "logs"
    folder.mkdir()
    for name, fields in (("a", {"heat": "<f4", "rain": "<i2"}), ("b", {"heat": "<f8"})):
        np.save(folder / f"{name}.time.npy", np.arange(5))
        values = np.zeros(5, [*fields.items()])
        for field in fields:
            values[field] = np.arange(5) * 3 + ord(name)
        np.save(folder / f"{name}.values.npy", values)
    return folder


def test_columns_that_only_some_groups_have_are_united_or_intersected(logs: Path, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"2 sources: their columns differ:(.*\n)*.*rain: int16 in a, missing"
    ):
        unistore.convert(logs, tmp_path / "a.zarr", "sensors")
    report = unistore.convert(logs, tmp_path / "a.zarr", "sensors", columns="union")
    store = unistore.Store(tmp_path / "a.zarr")
    first, second = (np.load(logs / f"{name}.values.npy") for name in "ab")
    assert store.array("readings/heat").read().tolist() == [*first["heat"], *second["heat"]]
    assert store.array("readings/rain").read().tolist() == [*first["rain"], *[0] * 5]
    assert store.array("readings/rain").attributes["missing_in"] == [1]
    assert store.array("readings/heat").attributes["source_dtype"] == {"<f4": [0], "<f8": [1]}
    assert store.array("readings/time").attributes["units"] == "us"
    assert store.text("sources/path") == ["a", "b"]
    for note in (
        "logs of sensors: 10 readings of time, heat, rain from 4 files",
        "2 logs in pairs",
        "a and others: came in a drawer",
    ):
        assert note in report.notes
    common = unistore.convert(logs, tmp_path / "b.zarr", "sensors", columns="intersection")
    assert any(note.startswith("not stored") and "data/rain" in note for note in common.notes)
    assert not unistore.Store(tmp_path / "b.zarr").has("readings/rain")


def test_a_group_that_is_not_whole_is_a_problem(logs: Path, tmp_path: Path) -> None:
    (logs / "b.time.npy").unlink()
    with pytest.raises(InputError, match=r"b\.values\.npy: has no time beside it"):
        unistore.convert(logs, tmp_path / "a.zarr", "sensors")
