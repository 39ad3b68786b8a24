"""The documents' own configuration files, verbatim, as Dataset and loader arguments."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import unistore.data.kinds
from unistore.config import Config, file, load
from unistore.converters.config_keys import Keys, SampleKeys
from unistore.converters.registry import Family, families
from unistore.errors import InputError

FULL = """\
SEED: 123

DATA:
  ROOT: data/processed/gopro_spike_unified
  TRAIN_SPLIT: train
  VAL_SPLIT: test
  CROP_SIZE: 256
  CLIP_LEN: 5
  K: 32

  # voxels made on reading
  USE_PRECOMPUTED_VOXELS: false
  NUM_VOXEL_BINS: 5
  SPIKE_DIR: spike

  # cache in memory ✓
  USE_RAM_CACHE: true
  CACHE_SIZE_GB: 4.0

DATALOADER:
  TOTAL_WORKERS: "auto"          # 🎯
  TRAIN_PREFETCH_FACTOR: 4
  VAL_PREFETCH_FACTOR: 2
  PIN_MEMORY: true
  PERSISTENT_WORKERS: true

TRAIN:
  EPOCHS: 40
  BATCH_SIZE: 1
  VAL_BATCH_SIZE: 1
  GRADIENT_ACCUMULATION_STEPS: 6
  MAX_GRAD_NORM: 1.0
  OPTIM:
    LR: 0.0002
"""

CT = """\
"dataset": {
    "name": "CTWindowSparseSDF",
    "args": {
        "resolution": 512,
        "window_type": "lung",
        "min_points": 100,
        "max_points": 100000,
        "cache_data": true,          // 🆕 cache
        "precompute_sparse": true    // 🆕 "indices"
    }
}
"""


@dataclass(frozen=True)
class Clips:
    """Stands for the sample kind, whose own tests are elsewhere."""

    length: int = 1
    crop: int | None = None
    voxel_bins: int | None = None
    random: bool = True


@pytest.fixture(autouse=True)
def kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unistore.data.kinds, "Clips", Clips, raising=False)


@pytest.fixture
def read(tmp_path: Path):
    def read(text: str, name: str = "config.yaml", **options) -> Config:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return load(tmp_path / name, **{"cores": 40, "ranks": 1, **options})

    return read


def problems_of(read, text: str, name: str = "config.yaml", **options) -> str:
    with pytest.raises(InputError) as caught:
        read(text, name, **options)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_the_spike_document_in_full(read) -> None:
    config = read(FULL, ranks=3)
    assert config.seed == 123
    assert config.train.dataset == {
        "path": "data/processed/gopro_spike_unified",
        "samples": Clips(5, 256, 5, random=True),
        "names": {"voxel": "spike_vox"},
        "split": "train",
        "seed": 123,
    }
    assert config.validation is not None
    assert config.validation.dataset["samples"] == Clips(5, 256, 5, random=False)
    assert config.validation.dataset["split"] == "test"
    assert config.train.dataloader == {
        "batch_size": 1,
        "shuffle": True,
        "pin_memory": True,
        "num_workers": 10,
        "prefetch_factor": 4,
        "persistent_workers": True,
    }
    assert config.train.loader == {
        "batch_size": 1,
        "shuffle": True,
        "pin_memory": True,
        "seed": 123,
        "num_workers": 10,
        "prefetch_factor": 4,
        "cache": 4 << 30,
    }
    assert config.validation.dataloader["prefetch_factor"] == 2
    assert config.validation.loader["shuffle"] is False
    assert (config.workers.train, config.workers.validation) == (10, 2)
    assert config.conversion == {"spike_dir": "spike", "voxel_dir": "none"}
    assert config.unused == (
        "DATA.K",
        "TRAIN.EPOCHS",
        "TRAIN.GRADIENT_ACCUMULATION_STEPS",
        "TRAIN.MAX_GRAD_NORM",
        "TRAIN.OPTIM.LR",
    )


@pytest.mark.parametrize(
    ("total", "workers", "prefetch"),
    [('"cpu*0.9"   # 90 %', 36, 6), ('"auto"', 32, 4), ("24", 24, 2), ('"24"', 24, 2)],
)
def test_the_spike_document_in_pieces(read, total: str, workers: int, prefetch: int) -> None:
    config = read(f"DATALOADER:\n  TOTAL_WORKERS: {total}\n  TRAIN_PREFETCH_FACTOR: {prefetch}\n")
    assert config.train.dataloader["num_workers"] == workers
    assert config.train.dataloader["prefetch_factor"] == prefetch
    assert config.train.dataset == {"seed": 0}
    assert config.validation is None


def test_precomputed_voxels(read) -> None:
    config = read(
        "DATA:\n  USE_PRECOMPUTED_VOXELS: true\n  VOXEL_CACHE_DIRNAME: spike_vox\n", store="gopro.zarr"
    )
    assert config.train.dataset == {
        "path": "gopro.zarr",
        "samples": Clips(),
        "names": {"voxel": "spike_vox"},
        "seed": 0,
    }
    assert config.conversion == {"voxel_dir": "spike_vox"}
    assert config.unused == ()


@pytest.mark.parametrize("text", [CT, f"{{{CT}}}", f"/* stage 1 */ {CT.replace('100000', '500000')}"])
def test_the_ct_document(read, text: str) -> None:
    config = read(text, "ct_vqvae_stage1.json", store="ct.zarr", samples=20)
    most = 500_000 if "500000" in text else 100_000
    assert config.train.dataset == {
        "path": "ct.zarr",
        "samples": unistore.data.kinds.SparsePoints(window="lung", min_points=100, max_points=most),
        "seed": 0,
    }
    assert config.train.loader["cache"] == "all"
    assert config.train.loader["num_workers"] == 2
    assert config.conversion == {"window": ("lung",), "resolution": 512}
    assert config.unused == ("dataset.args.precompute_sparse",)


def test_what_it_comes_to_is_printed(
    read, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unistore.system.workers._announced", set())
    config = read(CT, "c.json", store="s3://me:secret@here/printed.zarr", samples=20)
    assert str(config).splitlines() == [
        config.workers.reason,
        (
            "training: seed=0, samples=SparsePoints(window='lung', min_points=100, "
            "max_points=100000), batch_size=1, shuffle=True, pin_memory=False, num_workers=2, "
            "prefetch_factor=4, cache='all'"
        ),
        "conversion: window=('lung',), resolution=512",
        "not used here: dataset.args.precompute_sparse",
    ]
    assert capsys.readouterr().err == f"{config}\n"
    read(CT, "c.json", samples=20)
    assert capsys.readouterr().err == ""


def test_marks_inside_strings_are_no_comments(read) -> None:
    text = '{"dataset": {"name": "CTWindowSparseSDF", "args": {"roots": "s3://a//b /* c */"}}, "x": "\\"//"}'
    config = read(text, "c.json")
    assert config.train.dataset["path"] == "s3://a//b /* c */"
    assert config.unused == ("x",)


@pytest.mark.parametrize(("samples", "workers"), [(20, 2), (49, 2), (50, 4), (200, 4), (201, 8), (5000, 8)])
def test_workers_by_the_size_of_a_ct_set(read, samples: int, workers: int) -> None:
    config = read(CT, "c.json", samples=samples)
    assert config.train.loader["num_workers"] == config.workers.train == workers


def test_workers_of_each_side(read) -> None:
    config = read("DATALOADER:\n  TOTAL_WORKERS: 12\n  TRAIN_WORKERS: 4\n  VAL_WORKERS: 0\n", ranks=3)
    assert config.validation is not None
    assert config.train.dataloader["num_workers"] == 4
    assert config.validation.dataloader == {
        "batch_size": 1,
        "shuffle": False,
        "pin_memory": False,
        "num_workers": 0,
    }
    assert read("DATALOADER:\n  NUM_WORKERS: 8\n", ranks=3).train.dataloader["num_workers"] == 8


@pytest.mark.parametrize(
    ("train", "validation", "workers"),
    [
        ('"auto"', '"auto"', (10, 2)),
        ('"cpu*0.9"', "2", (12, 2)),
        ('"6"', '"cpu*0.3"', (6, 4)),
        ("10", '"0"', (10, 0)),
    ],
)
def test_workers_of_a_side_in_words(read, train: str, validation: str, workers: tuple[int, int]) -> None:
    text = f"DATALOADER:\n  TOTAL_WORKERS: 32\n  TRAIN_WORKERS: {train}\n  VAL_WORKERS: {validation}\n"
    if "0.9" in train:
        text = text.replace("TOTAL_WORKERS: 32", "TOTAL_WORKERS: auto")
    config = read(text, ranks=3)
    assert (config.workers.train, config.workers.validation) == workers


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("DATALOADER: {TOTAL_WORKERS: 4, TRAIN_WORKERS: 6, VAL_WORKERS: 2}", "less than 1 × 6 training"),
        ('DATALOADER: {TOTAL_WORKERS: "4", TRAIN_WORKERS: 6}', "is 4, less than 1 × 6 training"),
        ("DATALOADER: {VAL_WORKERS: few}", "is 'few', expected 'auto', 'cpu*0.9' or a number"),
        ("DATALOADER: {TRAIN_WORKERS: -1}", "at least 0, got -1"),
        ("DATALOADER: {TRAIN_WORKERS: true}", "is True, expected 'auto', 'cpu*0.9' or a number"),
        (
            "DATALOADER: {NUM_WORKERS: 8, TOTAL_WORKERS: auto}",
            "NUM_WORKERS: is given together with newer keys",
        ),
        ("DATALOADER: {TRAIN_WORKERS: 0, PERSISTENT_WORKERS: true}", "no training workers to persist"),
        (
            "DATA: {TRAIN_SPLIT: train, VAL_SPLIT: train}",
            "VAL_SPLIT: is 'train', the same as DATA.TRAIN_SPLIT",
        ),
        ("SEED: 1\nDATA: {ROOT: a}\nSEED: 2", "SEED: is given twice with different values"),
        ("DATA: {CLIP_LEN: five}", "DATA.CLIP_LEN: is 'five', expected an integer"),
        ("DATA: {CLIP_LEN: 0}", "DATA.CLIP_LEN: is 0, must be at least 1"),
        ("DATALOADER: {PIN_MEMORY: 1}", "PIN_MEMORY: is 1, expected true or false"),
        ("DATALOADER: {TOTAL_WORKERS: many}", "is 'many', expected 'auto', 'cpu*0.9' or a number"),
        ("DATALOADER: {TOTAL_WORKERS: 1.5}", "is 1.5, expected 'auto', 'cpu*0.9' or a number"),
        ("- 1\n- 2", "holds list, expected keys and values"),
        ("", "holds nothing, expected keys and values"),
        ("DATA: [", "is not valid YAML"),
        ("DATA: !!python/object/apply:os.system ['true']", "is not valid YAML"),
    ],
)
def test_what_is_refused(read, text: str, said: str) -> None:
    assert said in problems_of(read, text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (CT.replace("100,", "200000,"), "min_points: is 200000, above dataset.args.max_points, 100000"),
        (CT.replace("CTWindowSparseSDF", "Other"), "dataset.name: is 'Other', expected CTWindowSparseSDF"),
        (CT.replace("100,", '"100",'), "min_points: is '100', expected an integer"),
        ('{"dataset": ', "is not valid JSON"),
    ],
)
def test_what_is_refused_in_json(read, text: str, said: str) -> None:
    assert said in problems_of(read, text, "c.json")


def test_all_problems_at_once(read) -> None:
    text = "DATA: {CLIP_LEN: 0, CROP_SIZE: x}\nTRAIN: {BATCH_SIZE: -1}"
    assert len(problems_of(read, text).splitlines()) == 3


@dataclass(frozen=True)
class Pings:
    """Kind of samples of a family from outside."""

    echoes: int = 0


def read_pings(keys: Keys) -> dict[str, int | None]:
    return {"echoes": keys.take("DATA.ECHOES", int, least=1)}


PINGS = SampleKeys(
    kind=f"{__name__}:Pings", read=read_pings, keys=("DATA.ECHOES",), datasets=("Pings", "CTWindowSparseSDF")
)


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two families of packages: one with keys of its own, one whose keys cannot be imported."""
    references = {"sonar": f"{__name__}:PINGS", "radar": "radar_that_is_missing:CONFIG"}
    parts = dict.fromkeys(("summary", "description", "options", "converter"), "")
    found = {name: Family(name=name, config=config, **parts) for name, config in references.items()}
    monkeypatch.setattr(file, "families", lambda: {**families(), **found})


@pytest.mark.usefixtures("outside")
def test_keys_of_a_family_from_outside(read, capsys: pytest.CaptureFixture[str]) -> None:
    assert read("DATA: {ECHOES: 3, K: 1}").train.dataset == {"samples": Pings(3), "seed": 0}
    assert "unistore: family radar is left out: " in capsys.readouterr().err
    assert read("DATA: {CLIP_LEN: 5}").train.dataset["samples"] == Clips(5)
    config = read('{"dataset": {"name": "Pings", "args": {"cache_data": true}}}', "c.json")
    assert config.train.dataset["samples"] == Pings()
    assert config.train.loader["cache"] == "all"


@pytest.mark.usefixtures("outside")
def test_keys_of_two_families(read) -> None:
    said = problems_of(read, "DATA: {ECHOES: 0, CLIP_LEN: 5}")
    assert "DATA.ECHOES: the file describes samples of spike and of sonar" in said
    said = problems_of(read, CT, "c.json")
    assert "dataset.name: the file describes samples of ct and of sonar" in said
    said = problems_of(read, CT.replace("CTWindowSparseSDF", "Other"), "c.json")
    assert said.endswith("is 'Other', expected CTWindowSparseSDF or Pings")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.yaml: cannot be read"):
        load(tmp_path / "none.yaml")


def test_the_same_values_twice_are_no_contradiction(read) -> None:
    assert read("SEED: 1\nDATA: {ROOT: a}\nSEED: 1").seed == 1


def test_torch_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(CT, encoding="utf-8")
    load_it = f"import sys, unistore.config; unistore.config.load({str(tmp_path / 'c.json')!r})"
    code = f"{load_it}; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
    assert run.stderr.startswith("loader workers: ")
