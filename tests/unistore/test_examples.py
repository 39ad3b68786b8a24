"""The training examples learn, on stores like the demo's; the notebooks run, and progress is drawn there."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import mean

import nbformat
import nibabel
import numpy as np
import pytest
import torch
from nbclient import NotebookClient

import unistore
from tests.support.programs import loaded

ROOT = Path(__file__).parents[2]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name", ["train_pointnet", "train_deblur", "train_ct_autoencoder", "train_behaviour_cloning"]
)
def test_the_loss_of_an_example_falls(name: str, demo_stores: Path) -> None:
    module, threads = loaded(ROOT / "examples" / f"{name}.py"), torch.get_num_threads()
    named = re.findall(r"\[demo-out/([\w.-]+)\]", module.__doc__)
    try:
        losses = module.train(str(demo_stores / named[0]), steps=24, workers=0)
    finally:
        torch.set_num_threads(threads)
    assert len(losses) >= 24
    assert mean(losses[-6:]) < 0.9 * mean(losses[:6])


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("train_*.py")), ids=lambda path: path.stem)
def test_an_example_is_short_and_needs_nothing_else(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) < 80
    imported = {line.split()[1] for line in lines if line.startswith(("import ", "from "))}
    assert imported <= {"__future__", "sys", "torch", "unistore"}


def test_affines_of_the_field_place_voxels_as_nibabel_does(tmp_path: Path) -> None:
    """Nibabel's axes are those of the store in reverse."""
    affine = np.array([[-0.7, 0.1, 0, 12], [0.1, 0.7, 0.2, -5], [0, -0.3, 2.5, 100], [0, 0, 0, 1.0]])
    axes, _ = np.linalg.qr(affine[:3, :3])
    affine[:3, :3] = axes * (0.7, 0.8, 2.5)
    volume = np.arange(5 * 6 * 7, dtype=np.int16).reshape(7, 6, 5)
    nibabel.save(nibabel.Nifti1Image(volume, affine), tmp_path / "scan.nii")
    unistore.convert(tmp_path / "scan.nii", tmp_path / "ct.zarr", "ct")
    placed = nibabel.load(tmp_path / "scan.nii").affine
    module = loaded(ROOT / "examples" / "medical_meta.py")
    for kind in (unistore.Volumes(), unistore.Patches(3, per_volume=4), unistore.Patches(2, step=2)):
        dataset = unistore.Dataset(tmp_path / "ct.zarr", kind, fields=["image", "affine", "origin"])
        for sample in dataset:
            step = getattr(kind, "step", 1)
            np.testing.assert_allclose(module.original_affine(sample, step), placed, atol=1e-4)
            matrix = module.ras_affine(sample).numpy()
            for voxel in ((0, 0, 0), (1, 0, 1), (0, 1, 1)):
                value = int(sample["image"][voxel])
                (stored,) = np.argwhere(volume == value)
                np.testing.assert_allclose(matrix @ [*voxel, 1], placed @ [*stored, 1], atol=1e-4)
    with pytest.raises(unistore.InputError, match="does not say where its voxels lie"):
        module.ras_affine({"affine": torch.full((4, 4), torch.nan, dtype=torch.float64)})


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
