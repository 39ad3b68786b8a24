"""Repositories of the Hugging Face Hub: their names and commits, and why the Hub denies access."""

# huggingface_hub knows the grammar of names, the endpoint, the token and the Hub's API. `ObjectClient` reads
# the bytes of files: the endpoint redirects each request to another host by a link that expires.

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from urllib.parse import quote

from unistore.system.extras import require

if TYPE_CHECKING:
    from huggingface_hub import HfApi, HfUri
    from huggingface_hub.errors import HfHubHTTPError

_COMMIT = re.compile(r"[0-9a-f]{40}")
_TYPES = ("dataset", "model")
# In texts of obstore: a redirect that its client does not follow, and a limit of requests
_UNREAD_REDIRECT = re.compile(r"status: 3\d\d|kind: (Redirect|Builder)")
_TOO_MANY = re.compile(r"status: 429")
_LOG_IN = "log in: hf auth login"

T = TypeVar("T")


class HubError(Exception):
    """A failed request to the Hub. Its text is one line, with the fix."""

    def __init__(
        self, message: str, fix: str = "", *, transient: bool = False, answered: bool = True
    ) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        self.transient = transient  # a retry may help
        self.answered = answered  # the Hub has spoken


class HubFile(NamedTuple):
    """A file of a repository."""

    bytes: int
    tag: str  # hash of its content


def require_hub(url: str) -> None:
    """Raise `MissingLibraryError` if the libraries of the extra ``hub`` are not installed."""
    for library in ("huggingface_hub", "obstore"):
        require(library, f"{url} needs", "hub")


def split_uri(url: str) -> tuple[str, str]:
    """Return the repository of an ``hf://`` URL, with its revision, and the path in it.

    Each repository has one spelling: ``"datasets/ORG/NAME@REV"``, or ``"ORG/NAME@REV"`` for a model, without
    ``@REV`` if none is named. A slash of a revision is ``%2F``.

    Raises
    ------
    ValueError
        If it is not a valid URL of a dataset or a model. The text is the reason.
    """
    from huggingface_hub import parse_hf_uri
    from huggingface_hub.errors import HfUriError

    try:
        uri = parse_hf_uri(url)
    except HfUriError as error:
        reason = error.msg.strip().rstrip(".")
        raise ValueError(reason[:1].lower() + reason[1:]) from error
    if uri.type not in _TYPES:
        msg = f"is of the type {uri.type!r}, and stores are read from datasets and models"
        raise ValueError(msg)
    repository = f"datasets/{uri.id}" if uri.type == "dataset" else uri.id
    if uri.revision is not None:
        repository += f"@{quote(uri.revision, safe='')}"
    return repository, uri.path_in_repo.strip("/")


def pinned(repository: str) -> str:
    """Return a repository at the commit that its revision, by default the main branch, has now.

    Raises
    ------
    HubError
        If there is no such repository or revision, or the Hub cannot be asked.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        raise _offline()
    if _COMMIT.fullmatch(repository.partition("@")[2]):
        return repository
    return f"{repository.partition('@')[0]}@{_commit(repository)}"


def base_url(repository: str, prefix: str) -> str:
    """Return the URL at the endpoint below which the files of a pinned repository are."""
    from huggingface_hub import constants

    name, _, commit = repository.partition("@")
    return f"{constants.ENDPOINT}/{name}/resolve/{commit}/{quote(prefix)}".rstrip("/")


def request_headers() -> dict[str, str]:
    """Return the headers of requests to the endpoint: the user's token, or none."""
    from huggingface_hub import constants, get_token

    if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN:
        return {}
    token = get_token()
    return {} if token is None else {"authorization": f"Bearer {token}"}


def described(repository: str, path: str) -> HubFile | None:
    """Return a file of a pinned repository, None if there is no such file.

    Raises
    ------
    HubError
        If it is a folder, or the Hub cannot be asked.
    """
    from huggingface_hub.hf_api import RepoFile

    uri = _uri(repository)
    if not path:
        raise _is_folder(uri, path)
    entries = _ask(
        lambda api: api.get_paths_info(uri.id, [path], repo_type=uri.type, revision=uri.revision), uri
    )
    for entry in entries:
        if not isinstance(entry, RepoFile):
            raise _is_folder(uri, path)
        return HubFile(entry.size, entry.blob_id)
    return None


def why_denied(repository: str) -> HubError:
    """Return why the Hub denied access to a file of a repository, by asking once more."""
    uri = _uri(repository)
    try:
        _ask(lambda api: api.auth_check(uri.id, repo_type=uri.type), uri)
    except HubError as error:
        return error
    # The link to the other host was too old, or the token: the next request gets new ones
    return HubError("the host that the Hub redirects to denies access", "try again later", transient=True)


def why_absent(repository: str) -> HubError | None:
    """Return why nothing of a repository is there, None if the repository and its revision exist."""
    try:
        _commit(repository)
    except HubError as error:
        return error
    return None


def meaning(text: str) -> HubError | None:
    """Return what an error of obstore means for a file of the Hub. None: the same as for any server."""
    if _UNREAD_REDIRECT.search(text):
        message = (
            "the Hub redirects to an address that does not begin with https://, or redirects again and again"
        )
        return HubError(message, "check HF_ENDPOINT")
    if _TOO_MANY.search(text):
        return _too_many()
    return None


def _commit(repository: str) -> str:
    uri = _uri(repository)
    revision = uri.revision or "main"
    info = _ask(lambda api: api.repo_info(uri.id, repo_type=uri.type, revision=revision, expand="sha"), uri)
    return str(info.sha)


def _uri(repository: str) -> HfUri:
    from huggingface_hub import parse_hf_uri

    return parse_hf_uri(f"hf://{repository}")


def _page(uri: HfUri) -> str:
    from huggingface_hub import constants

    return f"{constants.ENDPOINT}/{'datasets/' if uri.type == 'dataset' else ''}{uri.id}"


def _is_folder(uri: HfUri, path: str) -> HubError:
    command = ["hf", "download", uri.id, "--repo-type", uri.type]
    if uri.revision is not None:
        command += ["--revision", uri.revision]
    if path:
        command += ["--include", f"{path}/*"]
    command += ["--local-dir", "DIR"]
    return HubError("is a folder, and files are read one by one", f"convert a copy: {shlex.join(command)}")


def _ask(request: Callable[[HfApi], T], uri: HfUri) -> T:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    # httpx.HTTPError with huggingface_hub 1, httpx2.HTTPError with 2
    transport_error: type[Exception] = HfHubHTTPError.__mro__[1]
    try:
        return request(HfApi())
    except OfflineModeIsEnabled as error:
        raise _offline() from error
    except HfHubHTTPError as error:
        raise _reason(error, uri) from error
    except transport_error as error:
        raise _no_connection(error) from error
    except OSError as error:  # of this machine, such as a missing file of certificates
        message = f"the Hub cannot be asked: {error}"
        raise HubError(message, "correct the settings of huggingface_hub") from error


def _offline() -> HubError:
    return HubError("HF_HUB_OFFLINE is set", "unset it, or read a copy on this machine")


def _no_connection(error: Exception) -> HubError:
    from huggingface_hub import constants

    message = f"no answer from {constants.ENDPOINT} ({type(error).__name__})"
    return HubError(message, "check the network and HF_ENDPOINT", transient=True, answered=False)


def _too_many() -> HubError:
    fix = "wait five minutes, log in with 'hf auth login', which allows more requests, or set cache_dir"
    return HubError("the Hub answers 429: too many requests", fix, transient=True)


def _reason(error: HfHubHTTPError, uri: HfUri) -> HubError:
    from huggingface_hub import constants, errors

    has_token = bool(request_headers())
    status = error.response.status_code
    if isinstance(error, errors.GatedRepoError):
        fixes = [] if has_token else [_LOG_IN]
        fixes.append(f"request access at {_page(uri)}")
        return HubError("access to this repository has to be requested", "; ".join(fixes))
    if isinstance(error, errors.RevisionNotFoundError):
        message = f"the repository has no revision {uri.revision or 'main'!r}"
        return HubError(message, "check the name after '@'")
    if isinstance(error, errors.DisabledRepoError):
        return HubError("the Hub has disabled access to this repository", "ask its owner")
    if isinstance(error, errors.RepositoryNotFoundError):
        check = "check the name"
        if uri.id.endswith(".zarr"):  # the store of a repository that was named without its first part
            check = f"put the organisation before {uri.id}, if it is missing"
        if has_token:
            fix = f"{check}, or log in as a user who may read it: hf auth login"
            return HubError(f"no such repository {uri.id!r}, or your token may not read it", fix)
        return HubError(f"no such repository {uri.id!r}, or a private one", f"{check}, or {_LOG_IN}")
    if status == 401:
        return HubError("the Hub rejects your token", "log in again (hf auth login), or correct HF_TOKEN")
    if status == 403:
        fix = f"give it that permission at {constants.ENDPOINT}/settings/tokens"
        return HubError("your token may not read this repository", fix)
    if status == 429:
        return _too_many()
    return HubError(f"the Hub answers {status}", "try again later", transient=status >= 500)
