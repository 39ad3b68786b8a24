"""A Hugging Face Hub on this machine: an endpoint, and another host that has the content of large files.

The endpoint is ``localhost``. It redirects to ``127.0.0.1`` by links that work once, only for GET and without
ranges from the end: the Hub promises no more. The other host rejects a request that has a token.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import ipaddress
import itertools
import json
import re
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from huggingface_hub import close_session

TOKEN = "hf_" + "t" * 34

_API = re.compile(r"/api/(datasets|models)/([\w.-]+/[\w.-]+)(?:/([a-z-]+)(?:/([^/]+))?)?(/.*)?")
_RESOLVE = re.compile(r"/(?:(datasets)/)?([\w.-]+/[\w.-]+)/resolve/([^/]+)/(.+)")


@dataclass
class Repository:
    """A repository, whose commits are mappings of paths to contents."""

    private: bool = False
    gated: bool = False
    readers: set[str] = field(default_factory=set)  # tokens with access to it
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def commit(self, files: Mapping[str, bytes], ref: str = "main", message: str = "") -> str:
        """Add files to a branch, and return the hash of the commit."""
        tree = {**self.commits.get(self.refs.get(ref, ""), {}), **files}
        listing = repr([sorted((path, _hash(content)) for path, content in tree.items()), len(self.commits)])
        sha = hashlib.sha1(listing.encode()).hexdigest()
        self.commits[sha] = tree
        self.refs[ref] = sha
        self.messages.append(message)
        return sha

    def sha_of(self, revision: str) -> str | None:
        if revision in self.refs:
            return self.refs[revision]
        return next((sha for sha in self.commits if sha.startswith(revision) and len(revision) >= 7), None)


@dataclass(frozen=True)
class Request:
    """One request, as a host got it."""

    host: str
    method: str
    path: str
    token: str | None
    range: str | None


@dataclass
class FakeHub:
    """The state of the Hub, and what it was asked."""

    port: int = 0
    scheme: str = "http"
    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    links: dict[str, bytes] = field(default_factory=dict)  # contents by links that were not used yet
    used_links: set[str] = field(default_factory=set)
    revoked: set[str] = field(default_factory=set)  # tokens that are not valid any more
    lost: set[str] = field(default_factory=set)  # paths that no upload brings
    small: int = 2000  # files of fewer bytes are served by the endpoint itself
    knows_ends: bool = False  # whether the other host has ranges from the end
    redirect: str = ""  # a link in place of those to the other host
    expire: int = 0  # links that are too old when they arrive
    busy: int = 0  # requests for files that are answered by 429
    lock: threading.Lock = field(default_factory=threading.Lock)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def endpoint(self) -> str:
        return f"{self.scheme}://localhost:{self.port}"

    def add(self, name: str, files: Mapping[str, bytes], **options: Any) -> Repository:
        """Make a repository, ``"datasets/ORG/NAME"`` or ``"models/ORG/NAME"``, with one commit."""
        repository = self.repositories[name] = Repository(**options)
        repository.commit(files)
        return repository

    def link_to(self, content: bytes) -> str:
        with self.lock:
            signature = f"s{next(self._numbers)}"
            if self.expire:
                self.expire -= 1
                self.used_links.add(signature)
            else:
                self.links[signature] = content
        return self.redirect or f"{self.scheme}://127.0.0.1:{self.port}/content?X-Amz-Signature={signature}"

    def of(self, host: str) -> list[Request]:
        with self.lock:
            return [request for request in self.requests if request.host == host]

    def clear(self) -> None:
        with self.lock:
            self.requests.clear()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or a body waits 40 ms for the acknowledgement of its head
    hub: ClassVar[FakeHub]

    def serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = self._chunks()
        host = (self.headers.get("Host") or "").partition(":")[0]
        token = self.headers.get("Authorization")
        with self.hub.lock:
            self.hub.requests.append(Request(host, self.command, self.path, token, self.headers.get("Range")))
        url = urlsplit(self.path)
        if host == "127.0.0.1":
            self._serve_content(parse_qs(url.query), token)
        elif match := _API.fullmatch(url.path):
            kind, name, verb, revision, below = match.groups()
            self._serve_api(f"{kind}/{name}", verb or "", unquote(revision or ""), below or "", body)
        elif url.path == "/api/repos/create":
            self._create(json.loads(body))
        elif url.path == "/api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif match := _RESOLVE.fullmatch(url.path):
            kind, name, revision, path = match.groups()
            self._resolve(f"{kind or 'models'}/{name}", unquote(revision), unquote(path))
        elif url.path.startswith("/small/"):
            self._serve_small(url.path.removeprefix("/small/"))
        else:
            self._answer(404, b"", {"X-Error-Code": "Unknown"})

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    @property
    def token(self) -> str:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ")

    def _repository(self, name: str, *, files: bool) -> Repository | None:
        """Return a repository that the token may read, or None after an answer that denies it."""
        repository = self.hub.repositories.get(name)
        if self.token and (self.token in self.hub.revoked or not self.token.startswith("hf_")):
            self._deny(401, "", "Invalid credentials in Authorization header")
        elif repository is None or (repository.private and self.token not in repository.readers):
            self._deny(404 if self.token else 401, "RepoNotFound", "Repository not found")
        elif repository.gated and files and self.token not in repository.readers:
            self._deny(403 if self.token else 401, "GatedRepo", f"Access to {name} is restricted")
        else:
            return repository
        return None

    def _deny(self, status: int, code: str, message: str) -> None:
        headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
        self._answer(status, json.dumps({"error": message}).encode(), headers)

    def _serve_api(self, name: str, verb: str, revision: str, below: str, body: bytes) -> None:
        repository = self._repository(name, files=verb == "auth-check")
        if repository is None:
            return
        if verb == "auth-check":
            self._json({"ok": True})
            return
        sha = repository.sha_of(revision or "main")
        if sha is None:
            self._deny(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return
        tree = repository.commits[sha]
        if verb in ("", "revision"):
            self._json({"id": name.partition("/")[2], "_id": "1", "sha": sha})
        elif verb == "paths-info":
            asked = parse_qs(body.decode())["paths"]
            self._json([entry for path in asked for entry in _described(tree, path)])
        elif verb == "tree":
            folder = unquote(below).strip("/")
            inside = [path for path in tree if not folder or path.startswith(f"{folder}/")]
            self._json([entry for path in inside for entry in _described(tree, path)])
        elif verb == "preupload":
            asked = json.loads(body)["files"]
            self._json({"files": [_preupload(tree, file) for file in asked]})
        elif verb == "commit":
            lines = [json.loads(line) for line in body.splitlines()]
            added = {
                line["value"]["path"]: base64.b64decode(line["value"]["content"])
                for line in lines
                if line["key"] == "file" and line["value"]["path"] not in self.hub.lost
            }
            made = repository.commit(added, revision, lines[0]["value"]["summary"])
            self._json({"commitUrl": f"{self.hub.endpoint}/{name}/commit/{made}", "commitOid": made})
        else:
            self._answer(404, b"", {})

    def _create(self, request: Mapping[str, Any]) -> None:
        name = f"{request['type']}s/{request['organization']}/{request['name']}"
        url = f"{self.hub.endpoint}/{name}"
        status = 409 if name in self.hub.repositories else 200
        if status == 200:
            self.hub.add(name, {}, readers={self.token})
        self._json({"url": url}, status)

    def _resolve(self, name: str, revision: str, path: str) -> None:
        with self.hub.lock:
            is_busy = self.hub.busy > 0
            self.hub.busy -= is_busy
        if is_busy:
            self._answer(429, b"slow down", {})
            return
        repository = self._repository(name, files=True)
        if repository is None:
            return
        sha = repository.sha_of(revision)
        if sha is None:
            self._deny(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return
        content = repository.commits[sha].get(path)
        if content is None:
            self._deny(404, "EntryNotFound", "Entry not found")
        elif len(content) < self.hub.small:
            self._answer(307, b"", {"Location": f"/small/{name}/{sha}/{path}", "X-Repo-Commit": sha})
        else:
            link = self.hub.link_to(content)
            self._answer(
                302, b"", {"Location": link, "X-Repo-Commit": sha, "X-Linked-Size": str(len(content))}
            )

    def _serve_small(self, path: str) -> None:
        kind, organization, name, sha, inside = unquote(path).split("/", 4)
        repository = self._repository(f"{kind}/{organization}/{name}", files=True)
        if repository is not None:
            self._range(repository.commits[sha][inside])

    def _serve_content(self, query: Mapping[str, list[str]], token: str | None) -> None:
        signature = query.get("X-Amz-Signature", [""])[0]
        with self.hub.lock:
            content = self.hub.links.pop(signature, None)
            self.hub.used_links.add(signature)
        if token is not None:
            self._answer(400, b"<Code>InvalidArgument</Code> Only one auth mechanism allowed", {})
        elif content is None or self.command != "GET":
            self._answer(403, b"<Code>AccessDenied</Code> Request has expired", {})
        else:
            self._range(content)

    def _range(self, content: bytes) -> None:
        headers = {"ETag": f'"{_hash(content)}"', "Accept-Ranges": "bytes"}
        asked = self.headers.get("Range")
        if asked is None:
            self._answer(200, content, headers)
            return
        if self.hub.knows_ends and asked.startswith("bytes=-"):
            asked = f"bytes={len(content) - int(asked[7:])}-{len(content)}"
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", asked)
        if match is None or int(match[1]) >= len(content):
            self._answer(416, b"", {"Content-Range": f"bytes */{len(content)}"})
            return
        start, stop = int(match[1]), min(int(match[2]) + 1, len(content))
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
        self._answer(206, content[start:stop], headers)

    def _json(self, value: Any, status: int = 200) -> None:
        self._answer(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _answer(self, status: int, content: bytes, headers: Mapping[str, str]) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self.serve
        raise AttributeError(name)

    def log_message(self, *arguments: Any) -> None:
        pass


def _hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0%b" % (len(content), content)).hexdigest()


def _described(tree: Mapping[str, bytes], path: str) -> list[dict[str, Any]]:
    if path in tree:
        return [{"type": "file", "path": path, "size": len(tree[path]), "oid": _hash(tree[path])}]
    if any(other.startswith(f"{path}/") for other in tree):
        return [{"type": "directory", "path": path, "oid": _hash(path.encode())}]
    return []


def _preupload(tree: Mapping[str, bytes], file: Mapping[str, Any]) -> dict[str, Any]:
    path = file["path"]
    oid = _hash(tree[path]) if path in tree else None
    return {"path": path, "uploadMode": "regular", "shouldIgnore": False, "oid": oid}


@contextmanager
def running_hub(certificate: Path | None = None) -> Iterator[FakeHub]:
    """Serve a Hub until the end of the block; by https with a file of a key and its certificate."""
    hub = FakeHub(scheme="http" if certificate is None else "https")
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    hub.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def write_certificates(folder: Path) -> tuple[Path, Path]:
    """Write an authority's certificate, and the key and certificate of both hosts, and return both files."""
    today = dt.datetime.now(dt.UTC)
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in ("authority", "localhost")
    ]
    hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    written = []
    for name, key, is_authority in zip(names, keys, (True, False), strict=True):
        certificate = (
            x509.CertificateBuilder(names[0], name, key.public_key(), x509.random_serial_number())
            .not_valid_before(today - dt.timedelta(1))
            .not_valid_after(today + dt.timedelta(1))
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
            .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
            .sign(keys[0], hashes.SHA256())
        )
        written.append(certificate.public_bytes(serialization.Encoding.PEM))
    private = keys[1].private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    authority, server = folder / "authority.pem", folder / "server.pem"
    authority.write_bytes(written[0])
    server.write_bytes(private + written[1])
    return authority, server


def use_hub(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let this process, and those that it starts, ask a Hub, with a token."""
    for name, value in {
        "HF_ENDPOINT": hub.endpoint,
        "HF_TOKEN": TOKEN,
        "HF_HOME": str(folder),
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.endpoint)
    template = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(folder / "token"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setattr("unistore.remote.connection._responsive_buckets", set())
    close_session()  # it knows the certificates of another time
