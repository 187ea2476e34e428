"""Rules for the values of nodes. They are checked when a definition is stored, as far as they are literal,
and again when a node starts: with the same codes."""

from __future__ import annotations

from typing import Any

from workflows.domain.budget import measure

NOT_A_LIST, NOT_A_COUNT, TOO_MANY_ITEMS = "not_a_list", "not_a_count", "too_many_items"
NOT_AN_OBJECT = "payload_invalid"
"""As of a job that is submitted."""
NO_CHOICES, TOO_MANY_CHOICES = "no_choices", "too_many_choices"
QUESTION_TOO_LARGE = "question_too_large"
_LARGE = 10**15
"""Numbers from here on are shown with few digits: one may have 300."""


class BadValue(ValueError):
    """A node can't start with this value. code: of the node that fails."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code


def question_size(options: Any, most: int) -> int:
    """Return the bytes of what a wait asks for, as JSON. Raises BadValue."""
    size = measure(options, None).count
    if size > most:
        raise BadValue(
            QUESTION_TOO_LARGE,
            f"the question of a node may have up to {most} bytes (DISPATCHER_WORKFLOW_QUESTION_BYTES), not "
            f"{size}; save large data as artifacts and refer to them",
        )
    return size


def child_count(value: Any, most: int) -> int:
    """Return the number of children of a map by `count`. Raises BadValue."""
    count = int(value) if type(value) is float and value.is_integer() else value
    if type(count) is not int or count < 0:
        raise BadValue(NOT_A_COUNT, f"the map's count is a whole number from 0, not {_shown(value)}")
    _check_number(count, most)
    return count


def check_items(value: Any, most: int) -> None:
    """Check the list of a map. Raises BadValue."""
    if not isinstance(value, list):
        raise BadValue(NOT_A_LIST, f"the map needs a list, or an artifact of JSON lines, not {_shown(value)}")
    _check_number(len(value), most)


def check_choices(value: Any, most: int) -> None:
    """Check the choices of a question. Raises BadValue."""
    if not isinstance(value, list) or not value:
        found = "an empty one" if value == [] else _shown(value)
        raise BadValue(NO_CHOICES, f"choose_from is a list of choices, not {found}: no answer would be valid")
    if len(value) > most:
        raise BadValue(
            TOO_MANY_CHOICES,
            f"a question may have up to {most} choices (DISPATCHER_WORKFLOW_CHOICES), not {len(value)}",
        )


def check_payload_kind(value: Any) -> None:
    """Check that the payload of a model is an object. Raises BadValue."""
    if not isinstance(value, dict):
        raise BadValue(NOT_AN_OBJECT, f"a payload is an object, not {_shown(value)}")


def artifact_of(value: Any) -> str | None:
    """Return the id of the artifact that a value refers to, if it is such a reference."""
    found = value["$artifact"] if is_artifact(value) else None
    return found if isinstance(found, str) else None


def is_artifact(value: Any) -> bool:
    """Return True of the reference to an artifact, whose id may be unknown."""
    return isinstance(value, dict) and value.keys() == {"$artifact"}


def _check_number(count: int, most: int) -> None:
    if count > most:
        raise BadValue(
            TOO_MANY_ITEMS,
            f"a map may have up to {most} items (DISPATCHER_WORKFLOW_MAP_ITEMS), not {_shown(count)}; "
            "split the list over several runs",
        )


def _shown(value: Any) -> str:
    """Return the text of a number, and the type of any other value, which may be long or a secret."""
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return f"{value:.3g}" if abs(value) >= _LARGE else str(value)
    kinds: dict[type, str] = {list: "a list", dict: "an object", str: "a text"}
    return kinds.get(type(value), "null")
