"""Output of the commands: control characters are escaped, secrets in URLs removed."""

from __future__ import annotations

from typing import Any

import click

from unistore.errors import printable
from unistore.remote.redaction import redact_urls

__all__ = ["safe", "say", "say_json"]


def safe(text: str) -> str:
    """Text on one line, without control characters and secrets of URLs."""
    return printable(redact_urls(text))


def say(text: str, *, err: bool = False) -> None:
    """Print text, line by line."""
    click.echo("\n".join(map(safe, text.split("\n"))), err=err)


def say_json(value: Any, indent: int | None = None) -> None:
    """Print a JSON value, in ASCII."""
    import json

    click.echo(json.dumps(redact_urls(value), indent=indent))
