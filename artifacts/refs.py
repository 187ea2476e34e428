"""References to artifacts in JSON: the object `{"$artifact": "<id>"}`, at any depth.

A payload without the bytes `"$artifact"` has none, which costs one search of its text (`MARK in text`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from foundation.ids import ID_LENGTH, is_id

REF = "$artifact"
MARK = b'"$artifact"'
"""In each JSON text with a reference, as `json.dumps` writes it; another writer may have escaped the name."""


class BadRef(Exception):
    """An object with `$artifact` that is no reference: further members, or another value than an id.

    path: of the object, as keys and indices.
    """

    def __init__(self, path: tuple[str | int, ...], message: str) -> None:
        super().__init__(message)
        self.path = path


class TooManyRefs(Exception):
    """The value has more references than are allowed. most: the limit."""

    def __init__(self, most: int) -> None:
        super().__init__(f"The value has more than {most} references to artifacts.")
        self.most = most


def ref(artifact_id: str) -> dict[str, str]:
    """Return the reference to an artifact."""
    return {REF: artifact_id}


def only_ref(value: Any) -> str | None:
    """Return the id if the whole value is a reference to an artifact; else None."""
    if type(value) is not dict or len(value) != 1 or type(found := value.get(REF)) is not str:
        return None
    return found if is_id(found) else None


def find_refs(value: Any, most: int) -> dict[str, tuple[str | int, ...]]:
    """Return the ids of all artifacts that a JSON value refers to, with the path of the first reference to
    each, in the order of the value.

    most: limit of references, because each becomes a URL of some hundred bytes; the search ends there.
    Raises TooManyRefs and BadRef.
    """
    found: dict[str, tuple[str | int, ...]] = {}
    count = 0
    waiting: list[tuple[Any, _Path]] = [(value, None)]
    while waiting:
        one, path = waiting.pop()
        if type(one) is dict:
            if REF in one:
                artifact_id = _id_of(one, path)
                count += 1
                if count > most:
                    raise TooManyRefs(most)
                if artifact_id not in found:
                    found[artifact_id] = _keys(path)
                continue
            waiting += [(child, (path, key)) for key, child in reversed(one.items()) if _is_nested(child)]
        elif type(one) is list:
            waiting += [(one[at], (path, at)) for at in range(len(one) - 1, -1, -1) if _is_nested(one[at])]
    return found


def replace_refs(value: Any, new: Callable[[str], Any]) -> Any:
    """Return a copy of a JSON value with each reference replaced by `new(artifact_id)`; parts without a
    reference are shared with the original, and a value without any is returned itself.

    Raises BadRef. Recursion is as deep as the value, which the readers of bodies limit.
    """
    if type(value) is dict:
        if REF in value:
            return new(_id_of(value, None))
        return _replaced_members(value, new)
    if type(value) is list:
        return _replaced_items(value, new)
    return value


def rename_refs(value: Any, names: Mapping[str, str]) -> Any:
    """Return a copy of a JSON value with the ids of references replaced. names: new ids by old ones; any
    other reference stays, also a malformed one."""
    if type(value) is dict:
        if len(value) == 1 and type(named := value.get(REF)) is str:
            return ref(names.get(named, named))
        return {key: rename_refs(child, names) for key, child in value.items()}
    if type(value) is list:
        return [rename_refs(child, names) for child in value]
    return value


def _replaced_members(value: dict[str, Any], new: Callable[[str], Any]) -> dict[str, Any]:
    copy: dict[str, Any] | None = None
    for key, child in value.items():
        if _is_nested(child) and (other := replace_refs(child, new)) is not child:
            if copy is None:
                copy = dict(value)
            copy[key] = other
    return value if copy is None else copy


def _replaced_items(value: list[Any], new: Callable[[str], Any]) -> list[Any]:
    copy: list[Any] | None = None
    for at, child in enumerate(value):
        if _is_nested(child) and (other := replace_refs(child, new)) is not child:
            if copy is None:
                copy = list(value)
            copy[at] = other
    return value if copy is None else copy


_Path = tuple[Any, str | int] | None
"""A path as a linked list, last part first: it is needed only for the few values that are references."""


def _keys(path: _Path) -> tuple[str | int, ...]:
    keys: list[str | int] = []
    while path is not None:
        path, key = path
        keys.append(key)
    return tuple(reversed(keys))


def _is_nested(value: Any) -> bool:
    return type(value) is dict or type(value) is list


def _id_of(value: dict[str, Any], path: _Path) -> str:
    if len(value) > 1:
        raise BadRef(_keys(path), f'An object with "{REF}" is a reference and has no other members.')
    artifact_id = value[REF]
    if type(artifact_id) is not str or not is_id(artifact_id):
        raise BadRef(_keys(path), f'"{REF}" must be the id of an artifact, {ID_LENGTH} characters.')
    return artifact_id
