"""What attributes say of arrays is true of the arrays that zarr-python reads, in every case."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from tests.support.cases import Case
from unistore.schemas.array_specs import SAMPLES, ArraySpec
from unistore.schemas.table_rows import relations
from unistore.store.reader import Store

MakeCase = Callable[[str], tuple[Case, Path]]
Arrays = dict[str, zarr.Array[Any]]


def arrays_of(store: Path) -> Arrays:
    members = zarr.open_group(store, mode="r").members(max_depth=None)
    return {path: member for path, member in members if isinstance(member, zarr.Array)}


def test_offsets_texts_padding_and_indexes_agree_with_their_attributes(
    case_name: str, make_case: MakeCase
) -> None:
    store = make_case(case_name)[1]
    arrays = arrays_of(store)
    check_offsets(arrays)
    check_texts(arrays, Store(store))
    check_padding(arrays)
    for array in arrays.values():
        if "indexes" in array.attrs:
            assert array[:].max() < len(Store(store).text(array.attrs["indexes"]))


def check_offsets(arrays: Arrays) -> None:
    """Offsets divide the arrays that name them."""
    named = set()
    for array in arrays.values():
        if "ragged" in array.attrs:
            offsets = array.attrs["ragged"]["offsets"]
            named.add(offsets)
            assert arrays[offsets][-1] == array.shape[0]
    dividing = {path for path, array in arrays.items() if "offsets_of" in array.attrs}
    counting = {path for path, array in arrays.items() if "set_bits_of" in array.attrs}
    by_source = {path for path in dividing if path.startswith("sources/")}
    assert dividing - by_source <= named <= dividing
    assert dividing | counting == {path for path in arrays if path.endswith("/offsets")}
    for path in dividing:
        offsets = arrays[path][:]
        assert offsets[0] == 0
        assert (np.diff(offsets) >= 0).all()
        divided = arrays[arrays[path].attrs["offsets_of"]]
        assert offsets[-1] == divided.shape[0]
        assert path in by_source or divided.attrs["ragged"] == {"offsets": path}
    for path in counting:
        mask = arrays[arrays[path].attrs["set_bits_of"]]
        bits = [int(np.bitwise_count(volume).sum()) for volume in mask[:]]
        assert np.diff(arrays[path][:]).tolist() == bits


def check_texts(arrays: Arrays, store: Store) -> None:
    """Texts decode as their attributes say."""
    texts = 0
    for name, array in arrays.items():
        if "encoding" in array.attrs:
            offsets = arrays[array.attrs["ragged"]["offsets"]][:]
            data = array[:].tobytes()
            strings = [data[lo:hi].decode(array.attrs["encoding"]) for lo, hi in itertools.pairwise(offsets)]
            assert strings == store.text(name.removesuffix("/data"))
            texts += 1
    grouped = [name.removesuffix("/offsets") for name in arrays if name.endswith("/offsets")]
    compressed = ("_file", "_jpeg")
    assert texts == sum(f"{name}/data" in arrays for name in grouped if not name.endswith(compressed))


def check_padding(arrays: Arrays) -> None:
    """Beyond the extent is padding."""
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


def test_columns_counted_by_a_ragged_column_are_marked_as_ragged() -> None:
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
    assert relations(dict.fromkeys(arrays, ("row",)), arrays) == {
        "hits/time": ragged,
        "hits/energy": ragged,
        "hits/pixel": ragged,
        "events/offsets": {"offsets_of": "hits/time"},
        "events/run": {"indexes": "runs/start"},
    }
