"""Families read a store through `StoreView` alone: export and rules work on an object with nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from unistore.converters.registry import get_family
from unistore.schemas.indices import ArrayView, StoreView
from unistore.schemas.rules import RuleView
from unistore.store.reader import Store


class Only:
    """An object with the members of a protocol alone."""

    def __init__(self, seen: object, protocol: type) -> None:
        self._seen = seen
        self._members = {name for name in vars(protocol) if not name.startswith("_")}

    def __getattr__(self, name: str) -> Any:
        if name not in self._members:
            raise AttributeError(name)
        return getattr(self._seen, name)

    def __len__(self) -> int:
        return len(self._seen)  # type: ignore[arg-type]


class OnlyStore(Only):
    def array(self, path: str) -> Any:
        return Only(self._seen.array(path), ArrayView)  # type: ignore[attr-defined]


def test_a_view_has_nothing_else() -> None:
    with pytest.raises(AttributeError):
        Only(Store, StoreView).arrays  # noqa: B018


def test_families_export_and_judge_a_store_through_its_view(
    family_case: str, make_case: Callable[..., Any]
) -> None:
    case, path = make_case(family_case)
    store = Store(path)
    view: Any = OnlyStore(store, StoreView)
    files = get_family(case.family).part("export")
    found = list(files(view))
    assert found
    for one, other in zip(found, files(store), strict=True):
        assert one.name == other.name
        for name, values in one.values.items():
            rows = [row.tobytes() for block in values.blocks() for row in block]
            assert rows == [row.tobytes() for block in other.values[name].blocks() for row in block]
    family = get_family(case.family)
    for rule in family.part("rules") if family.rules else ():
        assert list(rule(RuleView(view))) == []
