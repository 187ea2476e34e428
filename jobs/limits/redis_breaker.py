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


def ask(what: str, call: Callable[[], Answer], ports: Ports) -> Answer | None:
    """What Redis answers; None while it is away, or rests because it was slow. One that answered slowly rests
    too: what the same request would ask next could come too late."""
    began = ports.clock.monotonic()
    if began < ports.redis_rest.until:
        return None
    answer, error = None, ""
    try:
        answer = call()
    except LeasingUnavailable as away:
        error = str(away)
    now = ports.clock.monotonic()
    if now - began > SLOW_SECONDS:
        ports.redis_rest.until = now + REST_SECONDS
        error = error or "Redis is slow"
    if error:
        log.warning(what, error=error)
    return answer
