"""A sign that something happened, in place of a pause."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Sign = TypeVar("Sign")


def wait_for(sign: Callable[[], Sign], *, seconds: float = 60.0, what: str = "") -> Sign:
    """The first truthy answer; fails when there is none in time. Asks again after a twentieth of the time
    waited, at least 10 ms and at most 0.1 s: many signs are requests, and cost the tested system CPU."""
    began = time.monotonic()
    while not (found := sign()):
        waited = time.monotonic() - began
        assert waited < seconds, f"no sign in {seconds:g} s: {what}"
        time.sleep(min(max(0.01, waited / 20), 0.1))
    return found
