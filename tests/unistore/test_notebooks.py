"""The notebooks run; progress is drawn there, and nothing fails."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import unistore

FOLDER = Path(unistore.__file__).parents[1] / "examples" / "notebooks"


@pytest.mark.nightly
def test_the_notebooks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One kernel, which forgets all names in between, runs them: to start one takes longer than both."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    notebooks = [nbformat.read(path, as_version=4) for path in sorted(FOLDER.glob("*.ipynb"))]
    assert len(notebooks) > 1
    for notebook in notebooks:
        ends = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert all(cell.outputs for cell in ends), "committed with the output of every cell"
    forget = nbformat.v4.new_code_cell(f"%cd -q {FOLDER}\n%reset -f")
    together = nbformat.v4.new_notebook(metadata=notebooks[0].metadata)
    together.cells = [cell for notebook in notebooks for cell in (*notebook.cells, forget)]
    NotebookClient(together, resources={"metadata": {"path": str(FOLDER)}}).execute()
    for notebook in notebooks:
        shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
        assert {output.output_type for output in shown} <= {"display_data", "execute_result"}
        assert "writing" in shown[0].data["text/html"]
        assert any("<img" in output.data.get("text/html", "") for output in shown)
