"""Workflows over HTTP: definitions, runs, answers, signals, and the roles that may see them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.models import Job
from jobs.operations.tenants import create_key
from tests.support.api_harness import Account, ApiHarness
from tests.support.factories import make_job, make_model
from tests.support.workflow_api import A_MODEL, FILM, advance, post, put, start
from workflows.api import nodes, run_control
from workflows.models import Node, Run
from workflows.sweeps.cancelling_runs import sweep as cancelling_runs

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("zimg")]


@pytest.mark.database
def test_a_definition_is_stored_once_per_content(acme: Account) -> None:
    first, again, changed = put(acme), put(acme), put(acme, {**FILM, "output": None})
    assert [answer.status_code for answer in (first, again, changed)] == [201, 200, 201]
    assert [answer.json()["version"] for answer in (first, again, changed)] == [1, 1, 2]
    assert acme.client.get("/api/v1/workflows/film").json()["version"] == 2
    assert acme.client.get("/api/v1/workflows/film/versions/1").json()["definition"] == FILM
    assert acme.client.get("/api/v1/workflows").json()["results"] == [{"name": "film", "latest": 2}]


def test_the_content_of_an_earlier_version_becomes_the_newest_one(acme: Account) -> None:
    put(acme)
    put(acme, {**FILM, "output": None})
    back, again = put(acme), put(acme)
    found = [(answer.status_code, answer.json()["version"]) for answer in (back, again)]
    assert found == [(201, 3), (200, 3)]
    run = acme.client.get(f"/api/v1/runs/{start(acme)}").json()
    assert run["version"] == 3, "a run uses what was stored last"
    assert acme.client.get("/api/v1/workflows/film").json()["definition"] == FILM


@pytest.mark.database
def test_versions_are_listed_by_page(acme: Account, other: Account) -> None:
    hashes = [put(acme, {**FILM, "output": number}).json()["sha256"] for number in range(12)]
    path = "/api/v1/workflows/film/versions"
    page = acme.client.get(path, {"limit": 10}).json()
    rest = acme.client.get(page["next"]).json()
    found = page["results"] + rest["results"]
    assert [row["version"] for row in found] == list(range(12, 0, -1))
    assert [row["sha256"] for row in found] == hashes[::-1]
    assert set(found[0]) == {"name", "version", "sha256", "created_at"}
    assert rest["next"] is None
    assert acme.client.get(path, {"cursor": "bad"}).status_code == 400
    assert other.client.get(path).status_code == 404
    assert acme.client.get("/api/v1/workflows/none/versions").status_code == 404


def sub(workflow: str, **more: Any) -> dict[str, Any]:
    return {"nodes": {"sub": {"workflow": workflow, **more}}}


def test_a_workflow_that_contains_itself_is_refused(acme: Account) -> None:
    assert put(acme, sub("b"), "a").status_code == 201, "b is checked when it is stored"
    assert put(acme, sub("c"), "b").status_code == 201
    for name, workflow, chain in (("c", "a", "c → a → b → c"), ("self", "self", "self → self")):
        answer = put(acme, sub(workflow), name)
        assert answer.status_code == 422
        (error,) = answer.json()["errors"]
        assert (error["pointer"], error["code"]) == ("/nodes/sub/workflow", "recursion")
        assert chain in error["detail"]
        assert acme.client.get(f"/api/v1/workflows/{name}").status_code == 404
    assert put(acme, {"nodes": {"x": A_MODEL}}, "c").status_code == 201


def test_a_workflow_may_contain_an_earlier_version_of_itself(acme: Account) -> None:
    put(acme, {"nodes": {"x": A_MODEL}}, "a")
    assert put(acme, sub("a", version=2), "a").status_code == 422, "it would be version 2"
    assert put(acme, sub("a", version=1), "a").status_code == 201
    assert put(acme, sub("a"), "a").status_code == 422


def test_recursion_through_the_node_that_runs_on_failure_is_refused(acme: Account) -> None:
    handler = {"nodes": {"x": A_MODEL, "sub": {"workflow": "a"}}, "on_failure": {"node": "sub"}}
    assert put(acme, handler, "a").json()["errors"][0]["code"] == "recursion"


def test_workflows_of_another_tenant_are_no_part_of_a_definition(acme: Account, other: Account) -> None:
    assert put(other, sub("a"), "b").status_code == 201
    assert put(acme, sub("b"), "a").status_code == 201


def test_a_definition_that_contains_too_many_workflows_is_refused(acme: Account, settings: Any) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, workflow_contained=2)
    put(acme, sub("c"), "b")
    put(acme, sub("d"), "c")
    (error,) = put(acme, sub("b"), "a").json()["errors"]
    assert (error["pointer"], error["code"]) == ("/nodes", "too_many")
    assert "up to 2 workflows" in error["detail"]


@pytest.mark.parametrize(
    ("definition", "pointer", "code"),
    [
        ({"nodes": {"a": {"model": "nope"}}}, "/nodes/a/model", "unknown_model"),
        ({"nodes": {"a": {"model": "zimg", "needs": ["a"]}}}, "/nodes/a", "cycle"),
        ({"name": "other", "nodes": {"a": {"model": "zimg"}}}, "/name", "invalid"),
    ],
)
def test_a_wrong_definition_is_refused_with_its_places(
    acme: Account, definition: Any, pointer: str, code: str
) -> None:
    answer = put(acme, definition)
    assert answer.status_code == 422
    assert [(error["pointer"], error["code"]) for error in answer.json()["errors"]] == [(pointer, code)]


def test_a_key_for_some_models_of_its_tenant_only(acme: Account) -> None:
    acme.tenant.allowed_models = ["other"]
    acme.tenant.save()
    answer = put(acme)
    assert answer.json()["errors"][0]["code"] == "unknown_model"


def test_a_path_that_no_result_of_the_model_has_is_refused(acme: Account) -> None:
    closed = {"type": "object", "properties": {"url": {"type": "string"}}, "additionalProperties": False}
    make_model("closed", result_schema=closed)
    nodes = {"a": {"model": "closed"}, "b": {"model": "zimg", "payload": {"prompt": {"$ref": "a.ulr"}}}}
    answer = put(acme, {"nodes": nodes})
    assert answer.status_code == 422
    [error] = answer.json()["errors"]
    assert (error["pointer"], error["code"]) == ("/nodes/b/payload/prompt", "unknown_ref")
    nodes["b"]["payload"] = {"prompt": {"$ref": "a.url"}}
    assert put(acme, {"nodes": nodes}).status_code == 201


@pytest.mark.database
def test_a_run_goes_from_its_start_to_an_answer(acme: Account, api: ApiHarness) -> None:
    put(acme)
    run_id = start(acme, tags=["demo"], priority=2)
    advance(api, run_id)
    run = acme.client.get(f"/api/v1/runs/{run_id}").json()
    assert (run["status"], run["waiting_for"], run["counts"]) == ("running", ["best"], {"running": 2})
    job = Job.objects.get()
    assert (job.payload, job.priority, job.tags) == ({"prompt": "x"}, 2, ["demo"])
    (asked,) = acme.client.get(f"/api/v1/runs/{run_id}/nodes", {"key": "best"}).json()["results"]
    assert asked["question"] == {
        "title": "?",
        "choose_from": ["a", "b"],
        "form": None,
        "expires_at": None,
        "answer_by": None,
        "may_answer": True,
    }
    assert "inputs" not in acme.client.get("/api/v1/runs").json()["results"][0]
    assert post(acme, f"runs/{run_id}/waits/best", {"answer": "z"}).status_code == 422
    assert post(acme, f"runs/{run_id}/waits/best", {"answer": "a"}).status_code == 200
    assert post(acme, f"runs/{run_id}/waits/best", {"answer": "b"}).status_code == 409
    advance(api, run_id)
    nodes = acme.client.get(f"/api/v1/runs/{run_id}/nodes", {"state": "completed"}).json()["results"]
    assert [(node["key"], node["output"]) for node in nodes] == [("best", "a")]
    assert post(acme, f"runs/{run_id}/restart").status_code == 409
    assert post(acme, f"runs/{run_id}/cancel").status_code == 202
    for _ in range(2):
        advance(api, run_id)
    assert acme.client.get("/api/v1/runs", {"status": "cancelled"}).json()["results"][0]["run_id"] == run_id
    assert post(acme, f"runs/{run_id}/restart", {"nodes": ["nope"]}).status_code == 422
    assert post(acme, f"runs/{run_id}/restart", {"nodes": ["image"]}).json()["round"] == 2


@pytest.mark.database
def test_a_repeated_start_with_one_key_returns_one_run(acme: Account) -> None:
    put(acme)
    body = {"inputs": {"prompt": "x"}}
    first = post(acme, "workflows/film/runs", body, **{"Idempotency-Key": "k"})
    again = post(acme, "workflows/film/runs", body, **{"Idempotency-Key": "k"})
    assert first.json()["run_id"] == again.json()["run_id"]
    assert again.headers["Idempotency-Replayed"] == "true"
    other = post(acme, "workflows/film/runs", {"inputs": {"prompt": "y"}}, **{"Idempotency-Key": "k"})
    assert other.json()["code"] == "idempotency_conflict"
    assert Run.objects.count() == 1


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"inputs": {}}, 422, "payload_invalid"),
        ({"inputs": {"prompt": "x" * 300_000}}, 413, "inputs_too_large"),
        ({"inputs": {"prompt": "x"}, "version": 9}, 404, "unknown_workflow"),
        ({"inputs": {"prompt": "x"}, "priority": 10}, 422, "validation_failed"),
    ],
)
def test_a_run_that_can_not_start_is_refused(acme: Account, body: Any, status: int, code: str) -> None:
    put(acme)
    answer = post(acme, "workflows/film/runs", body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert Run.objects.count() == 0


def test_a_tenant_has_so_many_unfinished_runs_at_most(acme: Account, settings: Any) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, workflow_runs=1)
    put(acme)
    start(acme)
    answer = post(acme, "workflows/film/runs", {"inputs": {"prompt": "x"}})
    assert (answer.status_code, answer.json()["code"]) == (429, "too_many_runs")
    assert answer.headers["Retry-After"]


def test_a_tenant_has_so_many_workflows_and_versions_at_most(acme: Account, settings: Any) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, workflow_definitions=2, workflow_versions=3)
    assert [put(acme).status_code, put(acme, name="b").status_code] == [201, 201]
    answer = put(acme, name="c")
    assert (answer.status_code, answer.json()["code"]) == (409, "too_many_workflows")
    assert "2 workflows" in answer.json()["detail"]
    assert put(acme, {**FILM, "output": 1}).status_code == 201
    answer = put(acme, {**FILM, "output": 2}, name="b")
    assert (answer.status_code, answer.json()["code"]) == (409, "too_many_versions")
    assert "3 versions" in answer.json()["detail"]
    assert put(acme, {**FILM, "output": 1}).status_code == 200, "what is stored stays available"


def test_a_run_takes_the_tokens_of_all_its_nodes_at_once(acme: Account, api: ApiHarness) -> None:
    acme.tenant.submits_per_second, acme.tenant.submit_burst = 0.001, 4
    acme.tenant.save()
    put(acme)  # two nodes: three tokens
    start(acme)
    answer = post(acme, "workflows/film/runs", {"inputs": {"prompt": "x"}})
    assert (answer.status_code, answer.json()["code"]) == (429, "rate_limited")
    assert answer.headers["Retry-After"]
    assert Run.objects.count() == 1


def test_a_run_needs_a_place_in_the_tenants_queue(acme: Account) -> None:
    acme.tenant.max_queued = 1
    acme.tenant.save()
    put(acme)
    start(acme)
    make_job("zimg", tenant=acme.tenant)
    answer = post(acme, "workflows/film/runs", {"inputs": {"prompt": "x"}})
    assert (answer.status_code, answer.json()["code"]) == (429, "tenant_queue_full")
    assert Run.objects.count() == 1


def test_a_run_that_retention_removes_while_it_is_erased_is_unknown(
    acme: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(acme)
    run_id = start(acme)

    def removed(*_: Any, **__: Any) -> Run:
        raise Run.DoesNotExist

    monkeypatch.setattr(run_control, "erase_run_data", removed)
    answer = acme.client.delete(f"/api/v1/runs/{run_id}/data")
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_run")


@pytest.mark.database
def test_a_runs_data_is_erased_once_it_has_ended(acme: Account, other: Account, api: ApiHarness) -> None:
    put(acme, {"nodes": {"best": {"timer": {"seconds": 1}}}})
    run_id = start(acme)
    assert other.client.delete(f"/api/v1/runs/{run_id}/data").status_code == 404
    answer = acme.client.delete(f"/api/v1/runs/{run_id}/data")
    assert (answer.status_code, answer.json()["code"]) == (409, "run_not_over")
    post(acme, f"runs/{run_id}/cancel")
    advance(api, run_id)
    Run.objects.update(state="cancelled", finished_at=api.ports.clock.now())
    answer = acme.client.delete(f"/api/v1/runs/{run_id}/data")
    assert answer.status_code == 200
    assert answer.json()["erased_at"]
    assert list(acme.client.get(f"/api/v1/runs/{run_id}").json()["inputs"]) == ["$erased"]
    answer = post(acme, f"runs/{run_id}/restart")
    assert (answer.status_code, answer.json()["code"]) == (409, "run_erased")


@pytest.mark.database
def test_another_tenants_workflows_and_runs_do_not_exist(
    acme: Account, other: Account, operator: Account, api: ApiHarness
) -> None:
    put(acme)
    run_id = start(acme)
    advance(api, run_id)
    paths = ["workflows/film", f"runs/{run_id}", f"runs/{run_id}/nodes"]
    assert {other.client.get(f"/api/v1/{path}").status_code for path in paths} == {404}
    actions = ["cancel", "pause", "resume", "restart", "waits/best"]
    answers = [post(other, f"runs/{run_id}/{action}", {"answer": "a"}) for action in actions]
    assert {answer.status_code for answer in answers} == {404}
    assert post(other, "workflows/film/runs", {"inputs": {"prompt": "x"}}).status_code == 404
    assert other.client.get("/api/v1/runs").json()["results"] == []
    assert operator.client.get(f"/api/v1/runs/{run_id}").status_code == 200


def test_a_key_without_the_scope_may_not(acme: Account) -> None:
    put(acme)
    run_id = start(acme)
    _, key = create_key(acme.tenant, scopes=["read"])
    acme.client.credentials(HTTP_AUTHORIZATION=f"Bearer {key}")
    assert acme.client.get(f"/api/v1/runs/{run_id}").status_code == 200
    for path in ("workflows/film/runs", f"runs/{run_id}/cancel", "signals/x", f"runs/{run_id}/pause"):
        assert post(acme, path).status_code == 403
    assert put(acme).status_code == 403


@pytest.mark.database
def test_a_signal_is_taken_by_the_runs_that_wait_for_it(acme: Account, api: ApiHarness) -> None:
    put(acme, {"nodes": {"paid": {"signal": {"name": "paid"}}}})
    ids = [start(acme, inputs=None) for _ in range(2)]
    for run_id in ids:
        advance(api, run_id)
    assert post(acme, "signals/paid", {"body": 1, "run_id": ids[0]}).json() == {"taken": 1}
    assert post(acme, "signals/paid", {"body": 2}).json() == {"taken": 1}
    assert post(acme, "signals/paid").json() == {"taken": 0}
    for run_id in ids:
        advance(api, run_id)
    assert sorted(Node.objects.values_list("output", flat=True)) == [1, 2]


def test_a_name_that_no_signal_has_is_taken_by_none(acme: Account, api: ApiHarness) -> None:
    put(acme, {"nodes": {"paid": {"signal": {"name": "p" * 64}}}})
    advance(api, start(acme, inputs=None))
    for name in ("%00", "a%00b", "%FF", "p" * 65):
        answer = post(acme, f"signals/{name}")
        assert (answer.status_code, answer.json()) == (200, {"taken": 0}), name
    assert post(acme, "signals/" + "p" * 64).json() == {"taken": 1}


@pytest.mark.parametrize(
    "path", ["runs/nope", "runs/01M8EB15HJF2M574SYQV8PX1NK", "runs/x/nodes", "workflows/%00"]
)
def test_an_unknown_id_is_not_found(acme: Account, path: str) -> None:
    answer = acme.client.get(f"/api/v1/{path}")
    assert answer.status_code == 404
    assert answer.headers["Content-Type"] == "application/problem+json"


@pytest.mark.database
def test_a_page_of_long_outputs_ends_early_and_the_next_one_goes_on(
    acme: Account, api: ApiHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(acme, {"nodes": {"a": {"model": "zimg", "payload": {}, "map": {"count": 20}}}})
    run_id = start(acme, inputs=None)
    advance(api, run_id)
    Node.objects.exclude(job_id=None).update(state="completed", finished_at=api.clock.now())
    Job.objects.update(state="completed", finished_at=api.clock.now(), result={"text": "x" * 1_000})
    monkeypatch.setattr(nodes, "PAGE_BYTES", 4_500)
    url: str | None = f"/api/v1/runs/{run_id}/nodes?limit=200"
    found, sizes = [], []
    while url:
        page = acme.client.get(url).json()
        assert "results" in page, (url, page)
        sizes.append(len(page["results"]))
        found += [node["key"] for node in page["results"]]
        url = page["next"]
    assert sorted(found) == sorted(["a", *(f"a[{index}]" for index in range(20))])
    assert max(sizes) <= 6, sizes
    assert len(sizes) >= 4
    back = acme.client.get(page["previous"]).json()
    assert back["next"] is not None


@pytest.mark.database
def test_runs_are_filtered_and_sub_runs_name_their_parent(
    acme: Account, operator: Account, api: ApiHarness
) -> None:
    ask = {"nodes": {"ask": {"human": {"title": "?", "choose_from": [1]}}}}
    put(acme, ask, "child")
    put(acme, {"nodes": {"sub": {"workflow": "child"}}}, "above")
    above = post(acme, "workflows/above/runs", {"tags": ["night", "a"]}).json()["run_id"]
    alone = post(acme, "workflows/child/runs", {"tags": ["nightly"]}).json()["run_id"]
    advance(api, above)
    (below,) = Run.objects.filter(parent_node__run=above).values_list("id", flat=True)
    for one in (below, alone):
        advance(api, one)

    def found(query: str) -> set[str]:
        answer = acme.client.get(f"/api/v1/runs?{query}")
        assert answer.status_code == 200, answer.json()
        assert {row["run_id"] for row in operator.client.get(f"/api/v1/runs?{query}").json()["results"]} == {
            row["run_id"] for row in answer.json()["results"]
        }
        return {row["run_id"] for row in answer.json()["results"]}

    assert found("") == found("parent=none") == {above, alone}
    assert found("parent=any") == {above, alone, below}
    assert found(f"parent={above}") == {below}
    assert found(f"parent={alone}") == set()
    assert found("waiting=true") == {below, alone}, "the answer goes to the sub-run"
    assert found("waiting=true&parent=none") == {alone}
    assert found("waiting=false&parent=any") == {above}
    assert found("tag=night") == {above}
    assert found("tag=night&parent=any") == {above, below}
    assert found("tag=nigh&parent=any") == set()
    post(acme, f"runs/{alone}/pause")
    assert found("paused=true") == {alone}
    assert found("paused=false") == {above}
    post(acme, f"runs/{alone}/cancel")
    for _ in range(3):
        cancelling_runs(api.ports)
        advance(api, alone)
    ended = acme.client.get(f"/api/v1/runs/{alone}").json()
    assert (ended["status"], ended["paused"]) == ("cancelled", False), "a pause ends with the run"
    assert (found("paused=true"), found("waiting=true")) == (set(), {below})
    shown = acme.client.get(f"/api/v1/runs/{below}").json()
    assert (shown["parent"], ended["parent"]) == ({"run_id": above, "node": "sub"}, None)
    (row,) = acme.client.get(f"/api/v1/runs?parent={above}").json()["results"]
    assert row["parent"] == shown["parent"]
    assert ended["erased_at"] is None
    acme.client.delete(f"/api/v1/runs/{alone}/data")
    assert acme.client.get(f"/api/v1/runs/{alone}").json()["erased_at"] is not None


@pytest.mark.parametrize("query", ["parent=nobody", "paused=1", "waiting=True", "tag=", "parents=none"])
def test_a_misspelt_filter_of_runs_is_refused(acme: Account, query: str) -> None:
    answer = acme.client.get(f"/api/v1/runs?{query}")
    assert (answer.status_code, answer.json()["code"] in {"invalid_parameter", "unknown_parameter"}) == (
        400,
        True,
    ), answer.json()


def test_a_page_of_runs_takes_few_queries(acme: Account, api: ApiHarness) -> None:
    put(acme, {"nodes": {"x": {"signal": {"name": "go"}}}}, "child")
    put(acme, {"nodes": {"sub": {"workflow": "child", "map": {"count": 5}}}}, "above")
    above = post(acme, "workflows/above/runs").json()["run_id"]
    advance(api, above)
    advance(api, above)
    with CaptureQueriesContext(
        connection,
    ) as queries:
        rows = acme.client.get("/api/v1/runs?parent=any").json()["results"]
    assert len(rows) == 6
    assert len([one for one in queries if "workflows_node" in one["sql"]]) == 1


def test_an_answer_is_compared_as_json(acme: Account, api: ApiHarness) -> None:
    put(acme, {"nodes": {"best": {"human": {"title": "?", "choose_from": [1, 0]}}}})
    run_id = start(acme, inputs=None)
    advance(api, run_id)
    assert post(acme, f"runs/{run_id}/waits/best", {"answer": True}).status_code == 422
    assert post(acme, f"runs/{run_id}/waits/best", {"answer": 1}).status_code == 200


@pytest.mark.database
def test_a_signal_to_many_waits_takes_few_transactions(acme: Account, api: ApiHarness) -> None:
    put(acme, {"nodes": {"paid": {"signal": {"name": "paid"}, "map": {"count": 40}}}})
    run_id = start(acme, inputs=None)
    advance(api, run_id)
    advance(api, run_id)
    with CaptureQueriesContext(connection) as queries:
        assert post(acme, "signals/paid", {"body": 2}).json() == {"taken": 40}
    assert len(queries) < 25
    advance(api, run_id)
    assert Node.objects.get(key="paid").output == [2] * 40


@pytest.mark.parametrize(
    "timer",
    [
        {"seconds": "x"},
        {"seconds": True},
        {"seconds": -1},
        {"until": {"a": 1}},
        {"until": "soon"},
        {"until": "9999-12-31T00:00:00Z"},
    ],
)
def test_a_timer_without_a_time_fails(acme: Account, api: ApiHarness, timer: dict[str, Any]) -> None:
    ((part, value),) = timer.items()
    refused = put(acme, {"nodes": {"pause": {"timer": timer}}})
    assert [error["code"] for error in refused.json()["errors"]] == ["invalid_timer"]
    put(acme, {"nodes": {"pause": {"timer": {part: {"$ref": "inputs.time"}}}}})
    run_id = start(acme, inputs={"time": value})
    advance(api, run_id)
    assert Node.objects.get().code == "invalid_timer"


def test_literal_values_are_checked_against_models_and_other_workflows(acme: Account, settings: Any) -> None:
    """Whatever fails for certain is refused at once; what the tenant may store later is not."""
    settings.DISPATCHER = replace(settings.DISPATCHER, max_payload_bytes=1_000)
    schema = {"type": "object", "required": ["area"], "properties": {"area": {"type": "string"}}}
    make_model("map", payload_schema=schema, max_retries=2, max_run_seconds=60)
    assert put(acme, {"inputs": schema, "nodes": {"a": {"timer": {"seconds": 1}}}}, "sub").status_code == 201
    form = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
    asked = {"expires_seconds": 60, "on_expiry": "default"}
    refused = put(
        acme,
        {
            "nodes": {
                "wrong": {"model": "map", "payload": {"area": 5}},
                "file": {"model": "map", "payload": {"area": "x", "of": [{"$artifact": "no id"}]}},
                "none": {"model": "map"},
                "options": {
                    "model": "map",
                    "payload": {"area": {"$ref": "inputs"}},
                    "max_retries": 3,
                    "max_run_seconds": 61,
                },
                "large": {"model": "map", "payload": {"area": "x" * 1_000}},
                "form": {"human": {"title": "?", "form": form, "default": {"ok": "yes"}, **asked}},
                "body": {"signal": {"name": "s", "body_schema": form, "default": [], **asked}},
                "fixed": {"workflow": "sub", "version": 1, "inputs": {"area": 5}},
                "none_fixed": {"workflow": "sub", "version": 1},
                "newest": {"workflow": "sub", "inputs": {"area": 5}},
                "later": {"workflow": "sub", "version": 2, "inputs": {"area": 5}},
                "unknown": {"model": "map", "payload": {"area": {"$ref": "inputs"}}},
            }
        },
    )
    assert refused.status_code == 422
    assert [(error["pointer"], error["code"]) for error in refused.json()["errors"]] == [
        ("/nodes/body/signal/default", "payload_invalid"),
        ("/nodes/file/payload/of/0", "artifact_ref_invalid"),
        ("/nodes/fixed/inputs/area", "payload_invalid"),
        ("/nodes/form/human/default/ok", "payload_invalid"),
        ("/nodes/large/payload", "payload_too_large"),
        ("/nodes/none/payload", "payload_invalid"),
        ("/nodes/none_fixed/inputs", "payload_invalid"),
        ("/nodes/options/max_retries", "max_retries_too_high"),
        ("/nodes/options/max_run_seconds", "max_run_seconds_too_long"),
        ("/nodes/wrong/payload/area", "payload_invalid"),
    ]


@pytest.mark.database
def test_a_version_that_no_database_holds_does_not_exist(acme: Account) -> None:
    put(acme, {"nodes": {"pause": {"timer": {"seconds": 1}}}})
    for number in (2**31, 2**70):
        refused = post(acme, "workflows/film/runs", {"version": number})
        assert (refused.status_code, refused.json()["code"]) == (404, "unknown_workflow")
