"""Notes about content of sources that is not stored."""

from __future__ import annotations

from collections.abc import Iterable

from unistore.errors import first_few, names_without_numbers

NOT_EVERYWHERE = "not in every source in one form (--columns intersection)"
NOT_MAPPED = "not named by --map"
BOOKKEEPING = "bookkeeping of what wrote the file"
_LISTED = 20


def left_out_notes(left_out: Iterable[tuple[str, str]]) -> list[str]:
    """Return one note per reason.

    Parameters
    ----------
    left_out : iterable of (str, str)
        Name of each array that is not stored, and the reason. An empty reason: the column is not in every
        source, or differs in form.
    """
    names: dict[str, list[str]] = {}
    for name, reason in left_out:
        names.setdefault(reason or NOT_EVERYWHERE, []).append(name)
    return [
        f"left out, {reason}: {first_few(names_without_numbers(left_out_names), _LISTED)}"
        for reason, left_out_names in names.items()
    ]
