"""Exceptions of obstore as one-line faults with a cure, and whether a retry may help."""

from __future__ import annotations

import re
from dataclasses import dataclass

from unistore.remote.url import redact_urls

CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (AWS_SKIP_SIGNATURE=true for a public bucket)",
    "gs": "GOOGLE_SERVICE_ACCOUNT (GOOGLE_SKIP_SIGNATURE=true for a public bucket)",
    "az": "AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN (AZURE_SKIP_SIGNATURE=true if public)",
}
"""Environment variables with credentials, by scheme."""
ENDPOINT = {"s3": "AWS_ENDPOINT_URL", "gs": "GOOGLE_BASE_URL", "az": "AZURE_STORAGE_ENDPOINT"}
"""Environment variable with the endpoint, by scheme."""

_ALLOW_HTTP = {"s3": "AWS_ALLOW_HTTP", "gs": "GOOGLE_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP"}
_METADATA_HOSTS = ("169.254.169.254", "metadata.google.internal")  # asked for credentials on cloud machines
_STATUS = re.compile(r"status(?: code)?: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_KIND = re.compile(r"kind: (Connect|Timeout|Interrupted|Request|Decode)\b")
_CONNECTION_MESSAGES = {
    "Connect": "no connection",
    "Timeout": "no answer in time",
    "Interrupted": "the connection broke during a response",
    "Request": "the connection broke",
    "Decode": "the response cannot be decoded",
}
_OTHER_COPY = "restore it from a copy"
_NO_RANGES = "this server has no ranges: serve it from one that has them, python -m http.server has none"
_WHOLE_FILE = ("NotPartial", "Range request not supported")
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
_RETRYABLE_STATUSES = (408, 425, 429)


class ShortRead(Exception):  # noqa: N818 - becomes a CorruptionError if retries do not help
    """A response with fewer bytes than requested."""

    def __init__(self, message: str, cure: str = _OTHER_COPY) -> None:
        super().__init__(message)
        self.cure = cure


@dataclass(frozen=True, slots=True)
class Fault:
    """Why an operation failed, in one line, and what to do about it.

    `transient` if a retry may help, `absent` if there is no such object, `damaged` if it is too short.
    """

    message: str
    cure: str = ""
    transient: bool = False
    absent: bool = False
    damaged: bool = False


def classify_error(error: Exception, scheme: str, bucket: str) -> Fault:
    """Classify an exception of obstore, raised for a bucket of a URL.

    The text begins with a sentence; the debug form that follows has kind and status.
    """
    if isinstance(error, ShortRead):
        return Fault(str(error), error.cure, transient=True, damaged=True)
    text = str(error)
    status, kinds = _status(text), _KIND.findall(text)
    code = match[1] if (match := _CODE.search(text)) else ""
    endpoint = ENDPOINT.get(scheme, "the host")
    credentials = CREDENTIALS.get(scheme, "a server that lets everybody read")
    allow_http = _ALLOW_HTTP.get(scheme, _ALLOW_HTTP["s3"])
    denied = type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError") or status in (401, 403)
    retryable = (status >= 500 and status != 501) or status in _RETRYABLE_STATUSES
    detail = f" ({code})" if code else ""
    answer = f"the server answers {status}{detail}"
    connection = _CONNECTION_MESSAGES[kinds[0]] if kinds else _first_line(text)
    faults = (
        (code in _NO_BUCKET, Fault(f"there is no bucket {bucket!r}", f"check its name and {endpoint}")),
        (isinstance(error, FileNotFoundError), Fault("no such object", absent=True)),
        (any(host in text for host in _METADATA_HOSTS), Fault("no credentials found", f"set {credentials}")),
        (denied, Fault(f"access denied{detail}", f"check {credentials}")),
        ("BareRedirect" in text, Fault("the bucket is in another region", "set AWS_REGION")),
        ("BadScheme" in text, Fault("the endpoint is not encrypted (http)", f"set {allow_http}=true")),
        ("MissingAccount" in text, Fault("no storage account is named", "set AZURE_STORAGE_ACCOUNT_NAME")),
        (any(sign in text for sign in _WHOLE_FILE), Fault(_NO_RANGES)),
        (not kinds and not status, Fault(_first_line(text), f"check the settings of {endpoint}")),
        (status == 416, Fault("ends before the range that was asked for", _OTHER_COPY, damaged=True)),
        (retryable, Fault(answer, "try again later", transient=True)),
        (status > 0, Fault(answer)),
        (True, Fault(connection, "check the network and the endpoint", transient=True)),
    )
    return next(fault for applies, fault in faults if applies)


def lacks_conditional_put(error: Exception) -> bool:
    """Whether a server rejected ``If-None-Match`` because it does not support it."""
    text = str(error)
    return type(error).__name__ == "NotSupportedError" or _status(text) == 501 or "NotImplemented" in text


def _status(text: str) -> int:
    """HTTP status in the text of an error; 0 if there is none."""
    return int(match[1]) if (match := _STATUS.search(text)) else 0


def redacted_error(error: Exception) -> Exception:
    """A library's exception as the cause of ours, without the rest of its text, which may hold secrets."""
    message = f"{type(error).__name__}: {_first_line(str(error))}"
    return RuntimeError(message).with_traceback(error.__traceback__)


def _first_line(text: str) -> str:
    first: str = redact_urls(text.partition("\n")[0].strip())
    return first if len(first) <= 200 else f"{first[:197]}…"
