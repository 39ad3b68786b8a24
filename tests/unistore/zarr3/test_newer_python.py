"""The engine's tests again, under the newest Python that is here, with the newest zarr and tensorstore.

Python 3.11 stays with zarr 3.1; users of newer Pythons get newer ones. The environment is kept in
``.venv-newer`` at the top of the checkout; remove it to get the newest releases again. No torch needed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
CACHE = ROOT / ".venv-newer"
PACKAGES = [
    "google-crc32c",
    "hypothesis",
    "numcodecs",
    "numpy",
    "pytest",
    "pytest-timeout",
    "tensorstore",
    "xxhash",
    "zarr",
]
SAME = ("test_damage.py", "test_bombs.py", "test_metadata.py", "test_durable.py")
"""Of damaged bytes, documents and files, which the engine meets alike under any Python."""


def newer_python() -> tuple[str, str] | None:
    """Command and version of the newest Python that makes environments, if newer than this one."""
    names = [f"python3.{minor}" for minor in range(20, sys.version_info.minor, -1)]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    commands = [path for name in names if (path := shutil.which(name))]
    commands += [str(path) for path in pyenv.glob("3.*/bin/python")]
    found = [(version, command) for command in commands if (version := version_of(command))]
    newest = max(found, default=None)
    if newest is None or newest[0] <= sys.version_info[:2]:
        return None
    return newest[1], f"{newest[0][0]}.{newest[0][1]}"


def version_of(command: str) -> tuple[int, int] | None:
    code = "import ensurepip, venv, sys; print(*sys.version_info[:2])"
    try:
        done = subprocess.run([command, "-c", code], capture_output=True, text=True, timeout=20)
    except OSError:
        return None
    if done.returncode:
        return None
    major, minor = done.stdout.split()
    return int(major), int(minor)


def environment(command: str, version: str) -> Path:
    """Python of an environment with the newest `PACKAGES`, made once."""
    folder = CACHE / version
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    stamp = folder / "packages.txt"
    wanted = "\n".join(PACKAGES)
    if stamp.exists() and stamp.read_text() == wanted and version_of(str(python)):
        return python
    shutil.rmtree(folder, ignore_errors=True)
    make = [command, "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(make, check=True, capture_output=True, timeout=120)
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-compile"]
    done = subprocess.run([*install, *PACKAGES], capture_output=True, text=True, timeout=400)
    if done.returncode:
        pytest.skip(
            f"Python {version}: the newest packages cannot be installed: {done.stderr.strip()[-300:]}"
        )
    stamp.write_text(wanted)
    return python


@pytest.mark.timeout(600)
def test_the_engine_under_the_newest_python() -> None:
    newer = newer_python()
    if newer is None:
        pytest.skip(f"no Python newer than {sys.version_info.major}.{sys.version_info.minor} runs here")
    python = environment(*newer)
    ignored = [f"--ignore={HERE / name}" for name in (Path(__file__).name, *SAME)]
    tests = ["-q", f"--confcutdir={HERE}", *ignored, "-p", "no:cacheprovider", str(HERE)]
    withheld = ("PYTEST_", "COV_", "PYTHONDONTWRITE")  # its byte code is written by the first use
    outside = {name: value for name, value in os.environ.items() if not name.startswith(withheld)}
    done = subprocess.run(
        [str(python), "-m", "pytest", *tests],
        cwd=ROOT,
        env=outside,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
