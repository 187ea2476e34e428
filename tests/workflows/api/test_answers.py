"""Answers to human nodes: whose they may be, how large, and how often they can be sent."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from django.db import connection

from gpus.models import AuditEntry
from jobs.models import EndNotice
from jobs.operations.tenants import create_key, rotate_key
from tests.support.api_harness import Account, ApiHarness, with_key
from tests.support.workflow_api import advance, post, put
from workflows.execution.advancer import Advancer, AdvancerLimits
from workflows.models import Node, SentSignal, Wait
from workflows.operations import answers

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("zimg")]
HUMAN = {"title": "?", "choose_from": ["a", "b"]}
FORM = {"title": "?", "form": {}}


@pytest.fixture
def reviewer(acme: Account) -> Account:
    return with_key(acme, create_key(acme.tenant, name="reviewer")[1])


def asked(account: Account, api: ApiHarness, human: dict[str, Any]) -> str:
    """Start a run that asks; return its id."""
    put(account, {"nodes": {"best": {"human": human}}})
    run_id = str(post(account, "workflows/film/runs").json()["run_id"])
    advance(api, run_id)
    return run_id


def answer(account: Account, run_id: str, value: Any = "a") -> Any:
    return post(account, f"runs/{run_id}/waits/best", {"answer": value})


def node(account: Account, run_id: str) -> Any:
    return account.client.get(f"/api/v1/runs/{run_id}/nodes").json()["results"][0]


@pytest.mark.database
def test_only_the_keys_that_a_question_names_may_answer_it(
    acme: Account, other: Account, reviewer: Account, api: ApiHarness
) -> None:
    run_id = asked(acme, api, {**HUMAN, "answer_by": ["lead", "reviewer"]})
    for value in ("a", "none of the choices"):
        refused = answer(acme, run_id, value)
        assert (refused.status_code, refused.json()["code"]) == (403, "not_yours")
        assert "choices" not in refused.json()["detail"]
    foreign_key = with_key(other, create_key(other.tenant, name="reviewer")[1])
    assert answer(foreign_key, run_id).status_code == 404
    assert not Wait.objects.exclude(answered_at=None).exists()
    for account, may in ((acme, False), (reviewer, True)):
        question = node(account, run_id)["question"]
        assert (question["answer_by"], question["may_answer"]) == (["lead", "reviewer"], may)
    assert answer(reviewer, run_id).status_code == 200
    assert answer(acme, run_id).json()["code"] == "not_yours", "also when it is answered"
    assert Wait.objects.get().answered_by == f"key:{reviewer.key[:8]}"
    advance(api, run_id)
    assert node(acme, run_id)["answered_by"] == f"key:{reviewer.key[:8]}"
    assert not AuditEntry.objects.filter(action="answer_wait").exists()


def test_a_question_without_names_is_for_all_keys_of_the_tenant(
    acme: Account, reviewer: Account, api: ApiHarness
) -> None:
    run_id = asked(acme, api, HUMAN)
    assert node(reviewer, run_id)["question"] | HUMAN == node(reviewer, run_id)["question"]
    assert node(reviewer, run_id)["question"]["answer_by"] is None
    assert answer(reviewer, run_id).status_code == 200


def test_an_operator_may_answer_and_is_audited(acme: Account, operator: Account, api: ApiHarness) -> None:
    run_id = asked(acme, api, {**HUMAN, "answer_by": ["reviewer"]})
    assert node(operator, run_id)["question"]["may_answer"] is True
    assert answer(operator, run_id).status_code == 200
    entry = AuditEntry.objects.get(action="answer_wait")
    assert (entry.target, entry.detail) == (f"run:{run_id}", {"node": "best"})
    assert answer(operator, run_id).status_code == 200
    assert AuditEntry.objects.filter(action="answer_wait").count() == 1, "nothing has changed"
    Wait.objects.update(answered_by="user:ann")
    advance(api, run_id)
    assert node(acme, run_id)["answered_by"] == "operator"
    assert node(operator, run_id)["answered_by"] == "user:ann"


def test_a_rotated_key_may_answer_as_the_one_before(acme: Account, api: ApiHarness) -> None:
    row, _ = create_key(acme.tenant, name="reviewer")
    run_id = asked(acme, api, {**HUMAN, "answer_by": ["reviewer"]})
    _, key = rotate_key(row, overlap_seconds=0, by="ann")
    assert answer(with_key(acme, key), run_id).status_code == 200


@pytest.mark.parametrize("names", [[], "reviewer", ["a", "a"], [""], ["n" * 51], [1], ["a"] * 101])
def test_wrong_names_are_refused_with_their_place(acme: Account, names: Any) -> None:
    refused = put(acme, {"nodes": {"best": {"human": {**HUMAN, "answer_by": names}}}})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["pointer"].startswith("/nodes/best/human/answer_by")


def test_a_key_without_the_scope_to_answer_may_not(acme: Account, api: ApiHarness) -> None:
    reader = with_key(acme, create_key(acme.tenant, name="reviewer", scopes=["read"])[1])
    run_id = asked(acme, api, {**HUMAN, "answer_by": ["reviewer"]})
    assert node(reader, run_id)["question"]["may_answer"] is False
    assert answer(reader, run_id).json()["code"] == "scope_required"


def test_explain_names_the_roles_that_may_answer(acme: Account, api: ApiHarness) -> None:
    run_id = asked(acme, api, {**HUMAN, "answer_by": ["lead", "reviewer"]})
    (reason,) = acme.client.get(f"/api/v1/runs/{run_id}/explain").json()["reasons"]
    assert reason["message"] == "It waits for the answer of the API key lead or reviewer."


@pytest.mark.database
def test_the_same_answer_can_be_sent_again_by_the_same_key(
    acme: Account, reviewer: Account, api: ApiHarness
) -> None:
    run_id = asked(acme, api, FORM)
    value = {"b": 1, "a": [True, None]}
    assert answer(acme, run_id, value).status_code == 200
    assert answer(acme, run_id, {"a": [True, None], "b": 1}).status_code == 200
    assert EndNotice.objects.filter(followed_by=f"run:{run_id}").count() == 1
    for account, other_value in ((acme, {"a": [1, None], "b": 1}), (acme, None), (reviewer, value)):
        refused = answer(account, run_id, other_value)
        assert (refused.status_code, refused.json()["code"]) == (409, "not_waiting")
    advance(api, run_id)
    again = answer(acme, run_id, value)
    assert (again.status_code, again.json()["status"]) == (200, "completed")


@pytest.mark.database
def test_of_many_at_once_one_answer_counts(acme: Account, api: ApiHarness) -> None:
    run_id = asked(acme, api, HUMAN)
    clients = [with_key(acme, create_key(acme.tenant)[1]) for _ in range(3)] + [acme, acme]

    def send(account: Account) -> int:
        try:
            return int(answer(with_key(account, account.key), run_id).status_code)
        finally:
            connection.close()

    with ThreadPoolExecutor(5) as threads:
        found = Counter(threads.map(send, clients))
    winners = 2 if Wait.objects.get().answered_by == f"key:{acme.key[:8]}" else 1
    assert found == {200: winners, 409: 5 - winners}
    assert EndNotice.objects.filter(followed_by=f"run:{run_id}").count() == 1


def test_an_expired_wait_refuses_an_answer(acme: Account, api: ApiHarness) -> None:
    run_id = asked(acme, api, HUMAN)
    Wait.objects.update(answer="a", answered_at=api.ports.clock.now(), answered_by="expiry")
    assert answer(acme, run_id).status_code == 409


@pytest.mark.parametrize("size", [1_100, 100_000])
def test_the_size_of_an_answer_is_a_setting(acme: Account, api: ApiHarness, settings: Any, size: int) -> None:
    run_id = asked(acme, api, FORM)
    settings.DISPATCHER = replace(settings.DISPATCHER, workflow_answer_bytes=1_000)
    for path, body in ((f"runs/{run_id}/waits/best", "answer"), ("signals/paid", "body")):
        refused = post(acme, path, {body: "x" * size})
        assert refused.status_code == 413
        assert "DISPATCHER_WORKFLOW_ANSWER_BYTES" in refused.json()["detail"]
    assert answer(acme, run_id, "x" * 900).status_code == 200


@pytest.mark.parametrize("node", [
    {"human": {"title": "?", "choose_from": {"$ref": "inputs.list"}}},
    {"human": {"title": "?", "choose_from": {"$ref": "inputs.list[0]"}}},
    {"human": {"title": "?", "form": {"const": "x" * 2_000}}},
    {"timer": {"seconds": {"$ref": "inputs.list[0]"}}},
])  # fmt: skip
def test_a_question_that_is_too_large_fails_its_node(
    acme: Account, api: ApiHarness, settings: Any, node: dict[str, Any]
) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, workflow_question_bytes=1_000)
    put(acme, {"nodes": {"best": node}})
    run_id = post(acme, "workflows/film/runs", {"inputs": {"list": ["x" * 2_000]}}).json()["run_id"]
    advance(api, run_id)
    row = Node.objects.get(run=run_id)
    assert (row.state, row.code, row.settings) == ("failed", "question_too_large", {})
    assert "1000 bytes (DISPATCHER_WORKFLOW_QUESTION_BYTES)" in row.detail
    assert not Wait.objects.exists()


def test_large_questions_of_a_map_begin_in_several_transactions(acme: Account, api: ApiHarness) -> None:
    human = {"title": "?", "choose_from": {"$ref": "inputs.list"}}
    put(acme, {"nodes": {"best": {"map": {"count": 9}, "human": human}}})
    run_id = post(acme, "workflows/film/runs", {"inputs": {"list": ["x" * 2_000]}}).json()["run_id"]
    advancer, begun = Advancer(api.ports, AdvancerLimits(payload_bytes=5_000)), list[int]()
    while advancer.advance(run_id):
        begun.append(Wait.objects.count())
    assert begun == [0, 3, 6]
    assert Wait.objects.count() == 9


def restarted(account: Account, api: ApiHarness, run_id: str) -> None:
    """Let a run whose question was answered end, and ask again."""
    advance(api, run_id)
    assert post(account, f"runs/{run_id}/restart", {"nodes": ["best"]}).status_code == 202
    advance(api, run_id)
    assert Wait.objects.filter(answered_at=None).count() == 1


@pytest.mark.database
def test_an_answer_that_names_its_round_does_not_answer_a_restarted_node(
    acme: Account, api: ApiHarness
) -> None:
    run_id = asked(acme, api, HUMAN)
    path = f"runs/{run_id}/waits/best"
    early = post(acme, path, {"answer": "a", "round": 2})
    assert (early.status_code, early.json()["code"]) == (409, "other_round")
    assert node(acme, run_id)["round"] == 1
    assert post(acme, path, {"answer": "a", "round": 1}).status_code == 200
    restarted(acme, api, run_id)
    late = post(acme, path, {"answer": "b", "round": 1})
    assert (late.status_code, late.json()["code"]) == (409, "other_round")
    assert "it is in round 2" in late.json()["detail"]
    assert late.json()["errors"][0]["pointer"] == "/round"
    assert post(acme, path, {"answer": "a", "round": 1}).status_code == 200, "its response was lost"
    assert Wait.objects.filter(answered_at=None).count() == 1
    assert post(acme, path, {"answer": "b", "round": 2}).status_code == 200


@pytest.mark.database
def test_an_answer_with_a_key_is_given_once(acme: Account, api: ApiHarness) -> None:
    run_id = asked(acme, api, HUMAN)
    path, key = f"runs/{run_id}/waits/best", {"Idempotency-Key": "k"}
    assert post(acme, path, {"answer": "c"}, **key).status_code == 422, "a refused one keeps no key"
    first = post(acme, path, {"answer": "a"}, **key)
    assert (first.status_code, "Idempotency-Replayed" in first.headers) == (200, False)
    restarted(acme, api, run_id)
    again = post(acme, path, {"answer": "a"}, **key)
    assert (again.status_code, again.headers["Idempotency-Replayed"]) == (200, "true")
    assert Wait.objects.filter(answered_at=None).count() == 1
    other = post(acme, path, {"answer": "b"}, **key)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_conflict")
    assert post(acme, path, {"answer": "b"}, **{"Idempotency-Key": "l"}).status_code == 200
    assert set(SentSignal.objects.values_list("key", "taken")) == {("k", 1), ("l", 1)}


@pytest.mark.database
def test_of_concurrent_answers_with_one_key_all_get_the_first(
    acme: Account, api: ApiHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another request with the key was taken after this one had looked for it."""
    run_id = asked(acme, api, HUMAN)
    path, key = f"runs/{run_id}/waits/best", {"Idempotency-Key": "k"}
    real, looks = answers.earlier_sent, list[int]()

    def first_look_finds_none(tenant_id: int, request: Any) -> Any:
        looks.append(1)
        return None if len(looks) == 1 else real(tenant_id, request)

    assert post(acme, path, {"answer": "a"}, **key).status_code == 200
    restarted(acme, api, run_id)
    monkeypatch.setattr(answers, "earlier_sent", first_look_finds_none)
    again = post(acme, path, {"answer": "a"}, **key)
    assert (again.status_code, again.headers["Idempotency-Replayed"]) == (200, "true")
    assert Wait.objects.filter(answered_at=None).count() == 1, "the transaction was undone"
