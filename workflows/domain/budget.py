"""Bounds the cost of references: a small definition may select a large value a thousand times, or search it.

Sizes are counted without copying: a value that is selected twice counts twice, because it is stored twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from foundation.expressions import Expression
from foundation.json_text import MAX_DEPTH
from foundation.metered_search import Meter, OutOfSteps

TOO_LARGE, TOO_LONG, TOO_NESTED = "value_too_large", "search_too_long", "value_too_deep"


class OverBudget(ValueError):
    """The references cost more than they may. code: of the node that fails. whole: of a value too large to
    be read: what a reference to all of the value selects in its place; None: such a reference fails too."""

    def __init__(self, code: str, why: str, *, whole: Any = None) -> None:
        super().__init__(why)
        self.code = code
        self.whole = whole


@dataclass(frozen=True, slots=True)
class Size:
    """Size of a JSON value. count: bytes of its JSON, about. values: it, and all values in it. depth: levels
    of lists and objects."""

    count: int
    values: int
    depth: int


@dataclass(slots=True)
class Costs:
    """Limits of the references of one node or of a run's output, and what all of them have cost so far.

    most_bytes: of the value into which they are resolved. most_steps: of their searches; a step is about
    0.1 µs of CPU time (`foundation.metered_search`). spent: steps of all nodes.
    """

    most_bytes: int = 16 * 1024 * 1024
    most_steps: int = 10_000_000
    spent: int = 0

    @property
    def are_spent(self) -> bool:
        """Whether the searches have taken as long as those of one node may: other work comes first."""
        return self.spent >= self.most_steps

    def budget(self) -> Budget:
        """Return the budget of one node."""
        return Budget(self, self.most_bytes, self.most_steps)


@dataclass(slots=True)
class Budget:
    """What the references of one node may still cost."""

    costs: Costs
    bytes_left: int
    steps_left: float

    def search(self, expression: Expression, scope: Mapping[str, Any]) -> Any:
        """Return what an expression selects from a scope. Raises OverBudget, SearchFailed."""
        if expression.is_path:
            return expression.search(scope)
        meter = Meter(self.steps_left)
        try:
            return expression.search(scope, meter)
        except OutOfSteps:
            raise OverBudget(
                TOO_LONG,
                f"{expression.text[:100]}: the references of a node may take up to "
                f"{self.costs.most_steps} steps (DISPATCHER_WORKFLOW_SEARCH_STEPS)",
            ) from None
        finally:
            self.costs.spent += math.ceil(self.steps_left - meter.left)
            self.steps_left = meter.left

    def take(self, value: Any, depth: int = 0) -> Any:
        """Return the value, which becomes part of another one that many levels deep. Raises OverBudget."""
        size = measure(value, self.bytes_left)
        self.bytes_left -= size.count
        if self.bytes_left < 0:
            raise OverBudget(
                TOO_LARGE,
                f"a value resolved from references may have up to {self.costs.most_bytes} bytes "
                "(DISPATCHER_WORKFLOW_VALUE_BYTES); save large data as artifacts, and read parts of it",
            )
        if depth + size.depth > MAX_DEPTH:
            raise OverBudget(TOO_NESTED, f"a value may be nested up to {MAX_DEPTH} levels deep")
        return value


def measure(value: Any, most_bytes: int | None) -> Size:
    """Return the size of a JSON value; that of its beginning if it has more than so many bytes."""
    count = values = deepest = 0
    levels = [iter((value,))]
    while levels:
        for one in levels[-1]:
            values += 1
            count += 1
            if isinstance(one, str):
                count += 1 + (len(one) if one.isascii() else len(one.encode(errors="surrogatepass")))
            elif isinstance(one, dict):
                count += 1 + sum(map(len, one)) + 3 * len(one)
                levels.append(iter(one.values()))
                break
            elif isinstance(one, list):
                count += 1
                levels.append(iter(one))
                break
            else:
                count += 3
            if most_bytes is not None and count > most_bytes:
                return Size(count, values, deepest)
        else:
            levels.pop()
            continue
        deepest = max(deepest, len(levels) - 1)
        if most_bytes is not None and count > most_bytes:
            return Size(count, values, deepest)
    return Size(count, values, deepest)
