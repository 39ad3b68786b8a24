"""``python -m unistore.conversion.write_signatures``: write ``signatures.py`` from what families declare."""

from __future__ import annotations

import inspect
import textwrap
from pathlib import Path

from unistore.conversion.convert import convert
from unistore.converters.options import Option, Options, declared
from unistore.converters.registry import Family, own_families

FILE = Path(__file__).with_name("signatures.py")
_HEAD = '''"""Signatures of `unistore.convert`, one a family, for editors and type checkers.

Written by ``python -m unistore.conversion.write_signatures`` from the options that families declare.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, Unpack, cast, overload

if TYPE_CHECKING:
    from distributed import Client

    from unistore.conversion.runner import Report
    from unistore.system.progress import Progress

PathLike = str | os.PathLike[str]
Sources = PathLike | Iterable[PathLike]
'''
_TAIL = '''

def typed(convert: Callable[..., Report]) -> Convert:
    """Declare the function with the signatures of all families."""
    return cast("Convert", convert)
'''
_WIDTH = 110


def rendered() -> str:
    """The text of ``signatures.py``."""
    families = sorted(own_families(), key=lambda each: each.name)
    return "".join([_HEAD, _shared(), *map(_options, families), _protocol(families), _TAIL])


def _shared() -> str:
    """Options of every conversion: keyword arguments of `convert`, and what `Options` declares."""
    own = [each for each in inspect.signature(convert).parameters.values() if each.kind is each.KEYWORD_ONLY]
    lines = [f"    {each.name}: {each.annotation}" for each in own]
    lines += [f"    {each.name}: {_annotation(each)}" for each in declared(Options)]
    return "\n\nclass _Shared(TypedDict, total=False):\n" + "\n".join(lines) + "\n"


def _options(family: Family) -> str:
    shared = declared(Options)
    own = [each for each in declared(family.part("options")) if each not in shared]
    described = "".join(f"    {each.name}\n{_help(each)}\n" for each in own)
    fields = "".join(f"    {each.name}: {_annotation(each)}\n" for each in own)
    return (
        f'\n\nclass {_class(family)}(_Shared, total=False):\n    """{family.summary}\n\n'
        f'    Attributes\n    ----------\n{described}    """\n\n{fields}'
    )


def _help(option: Option) -> str:
    default = "" if option.default in (None, (), {}) else f" Default: {option.default!r}."
    indent = " " * 8
    return textwrap.fill(
        option.help + default, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )


def _annotation(option: Option) -> str:
    """Annotation of an option; options of several values also accept a single one."""
    words = ", ".join(f'"{each}"' for each in option.choices)
    one = f"Literal[{words}]" if option.choices else option.kind.__name__
    forms = {
        "one": one,
        "several": f"{one} | Sequence[{one}]",
        "fixed": f"tuple[{', '.join([one] * option.length)}]",
        "mapping": "Mapping[str, str]",
    }
    return forms[option.form] + (" | None" if option.default is None else "")


def _class(family: Family) -> str:
    return f"_{family.name.title().replace('_', '')}"


def _protocol(families: list[Family]) -> str:
    overloads_of = [("None = None", "Unpack[_Shared]")]
    for each in families:
        names = ", ".join(f'"{name}"' for name in dict.fromkeys((each.name, each.command)))
        overloads_of.append((f"Literal[{names}]", f"Unpack[{_class(each)}]"))
    overloads_of.append(("str | None", "Any"))
    overloads = "".join(
        f"    @overload\n    def __call__(\n        self,\n        sources: Sources,\n"
        f"        destination: PathLike,\n        family: {family},\n        **options: {options},\n"
        f"    ) -> Report: ...\n"
        for family, options in overloads_of
    )
    return (
        f'\n\nclass Convert(Protocol):\n    """Convert research files into one sealed store; see '
        f'`unistore.conversion.convert.convert`."""\n\n{overloads}'
    )


if __name__ == "__main__":
    FILE.write_text(rendered())
