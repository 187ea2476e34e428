"""The rules for values of nodes, as the dispatcher checks them: for `dispatcher_client.workflow_simulation`.

Limits are those of a dispatcher whose operator has not changed them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

MAX_ITEMS, MAX_CHOICES, MAX_WAIT_SECONDS = 100_000, 10_000, 31_622_400.0
_LARGE = 10**15


class BadValue(Exception):
    """A value with which the dispatcher fails a node. code: of the error."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code


def child_count(value: Any) -> int:
    """Return the number of children of a map by `count`. Raises BadValue."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadValue("not_a_count", f"the map's count is a whole number from 0, not {_shown(value)}")
    _check_number(value)
    return value


def check_items(value: Any) -> None:
    """Check the list of a map. Raises BadValue."""
    if not isinstance(value, list):
        raise BadValue(
            "not_a_list", f"the map needs a list, or an artifact of JSON lines, not {_shown(value)}"
        )
    _check_number(len(value))


def check_payload(value: Any) -> None:
    """Check the payload of a model. Raises BadValue."""
    if not isinstance(value, dict):
        raise BadValue("payload_invalid", f"a payload is an object, not {_shown(value)}")


def check_choices(value: Any) -> None:
    """Check the choices of a question. Raises BadValue."""
    if not isinstance(value, list) or not value:
        found = "an empty one" if value == [] else _shown(value)
        raise BadValue(
            "no_choices", f"choose_from is a list of choices, not {found}: no answer would be valid"
        )
    if len(value) > MAX_CHOICES:
        raise BadValue(
            "too_many_choices",
            f"a question may have up to {MAX_CHOICES} choices (DISPATCHER_WORKFLOW_CHOICES), "
            f"not {len(value)}",
        )


def check_timer(given: Mapping[str, Any]) -> None:
    """Check the time of a timer. Raises BadValue."""
    seconds, until = given.get("seconds"), given.get("until")
    if seconds is None:
        if not _is_time(until):
            raise BadValue(
                "invalid_timer", "a timer's until is a time with a zone, as in 2026-02-01T12:00:00Z"
            )
        return
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds <= MAX_WAIT_SECONDS:
        raise BadValue(
            "invalid_timer",
            f"a timer's seconds are a number from 0 to {MAX_WAIT_SECONDS:.15g} "
            "(DISPATCHER_WORKFLOW_WAIT_SECONDS)",
        )


def same_value(left: Any, right: Any) -> bool:
    """Return True if two JSON values are equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same_value(left[name], right[name]) for name in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same_value, left, right))
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def _check_number(count: int) -> None:
    if count > MAX_ITEMS:
        raise BadValue(
            "too_many_items",
            f"a map may have up to {MAX_ITEMS} items (DISPATCHER_WORKFLOW_MAP_ITEMS), not {_shown(count)}; "
            "split the list over several runs",
        )


def _is_time(until: Any) -> bool:
    try:
        return isinstance(until, str) and datetime.fromisoformat(until).tzinfo is not None
    except ValueError:
        return False


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return f"{value:.3g}" if abs(value) >= _LARGE else str(value)
    kinds: dict[type, str] = {list: "a list", dict: "an object", str: "a text"}
    return kinds.get(type(value), "null")
