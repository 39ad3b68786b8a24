"""Secrets of URLs: on no stream, in no error, in no file, however the URL is given."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import unistore
from unistore.errors import InputError
from unistore.remote.faults import redacted_error
from unistore.remote.url import redact_url, redact_urls

SECRETS = ("hunter2", "AKIAUSER", "SIGNED", "frag0")
URLS = [
    "https://AKIAUSER:hunter2@host.example/a.zarr?X-Amz-Signature=SIGNED",
    "https://AKIAUSER@host.example/a.zarr",
    "https://host.example/a.zarr?X-Amz-Signature=SIGNED#frag0",
    "https://host.example/a.zarr#frag0",
    "s3://AKIAUSER:hunter2@bucket/a.zarr",
    "s3://AKIAUSER:hunt/er+hunter2@bucket/a.zarr",
    "s3://AKIAUSER:hunter2/bucket",
    "az://AKIAUSER:x@hunter2@container/a?sig=SIGNED",
    "gs://bucket/a.zarr?X-Goog-Signature=SIGNED",
    "https:/AKIAUSER:hunter2@host.example/a?sig=SIGNED",
    "https://AKIAUSER:hun?ter2hunter2@host.example/a",
    "ftp://AKIAUSER:hunter2@host.example/a.zarr",
    "file://AKIAUSER:hunter2@host.example/a.zarr",
    "file:///nowhere/a.zarr?sig=SIGNED",
    "https://AKIAUSER:hunter2@[host/a",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("secrets")
    with contextlib.chdir(folder):
        Path("in").mkdir()
        np.save("in/a.npy", np.arange(40.0).reshape(10, 4))
        unistore.convert("in", "done.zarr", "rows")
        unistore.convert("in", "damaged.zarr", "rows")
        Path("damaged.zarr/rows/data/c/0/0").write_bytes(b"damaged")
        yield folder


COMMANDS: list[Callable[[str], list[str]]] = [
    lambda url: ["inspect", url],
    lambda url: ["doctor", url],
    lambda url: ["verify", url],
    lambda url: ["verify", "done.zarr", "--against", url],
    lambda url: ["verify", "damaged.zarr", "--repair", url],
    lambda url: ["export", url, "out"],
    lambda url: ["export", "done.zarr", url],
    lambda url: ["convert", "rows", url, "new.zarr"],
    lambda url: ["convert", url, "new.zarr"],
    lambda url: ["convert", "rows", "in", url],
    lambda url: ["convert", "rows", "in", "s3://bucket/new.zarr", "--work", url],
    lambda url: ["convert", "rows", "in", "new.zarr", "--scheduler", url],
    lambda url: ["inspect", "done.zarr", url],
    lambda url: ["convert", "rows", "in", "new.zarr", "--codec", url],
    lambda url: ["convert", "rows", "in", "new.zarr", "--memory", url],
    lambda url: ["convert", "rows", "in", "new.zarr", "--split", url],
    lambda url: ["convert", "rows", "in", "new.zarr", "--split-from", url],
    lambda url: ["convert", "rows", "in", "new.zarr", "--split-from", f"{url}/list.csv"],
    lambda url: ["convert", "rows", "in", "new.zarr", "--split", "a=1", "--group-by", url],
]


@pytest.mark.parametrize("form", [[], ["--json"], ["--debug"]], ids=["plain", "json", "debug"])
@pytest.mark.parametrize("number", range(len(COMMANDS)))
def test_no_command_says_or_writes_a_secret(place: Path, number: int, form: list[str], capfd: Any) -> None:
    from unistore.cli.main import main

    for url in URLS:
        with pytest.raises(SystemExit) as left:
            main([*COMMANDS[number](url), *form])
        assert left.value.code in (1, 2), url
        said = "".join(capfd.readouterr())
        assert said.strip(), url
        assert not told(said), (url, said)
    assert not written(place)


def told(text: str) -> list[str]:
    return [secret for secret in SECRETS if secret in text]


def written(place: Path) -> list[str]:
    """Names and contents of files that hold a secret."""
    found = []
    for folder, folders, names in os.walk(place):
        found += [name for name in (*folders, *names) if told(name)]
        found += [name for name in names if told(Path(folder, name).read_bytes().decode("latin-1"))]
    return found


CALLS: list[Callable[[str], object]] = [
    unistore.Dataset,
    unistore.Store,
    unistore.open_zarr,
    unistore.inspect,
    unistore.ReplayBuffer,
    lambda url: unistore.Dataset("done.zarr", cache_dir=url),
    lambda url: unistore.convert(url, "new.zarr"),
    lambda url: unistore.convert([url], "new.zarr", "rows"),
    lambda url: unistore.convert("in", url, "rows"),
    lambda url: unistore.convert("in", "new.zarr", "rows", scheduler=url),
]


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_no_error_of_the_library_holds_a_secret(place: Path, number: int) -> None:
    for url in URLS:
        with pytest.raises(InputError) as caught:
            CALLS[number](url)
        shown = "".join(traceback.format_exception(caught.value, chain=True))
        lines = [line for line in shown.splitlines() if not line.startswith("    ")]  # not this test's source
        assert not told("\n".join(lines)), url
        assert not told(repr(caught.value)), url
    assert not written(place)


def test_what_a_library_says_of_a_url_is_shown_without_secrets() -> None:
    said = f"Generic S3 error: error sending request for url ({URLS[0]})\n\nDebug source:\n query: {URLS[2]}"
    assert not told(str(redacted_error(OSError(said))))
    assert "Generic S3 error" in str(redacted_error(OSError(said)))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket/a/b.zarr", "s3://bucket/a/b.zarr"),
        ("https://host:8080/a", "https://host:8080/a"),
        ("tcp://[::1]:8786", "tcp://[::1]:8786"),
        ("file:///data/a.zarr", "file:///data/a.zarr"),
        ("https://host/user@v1/a", "https://host/user@v1/a"),
        ("https://host:80/user@v1/a", "https://…@v1/a"),
        ("https://me:secret@host/a?b=c", "https://…@host/a?…"),
        ("s3://key:se/cr@et@bucket/a", "s3://…@bucket/a"),
        ("https://me:se?cret@host/a", "https://…?…"),
        ("https:/me@host/a#b", "https:/…@host/a#…"),
    ],
)
def test_urls_are_shown_without_user_password_and_query(url: str, shown: str) -> None:
    assert redact_url(url) == shown
    assert redact_urls(f"see {url}, or '{url}'") == f"see {shown}, or '{shown}'"
    assert redact_urls({"a": [url, 3, (url,)]}) == {"a": [shown, 3, [shown]]}


@given(
    st.sampled_from(["s3", "https", "az", "tcp"]),
    st.text("ab:+=%!,;", max_size=8),
    st.text("xy?#:@/+=%&!", max_size=8),
    st.text("pq&=?#@:/", max_size=8),
)
def test_no_user_password_or_query_is_ever_shown(scheme: str, user: str, password: str, query: str) -> None:
    shown = redact_url(f"{scheme}://U{user}V:W{password}W@host/path?Q{query}Q")
    assert not set("UVWQ") & set(shown)
