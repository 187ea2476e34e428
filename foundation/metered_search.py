"""Evaluates expressions of the subset of JMESPath, and counts what that costs while it does.

A step is up to 0.1 µs of CPU time. The number of an expression's parts says little about its cost: to flatten
200,000 values takes 10 ms, to compare each of them with 20 others 4 s. So each visit of a part costs what its
kind costs, and a function also what it reads of its arguments; `python -m benchmarks.search_steps` measures
both. A search stops as soon as its steps are used up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jmespath.functions import Functions
from jmespath.visitor import Options, TreeInterpreter, _is_comparable

Node = Mapping[str, Any]
VISIT_STEPS = {
    "and_expression": 5,
    "comparator": 9,
    "current": 2,
    "field": 4,
    "filter_projection": 8,
    "flatten": 6,
    "function_expression": 25,
    "identity": 2,
    "index": 3,
    "index_expression": 5,
    "literal": 2,
    "not_expression": 5,
    "or_expression": 5,
    "pipe": 5,
    "projection": 6,
    "slice": 8,
    "subexpression": 5,
    "value_projection": 8,
}
"""Of one visit, without those of its children."""
_EACH = {
    "avg": 1.5,
    "contains": 0.3,
    "keys": 0.3,
    "max": 2.0,
    "min": 2.0,
    "reverse": 0.2,
    "sort": 3.0,
    "sum": 1.5,
    "values": 0.3,
}
"""Of a function, for each element of the list or object that it gets."""
_CHARACTERS = {"contains": 25, "reverse": 200}
"""Characters of a text that a function reads in a step."""
_ORDERING = frozenset({"max", "min", "sort"})
_COMPARED_CHARACTERS = 2_000
"""Characters of texts that begin alike, compared in a step."""
_OPTIONS = Options(custom_functions=Functions())
_EQUALITY = frozenset({"eq", "ne"})
_LONG = frozenset({str, list, dict})


def _are_alike(left: Any, right: Any) -> bool:
    return isinstance(left, str) == isinstance(right, str)


class OutOfSteps(Exception):
    """The search has used up its steps."""


@dataclass(slots=True)
class Meter:
    """Steps that are left; less than 0 after a search that was stopped."""

    left: float

    def take(self, steps: float) -> None:
        """Use up steps. Raises OutOfSteps."""
        self.left -= steps
        if self.left < 0:
            raise OutOfSteps


class MeteredInterpreter(TreeInterpreter):  # type: ignore[misc]
    """An interpreter of parsed expressions; one for each search."""

    def __init__(self, meter: Meter) -> None:
        super().__init__(_OPTIONS)
        self._meter = meter

    def visit(self, node: Node, value: Any) -> Any:
        """Return the result of a part. Raises OutOfSteps, and what jmespath raises."""
        visit, steps = _KINDS[node["type"]]
        meter = self._meter
        meter.left -= steps
        if meter.left < 0:
            raise OutOfSteps
        return visit(self, node, value)

    def visit_field(self, node: Node, value: Any) -> Any:
        return value.get(node["value"]) if isinstance(value, Mapping) else None

    def visit_comparator(self, node: Node, value: Any) -> Any:
        """As the original, which raises TypeError for the order of a number and a text."""
        first, second = node["children"]
        left, right = self.visit(first, value), self.visit(second, value)
        name = node["value"]
        if type(left) in _LONG and type(left) is type(right):
            self._meter.take(_compared(left, right))
        if name in _EQUALITY or (_is_comparable(left) and _is_comparable(right) and _are_alike(left, right)):
            return self.COMPARATOR_FUNC[name](left, right)
        return None

    def visit_filter_projection(self, node: Node, value: Any) -> Any:
        """As the original, which visits a part that selects each element for nothing."""
        source, selected, condition = node["children"]
        base = self.visit(source, value)
        if not isinstance(base, list):
            return None
        self._meter.take(3 * len(base))
        found = []
        for element in base:
            if self._is_true(self.visit(condition, element)):
                current = self.visit(selected, element)
                if current is not None:
                    found.append(current)
        return found

    def visit_projection(self, node: Node, value: Any) -> Any:
        return self._projected(super().visit_projection(node, value))

    def visit_value_projection(self, node: Node, value: Any) -> Any:
        return self._projected(super().visit_value_projection(node, value))

    def visit_flatten(self, node: Node, value: Any) -> Any:
        return self._projected(super().visit_flatten(node, value))

    def visit_slice(self, node: Node, value: Any) -> Any:
        return self._projected(super().visit_slice(node, value))

    def visit_function_expression(self, node: Node, value: Any) -> Any:
        given = [self.visit(child, value) for child in node["children"]]
        if given and type(given[0]) in _LONG:
            self._meter.take(_read_by(node["value"], given))
        return self._functions.call_function(node["value"], given)

    def _projected(self, found: list[Any] | None) -> list[Any] | None:
        if found:
            self._meter.take(len(found) / 2)
        return found


_KINDS: dict[str, tuple[Callable[[MeteredInterpreter, Node, Any], Any], int]] = {
    kind: (getattr(MeteredInterpreter, f"visit_{kind}"), steps) for kind, steps in VISIT_STEPS.items()
}


def _compared(left: Any, right: Any) -> float:
    """Return the steps of a comparison of two values of one type."""
    if len(left) != len(right) or left is right:
        return 0
    return len(left) / _COMPARED_CHARACTERS if isinstance(left, str) else _values_in(left)


def _read_by(name: str, given: list[Any]) -> float:
    """Return the steps that a function needs for its first argument, a text, list or object."""
    first = given[0]
    if isinstance(first, str):
        return len(first) / _CHARACTERS[name] if name in _CHARACTERS else 0
    if name == "contains" and isinstance(first, list) and isinstance(given[-1], list | dict):
        return _values_in(first)
    steps = _EACH.get(name, 0.0) * len(first)
    if name in _ORDERING and isinstance(first, list) and first:
        rounds = math.log2(len(first) + 1) if name == "sort" else 1.0
        steps += len(first) * rounds / 4
        if isinstance(first[0], str):
            steps += sum(len(one) for one in first if isinstance(one, str)) * rounds / _COMPARED_CHARACTERS
    return steps


def _values_in(value: Any) -> int:
    """Return the steps of a comparison of all values in one, and of counting them."""
    count, waiting = 0, [value]
    while waiting:
        one = waiting.pop()
        count += 3
        if isinstance(one, list):
            waiting += one
        elif isinstance(one, dict):
            waiting += one.values()
    return count
