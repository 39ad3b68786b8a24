"""The documents' training loops, before and after: the scripts themselves compare every batch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.programs import printed

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


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_scripts_before_and_after_the_migration_give_the_same_batches() -> None:
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


def test_the_table_names_tests_that_are_there() -> None:
    text = (ROOT / "docs" / "reference" / "replacements.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| before ")]
    assert len(rows) > 75
    assert [row for row in rows if not re.search(r"`tests/[\w/]+\.py::\w+` \|$", row)] == []
    assert [(path, test) for path, test in named if f"def {test}(" not in (ROOT / path).read_text()] == []
