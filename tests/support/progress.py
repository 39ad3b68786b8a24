"""A display of progress that counts."""

from __future__ import annotations


class CountedProgress:
    """Count the stages that begin and the bytes that are done; fail if a line is printed."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, int]] = []
        self.done = 0

    def begin(self, stage: str, total: int) -> None:
        self.begun.append((stage, total))

    def advance(self, amount: int) -> None:
        self.done += amount

    def tell(self, line: str) -> None:
        raise AssertionError(line)
