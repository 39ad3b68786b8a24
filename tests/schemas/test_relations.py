"""What attributes say of arrays is true of the arrays that zarr-python reads, in every case."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from tests.cases import Case
from unistore.schemas.array_specs import SAMPLES, ArraySpec, ArraySpecs, relations
from unistore.store.reader import Store

MakeCase = Callable[[str], tuple[Case, Path]]


def arrays_of(store: Path) -> dict[str, zarr.Array[Any]]:
    members = zarr.open_group(store, mode="r").members(max_depth=None)
    return {path: member for path, member in members if isinstance(member, zarr.Array)}


def test_offsets_divide_the_arrays_that_name_them(case_name: str, make_case: MakeCase) -> None:
    arrays = arrays_of(make_case(case_name)[1])
    named = set()
    for array in arrays.values():
        if "ragged" in array.attrs:
            offsets = array.attrs["ragged"]["offsets"]
            named.add(offsets)
            assert arrays[offsets][-1] == array.shape[0]
    dividing = {path for path, array in arrays.items() if "offsets_of" in array.attrs}
    counting = {path for path, array in arrays.items() if "set_bits_of" in array.attrs}
    assert named == dividing
    assert dividing | counting == {path for path in arrays if path.endswith("/offsets")}
    for path in dividing:
        offsets = arrays[path][:]
        assert offsets[0] == 0
        assert (np.diff(offsets) >= 0).all()
        divided = arrays[arrays[path].attrs["offsets_of"]]
        assert divided.attrs["ragged"] == {"offsets": path}
    for path in counting:
        mask = arrays[arrays[path].attrs["set_bits_of"]]
        bits = [int(np.bitwise_count(volume).sum()) for volume in mask[:]]
        assert np.diff(arrays[path][:]).tolist() == bits


def test_text_decodes_as_its_attribute_says(case_name: str, make_case: MakeCase) -> None:
    path = make_case(case_name)[1]
    texts = 0
    for name, array in arrays_of(path).items():
        if "encoding" in array.attrs:
            offsets = arrays_of(path)[array.attrs["ragged"]["offsets"]][:]
            data = array[:].tobytes()
            spans = itertools.pairwise(offsets)
            strings = [data[lo:hi].decode(array.attrs["encoding"]) for lo, hi in spans]
            assert strings == Store(path).text(name.removesuffix("/data"))
            texts += 1
    grouped = [name.removesuffix("/offsets") for name in Store(path).paths() if name.endswith("/offsets")]
    compressed = ("_file", "_jpeg")
    assert texts == sum(
        f"{name}/data" in Store(path).paths() for name in grouped if not name.endswith(compressed)
    )


def test_beyond_the_extent_is_padding(case_name: str, make_case: MakeCase) -> None:
    arrays = arrays_of(make_case(case_name)[1])
    for array in arrays.values():
        names = array.metadata.dimension_names
        for padded in array.attrs.get("padded", ()):
            extents = arrays[padded["extent"]][:]
            if len(extents) < array.shape[0]:  # one a range of rows
                offsets = arrays[array.attrs["ragged"]["offsets"]][:]
                extents = np.repeat(extents, np.diff(offsets), axis=0)
            extents = extents.reshape(array.shape[0], -1)
            for row, extent in zip(array[:], extents, strict=True):
                for axis, length in zip(padded["axes"], extent.tolist(), strict=True):
                    at = names.index(axis) - 1
                    values = row
                    if axis.endswith("_byte"):
                        values = np.unpackbits(row, axis=at, bitorder=array.attrs["bit_order"])
                    assert length <= values.shape[at]
                    assert not np.moveaxis(values, at, 0)[length:].any()


def test_indices_number_rows(case_name: str, make_case: MakeCase) -> None:
    path = make_case(case_name)[1]
    for array in arrays_of(path).values():
        if "indexes" in array.attrs:
            assert array[:].max() < len(Store(path).text(array.attrs["indexes"]))


def test_rows_that_are_counted_by_others_are_divided_too() -> None:
    offsets = ArraySpec(rows=(SAMPLES, 1), offsets_of="hits/time")
    arrays = {
        "hits/time": ArraySpec(),
        "hits/energy": ArraySpec(rows=("hits/time", 0)),
        "hits/pixel": ArraySpec(rows=("hits/energy", 0)),
        "hits/between": ArraySpec(rows=("hits/time", -1)),
        "events/offsets": offsets,
        "events/run": ArraySpec(rows=(SAMPLES, 0), indexes=("runs/start", 0)),
        "runs/start": ArraySpec(),
    }
    ragged = {"ragged": {"offsets": "events/offsets"}}
    assert relations(dict.fromkeys(arrays, ("row",)), ArraySpecs(arrays=arrays)) == {
        "hits/time": ragged,
        "hits/energy": ragged,
        "hits/pixel": ragged,
        "events/offsets": {"offsets_of": "hits/time"},
        "events/run": {"indexes": "runs/start"},
    }
