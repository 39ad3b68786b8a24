"""How all tests run: examples without a deadline, and the longest tests first.

How long an example takes is the machine's affair; a test that hangs is ended anyway.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with tests that may take minutes: at the end all processes but one would wait for them."""

    def most(item: pytest.Item) -> float:
        marker = item.get_closest_marker("timeout")
        return marker.args[0] if marker else 0

    items.sort(key=lambda item: most(item) < 300)
