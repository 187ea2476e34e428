"""Runs whose definition comes with the request: how it is checked, kept, bounded and deleted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from django.db import connection

from gpus.models import AuditEntry
from jobs.operations.tenants import create_key
from tests.support.api_harness import Account, ApiHarness
from tests.support.factories import make_model
from tests.support.workflow_api import FILM, advance, post, put, start
from workflows.metrics import collect
from workflows.models import Run, Version, Workflow
from workflows.sweeps import inline_versions
from workflows.sweeps.inline_versions import SweepCount

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("zimg")]
NAMED = {"name": "film", **FILM}
INPUTS = {"prompt": "x"}
ASK = {"nodes": {"best": {"human": {"title": "?", "choose_from": ["a", "b"]}}}}


def run_inline(account: Account, definition: Any = NAMED, *, key: str | None = None, **body: Any) -> Any:
    headers = {} if key is None else {"Idempotency-Key": key}
    return post(account, "workflows/runs", {"definition": definition, "inputs": INPUTS, **body}, **headers)


@pytest.mark.database
def test_a_definition_runs_without_being_stored_under_its_name(acme: Account, api: ApiHarness) -> None:
    put(acme, {**FILM, "output": 1})
    first, again = run_inline(acme), run_inline(acme, tags=["a"], priority=2)
    assert [first.status_code, again.status_code] == [202, 202]
    assert [(one["workflow"], one["version"]) for one in (first.json(), again.json())] == [("_film", 1)] * 2
    assert (again.json()["tags"], again.json()["priority"]) == (["a"], 2)
    changed = run_inline(acme, {**NAMED, "output": None}).json()
    assert (changed["workflow"], changed["version"]) == ("_film", 2)
    assert acme.client.get("/api/v1/workflows").json()["results"] == [{"name": "film", "latest": 1}]
    assert acme.client.get("/api/v1/workflows/film").json()["definition"] == {**FILM, "output": 1}
    assert acme.client.get("/api/v1/workflows/_film/versions/1").json()["definition"] == NAMED
    assert acme.client.get(f"/api/v1/runs/{start(acme)}").json()["workflow"] == "film"
    found = acme.client.get("/api/v1/runs", {"workflow": "_film"}).json()["results"]
    assert len(found) == 3
    run_id = first.json()["run_id"]
    advance(api, run_id)
    post(acme, f"runs/{run_id}/waits/best", {"answer": "b"})
    advance(api, run_id)
    assert acme.client.get(f"/api/v1/runs/{run_id}").json()["counts"] == {"completed": 1, "running": 1}


def test_a_definition_without_a_name_is_inline(acme: Account) -> None:
    assert run_inline(acme, ASK).json()["workflow"] == "_inline"
    assert run_inline(acme, {"name": "n" * 64, **ASK}).json()["workflow"] == "_" + "n" * 63


@pytest.mark.parametrize(
    ("definition", "errors"),
    [
        (
            {"nodes": {"a": {"model": "none"}, "b": {"model": "zimg", "needs": ["c"]}}},
            [("/definition/nodes/a/model", "unknown_model"), ("/definition/nodes/b/needs/0", "unknown_node")],
        ),
        (
            {"name": "a b", "nodes": {"a": {"modle": "zimg"}}},
            [("/definition/name", "invalid"), ("/definition/nodes/a/modle", "unknown_field")],
        ),
        ({}, [("/definition/nodes", "required")]),
        ([], [("/definition", "wrong_type")]),
        ({"name": "x", "description": "y" * 300_000, **ASK}, [("/definition", "too_large")]),
        ({"nodes": {"s": {"workflow": "_film"}}}, [("/definition/nodes/s/workflow", "invalid")]),
    ],
)
def test_a_wrong_definition_is_refused_with_its_places(
    acme: Account, definition: Any, errors: list[tuple[str, str]]
) -> None:
    answer = run_inline(acme, definition)
    assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed")
    assert [(one["pointer"], one["code"]) for one in answer.json()["errors"]] == errors
    assert not Workflow.objects.exists()


def test_inputs_that_the_definition_refuses_leave_nothing(acme: Account) -> None:
    answer = run_inline(acme, inputs={})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/inputs")
    assert not Workflow.objects.exists()


def test_a_repeated_request_returns_the_same_run(acme: Account) -> None:
    first, again = run_inline(acme, key="k"), run_inline(acme, key="k")
    assert first.json()["run_id"] == again.json()["run_id"]
    assert again.headers["Idempotency-Replayed"] == "true"
    assert run_inline(acme, ASK, key="k").json()["code"] == "idempotency_conflict"
    put(acme)
    named = post(acme, "workflows/film/runs", {"inputs": INPUTS}, **{"Idempotency-Key": "k"})
    assert named.json()["code"] == "idempotency_conflict"
    assert Run.objects.count() == 1


def test_a_key_for_some_models_reaches_no_others(acme: Account) -> None:
    make_model("other")
    acme.client.credentials(
        HTTP_AUTHORIZATION=f"Bearer {create_key(acme.tenant, allowed_models=['other'])[1]}"
    )
    answer = run_inline(acme)
    assert (answer.status_code, answer.json()["code"]) == (403, "model_not_allowed")
    assert answer.json()["errors"][0]["pointer"] == "/definition/nodes/image/model"
    assert run_inline(acme, {"nodes": {"a": {"model": "other"}}}).status_code == 202
    assert Run.objects.get().key_models == ["other"]


def test_a_run_takes_the_tokens_of_its_nodes(acme: Account) -> None:
    acme.tenant.submits_per_second, acme.tenant.submit_burst = 0.001, 3
    acme.tenant.save()
    assert [run_inline(acme).status_code, run_inline(acme).status_code] == [202, 429]


def test_no_workflow_is_named_like_the_path_of_inline_runs(acme: Account, api: ApiHarness) -> None:
    assert put(acme, name="runs").status_code == 405
    assert put(acme, name="_film").status_code == 404, "nor like those that keep inline definitions"
    run_inline(acme)
    assert post(acme, "workflows/_film/runs", {"inputs": INPUTS}).status_code == 404
    assert post(acme, "workflows/runs", {"inputs": INPUTS}).json()["errors"][0]["pointer"] == "/definition"


def test_the_definitions_of_a_tenant_are_bounded(acme: Account, other: Account, settings: Any) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, workflow_inline_versions=2, workflow_versions=1)
    names = [run_inline(acme, {"name": name, **ASK}).status_code for name in ("a", "b", "a")]
    assert names == [202, 202, 202]
    answer = run_inline(acme, {"name": "c", **ASK})
    assert (answer.status_code, answer.json()["code"]) == (409, "too_many_versions")
    assert answer.json()["errors"][0]["pointer"] == "/definition"
    assert "2 inline definitions (DISPATCHER_WORKFLOW_INLINE_VERSIONS)" in answer.json()["detail"]
    assert Run.objects.count() == 3
    assert not Workflow.objects.filter(name="_c").exists()
    assert put(acme).status_code == 201, "they take no place of stored versions"
    assert run_inline(other).status_code == 202


def test_inline_runs_share_one_label_in_metrics(acme: Account, api: ApiHarness) -> None:
    for name in ("a", "b"):
        run_inline(acme, {"name": name, **ASK})
    runs = next(iter(collect(api.ports.clock.now(), name_tenants=True)))
    assert {sample.labels["workflow"] for sample in runs.samples} == {"_inline"}
    assert {sample.value for sample in runs.samples if sample.labels["state"] == "running"} == {2}


def test_an_operators_inline_run_is_audited(operator: Account) -> None:
    run_id = run_inline(operator, ASK).json()["run_id"]
    entry = AuditEntry.objects.get(action="start_run")
    assert (entry.target, entry.detail) == (f"run:{run_id}", {"workflow": "_inline", "version": 1})


@pytest.mark.database
def test_definitions_go_after_their_last_run_and_stored_versions_stay(acme: Account, api: ApiHarness) -> None:
    put(acme)
    for definition in (NAMED, {**NAMED, "output": 1}, {"name": "b", **ASK}):
        run_inline(acme, definition)
    assert inline_versions.sweep(api.ports) == SweepCount()
    Run.objects.filter(version__sha256=Version.objects.get(workflow__name="_film", number=1).sha256).delete()
    Run.objects.filter(version__workflow__name="_b").delete()
    assert inline_versions.sweep(api.ports) == SweepCount(looked=2, repaired=2)
    left = Version.objects.order_by("workflow__name").values_list("workflow__name", "number")
    assert list(left) == [("_film", 2), ("film", 1)]
    assert not Workflow.objects.filter(name="_b").exists()
    again = run_inline(acme)
    assert again.json()["version"] == 3, "a number is not given twice"


@pytest.mark.database
def test_a_definition_that_starts_meanwhile_is_not_deleted(acme: Account, api: ApiHarness) -> None:
    """Starts race with the sweep and with each other: each run has its version, each content one."""
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one writer")

    def play(number: int) -> int:
        try:
            if number % 3 == 0:
                Run.objects.filter(version__workflow__name="_film").delete()
                inline_versions.sweep(api.ports)
                return 202
            return int(run_inline(acme).status_code)
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(play, range(60))) == {202}
    assert Version.objects.count() <= 1
