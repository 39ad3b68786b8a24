"""Write a small data set as nnU-Net expects it, and preprocess it: noise, and ellipsoids to find."""

import json
import os
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
    """Return the environment variables of nnU-Net, with its folders below `base` and a process a step."""
    folders = {f"nnUNet_{name}": str(base / name) for name in ("raw", "preprocessed", "results")}
    return {**folders, "nnUNet_compile": "f", "nnUNet_def_n_proc": "1", "nnUNet_n_proc_DA": "1"}


def preprocess(number: int, patch: tuple[int, int, int]) -> Path:
    """Let nnU-Net plan and preprocess a data set, as ``nnUNetv2_plan_and_preprocess`` does.

    Parameters
    ----------
    number : int
        Number of the data set.
    patch : (int, int, int)
        Patch size that replaces the planned one, with a network of three small stages.

    Returns
    -------
    Path
        The preprocessed folder ``nnUNetPlans_3d_fullres``.
    """
    from nnunetv2.experiment_planning import plan_and_preprocess_api as api

    api.extract_fingerprints([number], num_processes=1)
    api.plan_experiments([number])
    (plans_path,) = Path(os.environ["nnUNet_preprocessed"]).glob(  # noqa: SIM112 (nnU-Net's own name)
        f"Dataset{number:03d}_*/nnUNetPlans.json"
    )
    plans = json.loads(plans_path.read_text())
    settings = plans["configurations"]["3d_fullres"]
    settings |= {"patch_size": list(patch), "batch_size": 2}
    network = settings["architecture"]["arch_kwargs"]
    network |= {"n_stages": 3, "features_per_stage": [8, 16, 32], "n_conv_per_stage": [1, 1, 1]}
    network |= {"n_conv_per_stage_decoder": [1, 1], "kernel_sizes": [[3, 3, 3]] * 3}
    network |= {"strides": [[1, 1, 1], [2, 2, 2], [2, 2, 2]]}
    plans_path.write_text(json.dumps(plans))
    api.preprocess([number], configurations=["3d_fullres"], num_processes=[1])
    return plans_path.parent / "nnUNetPlans_3d_fullres"
