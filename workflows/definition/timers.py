"""When a timer ends."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from foundation.http_api.json_body import read_time
from workflows.domain.values import BadValue

INVALID_TIMER = "invalid_timer"


def end_of_timer(given: Mapping[str, Any], now: datetime, longest_seconds: float) -> datetime:
    """Return when a timer ends that starts now. given: its `seconds` or `until`. Raises BadValue."""
    seconds, until = given.get("seconds"), given.get("until")
    if seconds is None:
        found = read_time(until) if isinstance(until, str) else None
        if found is None:
            raise BadValue(INVALID_TIMER, "a timer's until is a time with a zone, as in 2026-02-01T12:00:00Z")
        if (found - now).total_seconds() > longest_seconds:
            raise BadValue(
                INVALID_TIMER,
                f"a timer's until is at most {longest_seconds:.15g} seconds ahead "
                "(DISPATCHER_WORKFLOW_WAIT_SECONDS)",
            )
        return found
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds <= longest_seconds:
        raise BadValue(
            INVALID_TIMER,
            f"a timer's seconds are a number from 0 to {longest_seconds:.15g} "
            "(DISPATCHER_WORKFLOW_WAIT_SECONDS)",
        )
    return now + timedelta(seconds=seconds)
