"""Group the commands of ``unistore``, and print errors."""

# Exit codes: 0 done, 1 failure, 2 bad input, 3 finished but something was skipped,
# 75 stopped by a signal, 130 interrupted

from __future__ import annotations

import io
import os
import shlex
import sys
from collections.abc import Sequence
from itertools import islice
from textwrap import indent
from typing import Any

import click

from unistore.cli.cache import cache
from unistore.cli.commands import doctor, export, inspect, statistics, verify, view
from unistore.cli.convert import convert
from unistore.cli.explain import explain
from unistore.cli.help import HelpCommand, HelpGroup
from unistore.cli.maintenance import attach, clean, compact, derive, remove, replay, versions
from unistore.cli.output import COLOURS, OUTPUT, say, say_json
from unistore.errors import AddOptions, InputError, UnistoreError, merged

MAX_PROBLEMS = 50  # Problems listed without ``--json``
FLAGS = {"-q", "--quiet", "-v", "--verbose", "--debug"}
EXAMPLES = (
    "unistore inspect recordings/  name the format, and how to convert it",
    "unistore convert recordings/ train.zarr  write one sealed store",
    "unistore inspect train.zarr  list the content, and code to load it",
    "unistore view train.zarr  look at any sample in a browser",
    "unistore doctor train.zarr  recommend a Loader for this machine",
    "unistore verify train.zarr  check every byte",
    "unistore export train.zarr files/  write the files of the sources again",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, cls=HelpGroup, examples=EXAMPLES)
@click.version_option(None, "-V", "--version", package_name="unistore")
@click.option("-q", "--quiet", is_flag=True, help="Print only problems and requested output.")
@click.option("-v", "--verbose", is_flag=True, help="Print the time of each stage.")
@click.option(
    "--color", type=click.Choice(COLOURS), default="auto", show_default=True, help="When to use colours."
)
@click.option("--debug", is_flag=True, help="Print the traceback of an error.")
def cli(quiet: bool, verbose: bool, color: str, debug: bool) -> None:  # noqa: ARG001 - debug: see main
    """Convert research data into sealed, sharded Zarr v3 stores that training reads fast.

    These options may also follow the command.
    """
    OUTPUT.quiet = quiet
    OUTPUT.verbose = verbose
    OUTPUT.color = color


COMPLETION_EXAMPLES = (
    "unistore completion bash >> ~/.bashrc",
    "unistore completion zsh >> ~/.zshrc",
    "unistore completion fish > ~/.config/fish/completions/unistore.fish",
)


@cli.command(
    cls=HelpCommand, examples=COMPLETION_EXAMPLES, short_help="Print a completion script for your shell."
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that completes commands, options and families in SHELL."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    completion_class = kind(context.find_root().command, {}, "unistore", "_UNISTORE_COMPLETE")
    say(completion_class.source_template % completion_class.source_vars())


COMMANDS = (
    *(convert, remove, versions, compact),
    *(inspect, view, verify, statistics),
    *(attach, derive, export, replay, doctor, explain),
    *(clean, cache),
)
for command in COMMANDS:
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its exit code."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # no matrix is multiplied
    general, remaining = _general(list(sys.argv[1:] if arguments is None else arguments))
    sys.exit(_run(remaining, general, as_json="--json" in remaining))


def _general(arguments: list[str]) -> tuple[list[str], list[str]]:
    end = arguments.index("--") if "--" in arguments else len(arguments)
    general = []
    remaining = []
    words = iter(arguments[:end])
    for word in words:
        if word in FLAGS or word.startswith("--color="):
            general.append(word)
        elif word == "--color":
            general += [word, *islice(words, 1)]
        else:
            remaining.append(word)
    return general, remaining + arguments[end:]


def _run(arguments: list[str], general: list[str], *, as_json: bool) -> int:
    try:
        code: Any = cli.main(args=[*general, *arguments], prog_name="unistore", standalone_mode=False)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        if as_json:
            say_json({"error": error.format_message(), "problems": []})
        else:
            shown = io.StringIO()
            error.show(shown)
            say(shown.getvalue().rstrip("\n"), err=True)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        resume = "; the same command continues where it stopped" if arguments[:1] == ["convert"] else ""
        say(f"interrupted{resume}", err=True)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:  # noqa: BLE001 - printed, and ends the command
        if "--debug" in general:
            from traceback import format_exception

            traces = [problem.trace for problem in error.problems] if isinstance(error, InputError) else []
            for trace in (*filter(None, traces), "".join(format_exception(error))):
                say(trace.rstrip("\n"), err=True)
        else:
            _print_error(error, as_json=as_json, converting=arguments[:1] == ["convert"])
        return error.exit_code if isinstance(error, UnistoreError) else 1
    return code if isinstance(code, int) else 0


def _print_error(error: Exception, *, as_json: bool, converting: bool) -> None:
    problems = error.problems if isinstance(error, InputError) else ()
    if as_json:
        say_json({"error": _message(error), "problems": [problem.to_json() for problem in problems]})
        return
    lines = [f"error: {problems[0].paragraph if len(problems) == 1 else _message(error)}"]
    if len(problems) > 1:
        alike = merged(problems)
        shown = [indent(problem.paragraph, "  ") for problem in alike[:MAX_PROBLEMS]]
        lines = [f"error: {len(problems):,} problems", *shown]
        if len(alike) > MAX_PROBLEMS:
            lines.append(f"  and {len(alike) - MAX_PROBLEMS:,} more (--json prints all)")
    if converting and isinstance(error, InputError) and error.can_skip:
        names = list(dict.fromkeys(problem.source for problem in problems))
        options = " ".join(f"--exclude {shlex.quote(name)}" for name in names)
        told = [fix.arguments for one in problems for fix in one.fixes if isinstance(fix, AddOptions)]
        is_told = all(("--exclude", name) in told for name in names)
        either = f", or {options}" if len(names) <= 3 and not is_told else ""
        skipped = "it" if len(names) == 1 else "them"
        lines.append(f"To skip {skipped}, add --on-error skip{either}.")
    if problems:
        kinds = dict.fromkeys(problem.kind.replace(" ", "-") for problem in problems[:MAX_PROBLEMS])
        lines.append(f"more: {', '.join(f'unistore explain {kind}' for kind in kinds)}")
    say("\n".join(lines), err=True)


def _message(error: Exception) -> str:
    if isinstance(error, UnistoreError):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, MemoryError):
        reason = error or "no more can be allocated"
        return f"out of memory: {reason}. Fix: use fewer --workers, or limit a conversion with --memory"
    return f"{type(error).__name__}: {error} (unexpected; add --debug for the traceback)"
