"""`trial_process` with little patience: ``python -m tests.converters.files.hdf5.impatient_trials``."""

from __future__ import annotations

from unistore.converters.files.hdf5 import trial_process
from unistore.converters.files.hdf5.helper_process import serve

if __name__ == "__main__":
    trial_process._OBJECT_SECONDS = 0.1  # type: ignore[assignment]
    serve(trial_process._answer)
