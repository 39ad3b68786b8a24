"""The notebooks run, each in a kernel of its own; progress is drawn there, and nothing fails."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import unistore

FOLDER = Path(unistore.__file__).parents[1] / "examples" / "notebooks"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "committed without output"
    NotebookClient(notebook, timeout=100, resources={"metadata": {"path": str(FOLDER)}}).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert {output.output_type for output in shown} <= {"display_data", "execute_result"}
    assert "writing" in shown[0].data["text/html"]
    assert any("<img" in output.data.get("text/html", "") for output in shown)
