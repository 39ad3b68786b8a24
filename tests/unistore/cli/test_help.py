"""The layout of every ``--help``: examples first, options in groups, no line beyond the terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from unistore.cli.help import broken, first_sentence
from unistore.cli.main import cli


def _commands(command: click.Command, names: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield names
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _commands(found, (*names, name))


COMMANDS = list(_commands(cli))


def _help(names: tuple[str, ...], width: int) -> str:
    command: click.Command = cli
    context = click.Context(
        cli, info_name="unistore", terminal_width=width, help_option_names=["-h", "--help"]
    )
    for name in names:
        assert isinstance(command, click.Group)
        found = command.get_command(context, name)
        assert found is not None
        command = found
        context = click.Context(command, info_name=name, parent=context, terminal_width=width)
    return command.get_help(context)


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_help_fits_the_terminal(names: tuple[str, ...], width: int) -> None:
    lines = _help(names, width).splitlines()
    # A name of an option and a word of a command are not broken.
    long = [line for line in lines if len(line) > width and " " in line.strip().removesuffix(" \\")]
    assert [line for line in long if not line.startswith("  unistore ")] == []
    assert not [line for line in lines if "\\b" in line or "\b" in line]


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_help_shows_examples_that_are_commands_before_the_options(names: tuple[str, ...]) -> None:
    text = _help(names, 200)
    if names in ((), ("cache",)):
        return
    examples = text.partition("Examples:\n")[2].partition("\n\n")[0].splitlines()
    words = " ".join(("unistore", *names))
    assert examples
    assert all(
        line.startswith(f"  {words}") or f"  {words.replace('[FAMILY]', '')}" in line for line in examples
    )
    assert text.index("Examples:") < text.index("-h, --help")


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_each_option_has_a_sentence(names: tuple[str, ...]) -> None:
    command: click.Command = cli
    for name in names:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            text = re.sub(r"\s*\[default: .*\]$", "", parameter.help or "")
            assert re.match(r"^[A-Z].*\.$", text, re.DOTALL), (parameter.name, text)


def test_convert_help_says_each_shared_option_in_one_sentence() -> None:
    text = " ".join(_help(("convert",), 80).split())
    whole = " ".join(_help(("convert", "rows"), 80).split())
    for sentence in (
        "Assign each source to a split by a hash of its name, in SHARES such as train=0.8,val=0.2.",
        "Run as job I of N that write one store together, such as the jobs of a Slurm array.",
    ):
        assert sentence in text
        assert sentence in whole
    assert "New data moves no old source." in whole
    assert "New data moves no old source." not in text


def test_first_sentence_ends_at_the_first_full_stop_of_a_sentence() -> None:
    assert first_sentence("Read a .npy file. Else not.") == "Read a .npy file."
    assert first_sentence("Read it. skip does not.  [default: 1]") == "Read it."
    assert first_sentence("One") == "One"


def test_a_long_command_is_broken_before_options() -> None:
    assert broken("a b --c d --e f", 12) == ["a b --c d \\", "    --e f"]
    assert broken("a b", 12) == ["a b"]
