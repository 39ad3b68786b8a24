"""``unistore verify``: a store against its manifest, its schema and its sources; what is damaged re-made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from unistore.cli.output import say, say_done, say_json
from unistore.system.sizes import count_of, size

if TYPE_CHECKING:
    from unistore import Verified
    from unistore.errors import Problem

__all__ = ["command"]

EXAMPLES = """\b
Examples:
  unistore verify a.zarr                     every byte and value rule
  unistore verify a.zarr --against clouds/   and every value of the sources
  unistore verify a.zarr --against clouds/ --sample 1%
  unistore verify a.zarr --against clouds/ --workers 4
  unistore verify a.zarr --repair clouds/    re-make what is damaged
"""
_SHOWN = 200


def _share(context: click.Context, option: click.Parameter, text: str | None) -> float:
    """Read ``"1%"`` or ``"0.01"``."""
    if text is None:
        return 1.0
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        msg = f"{text!r} is no share: expected one above 0 and up to 100%, as in 1% or 0.01"
        raise click.BadParameter(msg, context, option)
    return share


@click.command("verify", epilog=EXAMPLES, short_help="Check a store, against its sources too, and repair it.")
@click.argument("store", metavar="STORE", type=click.Path())
@click.argument("sources", metavar="[SRC...]", nargs=-1, type=click.Path())
@click.option("--against", is_flag=True, help="Compare with SRC..., as they were given to the conversion.")
@click.option("--sample", callback=_share, metavar="SHARE", help="With --against: compare a part, as in 1%.")
@click.option("--repair", "repairing", is_flag=True, help="Re-make damaged and missing files from SRC....")
@click.option(
    "--workers", type=click.IntRange(min=0), default=0, help="Worker processes; 0 (default): this process."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def command(
    store: str,
    sources: tuple[str, ...],
    against: bool,
    sample: float,
    repairing: bool,
    workers: int,
    as_json: bool,
) -> int:
    """Check every file of STORE against its manifest, its documents, and the rules that its values obey.

    Leaves with 0 if nothing is wrong, with 1 and a table of all problems if something is.
    """
    from unistore import repair, verify
    from unistore.cli.progress import Bar

    if (against or repairing) != bool(sources) or (against and repairing):
        message = "give sources with one of --against and --repair: unistore verify STORE --against SRC..."
        raise click.UsageError(message)
    if sample < 1 and not against:
        raise click.UsageError("--sample is a part of --against")
    with Bar() as bar:
        if repairing:
            found: Verified = repair(store, sources, workers=workers, progress=bar)
        else:
            found = verify(store, against=sources, sample=sample, workers=workers, progress=bar)
    if as_json:
        say_json(found.to_json())
    elif found.ok:
        say_done(_text(found))
    else:
        say(_text(found))
    return 0 if found.ok else 1


def _text(found: Verified) -> str:
    from unistore import Repaired

    remade = found.repaired if isinstance(found, Repaired) else ()
    lines = [f"re-made {count_of(len(remade), 'file')}"] if remade else []
    lines += [f"  {key}" for key in remade[:_SHOWN]]
    lines += _table(found.problems)
    if found.unchecked:
        lines.append(
            f"not checked, since arrays are damaged or contradict each other: {', '.join(found.unchecked)}"
        )
    about = f"{found.path}: {count_of(found.files, 'file')}, {size(found.bytes)}"
    if not found.ok:
        lines.append(f"{about}: damaged")
        return "\n".join(lines)
    lines.append(f"{about}: as they were sealed; documents and values obey their rules")
    if found.receipt is not None:
        if found.receipt.left_out:
            lines.append(f"in the sources and not in the store: {', '.join(found.receipt.left_out)}")
        lines.append(found.receipt.line)
    return "\n".join(lines)


def _table(problems: tuple[Problem, ...]) -> list[str]:
    """One line a problem: kind, place, what is wrong; the cures they have, once each."""
    rows = [(problem.kind, problem.location, problem.message) for problem in problems[:_SHOWN]]
    widths = [max([len(row[column]) for row in rows], default=0) for column in (0, 1)]
    lines = [f"{kind:<{widths[0]}}  {place:<{widths[1]}}  {message}" for kind, place, message in rows]
    if len(problems) > _SHOWN:
        lines.append(f"and {len(problems) - _SHOWN} more (all of them with --json)")
    return lines + [f"→ {cure}" for cure in dict.fromkeys(p.cure for p in problems if p.cure)]
