"""The meter of searches: results are those of jmespath, and each search is charged for what it costs."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import jmespath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.search_steps import SHAPES, steps_of
from foundation.expressions import FUNCTIONS, SearchFailed, expression
from foundation.metered_search import VISIT_STEPS, Meter, OutOfSteps

NUMBERS = [n % 97 for n in range(40_000)]


@pytest.mark.parametrize("name", SHAPES)
def test_a_search_is_charged_for_the_cpu_time_that_it_takes(name: str) -> None:
    """So the setting of the steps bounds CPU time, whatever the expression does."""
    shape = SHAPES[name]
    assert steps_of(shape) >= shape.cost * 1000 / 1.5


def test_a_search_ends_with_its_steps() -> None:
    meter = Meter(300_000)
    with pytest.raises(OutOfSteps):
        expression("a[?@ > `1`]").search({"a": NUMBERS}, meter)
    assert -100 < meter.left < 0, "it stopped at once"
    enough = Meter(10_000_000)
    expression("a[?@ > `1`]").search({"a": NUMBERS}, enough)
    assert enough.left > 0


def test_values_that_a_search_skips_cost_nothing() -> None:
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
    except TypeError:  # the order of a number and a text, which is null here, or a sort of both
        with suppress(SearchFailed):
            expression(text).search(data)
    except (jmespath.exceptions.JMESPathError, OverflowError):
        with pytest.raises(SearchFailed):
            expression(text).search(data)
    else:
        found = expression(text).search(data)
        assert (found, type(found)) == (wanted, type(wanted))
