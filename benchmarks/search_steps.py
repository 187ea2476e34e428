"""What searches cost, and how many steps they are charged: ``python -m benchmarks.search_steps``.

The limit of steps bounds the CPU time of a run's expressions, so a step should cost about the same whatever
the expression does. Printed for each shape: its CPU time; its cost, which is that time in thousands of steps
of a simple filter; the steps that it is charged, in thousands; and the ratio of the two.
`tests/foundation/test_metered_search.py` compares the steps with the costs noted here.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass
from typing import Any

from foundation.expressions import expression
from foundation.metered_search import Meter

N = 20_000
ROUNDS = 7
_NUMBERS = [n % 97 for n in range(N)]
_OBJECTS = [{"x": n % 97, "y": "t"} for n in range(N)]
_DEEP = [[[[n]]] for n in range(N)]
_TEXTS = [f"text{n % 1000}" for n in range(N)]
_SHUFFLED = random.Random(1).sample([*range(N), *(n + 0.5 for n in range(N))], N)
_ALIKE = [f"all begin alike {n}" for n in _SHUFFLED]
_LONG = ["a" * 20_000 + str(n) for n in _SHUFFLED[:500]]
_TEXT = "ab" * 2_000_000
_BIG = {f"k{n}": n for n in range(N)}
_IN_MUCH = [{"x": [1], "d": [[n] for n in range(9_000)]}] * 9
_LISTS = {"l": [*range(N)], "m": [*range(N)]}
_DEEP_LISTS = {"l": _DEEP, "m": [[[[n]]] for n in range(N)]}


@dataclass(frozen=True)
class Shape:
    """An expression over ``{"a": data}``. cost: as measured on CPython 3.11."""

    text: str
    data: Any
    cost: int


def _several(count: int, part: str) -> str:
    return f"not_null({', '.join([part] * count)})"


SIMPLE = Shape("a[?@ > `500`]", _NUMBERS, 320)
SHAPES = {
    "comparison of numbers": SIMPLE,
    "many comparisons": Shape(f"a[?{' && '.join(['@ != `500`'] * 20)}] | length(@)", _NUMBERS, 7300),
    "fields": Shape("a[?x > `1` && y == 't'] | length(@)", _OBJECTS, 910),
    "missing fields": Shape("a[?x.q.q.q.q.q.q == `3`]", _OBJECTS, 880),
    "eight filters": Shape(_several(8, "a[?@ > `50`] | [900000]"), _NUMBERS, 2800),
    "nested functions": Shape(f"a[?{'abs(' * 12}@{')' * 12} > `1000`]", _NUMBERS, 5000),
    "length": Shape("a[?length(@) > `99`]", _TEXTS, 860),
    "starts_with": Shape("a[?starts_with(@, 'x')]", _TEXTS, 720),
    "contains": Shape("a[?contains(@, 'zz')]", _TEXTS, 650),
    "type": Shape("a[?type(@) == 'x']", _NUMBERS, 760),
    "not_null": Shape("a[?not_null(q, r, s) == 'z']", _OBJECTS, 910),
    "pipes": Shape(f"a[?{' | '.join(['@'] * 28)} == `5000`]", _NUMBERS, 2500),
    "projections": Shape(f"a{' | [*]' * 6} | length(@)", _NUMBERS, 230),
    "flatten": Shape("length(a[][][][])", _DEEP, 200),
    "slices": Shape(f"a{' | [::-1]' * 6} | [0]", _NUMBERS, 230),
    "values": Shape("a.* | [*] | length(@)", _BIG, 94),
    "keys": Shape(_several(15, "keys(a) | [900000]"), _BIG, 22),
    "average": Shape(_several(15, "avg(a) && q"), _NUMBERS, 260),
    "sum of little, in much": Shape("a[?sum(x) >= `0`]", _IN_MUCH, 400),
    "sort of numbers": Shape("sort(a) | [0]", _SHUFFLED, 160),
    "sort of texts": Shape("sort(a) | [0]", _ALIKE, 77),
    "sort of long texts": Shape("sort(a) | [0]", _LONG, 26),
    "max of texts": Shape(_several(15, "max(a) && q"), _TEXTS, 470),
    "search in a long text": Shape(_several(6, "contains(a, 'abababababababababababc') && q"), _TEXT, 510),
    "reverse of a long text": Shape(f"{'reverse(' * 20}a{')' * 20}", _TEXT, 420),
    "equal lists": Shape(_several(6, "a.l == a.m && q"), _LISTS, 140),
    "equal deep lists": Shape(_several(6, "a.l == a.m && q"), _DEEP_LISTS, 520),
}


def steps_of(shape: Shape) -> float:
    """Return the steps that a search is charged."""
    meter = Meter(1e12)
    expression(shape.text).search({"a": shape.data}, meter)
    return 1e12 - meter.left


def _seconds(shape: Shape) -> float:
    found, meter = expression(shape.text), Meter(math.inf)
    began = time.process_time()
    found.search({"a": shape.data}, meter)
    return time.process_time() - began


def main() -> None:
    of_simple = steps_of(SIMPLE)
    print(f"{'shape':<24} {'ms':>8} {'cost':>8} {'steps':>8} {'ratio':>6}")
    for name, shape in SHAPES.items():
        rounds = [(_seconds(SIMPLE) / of_simple, _seconds(shape)) for _ in range(ROUNDS)]
        simple, seconds = min(one for one, _ in rounds), min(one for _, one in rounds)
        cost, steps = seconds / simple / 1000, steps_of(shape) / 1000
        print(f"{name:<24} {seconds * 1000:>8.1f} {cost:>8.0f} {steps:>8.0f} {cost / steps:>6.2f}")


if __name__ == "__main__":
    main()
