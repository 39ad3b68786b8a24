"""``unistore verify``: checks a store against its manifest, schema and sources, and repairs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from unistore.cli.output import progress_bar, say, say_done, say_json
from unistore.conversion.executors.worker_process import start_early
from unistore.system.sizes import count_of, size

if TYPE_CHECKING:
    from unistore import Verified

EXAMPLES = """\b
Examples:
  unistore verify a.zarr                     all bytes and value rules
  unistore verify a.zarr --against clouds/   and all values of the sources
  unistore verify a.zarr --against clouds/ --sample 1%
  unistore verify a.zarr --against clouds/ --workers 4
  unistore verify a.zarr --repair clouds/    repair what is damaged
"""
_MAX_SHOWN = 200


def _parse_share(context: click.Context, option: click.Parameter, text: str | None) -> float:
    """Read ``"1%"`` or ``"0.01"``."""
    if text is None:
        return 1.0
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        msg = f"{text!r} is not a share: expected one above 0 and up to 100%, as in 1% or 0.01"
        raise click.BadParameter(msg, context, option)
    return share


@click.command("verify", epilog=EXAMPLES, short_help="Check a store, against its sources too, and repair it.")
@click.argument("store", metavar="STORE", type=click.Path())
@click.argument("sources", metavar="[SRC...]", nargs=-1, type=click.Path())
@click.option("--against", is_flag=True, help="Compare with SRC..., the sources of the conversion.")
@click.option(
    "--sample", callback=_parse_share, metavar="SHARE", help="With --against: compare a part, as in 1%."
)
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
    """Check all files of STORE against its manifest, and all documents and values against their rules.

    Exit codes: 0 if nothing is wrong, else 1 with a table of all problems.
    """
    start_early(sources)
    from unistore import repair, verify

    if (against or repairing) != bool(sources) or (against and repairing):
        message = "give sources with one of --against and --repair: unistore verify STORE --against SRC..."
        raise click.UsageError(message)
    if sample < 1 and not against:
        raise click.UsageError("--sample is a part of --against")
    with progress_bar() as bar:
        if repairing:
            verified: Verified = repair(store, sources, workers=workers, progress=bar)
        else:
            verified = verify(store, against=sources, sample=sample, workers=workers, progress=bar)
    if as_json:
        say_json(verified.to_json())
    else:
        (say_done if verified.ok else say)(_text(verified))
    return 0 if verified.ok else 1


def _text(found: Verified) -> str:
    from unistore import Repaired
    from unistore.report.text import aligned

    repaired = found.repaired if isinstance(found, Repaired) else ()
    problems = found.problems
    lines = [f"repaired {count_of(len(repaired), 'file')}"] if repaired else []
    lines += [f"  {key}" for key in repaired[:_MAX_SHOWN]]
    lines += aligned([(problem.kind, problem.location, problem.message) for problem in problems[:_MAX_SHOWN]])
    if len(problems) > _MAX_SHOWN:
        lines.append(f"and {len(problems) - _MAX_SHOWN} more (all of them with --json)")
    lines += [f"→ {cure}" for cure in dict.fromkeys(problem.cure for problem in problems if problem.cure)]
    if found.unchecked:
        unchecked = ", ".join(found.unchecked)
        lines.append(f"not checked, as arrays are damaged or contradict each other: {unchecked}")
    about = f"{found.path}: {count_of(found.files, 'file')}, {size(found.bytes)}"
    good = "as they were sealed; documents and values follow their rules"
    lines.append(f"{about}: {good if found.ok else 'damaged'}")
    if found.ok and found.receipt is not None:
        lines.append(found.receipt.line)
    return "\n".join(lines)
