"""Convert to ``az://`` and read from it, killed at random moments, against Azurite, Microsoft's own emulator.

    npm install azurite
    python tools/faults/azure.py --azurite node_modules/.bin/azurite-blob

For each family a conversion to the emulator is killed with SIGKILL and resumed, then others that replace the
store at that place. The objects must be, byte for byte, the files of the same conversion to a folder,
nothing may be left beside them or in the working folder, and ``verify --against`` must read every value.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from email.utils import formatdate
from functools import partial
from pathlib import Path

from trials import FAMILIES, Case, Reference, ended, family, make_parser, start

import unistore.conversion.plan

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Public key of the emulator's account."""
CONTAINER = "box"


@contextmanager
def emulator(command: str) -> Iterator[None]:
    """Azurite with an empty container; the environment gives access to it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--disableTelemetry"]
    process = subprocess.Popen(
        [command, "--blobHost", "127.0.0.1", "--blobPort", str(port), *options], stdout=subprocess.DEVNULL
    )
    endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
    os.environ |= {
        "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": KEY,
        "AZURE_STORAGE_ENDPOINT": endpoint,
        "AZURE_ALLOW_HTTP": "true",
    }
    try:
        make_container(endpoint)
        yield
    finally:
        process.terminate()
        process.wait()


def make_container(endpoint: str) -> None:
    """Make the container, once the emulator answers; the request is signed with the account's key."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    signed = "PUT" + "\n" * 12 + "".join(f"{name}:{value}\n" for name, value in headers.items())
    signed += f"/{ACCOUNT}/{ACCOUNT}/{CONTAINER}\nrestype:container"
    digest = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    url = f"{endpoint}/{CONTAINER}?restype=container"
    for _ in range(300):
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers)).close()
            return
        except (ConnectionError, urllib.error.URLError) as error:
            if not isinstance(getattr(error, "reason", error), ConnectionError):
                raise
            refused = error
        time.sleep(0.1)
    sys.exit(f"FAILED: Azurite does not answer: {refused}")


@dataclass
class Trials:
    """The trials of one family."""

    name: str
    work: Path
    rng: random.Random
    kills: int = 0

    def run(self, wanted: int) -> str:
        """Kill conversions so many times, new ones and replacements in turn; returns a line of figures."""
        case, url = Case(*family(self.name)), f"az://{CONTAINER}/{self.name}.zarr"
        store = self.work / "whole" / "out.zarr"
        ended(start(partial(case.convert, store)))
        whole = Reference.of(store)
        rounds = 0
        while self.kills < wanted:
            if rounds:
                case = replace(case, overwrite=True)
            self._until_done(partial(case.convert, url))
            ended(start(partial(self._compare, url, whole)))
            rounds += 1
        ended(start(partial(self._read, url, case.sources)))
        whole.check(store, self.name)
        return f"{self.name}: {self.kills} kills, {rounds} times {len(whole.files)} objects identical"

    def _until_done(self, job: Callable[[], None]) -> None:
        """Run a command, killed at a random moment twice if it is not done before, then undisturbed."""
        for seconds in (self.rng.uniform(0, 1), self.rng.uniform(0, 2)):
            pid = start(job)
            time.sleep(seconds)
            os.kill(pid, signal.SIGKILL)
            self.kills += not ended(pid)
        ended(start(job))
        if list(self.work.glob("*.unistore-build")):
            sys.exit(f"FAILED: {self.name}: a build folder is left")

    def _compare(self, url: str, whole: Reference) -> None:
        """Compare the objects of the container with the files; obstore needs its own process."""
        from unistore.remote.client import ObjectClient

        client = ObjectClient(f"az://{CONTAINER}")
        prefix = url.rpartition("/")[2]
        objects = {key: client.get(key) for key in client.list() if key.startswith(self.name)}
        if objects != {f"{prefix}/{key}": content for key, content in whole.files.items()}:
            differing = sorted(
                key for key in objects if objects[key] != whole.files.get(key.partition("/")[2])
            )
            sys.exit(f"FAILED: {url} is not the store that a folder would hold: {differing}")

    def _read(self, url: str, sources: list[Path]) -> None:
        """Compare every value of the container with the sources."""
        from unistore import verify

        found = verify(url, against=sources)
        if not found.ok or found.receipt is None:
            sys.exit(f"FAILED: {url}: {found.problems}")
        print(f"{url}: {found.receipt.line}", flush=True)


def main(arguments: list[str] | None = None) -> None:
    """Run the trials; exits with a message at the first that fails."""
    parser = make_parser(__doc__)
    parser.add_argument("--azurite", default="azurite-blob", help="the emulator's command")
    parser.add_argument("--family", choices=list(FAMILIES), help="one family; all of them if not given")
    parser.add_argument("--kills", type=int, default=4, help="kills per family")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    unistore.conversion.plan.SHARD = 32 << 10  # many small shards
    command = str(Path(given.azurite).absolute()) if os.sep in given.azurite else given.azurite
    rng = random.Random(given.seed)
    with tempfile.TemporaryDirectory(prefix="unistore-azure-") as folder, emulator(command):
        os.chdir(folder)
        for name in [given.family] if given.family else list(FAMILIES):
            print(Trials(name, Path(folder), rng).run(given.kills), flush=True)
        os.chdir("/")


if __name__ == "__main__":
    main()
