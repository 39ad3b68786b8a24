"""Make a root for `unistore_lerobot.py` of a LeRobot dataset: its ``meta/``, and a store of everything else.

python to_store.py pusht/ pusht-store/
python to_store.py pusht/ pusht-store/ --video keep --images keep
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from unistore_lerobot import FORMAT, STORE

import unistore


def to_store(source: Path, root: Path, **options: Any) -> unistore.Report:
    """Convert a LeRobot dataset of version 3 to a root with ``meta/`` and ``unistore.zarr``.

    Parameters
    ----------
    source, root : Path
        The dataset, and the folder to write.
    **options
        Options of `unistore.convert`, such as ``video="keep"``.

    Returns
    -------
    unistore.Report
        The report of the conversion.
    """
    report = unistore.convert(source, root / STORE, "trajectory", **options)
    shutil.copytree(source / "meta", root / "meta")
    info = root / "meta/info.json"
    info.write_text(json.dumps({**json.loads(info.read_text()), "storage_format": FORMAT}, indent=4))
    return report


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=Path)
    parser.add_argument("root", type=Path)
    parser.add_argument("--video", default="frames", choices=("frames", "keep"))
    parser.add_argument("--images", default="raw", choices=("raw", "keep"))
    arguments = vars(parser.parse_args())
    print(to_store(arguments.pop("source"), arguments.pop("root"), **arguments))
