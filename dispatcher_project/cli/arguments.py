"""Argument types and options that several commands share. Without Django."""

from __future__ import annotations

import argparse
import re

from dispatcher_project.settings.dispatcher import split_address
from foundation.names import MEDIA_TYPE_CHARS, MEDIA_TYPE_PATTERN, NAME_PATTERN

HIDDEN_OPTIONS = {
    *("--version", "--verbosity", "--settings", "--pythonpath"),
    *("--traceback", "--no-color", "--force-color"),
}
"""Django's options of every command: they work, and `--help` leaves them out."""


def positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return number


def name(text: str) -> str:
    """A server's, model's, pool's or queue's name. Raises ArgumentTypeError."""
    if not re.fullmatch(NAME_PATTERN, text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid name")
    return text


def media_type(text: str) -> str:
    """A media type, as clients may declare it. Raises ArgumentTypeError."""
    if len(text) > MEDIA_TYPE_CHARS or not re.fullmatch(MEDIA_TYPE_PATTERN, text):
        raise argparse.ArgumentTypeError(
            f"{text[:MEDIA_TYPE_CHARS]!r} is not a media type of up to {MEDIA_TYPE_CHARS} characters, such "
            "as image/png"
        )
    return text


def add_health_port(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--health-port",
        type=_address,
        default="",
        metavar="[HOST:]PORT",
        help="serve /livez and /readyz there (default DISPATCHER_HEALTH_PORT); without HOST on loopback only",
    )


def _address(text: str) -> str:
    try:
        if text:  # argparse passes the default too
            split_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def names(text: str) -> list[str]:
    """``a,b`` → ``["a", "b"]``. Raises ArgumentTypeError."""
    found = [name(part.strip()) for part in text.split(",") if part.strip()]
    if not found:
        raise argparse.ArgumentTypeError("name at least one")
    return found
