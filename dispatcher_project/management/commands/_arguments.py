"""Argument types of the worker commands."""

from __future__ import annotations

import argparse
import re

from gpus.models.names import NAME_PATTERN


def names(text: str) -> list[str]:
    """``a,b`` → ``["a", "b"]``; refuses what can't be a pool's or queue's name."""
    found = [part.strip() for part in text.split(",") if part.strip()]
    for name in found:
        if not re.match(NAME_PATTERN, name):
            raise argparse.ArgumentTypeError(f"{name!r} is not a name")
    if not found:
        raise argparse.ArgumentTypeError("give at least one name")
    return found
