"""How state machines run: a few histories in the suite, as many as are wanted by hand."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

HISTORIES = "UNISTORE_HISTORIES"
"""Environment variable: how many times as many histories as in the suite; what fails is then made short."""


def run_machine(machine: type[RuleBasedStateMachine], histories: int, steps: int) -> None:
    """Run histories of so many steps; the output of the test says how to run more of them."""
    factor = int(os.environ.get(HISTORIES, "1"))
    print(f"{histories * factor} histories; {HISTORIES}=100 runs 100 times as many")
    shrink = [Phase.shrink] if HISTORIES in os.environ else []
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=histories * factor,
            stateful_step_count=steps,
            deadline=None,
            phases=[Phase.reuse, Phase.generate, *shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )
