"""The meter of searches: results are those of jmespath, and a step costs about the same, whatever it does."""

from __future__ import annotations

import random
import time
from contextlib import suppress
from typing import Any

import jmespath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foundation.expressions import FUNCTIONS, SearchFailed, expression
from foundation.metered_search import VISIT_STEPS, Meter, OutOfSteps

N = 40_000
NUMBERS = [n % 97 for n in range(N)]
OBJECTS = [{"x": n % 97, "y": "t"} for n in range(N)]
DEEP = [[[[n]]] for n in range(N)]
TEXTS = [f"text{n % 1000}" for n in range(N)]
SHUFFLED = random.Random(1).sample([*range(N), *(n + 0.5 for n in range(N))], N)
OTHER_TEXTS = [f"all begin alike {n}" for n in SHUFFLED]
LONG = ["a" * 20_000 + str(n) for n in SHUFFLED[:500]]
TEXT = "ab" * 4_000_000
BIG = {f"k{n}": n for n in range(N)}


def several(count: int, part: str) -> str:
    return f"not_null({', '.join([part] * count)})"


COSTLY = {
    "comparison of numbers": ("a[?@ > `500`]", NUMBERS),
    "many comparisons": (f"a[?{' && '.join(['@ != `500`'] * 20)}] | length(@)", NUMBERS),
    "fields": ("a[?x > `1` && y == 't'] | length(@)", OBJECTS),
    "missing fields": ("a[?x.q.q.q.q.q.q == `3`]", OBJECTS),
    "eight filters": (several(8, "a[?@ > `50`] | [900000]"), NUMBERS),
    "nested functions": (f"a[?{'abs(' * 12}@{')' * 12} > `1000`]", NUMBERS),
    "length": ("a[?length(@) > `99`]", TEXTS),
    "starts_with": ("a[?starts_with(@, 'x')]", TEXTS),
    "contains": ("a[?contains(@, 'zz')]", TEXTS),
    "type": ("a[?type(@) == 'x']", NUMBERS),
    "not_null": ("a[?not_null(q, r, s) == 'z']", OBJECTS),
    "pipes": (f"a[?{' | '.join(['@'] * 28)} == `5000`]", NUMBERS),
    "projections": (f"a{' | [*]' * 6} | length(@)", NUMBERS),
    "flatten": ("length(a[][][][])", DEEP),
    "slices": (f"a{' | [::-1]' * 6} | [0]", NUMBERS),
    "values": ("a.* | [*] | length(@)", BIG),
    "keys": (several(15, "keys(a) | [900000]"), BIG),
    "sum": (several(15, "avg(a) | [0]"), NUMBERS),
    "sum of little, in much": ("a[?sum(x) >= `0`]", [{"x": [1], "d": [[n] for n in range(9_000)]}] * 9),
    "sort of numbers": ("sort(a) | [0]", SHUFFLED),
    "sort of texts": ("sort(a) | [0]", OTHER_TEXTS),
    "sort of long texts": ("sort(a) | [0]", LONG),
    "max of texts": (several(15, "max(a) | [0]"), TEXTS),
    "search in a long text": (several(6, "contains(a, 'ababababababababababababababc') && q"), TEXT),
    "reverse of a long text": (f"{'reverse(' * 20}a{')' * 20}", TEXT),
    "equal lists": (several(6, "a.l == a.m && q"), {"l": [*range(N)], "m": [*range(N)]}),
    "equal deep lists": (several(6, "a.l == a.m && q"), {"l": DEEP, "m": [[[[n]]] for n in range(N)]}),
}


def cost_of(text: str, data: Any) -> tuple[float, float]:
    """Return the CPU seconds, and the steps, of a search, which may take 400,000."""
    found, meter = expression(text), Meter(4e5)
    began = time.process_time()
    with suppress(OutOfSteps):
        found.search({"a": data}, meter)
    return time.process_time() - began, 4e5 - meter.left


def test_no_search_costs_much_more_per_step_than_a_simple_one() -> None:
    """The setting of the steps bounds CPU time within a factor of about two; the test allows for noise."""
    too_much = {}
    for name, (text, data) in COSTLY.items():
        for _ in range(4):  # of a busy machine, the best of a few
            seconds, steps = cost_of("a[?@ > `500`]", NUMBERS)
            simple = seconds / steps
            seconds, steps = cost_of(text, data)
            ratio = (seconds - 0.001) / steps / simple
            if ratio < 2.5:
                break
        else:
            too_much[name] = round(ratio, 1)
    assert not too_much


def test_a_search_ends_with_its_steps() -> None:
    meter = Meter(300_000)
    with pytest.raises(OutOfSteps):
        expression("a[?@ > `1`]").search({"a": NUMBERS}, meter)
    assert -100 < meter.left < 0, "it stopped at once"
    enough = Meter(10_000_000)
    expression("a[?@ > `1`]").search({"a": NUMBERS}, enough)
    assert enough.left > 0


def test_what_a_search_does_not_look_at_costs_nothing() -> None:
    few, many = Meter(1e6), Meter(1e6)
    expression("a[?x > `1`].y").search({"a": [{"x": 3, "y": 1}]}, few)
    expression("a[?x > `1`].y").search({"a": [{"x": 3, "y": 1, "z": NUMBERS}], "b": NUMBERS}, many)
    assert few.left == many.left


def test_each_kind_of_part_has_its_steps() -> None:
    assert min(VISIT_STEPS.values()) > 0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, "", "a", "b", "ab"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=20,
)
LEAVES = st.sampled_from(["@", "a", "b", "c", "`1`", "`0`", "'a'", "`null`", "`true`"])


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    two = st.tuples(inner, inner)
    return st.one_of(
        two.map(lambda both: f"({both[0]} == {both[1]})"),
        two.map(lambda both: f"({both[0]} != {both[1]})"),
        two.map(lambda both: f"({both[0]} < {both[1]})"),
        two.map(lambda both: f"({both[0]} >= {both[1]})"),
        two.map(lambda both: f"({both[0]} && {both[1]})"),
        two.map(lambda both: f"({both[0]} || {both[1]})"),
        two.map(lambda both: f"({both[0]} | {both[1]})"),
        inner.map(lambda one: f"(!{one})"),
        st.tuples(inner, inner).map(lambda both: f"({both[0]} | [?{both[1]}])"),
        st.tuples(
            inner, st.sampled_from(["[*]", "[]", "*", "[0]", "[-1]", "[::-1]", "[1:]", "[*].a", "*.b"])
        ).map(lambda both: f"({both[0]} | {both[1]})"),
        st.tuples(st.sampled_from(sorted(FUNCTIONS - {"contains", "starts_with", "ends_with"})), inner).map(
            lambda both: f"{both[0]}({both[1]})"
        ),
        st.tuples(st.sampled_from(["contains", "starts_with", "ends_with", "not_null"]), two).map(
            lambda call: f"{call[0]}({call[1][0]}, {call[1][1]})"
        ),
    )


@given(st.recursive(LEAVES, _larger, max_leaves=8), JSON)
def test_a_search_finds_what_jmespath_finds(text: str, data: Any) -> None:
    try:
        wanted: Any = jmespath.search(text, data)
    except (jmespath.exceptions.JMESPathError, TypeError, OverflowError):
        with pytest.raises(SearchFailed):
            expression(text).search(data)
    else:
        found = expression(text).search(data)
        assert (found, type(found)) == (wanted, type(wanted))
