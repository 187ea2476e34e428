"""References in payloads: found, checked, replaced, and cheap."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from artifacts.refs import MARK, BadRef, TooManyRefs, find_refs, ref, replace_refs
from foundation.ids import is_id, new_id

ONE, TWO = new_id(), new_id()


def test_refs_are_found_at_any_depth_in_the_order_of_the_value() -> None:
    payload = {"a": [1, {"image": ref(ONE)}, "x"], "b": ref(TWO), "c": {"d": [[ref(ONE)]]}}
    assert find_refs(payload, 10) == {ONE: ("a", 1, "image"), TWO: ("b",)}
    assert find_refs(ref(ONE), 10) == {ONE: ()}


@pytest.mark.parametrize("payload", [{}, {"a": "$artifact"}, [ONE], {"artifact": ONE}, None, "$artifact"])
def test_other_values_have_no_refs(payload: Any) -> None:
    assert find_refs(payload, 10) == {}


@pytest.mark.parametrize(
    "bad",
    [{"$artifact": ONE, "x": 1}, {"$artifact": 5}, {"$artifact": "../a"}, {"$artifact": ONE.lower()},
     {"$artifact": None}, {"$artifact": {"$artifact": ONE}}, {"$artifact": f"{ONE}\n"}],
)  # fmt: skip
def test_an_object_that_is_almost_a_reference_is_refused_with_its_place(bad: Any) -> None:
    with pytest.raises(BadRef) as refused:
        find_refs({"images": [0, bad]}, 10)
    assert refused.value.path == ("images", 1)
    with pytest.raises(BadRef):
        replace_refs({"images": [0, bad]}, str)


def test_the_number_of_references_is_limited_also_of_the_same_artifact() -> None:
    payload = [ref(ONE), ref(ONE), ref(TWO)]
    assert len(find_refs(payload, 3)) == 2
    with pytest.raises(TooManyRefs, match="more than 2 references"):
        find_refs(payload, 2)


def test_refs_are_replaced_in_a_copy_that_shares_the_rest() -> None:
    shared = {"deep": [1, 2, {"x": None}]}
    payload = {"a": [ref(ONE), "text"], "b": shared, "c": ref(TWO)}
    before = json.dumps(payload)
    replaced = replace_refs(payload, lambda artifact_id: f"https://{artifact_id}")
    assert replaced == {"a": [f"https://{ONE}", "text"], "b": shared, "c": f"https://{TWO}"}
    assert replaced["b"] is shared
    assert json.dumps(payload) == before
    assert replace_refs(shared, str) is shared


def test_the_value_that_replaces_a_ref_is_not_searched() -> None:
    assert replace_refs([ref(ONE)], lambda _: [ref(TWO)]) == [[ref(TWO)]]


def test_a_text_without_the_name_has_no_refs() -> None:
    assert MARK in json.dumps({"a": ref(ONE)}).encode()
    assert MARK not in json.dumps({"a": "artifact", "$b": 1}).encode()
    assert is_id(ONE)
    assert not is_id("x" * 26)


def test_a_hundred_thousand_refs_are_refused_at_once() -> None:
    payload = {"images": [ref(f"{number:026d}") for number in range(100_000)]}
    began = time.process_time()
    with pytest.raises(TooManyRefs):
        find_refs(payload, 1000)
    assert time.process_time() - began < 0.5
    began = time.process_time()
    assert len(find_refs(payload, 100_000)) == 100_000
    replace_refs(payload, str)
    assert time.process_time() - began < 5


def test_a_large_payload_without_refs_costs_a_search_of_its_text() -> None:
    text = json.dumps({"text": "x" * 1_000_000}).encode()
    began = time.process_time()
    for _ in range(100):
        assert MARK not in text
    assert time.process_time() - began < 0.5  # 5 ms each would be 0.5 s; it is 0.05 ms
