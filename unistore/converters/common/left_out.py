"""Notes about content of sources that is not stored."""

from __future__ import annotations

from collections.abc import Iterable

from unistore.errors import first_few, names_without_numbers

NOT_EVERYWHERE = "because sources differ in it (--columns intersection)"
NOT_MAPPED = "because --map does not name it"
BOOKKEEPING = "because it is bookkeeping of the program that wrote the file"
_LISTED = 20


def left_out_notes(left_out: Iterable[tuple[str, str]]) -> list[str]:
    """Return one note per reason.

    Parameters
    ----------
    left_out : iterable of (str, str)
        Name of each array that is not stored, and the reason, as it follows "not stored, ": ``"because it is
        text"``. An empty reason: the column is not in every source, or differs in form.
    """
    names: dict[str, list[str]] = {}
    for name, reason in left_out:
        names.setdefault(reason or NOT_EVERYWHERE, []).append(name)
    return [
        f"not stored, {reason}: {first_few(names_without_numbers(left_out_names), _LISTED)}"
        for reason, left_out_names in names.items()
    ]
