"""The documents' training loops, before and after: the scripts themselves compare every batch."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import unistore
from tests.programs import printed
from unistore.cli.main import main

ROOT = Path(__file__).parents[2]
SCRIPTS = {
    "s0": ["segments in order: 8 batches, equal in every value"],
    "s1": [
        "centre crops: 6 batches, equal in every value",
        "random crops: 6 batches, equal in shape and dtype",
    ],
    "s2": ["the same draws: 4 batches, equal in every value"],
    "s3": [
        "all points: 4 batches, equal in every value",
        "random subsets: 4 batches, equal in shape and dtype",
    ],
    "s4": ["rows in order: 25 batches, equal in every value"],
}


@pytest.mark.timeout(300)
def test_before_and_after_give_the_same_batches() -> None:
    """All in one process: importing torch takes longer than any of them."""
    folder = ROOT / "examples" / "migrate"
    code = (
        f"import runpy, sys; sys.path.insert(0, {str(folder)!r})\n"
        "import trial; trial.EPOCHS = 1\n"
        f"for name in {list(SCRIPTS)}: runpy.run_path(f'{folder}/{{name}}.py', run_name='__main__')"
    )
    output = printed("-W", "error", "-c", code, cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
    lines = iter(output.splitlines())
    for compared in SCRIPTS.values():
        assert [next(lines) for _ in compared] == compared
        assert re.fullmatch(r"before: [\d,]+ samples/s", next(lines))
        assert re.fullmatch(r"after: [\d,]+ samples/s", next(lines))
    assert not list(lines)


def test_a_batch_that_differs_is_told(tmp_path: Path) -> None:
    script = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'examples' / 'migrate')!r})\n"
        "import torch; from trial import compare\n"
        "compare('shapes', [torch.ones(2)], [torch.ones(2) * 2], values=False)\n"
        "compare('values', [torch.ones(2)], [torch.ones(2) * 2])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == "shapes: 1 batches, equal in shape and dtype\n"
    assert done.stderr == "values: batch 0, tensor 0: values differ\n"


def test_the_guide_names_tests_that_are_there() -> None:
    text = (ROOT / "docs" / "migrate.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| there ")]
    assert len(rows) > 75
    assert [row for row in rows if not re.search(r"`tests/[\w/]+\.py::\w+` \|$", row)] == []
    assert [(path, test) for path, test in named if f"def {test}(" not in (ROOT / path).read_text()] == []


def test_counts_are_called_what_they_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("synthetic", ROOT / "examples" / "synthetic.py")
    assert spec is not None
    assert spec.loader is not None
    synthetic = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(synthetic)
    synthetic.robot_episodes(tmp_path / "run.hdf5")
    said = []
    for command in (
        ["convert", str(tmp_path / "run.hdf5"), str(tmp_path / "a.zarr")],
        ["inspect", str(tmp_path / "a.zarr")],
    ):
        with pytest.raises(SystemExit):
            main(command)
        said.append(capsys.readouterr().out)
    assert "trajectory: 3 episodes from 1 source" in said[0]
    assert re.search(r"^episodes +3$", said[1], re.MULTILINE)
    assert f"# {len(unistore.Dataset(tmp_path / 'a.zarr'))} samples; each has" in said[1]
