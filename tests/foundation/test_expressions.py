"""The subset of JMESPath: which texts are expressions, and that no result outgrows its input."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foundation.expressions import (
    DEFAULT_LIMITS,
    NO_LIMITS,
    ExpressionLimits,
    ExpressionRefused,
    SearchFailed,
    expression,
    is_true,
)

IMAGES = {"fetch": {"images": [{"url": "a", "score": 0.4}, {"url": "b", "score": 0.9}]}, "best": None}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("fetch.images[0].url", "a"),
        ("fetch.images[?score > `0.5`].url", ["b"]),
        ("fetch.images[*].score | [0]", 0.4),
        ("length(fetch.images)", 2),
        ("best != `null`", False),
        ("not_null(best, fetch.images[-1].url)", "b"),
        ("fetch.images[::-1].url", ["b", "a"]),
        ("fetch.*[].url", ["a", "b"]),
        ("nothing.there", None),
        ("fetch.images[99999999999999999999]", None),
    ],
)
def test_an_expression_selects_parts_of_a_value(text: str, result: Any) -> None:
    assert expression(text).search(IMAGES) == result


@pytest.mark.parametrize(
    ("text", "names", "reads_root"),
    [
        ("fetch.images[?score > limit].url", {"fetch"}, False),
        ("a || b && !c", {"a", "b", "c"}, False),
        ("not_null(a, b.c)", {"a", "b"}, False),
        ("a | b", {"a"}, False),
        ('"two words".a', {"two words"}, False),
        ("a.length(@)", {"a"}, False),
        ("`1`", set(), False),
        ("@", set(), True),
        ("[0]", set(), True),
        ("[]", set(), True),
        ("*.a", set(), True),
        ("length(@)", set(), True),
        ("a == @", {"a"}, True),
    ],
)
def test_the_names_that_an_expression_reads_from_the_root(
    text: str, names: set[str], reads_root: bool
) -> None:
    found = expression(text)
    assert (found.names, found.reads_root) == (names, reads_root)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[@,@][] | [@,@][]", "list of selections"),
        ("{a: b}", "object of selections"),
        ("sort_by(a, &b)", "sort_by"),
        ("map(&a, b)", "map"),
        ("to_string(a)", "to_string"),  # each call doubles the quotes of the one before
        ("join(a, b)", "join"),
        ("merge(a, a)", "merge"),
        ("`[1, 2]`[?`[3, 4]`]", "literal"),
        ("a[::0]", "step"),
        ("`1e999`", "finite"),
        ("`NaN`", "finite"),
        ("x[?" * 300, "ends too early: a path looks like images"),
        (" || ".join("a" * 60), "parts|deep"),
        ("!" * 40 + "a", "deep"),
        (".".join("a" * 120), "parts"),
        ("a" * (DEFAULT_LIMITS.characters + 1), "characters"),
        ("", "empty"),
        ("a b", "can't be read from character 3 on, 'b'"),
        ("a..b", "can't be read from character 3 on, '.b'"),
        ("inputs.", "ends too early"),
        ("a-b", 'an odd name has quotes: "odd-name"'),
        ("a[1:2", "ends too early"),
        ("\0", r"can't be read from character 1 on, '\\x00'"),
        ("a.'", "the quote at character 3 is not closed"),
    ],
)
def test_a_text_outside_the_subset_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(ExpressionRefused, match=why) as refused:
        expression(text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("abcdefghi", "have up to 8 characters (D_CHARACTERS)"),
        ("a.b.c", "have up to 3 parts (D_PARTS)"),
        ("!!!!a", "be nested up to 2 levels deep (D_DEPTH)"),
    ],
)
def test_an_expression_over_a_limit_is_refused_by_its_setting(text: str, refusal: str) -> None:
    with pytest.raises(ExpressionRefused) as refused:
        expression(text, ExpressionLimits(8, 3 if "." in text else 9, 2, settings="D"))
    assert str(refused.value) == f"an expression may {refusal}"
    assert expression(text, NO_LIMITS).text == text


def test_a_function_with_an_argument_of_the_wrong_type_fails_with_a_message() -> None:
    for text in ("length(fetch.images[0].score)", "abs('x')", "sort(a)"):
        with pytest.raises(SearchFailed):
            expression(text).search({**IMAGES, "a": [1, "b"]})


def test_a_number_and_a_text_have_no_order() -> None:
    """The specification says null; a filter leaves such an item out."""
    assert expression("[?@ > `1`]").search([1, 2, "a", None, 3]) == [2, 3]
    assert expression("@ > `1`").search("a") is None
    assert expression("[?@ > 'a']").search(["a", "b", 1]) == ["b"]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("sum(x)", [1e308, 1e308]),
        ("avg(x)", [-1e308, -1e308]),
        ("sum(x)", [10**308] * 2),
        ("ceil(sum(x))", [1e308, 1e308]),
        ("x[*].sum(@)", [[1e308, 1e308]]),
    ],
)
def test_a_sum_that_no_json_number_can_be_fails_with_a_message(text: str, values: Any) -> None:
    with pytest.raises(SearchFailed, match="too large"):
        expression(text).search({"x": values})
    assert expression("sum(x)").search({"x": [1e308, 2]}) == 1e308


@pytest.mark.parametrize("value", [None, False, "", [], {}])
def test_null_false_and_empty_values_are_false(value: Any) -> None:
    assert not is_true(value)


@pytest.mark.parametrize("value", [0, True, "a", [None], {"a": None}])
def test_other_values_are_true(value: Any) -> None:
    assert is_true(value)


_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["a", "b", ""]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=30,
)
_steps = st.sampled_from(
    [
        ".a",
        ".b",
        ".*",
        "[]",
        "[*]",
        "[0]",
        "[-1]",
        "[::-1]",
        "[1:]",
        "[?a]",
        "[?@ == b]",
        "[?b > `1`]",
        " | @",
        " || a",
        " && b",
        " | values(@)",
        " | sort(@)",
        " | reverse(@)",
        " | keys(@)",
        " | not_null(a, @)",
    ]
)


def _size(value: Any) -> int:
    """Number of values, each counted where it stands, and of keys: `keys()` makes values of them."""
    if isinstance(value, list):
        return 1 + sum(map(_size, value))
    if isinstance(value, dict):
        return 1 + sum(1 + _size(child) for child in value.values())
    return 1


@given(_values, st.lists(_steps, max_size=12))
def test_no_result_outgrows_its_input(value: Any, steps: list[str]) -> None:
    text = "@" + "".join(steps)
    try:
        result = expression(text).search(value)
    except (ExpressionRefused, SearchFailed):
        return
    assert _size(result) <= max(_size(value), 1)


def test_a_deep_search_of_a_large_value_ends_soon() -> None:
    """The dearest text: filters in filters. Each part visits each value once, so the work has a bound."""
    value: Any = {"a": 1}
    for _ in range(8):
        value = {"a": [value, value]}
    steps = 0

    class Counted(dict[str, Any]):
        def get(self, *args: Any) -> Any:
            nonlocal steps
            steps += 1
            return super().get(*args)

    counted = json.loads(json.dumps(value), object_hook=Counted)
    text = "a" + "[?a" * 14 + "]" * 14
    expression(text).search(counted)
    assert steps <= 15 * _size(value)


@pytest.mark.parametrize("text", ['`"\\ud800"`', 'a || `"x\\u0000"`'])
def test_a_text_that_no_database_stores_is_refused(text: str) -> None:
    with pytest.raises(ExpressionRefused, match="neither is stored"):
        expression(text)
    assert expression('`"\\ud83d\\ude00"`').search({}) == "\U0001f600"
