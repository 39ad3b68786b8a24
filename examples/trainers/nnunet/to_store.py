"""Make a store of the cases that nnU-Net preprocessed, for `unistore_trainer.py`.

python to_store.py $nnUNet_preprocessed/Dataset001_X/nnUNetPlans_3d_fullres
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from nnunetv2.training.dataloading.nnunet_dataset import infer_dataset_class

import unistore


def to_store(folder: Path) -> unistore.Report:
    """Convert a preprocessed folder, such as ``nnUNetPlans_3d_fullres``, to ``nnUNetPlans_3d_fullres.zarr``.

    Meanwhile the cases need disk space next to the folder, uncompressed.

    Returns
    -------
    unistore.Report
        The report of the conversion.
    """
    cases = infer_dataset_class(str(folder))(str(folder))
    with TemporaryDirectory(dir=folder.parent, prefix="to_store_") as temporary:
        images = Path(temporary, "imagesTr")
        labels = Path(temporary, "labelsTr")
        images.mkdir()
        labels.mkdir()
        for identifier in cases.identifiers:
            image, label, _, _ = cases.load_case(identifier)
            for number, channel in enumerate(image[:]):
                np.save(images / f"{identifier}_{number:04d}.npy", channel)
            np.save(labels / f"{identifier}.npy", label[:][0])
        return unistore.convert(temporary, folder.parent / f"{folder.name}.zarr", "ct")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=to_store.__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    print(to_store(parser.parse_args().folder.resolve()))
