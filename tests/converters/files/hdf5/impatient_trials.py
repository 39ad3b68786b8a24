"""`trial_process` with little patience: ``python -m tests.converters.files.hdf5.impatient_trials``."""

from __future__ import annotations

import os
import sys

from unistore.converters.files.hdf5 import trial_process

if __name__ == "__main__":
    trial_process._OBJECT_SECONDS = 0.1  # type: ignore[assignment]
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)
        trial_process.serve(sys.stdin.buffer, answers)
