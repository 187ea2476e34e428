"""Argument types of the worker commands."""

from __future__ import annotations

import argparse
import re

from gpus.models.names import NAME_PATTERN


def name(text: str) -> str:
    """Refuses what can't be the name of anything here."""
    if not re.match(NAME_PATTERN, text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a name")
    return text


def names(text: str) -> list[str]:
    """``a,b`` → ``["a", "b"]``; refuses what can't be a pool's or queue's name."""
    found = [name(part.strip()) for part in text.split(",") if part.strip()]
    if not found:
        raise argparse.ArgumentTypeError("give at least one name")
    return found
