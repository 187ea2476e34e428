"""References of workflows as Python objects: attributes, indices, slices, filters, comparisons, functions.

They are written in the dispatcher's subset of JMESPath. A mistake raises `WorkflowError` with the Python
line."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

FUNCTIONS = frozenset(
    [
        *("abs", "avg", "ceil", "contains", "ends_with", "floor", "keys", "length", "max", "min", "not_null"),
        *("reverse", "sort", "starts_with", "sum", "type", "values"),
    ]
)
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_FOLDER = str(Path(__file__).parent)
_PATH, _LIST, _CONDITION = "path", "list", "condition"


class WorkflowError(ValueError):
    """A workflow that can't be built. place: ``file:line`` of the Python code that is wrong."""

    def __init__(self, why: str, place: str) -> None:
        super().__init__(f"{place}: {why}")
        self.why, self.place = why, place


def calling_place() -> str:
    """Return ``file:line`` of the code that called this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_FOLDER):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def refuse(why: str) -> NoReturn:
    raise WorkflowError(why, calling_place())


class Reference:
    """A part of a run's inputs or of a node's output.

    ``ref.name`` and ``ref["name"]`` are a field, ``ref[0]`` an item, ``ref[1:3]`` some items, ``ref[:].name``
    a field of every item, ``ref[each.score > 0.5]`` the items that match. Comparisons (``==`` … ``>=``),
    ``&``, ``|`` and ``~`` make conditions. After ``[:]`` and filters a field is that of every item, and an
    index is of their whole list."""

    def __init__(
        self,
        text: str,
        *,
        names: frozenset[str],
        sources: frozenset[Any] = frozenset(),
        kind: str = _PATH,
        fields: frozenset[str] | None = None,
    ) -> None:
        """names: with which the expression begins; empty for parts of `each`. sources: the workflows and maps
        that the names belong to. fields: those that there are, if known."""
        self._text, self._names, self._sources, self._kind, self._fields = text, names, sources, kind, fields

    def _with(self, text: str, kind: str) -> Reference:
        return Reference(text, names=self._names, sources=self._sources, kind=kind)

    def __getattr__(self, name: str) -> Reference:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, key: str | int | slice | Reference) -> Reference:
        if isinstance(key, str):
            return self._field(key)
        if isinstance(key, Reference):
            return self._filtered(key)
        text = f"({self._text})" if self._kind in (_LIST, _CONDITION) else self._text
        text = "" if text == "@" else text
        if isinstance(key, slice):
            for bound in (key.start, key.stop, key.step):
                if bound is not None and (type(bound) is not int or (bound is key.step and bound == 0)):
                    refuse("the bounds of a slice are whole numbers, and its step is not 0")
            if (key.start, key.stop, key.step) == (None, None, None):
                return self._with(f"{text}[*]", _LIST)
            bounds = [key.start, key.stop] + ([] if key.step is None else [key.step])
            return self._with(f"{text}[{':'.join('' if one is None else str(one) for one in bounds)}]", _LIST)
        if type(key) is not int:
            refuse(f"an index is a whole number, a name, a slice or a condition on `each`, not {key!r}")
        return self._with(f"{text}[{key}]", _PATH)

    def _field(self, name: str) -> Reference:
        if self._fields is not None and name not in self._fields:
            refuse(f"{self._text} has no {name!r}; it has {', '.join(sorted(self._fields))}")
        written = name if _IDENTIFIER.match(name) else json.dumps(name)
        if self._text == "@":
            return self._with(written, _PATH)
        text = f"({self._text})" if self._kind == _CONDITION else self._text
        return self._with(f"{text}.{written}", self._kind if self._kind == _LIST else _PATH)

    def _filtered(self, condition: Reference) -> Reference:
        if condition._names:
            refuse(
                "a filter reads only `each`, an item of the list; a node of its own can compare it with "
                "another node"
            )
        text = f"({self._text})" if self._kind in (_LIST, _CONDITION) else self._text
        return self._with(f"{'' if text == '@' else text}[?{condition._text}]", _LIST)

    def _compared(self, operator: str, other: Any) -> Reference:
        return _joined([self, other], lambda texts: f"{texts[0]} {operator} {texts[1]}", _CONDITION)

    def __eq__(self, other: object) -> Reference:  # type: ignore[override]
        return self._compared("==", other)

    def __ne__(self, other: object) -> Reference:  # type: ignore[override]
        return self._compared("!=", other)

    def __lt__(self, other: Any) -> Reference:
        return self._compared("<", other)

    def __le__(self, other: Any) -> Reference:
        return self._compared("<=", other)

    def __gt__(self, other: Any) -> Reference:
        return self._compared(">", other)

    def __ge__(self, other: Any) -> Reference:
        return self._compared(">=", other)

    def __and__(self, other: Any) -> Reference:
        return self._compared("&&", other)

    def __or__(self, other: Any) -> Reference:
        return self._compared("||", other)

    def __invert__(self) -> Reference:
        return self._with(f"!({self._text})", _CONDITION)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:  # noqa: PLE0304
        refuse("a reference has no value yet: write &, |, ~ in place of and, or, not; `when` in place of if")

    def __iter__(self) -> Iterator[Any]:
        refuse("a reference has no items yet: wf.map(ref) repeats a node for each of them")

    def __contains__(self, item: Any) -> bool:
        refuse("a reference has no items yet: write fn.contains(ref, item)")

    def __repr__(self) -> str:
        return f"<reference {self._text}>"


each = Reference("@", names=frozenset())
"""An item of the list that a filter selects from: ``detect[each.score > 0.5]``."""


class Default:
    """A reference with a value in its place where it selects nothing."""

    def __init__(self, reference: Reference, value: Any) -> None:
        self.reference, self.value = reference, value


def default(reference: Reference, value: Any = None) -> Default:
    """Return a reference that is `value` where it selects nothing; without, its node fails."""
    if not isinstance(reference, Reference):
        refuse(f"default() takes a reference, not {type(reference).__name__}")
    return Default(reference, value)


class Literal:
    """Data with keys such as ``$ref`` that are not interpreted."""

    def __init__(self, value: Any) -> None:
        self.value = value


def literal(value: Any) -> Literal:
    """Return data whose keys may begin with ``$``: they are not interpreted."""
    return Literal(value)


class Functions:
    """The functions of references: ``fn.length(images)``, ``fn.contains(each.tags, "sharp")``."""

    def __getattr__(self, name: str) -> Callable[..., Reference]:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in FUNCTIONS:
            refuse(f"there is no function {name}; there are {', '.join(sorted(FUNCTIONS))}")

        def call(*arguments: Any) -> Reference:
            return _joined(arguments, lambda texts: f"{name}({', '.join(texts)})", _PATH, is_call=True)

        return call


fn = Functions()


def flat(reference: Reference) -> Reference:
    """Return the items of the lists in a list as one list: ``flat(pages[:].images)``."""
    return reference._with(f"{reference._text}[]", _LIST)


def _joined(parts: Any, write: Callable[[list[str]], str], kind: str, *, is_call: bool = False) -> Reference:
    texts, names, sources, relative = [], frozenset[str](), frozenset[Any](), False
    for part in parts:
        if isinstance(part, Reference):
            texts.append(f"({part._text})" if part._kind == _CONDITION and not is_call else part._text)
            names |= part._names
            sources |= part._sources
            relative = relative or not part._names
        else:
            texts.append(_literal_text(part))
    if relative and names:
        refuse("a filter reads only `each`, an item of the list, not other nodes or inputs too")
    if not relative and not names:
        refuse("one side of a comparison is a reference")
    return Reference(write(texts), names=names, sources=sources, kind=kind)


def _literal_text(value: Any) -> str:
    if not (value is None or isinstance(value, str | bool | int | float)):
        refuse(
            f"a reference is compared with a number, a text, True, False or None, not {type(value).__name__}"
        )
    if isinstance(value, float) and not math.isfinite(value):
        refuse("a number in a reference must be finite")
    return "`" + json.dumps(value).replace("`", "\\u0060") + "`"
