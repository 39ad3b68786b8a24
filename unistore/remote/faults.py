"""What an object store answered, in one line that says what to do, and whether trying again may help."""

from __future__ import annotations

import re
from dataclasses import dataclass

from unistore.remote.redaction import without_secrets

__all__ = ["Fault", "ShortRead", "cause", "fault_of", "lacks_conditions"]

CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (AWS_SKIP_SIGNATURE=true for a public bucket)",
    "gs": "GOOGLE_SERVICE_ACCOUNT (GOOGLE_SKIP_SIGNATURE=true for a public bucket)",
    "az": "AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN (AZURE_SKIP_SIGNATURE=true if public)",
}
"""Environment variables that hold credentials."""
ENDPOINT = {"s3": "AWS_ENDPOINT_URL", "gs": "GOOGLE_BASE_URL", "az": "AZURE_STORAGE_ENDPOINT"}
"""Environment variables that say where the object store is."""

_ALLOW = {"s3": "AWS_ALLOW_HTTP", "gs": "GOOGLE_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP"}
_INSTANCE = ("169.254.169.254", "metadata.google.internal")  # where cloud machines ask for credentials
_STATUS = re.compile(r"status(?: code)?: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_KIND = re.compile(r"kind: (Connect|Timeout|Interrupted|Request|Decode)\b")
_BROKEN = {
    "Connect": "no connection",
    "Timeout": "no answer in time",
    "Interrupted": "the connection broke inside an answer",
    "Request": "the connection broke",
    "Decode": "an answer that cannot be read",
}
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
_AGAIN = (408, 425, 429)


class ShortRead(Exception):  # noqa: N818 - becomes a CorruptionError if it stays
    """An answer with fewer bytes than were asked for."""

    def __init__(self, message: str, cure: str = "restore it from a copy") -> None:
        super().__init__(message)
        self.cure = cure


@dataclass(frozen=True, slots=True)
class Fault:
    """Why an operation failed.

    Attributes
    ----------
    message
        One line: what happened.
    cure
        What to do about it; may be empty.
    transient
        Whether trying again may help.
    absent
        Whether there is no such object.
    damaged
        Whether the object is not as long as it must be.
    """

    message: str
    cure: str = ""
    transient: bool = False
    absent: bool = False
    damaged: bool = False


def fault_of(error: Exception, scheme: str, bucket: str) -> Fault:
    """Read an exception of obstore.

    Parameters
    ----------
    error
        The exception. Its text begins with a sentence; the debug form that follows has kind and status.
    scheme, bucket
        Where the operation went.
    """
    if isinstance(error, ShortRead):
        return Fault(str(error), error.cure, transient=True, damaged=True)
    text = str(error)
    code = match[1] if (match := _CODE.search(text)) else ""
    status = int(match[1]) if (match := _STATUS.search(text)) else 0
    kind = type(error).__name__
    if code in _NO_BUCKET:
        where = ENDPOINT.get(scheme, "the host")
        return Fault(f"there is no bucket {bucket!r}", f"check its name and {where}")
    if isinstance(error, FileNotFoundError):
        return Fault("no such object", absent=True)
    return (
        _refused(text, kind, code, status, scheme)
        or _misconfigured(text, scheme)
        or _answered(code, status)
        or _interrupted(text)
    )


def lacks_conditions(error: Exception) -> bool:
    """Whether a server refused ``If-None-Match`` because it does not know it."""
    text = str(error)
    status = int(match[1]) if (match := _STATUS.search(text)) else 0
    return type(error).__name__ == "NotSupportedError" or status == 501 or "NotImplemented" in text


def _refused(text: str, kind: str, code: str, status: int, scheme: str) -> Fault | None:
    credentials = CREDENTIALS.get(scheme, "a server that lets everybody read")
    if any(host in text for host in _INSTANCE):
        return Fault("no credentials found", f"set {credentials}")
    if kind in ("PermissionDeniedError", "UnauthenticatedError") or status in (401, 403):
        return Fault(f"access denied{_named(code)}", f"check {credentials}")
    return None


def _misconfigured(text: str, scheme: str) -> Fault | None:
    if "BareRedirect" in text:
        return Fault("the bucket is in another region", "set AWS_REGION")
    if "BadScheme" in text:
        return Fault("the endpoint is not encrypted (http)", f"set {_ALLOW.get(scheme, _ALLOW['s3'])}=true")
    if "MissingAccount" in text:
        return Fault("no storage account is named", "set AZURE_STORAGE_ACCOUNT_NAME")
    if "NotPartial" in text:
        cure = "serve it from one that does, or download the store"
        return Fault("the server cannot send parts of a file", cure)
    if _KIND.search(text) is None and _STATUS.search(text) is None:
        return Fault(_sentence(text), "check the settings of " + ENDPOINT.get(scheme, "the host"))
    return None


def _answered(code: str, status: int) -> Fault | None:
    if status == 416:
        return Fault("ends before the range that was asked for", "restore it from a copy", damaged=True)
    if (status >= 500 and status != 501) or status in _AGAIN:
        return Fault(f"the server answers {status}{_named(code)}", "try again later", transient=True)
    if status:
        return Fault(f"the server answers {status}{_named(code)}")
    return None


def _interrupted(text: str) -> Fault:
    kinds = _KIND.findall(text)
    what = _BROKEN[kinds[0]] if kinds else _sentence(text)
    return Fault(what, "check the network and the endpoint", transient=True)


def _named(code: str) -> str:
    return f" ({code})" if code else ""


def cause(error: Exception) -> Exception:
    """An exception of a library, to be shown below ours: the rest of its text may hold URLs in any form."""
    return RuntimeError(f"{type(error).__name__}: {_sentence(str(error))}").with_traceback(
        error.__traceback__
    )


def _sentence(text: str) -> str:
    first: str = without_secrets(text.partition("\n")[0].strip())
    return first if len(first) <= 200 else f"{first[:197]}…"
