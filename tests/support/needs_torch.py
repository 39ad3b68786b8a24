"""Tests that read tensors in child processes, where a missing torch is no error of the test itself."""

from __future__ import annotations

import pytest

from unistore.system.extras import is_installed

WITHOUT_TORCH = "torch is not installed"

needs_torch = pytest.mark.skipif(not is_installed("torch"), reason=WITHOUT_TORCH)
