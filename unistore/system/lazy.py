"""Public names of a module that are imported when they are first used, as SPEC 1 of Scientific Python has it.

Their only list is the stub of the module, which type checkers and editors read, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module


def lazy_names(module: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a module with a stub.

    Parameters
    ----------
    module : str
        Name of the module, ``__name__``.
    file : str
        Its file, ``__file__``. The stub next to it imports each name: ``from package import name as name``.

    Returns
    -------
    callable
        Imports a name, and raises AttributeError if the stub does not have it.
    callable
        Returns the sorted names of the stub, and those like ``__doc__`` that every module has.
    list of str
        The sorted names of the stub.
    """
    homes = names_of_stub(file)

    def get(name: str) -> object:
        if name not in homes:
            msg = f"module {module!r} has no attribute {name!r}"
            raise AttributeError(msg)
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[module], name, value)
        return value

    def names() -> list[str]:
        special = [name for name in vars(sys.modules[module]) if name[:2] == name[-2:] == "__"]
        return sorted([*homes, *special])

    return get, names, sorted(homes)


def names_of_stub(file: str) -> dict[str, str]:
    """Return the module that each public name is imported from, by the name.

    Parameters
    ----------
    file : str
        File of the module whose stub is read: ``"unistore/plugin.py"``.
    """
    homes = {}
    # neither ast nor pathlib: they take longer than everything else that ``import unistore`` does
    with open(f"{file.rpartition('.')[0]}.pyi", encoding="utf-8") as stub:  # noqa: PTH123
        for line in stub:
            if line.startswith("from "):
                _, module, _, name, _, _ = line.split()
                homes[name] = module
    return homes
