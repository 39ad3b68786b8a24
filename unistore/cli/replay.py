"""The command ``replay``."""

from __future__ import annotations

import click

from unistore.cli.output import say, say_json

_EXAMPLES = """\b
Examples:
  unistore replay train.zarr state.json             of the epoch until then
  unistore replay train.zarr state.json --epoch 0
  unistore replay train.zarr state.json --batch 17 --batch-size 64
  unistore replay train.zarr state.json --split train --samples "Patches(96)"
"""


@click.command(epilog=_EXAMPLES, short_help="Print the samples and sources behind a state of a Loader.")
@click.argument("store", metavar="STORE", type=click.Path())
@click.argument("state", metavar="STATE.json", type=click.Path())
@click.option("--epoch", type=click.IntRange(0), metavar="E", help="An epoch; that of the state.")
@click.option("--batch", type=click.IntRange(0), metavar="B", help="One batch of it, from 0.")
@click.option(
    "--batch-size", type=click.IntRange(1), metavar="N", help="With --batch: of all ranks together."
)
@click.option("--samples", metavar="KIND", help="Kind of samples of the run, as in Python.")
@click.option("--split", multiple=True, metavar="NAME", help="A split that the run read.")
@click.option("--seed", type=int, default=0, help="Seed of the Dataset of the run.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def replay(
    store: str,
    state: str,
    epoch: int | None,
    batch: int | None,
    batch_size: int | None,
    samples: str | None,
    split: tuple[str, ...],
    seed: int,
    as_json: bool,
) -> None:
    """Print position, sample and source of what a run was given until it saved STATE.json.

    That is json.dump(loader.state_dict(), file). Orders with weights, a subset or a sampler need
    unistore.replay(loader, state).
    """
    from unistore import replay

    chosen = {"epoch": epoch, "batch": batch, "batch_size": batch_size}
    seen = replay(store, state, **chosen, samples=samples, split=split or None, seed=seed)
    if as_json:
        say_json(seen.to_json())
        return
    lines = zip(seen.index.tolist(), seen.sources.tolist(), strict=True)
    for position, (sample, source) in enumerate(lines, seen.first):
        say(f"{position} {sample} {source}")
