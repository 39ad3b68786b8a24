"""Write ``unistore/conversion/signatures.pyi``: what `unistore.convert` takes for each family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import unistore
from unistore.conversion.settings import Settings
from unistore.converters.options import Option, Options, declared
from unistore.converters.registry import own_families

FILE = Path(unistore.__file__).with_name("conversion") / "signatures.pyi"
_HEAD = """\
# Written by tools/write_signatures.py from the options that families declare.
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack, overload

from distributed import Client

from unistore.conversion.run import Report
from unistore.converters.detection import Detection
from unistore.system.progress import Progress

PathLike = str | os.PathLike[str]
"""
_OVERLOAD = """
@overload
def convert(
    sources: PathLike | Iterable[PathLike],
    destination: PathLike,
    family: {family},
    **options: {options},
) -> Report: ...
"""


def rendered() -> str:
    """Return the text of the file."""
    of_every_family = declared(Options)
    # A rule is what the conversion of a recorded store gives
    shared = [f"{one.name}: {str(one.type).replace(' SplitRule |', '')}" for one in fields(Settings)]
    shared.append("progress: Progress | bool | None")
    shared += [_field(option) for option in of_every_family]
    classes = [_class("_Shared", "TypedDict", shared)]
    overloads = [_OVERLOAD.format(family="None = None", options="Unpack[_Shared]")]
    for family in sorted(own_families(), key=lambda family: family.name):
        name = f"_{family.name.title().replace('_', '')}"
        options = [option for option in declared(family) if option not in of_every_family]
        classes.append(_class(name, "_Shared", [_field(option) for option in options]))
        names = ", ".join(f'"{name}"' for name in dict.fromkeys((family.name, family.command())))
        overloads.append(_OVERLOAD.format(family=f"Literal[{names}]", options=f"Unpack[{name}]"))
    overloads.append(_OVERLOAD.format(family="str | Detection | None", options="Any"))
    return "".join([_HEAD, *classes, *overloads])


def _class(name: str, base: str, fields: Sequence[str]) -> str:
    return f"\nclass {name}({base}, total=False):\n" + "".join(f"    {field}\n" for field in fields)


def _field(option: Option) -> str:
    """Return a field of an option. One of several values also accepts a single one."""
    one = option.kind.__name__
    if option.choices:
        one = f"Literal[{', '.join(map(repr, option.choices))}]".replace("'", '"')
    forms = {
        "one": one,
        "several": f"{one} | Sequence[{one}]",
        "fixed": f"tuple[{', '.join([one] * option.length)}]",
        "mapping": "Mapping[str, str]",
    }
    optional = " | None" if option.default is None else ""
    return f"{option.name}: {forms[option.form]}{optional}"


if __name__ == "__main__":
    FILE.write_text(rendered())
