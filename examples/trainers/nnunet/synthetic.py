"""Write a small data set as nnU-Net expects it, and preprocess it: noise, and ellipsoids to find."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nibabel
import numpy as np

SPACING = (1.0, 1.0, 2.0)


def write_raw(folder: Path, cases: int, shape: tuple[int, int, int], channels: list[str]) -> None:
    """Write volumes of HU as NIfTI, and labels: 1 and 2 are two ellipsoids in each volume."""
    random = np.random.default_rng(0)
    for name in ("imagesTr", "labelsTr"):
        (folder / name).mkdir(parents=True)
    grid = np.stack(np.meshgrid(*(np.linspace(-1, 1, size) for size in shape), indexing="ij"))
    affine = np.diag([*SPACING, 1])
    for case in range(cases):
        label = np.zeros(shape, np.uint8)
        for number in (1, 2):
            centre = random.uniform(-0.5, 0.5, (3, 1, 1, 1))
            label[(((grid - centre) / random.uniform(0.2, 0.4)) ** 2).sum(axis=0) < 1] = number
        for channel in range(len(channels)):
            smooth = 80 * np.sin(3 * grid + random.uniform(0, 6, (3, 1, 1, 1))).sum(axis=0)
            image = np.rint(smooth + 200 * label + random.normal(0, 20, shape)).astype(np.int16)
            path = folder / "imagesTr" / f"case_{case:03d}_{channel:04d}.nii.gz"
            nibabel.save(nibabel.Nifti1Image(image, affine), path)
        nibabel.save(nibabel.Nifti1Image(label, affine), folder / "labelsTr" / f"case_{case:03d}.nii.gz")
    facts = {
        "channel_names": {str(number): name for number, name in enumerate(channels)},
        "labels": {"background": 0, "one": 1, "two": 2},
        "numTraining": cases,
        "file_ending": ".nii.gz",
    }
    (folder / "dataset.json").write_text(json.dumps(facts))


def environment(base: Path) -> dict[str, str]:
    """Return the environment variables of nnU-Net, with its folders below `base`."""
    folders = {f"nnUNet_{name}": str(base / name) for name in ("raw", "preprocessed", "results")}
    return {**os.environ, **folders, "nnUNet_compile": "f", "nnUNet_def_n_proc": "1", "nnUNet_n_proc_DA": "1"}


def run(base: Path, command: str, *arguments: str, **variables: str) -> str:
    """Run a command of nnU-Net in the environment of `base`, and return its output."""
    program = str(Path(sys.executable).with_name(command))
    done = subprocess.run(
        [program, *arguments],
        env=environment(base) | variables,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    if done.returncode:
        raise RuntimeError(f"{command} {' '.join(arguments)}: exit code {done.returncode}\n{done.stdout}")
    return done.stdout


def preprocess(base: Path, number: int, patch: tuple[int, int, int] | None = None) -> Path:
    """Let nnU-Net plan and preprocess a data set.

    Parameters
    ----------
    base : Path
        Folder with ``raw/DatasetNNN_…``.
    number : int
        Number of the data set.
    patch : (int, int, int), optional
        Patch size that replaces the planned one, with a network of three small stages. None: as planned.

    Returns
    -------
    Path
        The preprocessed folder ``nnUNetPlans_3d_fullres``.
    """
    run(
        base,
        "nnUNetv2_plan_and_preprocess",
        "-d",
        str(number),
        "-c",
        "3d_fullres",
        "-np",
        "1",
        "-npfp",
        "1",
        "--no_pp",
    )
    (plans_path,) = (base / "preprocessed").glob(f"Dataset{number:03d}_*/nnUNetPlans.json")
    if patch is not None:
        plans = json.loads(plans_path.read_text())
        settings = plans["configurations"]["3d_fullres"]
        settings |= {"patch_size": list(patch), "batch_size": 2}
        network = settings["architecture"]["arch_kwargs"]
        network |= {"n_stages": 3, "features_per_stage": [8, 16, 32], "n_conv_per_stage": [1, 1, 1]}
        network |= {"n_conv_per_stage_decoder": [1, 1], "kernel_sizes": [[3, 3, 3]] * 3}
        network |= {"strides": [[1, 1, 1], [2, 2, 2], [2, 2, 2]]}
        plans_path.write_text(json.dumps(plans))
    run(base, "nnUNetv2_preprocess", "-d", str(number), "-c", "3d_fullres", "-np", "1")
    return plans_path.parent / "nnUNetPlans_3d_fullres"
