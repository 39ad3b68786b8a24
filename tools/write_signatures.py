"""Write the overloads of `unistore.convert`, one for each family."""

from __future__ import annotations

from pathlib import Path

import unistore
from unistore.converters.family import Family
from unistore.converters.options import Option, Options, declared
from unistore.converters.registry import own_families

FILE = Path(unistore.__file__).with_name("conversion") / "signatures.py"
BEGIN = "# Written by tools/write_signatures.py: the options that families declare\n"
END = "# End of the written part\n"


def rendered() -> str:
    """Return the text of the file, with the written part made anew."""
    before, _, text = FILE.read_text().partition(BEGIN)
    _, _, after = text.partition(END)
    parameters = after.partition("def convert(\n")[2].partition(") -> Report:\n")[0]
    families = sorted(own_families(), key=lambda family: family.name)
    parts = [_class(family) for family in families]
    parts.append(_overload(parameters, "None = None", None))
    for family in families:
        names = ", ".join(f'"{name}"' for name in dict.fromkeys((family.name, family.command())))
        options = f"Unpack[{_class_name(family)}]"
        parts.append(_overload(parameters, f"Literal[{names}] | None = None", options))
    parts.append(_overload(parameters, "str | Detection", "Any"))
    return f"{before}{BEGIN}\n\n{''.join(parts)}{END}{after}"


def _class_name(family: type[Family]) -> str:
    return f"_{family.name.title().replace('_', '')}Options"


def _class(family: type[Family]) -> str:
    of_every_family = declared(Options)
    options = [option for option in declared(family) if option not in of_every_family]
    lines = [f"class {_class_name(family)}(TypedDict, total=False):"]
    lines += [f"    {option.name}: {_annotation(option)}" for option in options]
    return "\n".join([*lines, "\n\n"])


def _annotation(option: Option) -> str:
    """Return the type of an option. One of several values also accepts a single one."""
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
    return f"{forms[option.form]}{optional}"


def _overload(parameters: str, family: str, options: str | None) -> str:
    """Return an overload with these parameters, but its own types of `family` and ``**options``."""
    lines = []
    for line in parameters.splitlines():
        if line.startswith("    family: "):
            lines.append(f"    family: {family},")
        elif not line.startswith("    **options: "):
            lines.append(line)
        elif options is not None:
            lines.append(f"    **options: {options},")
    return "\n".join(["@overload", "def convert(", *lines, ") -> Report: ...", "\n\n"])


if __name__ == "__main__":
    FILE.write_text(rendered())
