"""Equal sources give equal bytes: whatever the hash seed, the locale and the order of directories."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Self

from tests.support.cases import MAKERS
from tests.support.programs import printed
from tests.test_digests import store_digests

CASES = ("rows_npy", "cloud_mixed", "ct_cases", "spike_tiles", "robot_act")
PLACES = {
    "as usual": {"PYTHONHASHSEED": "1", "LC_ALL": "C.UTF-8"},
    "otherwise": {
        "PYTHONHASHSEED": "2",
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "REVERSED": "1",
    },
}


class Reversed:
    """``os.scandir`` with the last entry first."""

    def __init__(self, *given: Any) -> None:
        with SCANDIR(*given) as entries:
            self._entries = [*entries]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __iter__(self) -> Reversed:
        return self

    def __next__(self) -> os.DirEntry[str]:
        if not self._entries:
            raise StopIteration
        return self._entries.pop()


SCANDIR = os.scandir


def convert_all(folder: Path) -> None:
    """Convert every case in this process and print the digests of its store."""
    digests = {}
    for name in CASES:
        (folder / name).mkdir(parents=True)
        case = MAKERS[name](folder / name)
        if "REVERSED" in os.environ:
            os.scandir = Reversed  # type: ignore[assignment]
        case.convert(folder / f"{name}.zarr", [folder / name])
        os.scandir = SCANDIR
        digests[name] = store_digests(folder / f"{name}.zarr")
    print(json.dumps(digests))


def test_bytes_depend_on_the_sources_alone(tmp_path: Path) -> None:
    found = {}
    for place, settings in PLACES.items():
        output = printed(
            "-m",
            "tests.test_reproducible",
            tmp_path / place,
            env={**os.environ, **settings},
            cwd=Path(__file__).parents[1],
        )
        found[place] = json.loads(output.splitlines()[-1])
    assert found["as usual"] == found["otherwise"]
    assert list(found["as usual"]) == list(CASES)


if __name__ == "__main__":
    convert_all(Path(sys.argv[1]))
