"""A sign that something happened, in place of a pause."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Sign = TypeVar("Sign")


def wait_for(sign: Callable[[], Sign], *, seconds: float = 60.0, what: str = "") -> Sign:
    """The first truthy answer; fails when there is none in time."""
    until = time.monotonic() + seconds
    while not (found := sign()):
        assert time.monotonic() < until, f"no sign in {seconds:g} s: {what}"
        time.sleep(0.01)
    return found
