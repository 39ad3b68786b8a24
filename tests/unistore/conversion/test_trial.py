"""A codec a column, chosen by trial: what serves, recorded, the same everywhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

import unistore
from tests.support.store_files import attributes_of
from unistore.errors import InputError

ROWS = 2000


def values() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    steps = np.cumsum(rng.integers(-9, 9, (ROWS, 3)), axis=0)
    return {
        "noise": rng.integers(0, 256, (ROWS, 20, 20), dtype=np.uint8),
        "smooth": np.broadcast_to(np.arange(40, dtype=np.int32), (ROWS, 40)).copy(),
        "metres": np.round(steps * 0.01 + 5000, 2),
        "class": rng.integers(0, 4, ROWS),
        "normal": rng.normal(size=(ROWS, 3)),
        "zero": np.zeros((ROWS, 7)),
    }


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store beside its source, ``a.npz``."""
    folder = tmp_path_factory.mktemp("trial")
    np.savez(folder / "a.npz", **values())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unistore.conversion.plan.SHARD", 16 << 10)  # as in every test
        unistore.convert(folder / "a.npz", folder / "out.zarr", "rows")
    return folder / "out.zarr"


def test_each_column_has_the_codec_that_serves_it(store: Path) -> None:
    chosen = attributes_of(store)["options"]["found"]["codecs"]
    assert chosen["rows/noise"] == chosen["rows/normal"] == "none"
    assert chosen["rows/smooth"] == "lz4 bitshuffle 4"
    assert chosen["rows/class"] == "lz4 bitshuffle 8"
    assert chosen["rows/metres"].startswith("lz4 ")
    assert chosen["rows/zero"] == "fast", "nothing of it tells anything"
    assert attributes_of(store)["options"]["codec"] == "auto"
    described = {array["path"]: array["codec"] for array in unistore.inspect(store).to_json()["arrays"]}
    for name, expected in values().items():
        array = zarr.open_array(store / "rows" / name, mode="r")
        assert array[...].tobytes() == expected.tobytes()
        compressors = [each.to_dict() for each in array.compressors]
        if chosen[f"rows/{name}"] == "none":
            assert [each["name"] for each in compressors] == ["crc32c"]
            assert described[f"rows/{name}"] == "bytes, crc32c"
        elif chosen[f"rows/{name}"] != "fast":
            cname, shuffle, typesize = chosen[f"rows/{name}"].split()
            options = compressors[0]["configuration"]
            assert (options["cname"], options["shuffle"]) == (cname, shuffle)
            assert options["typesize"] == int(typesize)
            assert f"blosc {cname}" in described[f"rows/{name}"]


def test_a_store_is_made_again_without_a_trial(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = store.with_name("a.npz")
    before = (store / "rows/noise/c/0/0/0").read_bytes()
    (store / "rows/noise/c/0/0/0").write_bytes(before[:-1])
    monkeypatch.setattr("unistore.conversion.steps.choose_codecs", None)
    assert unistore.repair(store, source).repaired == ("rows/noise/c/0/0/0",)
    assert (store / "rows/noise/c/0/0/0").read_bytes() == before
    assert unistore.verify(store, against=source).ok


def test_problems_of_all_sources_are_told_not_those_of_the_trial(tmp_path: Path) -> None:
    import h5py

    for number in range(3):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file.create_dataset("x", data=np.arange(40000.0), chunks=(40000,), compression="gzip")
        if number:
            with h5py.File(tmp_path / f"{number}.h5") as file:
                at = file["x"].id.get_chunk_info(0).byte_offset
            data = bytearray((tmp_path / f"{number}.h5").read_bytes())
            data[at : at + 60] = bytes(60)
            (tmp_path / f"{number}.h5").write_bytes(data)
    files = [tmp_path / f"{number}.h5" for number in (1, 2, 0)]
    with pytest.raises(InputError) as refused:
        unistore.convert(files, tmp_path / "out.zarr", "rows")
    assert {problem.location for problem in refused.value.problems} == {"1.h5: x", "2.h5: x"}
