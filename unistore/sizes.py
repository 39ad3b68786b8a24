"""Numbers of bytes as people write them: ``"4GB"``, ``"512 MiB"``, ``1_000_000``."""

from __future__ import annotations

import re

from unistore.errors import InputError

__all__ = ["parse_bytes"]

_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)}
_UNITS |= {f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)}
_SIZE = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?)\s*([a-zA-Z]*)")


def parse_bytes(text: str | int, what: str) -> int:
    """Bytes that a text stands for: decimal units (kB, MB, GB, TB), binary ones (KiB, …), or none.

    Parameters
    ----------
    text
        The text, or the number itself.
    what
        The option's name, for the error.

    Raises
    ------
    InputError
        If it is no number of bytes, or less than one.
    """
    match = _SIZE.fullmatch(str(text).strip())
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        msg = f"{what} is {text!r}, expected a number of bytes such as '4GB' or '512MiB'"
        raise InputError(msg)
    count = int(float(match[1]) * unit)
    if count < 1:
        msg = f"{what} is {text!r}, expected at least one byte"
        raise InputError(msg)
    return count
