"""Clusters that speak TLS, clients in the place of addresses, and unistore inside of dask's tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster
from distributed.security import Security

import unistore
from unistore.errors import InputError

TASKS = """
def read(store, workers):
    with unistore.Loader(unistore.Dataset(store), 4, num_workers=workers) as loader:
        return loader.num_workers, sum(len(batch["index"]) for batch in loader)

def refused(store):
    try:
        read(store, 2)
    except unistore.InputError as error:
        return str(error)
"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    for number in range(5):
        np.save(folder / f"part_{number}.npy", np.full((4, 2), number))
    return folder


@pytest.fixture
def digest(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return unistore.convert(sources, tmp_path_factory.mktemp("alone") / "out.zarr", "rows").digest


@pytest.fixture(scope="module")
def security() -> Security:
    return Security.temporary()


@pytest.fixture(scope="module")
def secure(security: Security) -> Iterator[LocalCluster]:
    with LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        processes=False,
        protocol="tls://",
        security=security,
        dashboard_address=":0",
    ) as cluster:
        yield cluster


def test_a_client_with_its_own_certificates_converts_and_stays_open(
    secure: LocalCluster, security: Security, sources: Path, digest: str, tmp_path: Path
) -> None:
    with Client(secure.scheduler_address, security=security, set_as_default=False) as client:
        for name in ("one", "two"):
            done = unistore.convert(sources, tmp_path / name, "rows", scheduler=client)
            assert done.digest == digest
        assert client.status == "running"


def test_a_scheduler_file_needs_the_certificates_of_the_dask_configuration(
    secure: LocalCluster, security: Security, sources: Path, digest: str, tmp_path: Path
) -> None:
    file = tmp_path / "scheduler.json"
    file.write_text(json.dumps({"address": secure.scheduler_address}))
    with pytest.raises(InputError, match=r"scheduler\.json: .* needs certificates"):
        unistore.convert(sources, tmp_path / "out.zarr", "rows", scheduler=str(file))
    tls = {}
    for key, text in (
        ("ca-file", security.tls_ca_file),
        ("client.cert", security.tls_client_cert),
        ("client.key", security.tls_client_key),
    ):
        tls[f"distributed.comm.tls.{key}"] = str(tmp_path / key)
        (tmp_path / key).write_text(text)
    with dask.config.set(tls):
        done = unistore.convert(sources, tmp_path / "out.zarr", "rows", scheduler=str(file))
    assert done.digest == digest


@pytest.mark.nightly
def test_unistore_works_inside_of_dask_tasks(sources: Path, tmp_path: Path) -> None:
    """As a script sends them: functions of ``__main__`` that name unistore, to a worker with its nanny."""
    script = {"__name__": "__main__", "unistore": unistore}
    exec(TASKS, script)
    store = tmp_path / "out.zarr"
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        done = client.submit(partial(unistore.convert, sources, store, "rows", workers=2)).result(60)
        assert done.samples == 20
        assert client.submit(unistore.verify, store).result(60).ok
        assert client.submit(script["read"], store, "auto").result(60) == (0, 20)
        assert "is daemonic, like a dask worker" in client.submit(script["refused"], store).result(60)
