"""Stores and files on the Hugging Face Hub: same values, few requests, a token that stays at the endpoint."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from torch.utils.data import DataLoader

import unistore
from tests.support.fake_hub import TOKEN, FakeHub, Repository, running_hub, use_hub, write_certificates
from tests.support.programs import call
from tests.support.store_files import tree
from unistore.errors import InputError, NoStoreError, StoreError
from unistore.store.names import ROOT
from unistore.store.reader import Store
from unistore.system.progress import COUNTS

NAME = "datasets/org/name"
URL = f"hf://{NAME}/train.zarr"
COMMIT = "0123456789" * 4


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A Hub without repositories."""
    with running_hub() as hub:
        use_hub(hub, monkeypatch, tmp_path)
        yield hub


def files_of(store: Path) -> dict[str, bytes]:
    return {f"train.zarr/{key}": content for key, content in tree(store).items()}


@pytest.fixture
def repository(hub: FakeHub, local: Path) -> Repository:
    """A repository with the local store's files."""
    return hub.add(NAME, files_of(local))


def files_asked(hub: FakeHub) -> list[str]:
    """Paths of the files that the endpoint was asked for, in order."""
    paths = [
        re.search(r"/resolve/[^/]+/(?:train\.zarr/)?(.*)", request.path) for request in hub.of("localhost")
    ]
    return [path[1] for path in paths if path]


def api_asked(hub: FakeHub) -> list[str]:
    return [request.path for request in hub.of("localhost") if request.path.startswith("/api/")]


def test_values_equal_those_of_the_local_store_and_of_zarr(
    repository: Repository, hub: FakeHub, local: Path, sources: Path, truth: Any
) -> None:
    hub.knows_ends = True  # zarr reads indexes of shards so
    ours, theirs = Store(URL), Store(local)
    group = unistore.open_zarr(URL)
    assert ours.paths() == theirs.paths()
    for path in ours.paths():
        values = ours.array(path).read()
        assert np.array_equal(values, theirs.array(path).read())
        array = group[path]
        assert isinstance(array, zarr.Array)
        assert np.array_equal(values, np.asarray(array[...]).reshape(values.shape))
    assert np.array_equal(ours.array("rows/data").read(), truth(sources)["data"])


def test_requests_of_an_opening_and_of_a_batch(repository: Repository, hub: FakeHub) -> None:
    dataset = unistore.Dataset(URL, fields=["data"])
    sha = repository.refs["main"]
    assert api_asked(hub) == [f"/api/{NAME}/revision/main?expand=sha"]
    assert files_asked(hub) == [ROOT]
    assert len(hub.of("127.0.0.1")) == 1, "the endpoint redirects once a file"
    hub.clear()
    dataset.read_batch(range(50))
    asked = hub.of("localhost")
    assert {request.path for request in asked} == {f"/{NAME}/resolve/{sha}/train.zarr/rows/data/c/0/0"}
    ranges = [request.range for request in asked]
    assert ranges[0] == "bytes=0-0", "for the size, as a link is signed for GET and may not know the end"
    assert len(ranges) == 3, "then the index of the shard, and its chunks"
    assert [request.range for request in hub.of("127.0.0.1")] == ranges
    hub.clear()
    dataset.read_batch(range(50))
    assert len(hub.of("localhost")) <= 1, "the index is kept, and a commit is not asked whether it stands"


def test_the_token_stays_at_the_endpoint(repository: Repository, hub: FakeHub, tmp_path: Path) -> None:
    repository.private = True
    repository.readers = {TOKEN}
    hub.small = 400  # some files come from the endpoint, by a redirect inside of it
    assert unistore.verify(URL).ok
    unistore.Dataset(URL, cache_dir=tmp_path / "cache").read_batch(range(600))
    at_endpoint, elsewhere = hub.of("localhost"), hub.of("127.0.0.1")
    assert {request.token for request in at_endpoint} == {f"Bearer {TOKEN}"}
    assert any(request.path.startswith("/small/") for request in at_endpoint)
    assert len(elsewhere) > 10
    assert {request.token for request in elsewhere} == {None}
    assert TOKEN not in "".join(request.path for request in hub.requests)
    assert {request.method for request in elsewhere} == {"GET"}


@pytest.mark.parametrize("expired", [1, 3])
def test_a_link_that_expired_is_replaced(
    repository: Repository, hub: FakeHub, quick: None, sources: Path, truth: Any, expired: int
) -> None:
    dataset = unistore.Dataset(URL, fields=["data"])
    before = COUNTS["retries"]
    hub.expire = expired
    values = dataset.read_batch([5, 599])["data"].values
    assert np.array_equal(values, truth(sources)["data"][[5, 599]])
    assert COUNTS["retries"] - before == expired
    assert not hub.expire


def test_links_that_stay_expired_are_an_error(repository: Repository, hub: FakeHub, quick: None) -> None:
    dataset = unistore.Dataset(URL, fields=["data"])
    hub.expire = 10**6
    message = r"rows/data/c/0/0: the host that the Hub redirects to denies access \(tried \d+ times"
    with pytest.raises(StoreError, match=message):
        dataset.read_batch([5])


def test_a_branch_is_read_at_the_commit_that_it_had(
    repository: Repository, hub: FakeHub, make_sources: Any, tmp_path: Path, truth: Any, sources: Path
) -> None:
    dataset = unistore.Dataset(URL, fields=["data"])
    first = repository.refs["main"]
    others = make_sources(tmp_path / "others", seed=1)
    unistore.convert(others, tmp_path / "other.zarr")
    repository.commit(files_of(tmp_path / "other.zarr"))
    hub.clear()
    copy = pickle.loads(pickle.dumps(dataset))
    for reader in (dataset, copy, unistore.Dataset(f"hf://{NAME}@{first}/train.zarr")):
        assert np.array_equal(reader.read_batch(range(600))["data"].values, truth(sources)["data"])
    assert api_asked(hub) == [], "a commit needs no question"
    assert files_asked(hub).count(ROOT) == 2, "once for each process"
    newer = unistore.Dataset(URL)
    assert np.array_equal(newer.read_batch(range(600))["data"].values, truth(others)["data"])


@pytest.mark.parametrize("revision", ["v1", "refs%2Fpr%2F1", "refs/pr/1", "feature%2Fx", "short"])
def test_a_revision_is_a_branch_a_tag_or_a_commit(
    repository: Repository, hub: FakeHub, local: Path, revision: str
) -> None:
    tagged = repository.commit({"empty.txt": b""}, ref="other")
    repository.refs |= {"v1": tagged, "refs/pr/1": tagged, "feature/x": tagged}
    repository.commits[tagged] |= files_of(local)
    name = tagged[:9] if revision == "short" else revision
    store = Store(f"hf://{NAME}@{name}/train.zarr")
    assert store.place == f"hf://{NAME}@{tagged}/train.zarr"
    assert store.sample_count == 600


def test_a_model_repository_is_read_with_and_without_its_prefix(hub: FakeHub, local: Path) -> None:
    hub.add("models/org/name", files_of(local))
    assert Store("hf://org/name/train.zarr").sample_count == 600
    assert Store("hf://models/org/name/train.zarr").sample_count == 600


def test_a_store_may_be_a_whole_repository(hub: FakeHub, local: Path) -> None:
    hub.add(NAME, tree(local))
    assert Store(f"hf://{NAME}").sample_count == 600


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("hf://name", r"must be 'namespace/name', got 'name'\. Fix: write hf://datasets/ORG/NAME/path"),
        ("hf://datasets/name", r"must be 'namespace/name'"),
        ("hf://dataset/org/name/x", r"did you mean 'datasets/'"),
        ("hf://datasets/org/name@/x", r"empty revision"),
        ("hf://datasets/org/name/a//b", r"must not contain empty segments"),
        ("hf://spaces/org/name/x", r"type 'space', and stores are read from datasets and models"),
        ("hf://buckets/org/name/x", r"type 'bucket', and stores are read from datasets and models"),
        ("hf://datasets/org/name/../other/x", r"must not contain '\.' or '\.\.'"),
        ("hf://datasets/org/name/x?download=true", r"has no query"),
        ("hf://name@main/x", r"two parts, ORG/NAME, are needed.*Fix: write hf://datasets/ORG/NAME/path"),
        ("hf://datasets/name@main/x", r"must be 'namespace/name', got 'name'"),
        (f"hf://{TOKEN}@datasets/org/name/x", r"must not contain credentials.*hf auth login"),
    ],
)
def test_a_malformed_url_is_an_error_before_any_request(hub: FakeHub, url: str, message: str) -> None:
    with pytest.raises(InputError, match=f"(?i){message}") as caught:
        Store(url)
    assert TOKEN not in str(caught.value)
    assert not hub.requests


def test_a_url_in_a_path_is_an_error() -> None:
    with pytest.raises(InputError, match="give it as text, not as a Path"):
        Store(Path(URL))


@pytest.mark.parametrize(
    ("url", "token", "message", "fix"),
    [
        (
            URL,
            "",
            f"no such repository {NAME.removeprefix('datasets/')!r}, or a private one",
            "check the name, or log in: hf auth login",
        ),
        (
            "hf://datasets/squad/train.zarr",
            "",
            "no such repository 'squad/train.zarr', or a private one",
            "put the organisation before squad/train.zarr, if it is missing, or log in: hf auth login",
        ),
        (
            URL,
            "hf_of_another_user",
            "your token may not read it",
            "log in as a user who may read it: hf auth",
        ),
        (URL, "nonsense", "the Hub rejects your token", "log in again (hf auth login), or correct HF_TOKEN"),
        (f"hf://{NAME}@v9/train.zarr", TOKEN, "has no revision 'v9'", "check the name after '@'"),
        (
            f"hf://{NAME}@{COMMIT}/train.zarr",
            TOKEN,
            f"has no revision '{COMMIT}'",
            "check the name after '@'",
        ),
        (f"hf://{NAME}/other.zarr", TOKEN, "no such store (no zarr.json)", "check the URL"),
        ("hf://datasets/org/other/x", TOKEN, "no such repository", "check the name"),
        ("hf://datasets/org/gated/x", "", "access to this repository has to be requested", "hf auth login"),
        (
            "hf://datasets/org/gated/x",
            TOKEN,
            "has to be requested",
            "access at {endpoint}/datasets/org/gated",
        ),
    ],
)
def test_a_missing_store_is_an_error_that_names_the_reason(
    repository: Repository,
    hub: FakeHub,
    monkeypatch: pytest.MonkeyPatch,
    url: str,
    token: str,
    message: str,
    fix: str,
) -> None:
    repository.private = True
    repository.readers = {TOKEN}
    hub.add("datasets/org/gated", {"x/zarr.json": b"{}"}, gated=True)
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(StoreError) as caught:
        unistore.Dataset(url)
    text = str(caught.value)
    assert message in text
    assert fix.format(endpoint=hub.endpoint) in text
    assert "\n" not in text
    assert not token or token not in text
    asked = [path.rpartition("/")[2] for path in files_asked(hub)]
    assert asked in ([], [ROOT], [ROOT, "1.json"]), "the root once, a version only if there is no root"
    assert len(asked) < 2 or isinstance(caught.value, NoStoreError)
    assert not hub.of("127.0.0.1")


def test_the_hub_is_waited_for_if_it_limits_requests(
    repository: Repository, hub: FakeHub, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = unistore.Dataset(URL, fields=["data"])
    hub.busy = 4
    assert len(dataset.read_batch([5])["data"].values) == 1
    hub.busy = 10**6
    with pytest.raises(
        StoreError, match=r"429: too many requests \(tried .*\. Fix: wait five minutes, .*cache_dir"
    ):
        dataset.read_batch([300])


def test_a_hub_that_cannot_be_reached_is_an_error(
    hub: FakeHub, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    message = (
        r"no answer from http://127.0.0.1:9 \(ConnectError\) \(tried 3 times.*Fix: check the network and HF_E"
    )
    with pytest.raises(StoreError, match=message):
        Store(URL)


def test_offline_mode_is_kept(repository: Repository, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for url in (URL, f"hf://{NAME}@{repository.refs['main']}/train.zarr"):
        with pytest.raises(StoreError, match=r"HF_HUB_OFFLINE is set\. Fix: unset it, or read a copy"):
            Store(url)
    assert not hub.requests


@pytest.mark.parametrize(
    "redirect", ["file:///etc/passwd", "ftp://127.0.0.1/x", "nonsense://", "{endpoint}/{self}"]
)
def test_a_redirect_to_another_scheme_or_to_itself_is_an_error(
    repository: Repository, hub: FakeHub, redirect: str, tmp_path: Path
) -> None:
    itself = f"{NAME}/resolve/main/train.zarr/rows/data/c/0/0"
    dataset = unistore.Dataset(URL, fields=["data"])
    hub.redirect = redirect.format(endpoint=hub.endpoint, self=itself)
    with pytest.raises(StoreError, match=r"redirects to an address .*https://.* Fix: check HF_ENDPOINT"):
        dataset.read_batch([5])


def test_a_redirect_from_https_to_http_is_not_followed(
    local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, server = write_certificates(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    with running_hub(server) as hub, running_hub() as plain:
        use_hub(hub, monkeypatch, tmp_path)
        hub.add(NAME, files_of(local))
        dataset = unistore.Dataset(URL, fields=["data"])
        assert len(dataset.read_batch([5])["data"].values) == 1
        for host in ("127.0.0.1", "localhost"):
            hub.redirect = f"http://{host}:{plain.port}/content"
            with pytest.raises(StoreError, match="redirects to an address that does not begin with https://"):
                dataset.read_batch([300])
        assert not plain.requests


def test_loaders_give_what_the_local_store_gives(repository: Repository, hub: FakeHub, local: Path) -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 1}
    with unistore.Loader(unistore.Dataset(local), 64, **options, num_workers=0) as near:
        expected = [batch["data"].clone() for batch in near]
    with unistore.Loader(unistore.Dataset(URL), 64, **options, num_workers=1) as far:
        assert far.start_method == "spawn"
        assert all(map(torch.equal, [batch["data"].clone() for batch in far], expected))
    assert len(expected) > 5
    assert len(api_asked(hub)) == 1, "workers are told the commit"
    assert {request.token for request in hub.of("127.0.0.1")} == {None}


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_reading_in_a_forked_process_is_an_error_at_once(repository: Repository) -> None:
    dataset = unistore.Dataset(URL)
    loader: Any = DataLoader(
        dataset, 4, num_workers=1, collate_fn=unistore.collate, multiprocessing_context="fork"
    )
    with pytest.raises(StoreError, match=r"cannot be read in a forked process.*'spawn'"):
        list(loader)


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", URL],
        ["verify", URL],
        ["verify", URL, "--against", "{sources}"],
        ["export", URL, "{folder}/files"],
        ["doctor", URL],
        ["cache", "warm", URL, "{folder}/cache"],
        ["versions", URL],
        ["compact", URL, "{folder}/compact.zarr"],
    ],
    ids=" ".join,
)
def test_commands_take_a_url(
    repository: Repository, sources: Path, tmp_path: Path, arguments: list[str]
) -> None:
    assert call(*(text.format(sources=sources, folder=tmp_path) for text in arguments)) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["convert", "{sources}", URL],
        ["convert", "{sources}", URL, "--append"],
        ["remove", URL, "0.npz"],
        ["versions", URL, "--tag", "v1"],
        ["clean", URL],
    ],
    ids=" ".join,
)
def test_nothing_is_written_to_the_hub(
    repository: Repository, hub: FakeHub, sources: Path, arguments: list[str], capsys: Any
) -> None:
    assert call(*(text.format(sources=sources) for text in arguments)) != 0
    printed = capsys.readouterr().err
    assert "train.zarr: a store cannot be written to hf://" in printed
    assert "docs/publish.md" in printed
    assert {request.method for request in hub.requests} <= {"GET"}


def test_a_versioned_store_is_read(hub: FakeHub, make_sources: Any, tmp_path: Path) -> None:
    store = tmp_path / "grown.zarr"
    unistore.convert(make_sources(tmp_path / "a", files=1), store)
    added = make_sources(tmp_path / "b", files=1, seed=1) / "0.npz"
    unistore.append(added.rename(tmp_path / "b" / "new.npz"), store)
    hub.add(NAME, files_of(store))
    dataset = unistore.Dataset(URL)
    assert len(api_asked(hub)) <= 5, "for commits, and whether what is absent is so for all"
    assert dataset.version == 2
    values = dataset.read_batch(range(400))["data"].values
    assert np.array_equal(values, unistore.Dataset(store).read_batch(range(400))["data"].values)
    assert unistore.Dataset(URL, version=1).version == 1
    assert len(pickle.loads(pickle.dumps(dataset)).read_batch(range(400))["data"].values) == 400


def test_a_store_of_a_file_equals_one_of_a_local_file(hub: FakeHub, sources: Path, tmp_path: Path) -> None:
    content = (sources / "0.npz").read_bytes()
    hub.add(NAME, {"raw/0.npz": content}, private=True, readers={TOKEN})
    expected = unistore.convert(sources / "0.npz", tmp_path / "expected.zarr")
    report = unistore.convert(f"hf://{NAME}/raw/0.npz", tmp_path / "train.zarr")
    assert report.digest == expected.digest
    assert {request.token for request in hub.of("127.0.0.1")} == {None}
    assert [request.path for request in hub.of("localhost") if "/resolve/" in request.path] == [
        f"/{NAME}/resolve/{hub.repositories[NAME].refs['main']}/raw/0.npz"
    ], "fetched once"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("9.npz", "9.npz: no such object"),
        (
            "raw",
            r"is a folder, .* --revision [0-9a-f]{40} --include 'raw/\*' --local-dir DIR",
        ),
        ("", r"is a folder, and .* hf download org/name --repo-type dataset --revision \S* --local-dir DIR"),
        ("empty.npz", "empty"),
    ],
)
def test_a_missing_or_empty_file_is_an_error(
    hub: FakeHub, sources: Path, tmp_path: Path, path: str, message: str
) -> None:
    hub.add(NAME, {"raw/0.npz": (sources / "0.npz").read_bytes(), "empty.npz": b""})
    with pytest.raises(InputError, match=message):
        unistore.convert(f"hf://{NAME}/{path}".rstrip("/"), tmp_path / "train.zarr")


def test_names_of_files_with_special_characters_are_kept(hub: FakeHub, sources: Path, tmp_path: Path) -> None:
    content = (sources / "0.npz").read_bytes()
    hub.add(NAME, {"deep/ü ä%20+.npz": content})
    unistore.convert(f"hf://{NAME}/deep/ü ä%20+.npz", tmp_path / "train.zarr")
    assert Store(tmp_path / "train.zarr").text("sources/path") == ["ü ä%20+.npz"]


@pytest.mark.parametrize("old_token_is", ["unknown", "of another user"])
def test_a_renewed_token_is_used(
    repository: Repository, hub: FakeHub, monkeypatch: pytest.MonkeyPatch, old_token_is: str
) -> None:
    repository.private = True
    repository.readers = {TOKEN}
    dataset = unistore.Dataset(URL, fields=["data"])
    assert TOKEN.encode() not in pickle.dumps(dataset)
    renewed = f"{TOKEN}-2"
    repository.readers = {renewed}
    hub.revoked = {TOKEN} if old_token_is == "unknown" else set()
    with pytest.raises(StoreError, match=r"the Hub rejects your token|your token may not read it"):
        dataset.read_batch([5])
    monkeypatch.setenv("HF_TOKEN", renewed)
    assert len(dataset.read_batch([5])["data"].values) == 1
