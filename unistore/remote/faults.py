"""Exceptions of obstore and the Hub as one-line faults with a fix, and whether a retry may help."""

from __future__ import annotations

import re
from dataclasses import dataclass

from unistore.remote import hub
from unistore.remote.url import redact_urls

# Beginnings of the names of environment variables, by scheme
PREFIXES = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (AWS_SKIP_SIGNATURE=true for a public bucket)",
    "gs": "GOOGLE_SERVICE_ACCOUNT (GOOGLE_SKIP_SIGNATURE=true for a public bucket)",
    "az": "AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN (AZURE_SKIP_SIGNATURE=true if public)",
}
_ENDPOINT = {"s3": "AWS_ENDPOINT_URL", "gs": "GOOGLE_BASE_URL", "az": "AZURE_STORAGE_ENDPOINT"}

_STATUS = re.compile(r"status(?: code)?: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_OTHER_COPY = "restore it from a copy"
_RANGES = "this server does not support HTTP ranges"
_NETWORK = "check the network and the endpoint"

# Exceptions of obstore: a pattern in their type and text, what happened, what to do, and fields of `Fault`
_RULES: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    (
        "<Code>(NoSuchBucket|ContainerNotFound)",
        "there is no bucket {bucket!r}",
        "check its name and {endpoint}",
        (),
    ),
    ("^FileNotFoundError", "no such object", "", ("absent", "answered")),
    # asked for credentials on cloud machines
    (r"169\.254\.169\.254|metadata\.google\.internal", "no credentials found", "set {credentials}", ()),
    ("MissingSecretAccessKey", "there is no secret key", "set AWS_SECRET_ACCESS_KEY too", ()),
    ("MissingAccessKeyId", "there is no access key", "set AWS_ACCESS_KEY_ID too", ()),
    ("^(PermissionDenied|Unauthenticated)Error", "access denied{code}", "check {credentials}", ()),
    ("status(?: code)?: 40[13]", "access denied{code}", "check {credentials}", ()),
    ("BareRedirect", "the bucket is in another region", "set AWS_REGION", ()),
    ("BadScheme", "the endpoint is not encrypted (http)", "set {prefix}ALLOW_HTTP=true to allow it", ()),
    ("MissingAccount", "there is no name of a storage account", "set AZURE_STORAGE_ACCOUNT_NAME", ()),
    (
        "NotPartial|Range request not supported",
        _RANGES,
        "use a server that does, not python -m http.server",
        (),
    ),
    ("status(?: code)?: 416", "ends before the requested range", _OTHER_COPY, ("damaged",)),
    (
        "status(?: code)?: (?!501)(5..|408|425|429)",
        "the server answers {status}{code}",
        "try again later",
        ("transient", "answered"),
    ),
    (_STATUS.pattern, "the server answers {status}{code}", "", ()),
    ("kind: Connect", "there is no connection to the server", _NETWORK, ("transient",)),
    ("kind: Timeout", "the server did not answer in time", _NETWORK, ("transient",)),
    ("kind: Interrupted", "the connection broke during a response", _NETWORK, ("transient",)),
    ("kind: Request", "the connection broke", _NETWORK, ("transient",)),
    ("kind: Decode", "the response cannot be decoded", _NETWORK, ("transient",)),
    ("", "{first_line}", "check the settings of {endpoint}", ()),
)


class ShortRead(Exception):  # noqa: N818 - becomes a CorruptionError if retries do not help
    """A response with fewer bytes than requested."""

    def __init__(self, message: str, fix: str = _OTHER_COPY) -> None:
        super().__init__(message)
        self.fix = fix


@dataclass(frozen=True, slots=True)
class Fault:
    """Why an operation failed, in one line, and what to do about it."""

    message: str
    fix: str = ""
    transient: bool = False  # a retry may help
    answered: bool = False  # a server has spoken
    absent: bool = False  # there is no such object
    damaged: bool = False  # it is too short


def classify_error(error: Exception, scheme: str, bucket: str) -> Fault:
    """Classify an exception of obstore, raised for a bucket of a URL."""
    # The text begins with a sentence, the debug form that follows has kind and status
    if isinstance(error, ShortRead):
        return Fault(str(error), error.fix, transient=True, answered=True, damaged=True)
    if isinstance(error, hub.HubError):
        return Fault(error.message, error.fix, transient=error.transient, answered=error.answered)
    text = str(error)
    named = f"{type(error).__name__} {text}"
    code = _CODE.search(text)
    facts = {
        "bucket": bucket,
        "status": _status(text),
        "code": f" ({code[1]})" if code else "",
        "endpoint": _ENDPOINT.get(scheme, "the host"),
        "credentials": _CREDENTIALS.get(scheme, "a server that lets everybody read"),
        "prefix": PREFIXES.get(scheme, "AWS_"),
        "first_line": _first_line(text),
    }
    _, message, fix, fields = next(rule for rule in _RULES if re.search(rule[0], named))
    return Fault(message.format(**facts), fix.format(**facts), **dict.fromkeys(fields, True))


def lacks_conditional_put(error: Exception) -> bool:
    """Return whether a server rejected ``If-None-Match`` because it does not support it."""
    text = str(error)
    return type(error).__name__ == "NotSupportedError" or _status(text) == 501 or "NotImplemented" in text


def _status(text: str) -> int:
    return int(match[1]) if (match := _STATUS.search(text)) else 0


def redacted_error(error: Exception) -> Exception:
    """Return a library's exception as the cause of ours, without text that may hold secrets."""
    message = f"{type(error).__name__}: {_first_line(str(error))}"
    return RuntimeError(message).with_traceback(error.__traceback__)


def _first_line(text: str) -> str:
    first: str = redact_urls(text.partition("\n")[0].strip())
    return first if len(first) <= 200 else f"{first[:197]}…"
