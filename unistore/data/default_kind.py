"""The kind of samples of a Dataset that is given none: by what its stores record and have."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from unistore.data.kinds.named import parse_kind
from unistore.data.kinds.protocol import Reach, SampleKind
from unistore.errors import InputError
from unistore.store.reader import Store


def default_kind(store: Store) -> SampleKind:
    """Return the default kind of samples of a store."""
    (default, *_) = store.root.kinds or ("unistore.Rows()",)
    try:
        return parse_kind(default)
    except InputError as error:
        (problem,) = error.problems_at(store.path)
        fix = "give the sample kind, for example samples=unistore.Rows()"
        raise InputError.at(store.path, problem.message, (*problem.fixes, fix), "family") from error


def natural_kind(store: Store) -> SampleKind:
    """Return the kind that a Dataset takes if it is given none: the first one that the store has data for.

    It names what it has several of, as a window of CT. Reads metadata only.
    """
    default = default_kind(store)
    for code in store.root.kinds:
        try:
            kind = parse_kind(code)
        except InputError:  # its package is not installed
            continue
        chosen = kind.chosen(store)
        if chosen is not None:
            return chosen
    return default


def first_natural_kind() -> Callable[[Store], SampleKind]:
    """Return a function that gives the kind of a store: the same for all that record the same default."""
    natural: dict[str, SampleKind] = {}

    def kind_of(store: Store) -> SampleKind:
        recorded = repr(store.root.kinds[:1])
        if recorded not in natural:
            natural[recorded] = natural_kind(store)
        return natural[recorded]

    return kind_of


def fitting_kind(reaches: Sequence[Reach]) -> SampleKind | None:
    """Return the kind that one of the stores suggests in place of one that does not fit the data."""
    beyond = [reach for reach in reaches if reach.beyond and not reach.padded]
    if beyond:
        return beyond[0].fitting
    if any(reach.samples for reach in reaches):
        return None
    return next((reach.fitting for reach in reaches if reach.fitting is not None), None)
