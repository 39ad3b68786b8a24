"""``unistore explain``: what a kind of problem means, and how to fix it."""

from __future__ import annotations

import re
from importlib.resources import files

import click

from unistore.cli.help import HelpCommand, first_sentence
from unistore.cli.output import json_option, say, say_json

_EXAMPLES = (
    "unistore explain truncated  explain one kind",
    "unistore explain  list all kinds",
)
_LINK = re.compile(r"\[([^]]+)\]\([^)]*\)")


def explanations() -> dict[str, str]:
    """Return the text of each kind of problem, by kind. ``docs/errors.md`` is the same page."""
    page = files("unistore.cli").joinpath("errors.md").read_text("utf-8")
    sections = re.split(r"^### (.+)$", page, flags=re.MULTILINE)[1:]
    texts = [re.split(r"^## ", text, flags=re.MULTILINE)[0].strip() for text in sections[1::2]]
    return {kind: _LINK.sub(r"\1", text) for kind, text in zip(sections[::2], texts, strict=True)}


# Kinds of the problems that an exception is mostly about
_KINDS = {
    "CorruptionError": ("checksum", "manifest", "root", "metadata"),
    "NoStoreError": ("missing",),
    "InputError": (),
}


def _exceptions() -> list[str]:
    """Return the names of the public exceptions."""
    import unistore.errors

    classes = {name: value for name, value in vars(unistore.errors).items() if isinstance(value, type)}
    return [name for name, value in classes.items() if issubclass(value, Exception)]


def _of_exception(name: str) -> str | None:
    """Return the description of a public exception. None: there is no exception of this name."""
    from inspect import getdoc

    import unistore.errors

    cls = getattr(unistore.errors, name, None)
    if not (isinstance(cls, type) and issubclass(cls, Exception)):
        return None
    described = re.split(r"^[A-Z]\w+\n-+$", getdoc(cls) or "", maxsplit=1, flags=re.MULTILINE)[0].strip()
    described = described.replace("`", "")
    kinds = _KINDS.get(name)
    if kinds:
        commands = ", ".join(f"'unistore explain {kind}'" for kind in kinds)
        return f"{described}\n\nIts text names the place and the fix. Related kinds of problems: {commands}."
    if kinds is not None:
        return f"{described}\n\nEach of its problems has a kind, which 'unistore explain' lists and explains."
    return f"{described}\n\nIts text names the cause and the fix. It has no kinds of its own."


@click.command(cls=HelpCommand, examples=_EXAMPLES, short_help="Explain a kind of error.")
@click.argument("kind", metavar="[KIND]", required=False)
@json_option
def explain(kind: str | None, as_json: bool) -> None:
    """Explain KIND and how to fix it. The last line of an error names its kinds. Without KIND, list all.

    KIND can also be the name of an exception, such as CorruptionError.
    """
    texts = {name.replace(" ", "-"): text for name, text in explanations().items()}
    if kind is not None and (text := _of_exception(kind)) is not None:
        texts = {kind: text}
    if kind is not None and kind not in texts:
        from difflib import get_close_matches

        names = {name.lower(): name for name in (*texts, *_exceptions())}
        close = get_close_matches(kind.lower(), names, 1)
        hint = f"Did you mean {names[close[0]]}?" if close else "'unistore explain' lists all kinds."
        msg = f"{kind!r} is not a kind of error. {hint}"
        raise click.UsageError(msg)
    if as_json:
        say_json(texts if kind is None else {kind: texts[kind]}, indent=1)
    elif kind is None:
        width = max(map(len, texts))
        for name, text in texts.items():
            say(f"{name:<{width}}  {first_sentence(' '.join(text.split()))}")
    else:
        say(f"{kind}\n\n{texts[kind]}")
