"""Tests of the compiled kernel, which is not everywhere."""

from __future__ import annotations

import pytest

from unistore.system.kernel import kernel

needs_kernel = pytest.mark.skipif(kernel() is None, reason="the kernel was not compiled, see unistore doctor")
