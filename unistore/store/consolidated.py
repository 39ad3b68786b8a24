"""Consolidated metadata: all other documents at the beginning of the root's, for zarr-python and xarray."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from unistore.store.names import ROOT
from unistore.zarr3.documents import DocumentError, parse_document, shown

_MEMBER = "consolidated_metadata"


def root_head(documents: Mapping[str, bytes]) -> bytes:
    """Beginning of the root document, up to its attributes.

    `documents` has every ``zarr.json`` below the root, by key; other keys are passed over.
    """
    metadata = {
        key.removesuffix(f"/{ROOT}"): parse_document(documents[key])
        for key in sorted(documents)
        if key.endswith(f"/{ROOT}")
    }
    repeated = {"kind": "inline", "must_understand": False, "metadata": metadata}
    text = json.dumps(repeated, separators=(",", ":"), allow_nan=False)
    return f'{{\n "zarr_format": 3,\n "node_type": "group",\n "{_MEMBER}": {text},\n'.encode()


def consolidated_problems(
    root: Mapping[str, Any], keys: Collection[str], documents: Mapping[str, bytes]
) -> Iterator[str]:
    """Differences between a parsed root document and the documents below it that it repeats.

    `keys` are those of every ``zarr.json`` below the root, `documents` has those that are sound.
    """
    found = root.get(_MEMBER)
    repeated = found.get("metadata") if isinstance(found, dict) else None
    expected = {"kind": "inline", "must_understand": False, "metadata": repeated}
    if not isinstance(repeated, dict) or found != expected:
        yield f"its {_MEMBER} are {shown(found)}, expected those of every group and array, inline"
        return
    paths = {key.removesuffix(f"/{ROOT}"): key for key in sorted(keys)}
    for path in sorted({*paths} ^ {*repeated}):
        where = f"lack {path}" if path in paths else f"name {shown(path)}, which the store does not have"
        yield f"its {_MEMBER} {where}"
    for path, key in paths.items():
        if path in repeated and key in documents and repeated[path] != _parsed(documents[key]):
            yield f"its {_MEMBER} of {path} are not what {key} says"


def _parsed(document: bytes) -> dict[str, Any] | None:
    try:
        return parse_document(document)
    except DocumentError:
        return None
