"""A Redis that hangs costs one thread its time-out, not every thread its own; and a submit only one of
them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import structlog

from gpus.errors import LeasingUnavailable
from jobs.ports import Ports

log = structlog.get_logger()

SLOW_SECONDS = 0.5
REST_SECONDS = 2.0

Answer = TypeVar("Answer")

_rests_until = 0.0
"""Monotonic."""


def ask(what: str, call: Callable[[], Answer], ports: Ports) -> Answer | None:
    """What Redis answers; None while it is away, or rests because it was slow. One that answered slowly rests
    too: what the same request would ask next could come too late."""
    global _rests_until
    began = ports.clock.monotonic()
    if began < _rests_until:
        return None
    answer, error = None, ""
    try:
        answer = call()
    except LeasingUnavailable as away:
        error = str(away)
    now = ports.clock.monotonic()
    if now - began > SLOW_SECONDS:
        _rests_until = now + REST_SECONDS
        error = error or "Redis is slow"
    if error:
        log.warning(what, error=error)
    return answer


def forget() -> None:
    """Redis is asked again at once."""
    global _rests_until
    _rests_until = 0.0
