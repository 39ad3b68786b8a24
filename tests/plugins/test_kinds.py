"""Kinds of samples of packages: by name, in suggestions, in Loaders, and left out where they fail."""

from __future__ import annotations

import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unistore
import unistore.plugin
from unistore import plugin
from unistore.data.kinds import named
from unistore.errors import InputError

pytestmark = pytest.mark.timeout(300)
IMPORTS = "import dataclasses, unistore.plugin\n@dataclasses.dataclass\n"
FRAMES = {"a.wav": 9000, "b.wav": 50}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kinds")


@pytest.fixture(scope="module")
def pcm(folder: Path) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    pcm = {name: rng.integers(-30_000, 30_000, (frames, 2)).astype("<i2") for name, frames in FRAMES.items()}
    (folder / "wav").mkdir()
    for name, values in pcm.items():
        with wave.open(str(folder / "wav" / name), "wb") as file:
            file.setparams((2, 2, 4000, len(values), "NONE", ""))
            file.writeframes(values.tobytes())
    return pcm


@pytest.fixture
def store(pcm: dict[str, np.ndarray], folder: Path) -> Path:
    """Converted once the packages are installed, for all tests."""
    if not (folder / "a.zarr").exists():
        unistore.convert(folder / "wav", folder / "a.zarr", "audio", seconds=1.0)
    return folder / "a.zarr"


def test_a_kind_is_given_by_name(store: Path, pcm: dict[str, np.ndarray]) -> None:
    dataset = unistore.Dataset(store, "Window(rows=64, per_sample=3)", fields=["pcm", "start", "source"])
    assert len(dataset) == 4 * 3, "3 clips of a.wav, 1 of b.wav, 3 windows of each"
    starts = set()
    for number in range(9):
        sample = dataset[number]
        first = 4000 * (number // 3) + int(sample["start"])
        assert np.array_equal(sample["pcm"].numpy(), pcm["a.wav"][first : first + 64])
        assert sample["source"] == "a.wav"
        starts.add(int(sample["start"]))
    assert len(starts) > 3, "drawn for each sample"
    assert np.array_equal(dataset[9]["pcm"].numpy(), pcm["b.wav"])
    assert dataset[0]["start"] == dataset[0]["start"]
    assert set(dataset[0]) == {"index", "pcm", "start", "source"}


@pytest.mark.parametrize("start_method", ["forkserver"])
def test_a_loader_reads_a_kind_in_workers(store: Path, start_method: str) -> None:
    dataset = unistore.Dataset(store, "Window", split=None)
    kept = {int(sample["index"]): sample["pcm"].numpy().copy() for sample in (dataset[i] for i in range(4))}
    loader = unistore.Loader(dataset, batch_size=2, num_workers=1, multiprocessing_context=start_method)
    for batch in loader:
        offsets = batch["offsets"].tolist()
        for number, index in enumerate(batch["index"].tolist()):
            values = batch["pcm"][offsets[number] : offsets[number + 1]]
            assert np.array_equal(values.numpy(), kept[index])


def test_inspect_suggests_the_kinds_that_fit(store: Path, tmp_path: Path) -> None:
    snippet = unistore.inspect(store).to_json()["snippet"]
    assert "# or: samples='Window()'" in snippet
    np.save(tmp_path / "r.npy", np.arange(9))
    unistore.convert(tmp_path / "r.npy", tmp_path / "r.zarr", "rows")
    assert "Window" not in unistore.inspect(tmp_path / "r.zarr").to_json()["snippet"]


def test_a_kind_that_fails_is_left_out_with_a_line(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from unistore_window import Window

    def has_a_bug(self: Window, store: unistore.Store) -> tuple[str, ...]:
        return None + 1  # type: ignore[operator]

    monkeypatch.setattr(Window, "keys", has_a_bug)
    assert "Window" not in unistore.inspect(store).to_json()["snippet"]
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("unistore: the sample kind broken is skipped: unistore_native:Missing c")
    assert lines[1].startswith("unistore: the sample kind Window is skipped: unistore_window failed: T")
    assert unistore.Dataset(store)[0]["pcm"].shape == (4000, 2)


def test_a_kind_that_is_gone_leaves_a_store_that_is_read(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    named.installed_kinds.cache_clear()
    with pytest.raises(InputError, match=r".Window. is not a sample kind: there are Clips, .*, Windows"):
        unistore.Dataset(store, "Window")
    for samples in ("Ragged", "Rows()", unistore.Ragged(max_rows=5)):
        assert len(unistore.Dataset(store, samples))


def test_a_kind_that_forgets_a_key_is_named(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from unistore_window import Window

    monkeypatch.setattr(Window, "read", lambda *_: {"start": np.zeros(1)})
    with pytest.raises(InputError, match=r"a\.zarr: unistore_window\.Window\.read did not return pcm"):
        unistore.Dataset(store, "Window")[0]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("class Kind: ...", "is not a dataclass that inherits unistore.plugin.Kind"),
        ("from unistore.plugin import Kind", "is not a dataclass that inherits unistore.plugin.Kind"),
        (
            f"{IMPORTS}class Kind(unistore.plugin.Kind): ...",
            "has no keys, read",
        ),
        (
            f"{IMPORTS}class Rows(unistore.plugin.Kind):\n    def keys(s): ...\n    read = keys\nKind = Rows",
            "has the same name as another sample kind",
        ),
    ],
)
def test_an_entry_point_that_is_not_a_kind_is_skipped_with_a_line(
    code: str, reason: str, site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from importlib.metadata import EntryPoint

    module = f"unistore_kind_{abs(hash(code))}"
    (site / f"{module}.py").write_text(code)
    point = EntryPoint("odd", f"{module}:Kind", named.ENTRY_POINTS)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [point])
    named.installed_kinds.cache_clear()
    assert named.installed_kinds() == {}
    line = capsys.readouterr().err
    assert line == f"unistore: the sample kind odd is skipped: {module}:Kind {reason}\n"


@pytest.mark.parametrize("samples", ["Ragged", "Rows", "Window"])
def test_values_of_sources_are_delivered_only_if_requested(store: Path, samples: str) -> None:
    dataset = unistore.Dataset(store, samples, fields=["sources.rate", "sources.facts", "source"])
    first, last = dataset[0], dataset[-1]
    assert first == {"index": 0, "sources.rate": 4000, "sources.facts": '{"rate": 4000}', "source": "a.wav"}
    assert last["source"] == "b.wav"
    assert set(unistore.Dataset(store, samples)[0]) & {"sources.rate", "sources.facts"} == set()


def test_check_kind_holds_kinds_to_their_promises(
    store: Path, pcm: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    from unistore_window import Window

    from unistore import testing

    monkeypatch.setattr(testing, "_METHODS", ("fork",))
    testing.check_kind("Window(rows=64, per_sample=3)", store, {9: {"pcm": pcm["b.wav"]}})
    testing.check_kind(unistore.Ragged(), store, {0: {"pcm": pcm["a.wav"][:4000]}})
    with pytest.raises(AssertionError, match="pcm of sample 9 is"):
        testing.check_kind("Window(rows=64, per_sample=3)", store, {9: {"pcm": pcm["b.wav"] + 1}})
    read = Window.read

    def starts(wrong: Callable[[plugin.SampleRows], np.ndarray]) -> Any:
        return lambda kind, store, keys, picks: {**read(kind, store, keys, picks), "start": wrong(picks)}

    for wrong, message in (
        (lambda picks: np.arange(len(picks)), "start of sample . depends on its batch"),
        (lambda picks: np.zeros(len(picks), "f4" if len(picks) else "f8"), "one without samples"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(Window, "read", starts(wrong))
            with pytest.raises(AssertionError, match=message):
                testing.check_kind("Window(rows=64)", store, {})
