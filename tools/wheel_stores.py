"""Compare stores that an installed wheel writes with the checkout's, byte for byte, for small sources.

    python -m tools.wheel_stores build/wheel/bin/python

The environment needs the extra `images` and the checkout's numcodecs, whose version stores contain.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.cases import MAKERS
from tests.support.store_files import tree

_CONVERT = """
import pickle, sys
from pathlib import Path
import unistore
from unistore.conversion.convert import make_converter
from unistore.conversion.run import run
from unistore.conversion.settings import Settings

assert Path(unistore.__file__).is_relative_to(sys.prefix), f"{unistore.__file__} is not of the wheel"
for family, sources, options, destination in pickle.load(sys.stdin.buffer):
    run(make_converter(family, options), sources, destination, Settings())
"""


def main(python: str) -> int:
    """Convert every case twice, and name the files that differ."""
    differing = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        conversions = []
        for case_name, make in MAKERS.items():
            sources = folder / "sources" / case_name
            sources.mkdir(parents=True)
            case = make(sources)
            case.convert(folder / "checkout" / case_name)
            conversions.append((case.family, case.sources, case.options, folder / "wheel" / case_name))
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        subprocess.run(
            [Path(python).absolute(), "-P", "-c", _CONVERT],
            input=pickle.dumps(conversions),
            cwd=folder,
            env=environment,
            check=True,
        )
        for case_name in MAKERS:
            checkout = tree(folder / "checkout" / case_name)
            wheel = tree(folder / "wheel" / case_name)
            files = sorted(key for key in checkout | wheel if checkout.get(key) != wheel.get(key))
            if files:
                differing += 1
                print(f"{case_name}: {', '.join(files)}")
    print(f"{len(MAKERS) - differing} stores of the wheel equal the checkout's, {differing} differ")
    return bool(differing)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
