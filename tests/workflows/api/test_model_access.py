"""An API key for some models of its tenant reaches no others through workflows and schedules."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.domain.errors import Refused
from jobs.models import ApiKey, Job
from jobs.operations.tenants import create_key
from tests.support.api_harness import Account, ApiHarness, forget_keys, with_key
from tests.support.factories import make_model
from tests.support.workflow_api import advance, post
from workflows.models import Node, Run
from workflows.schedules.execution.launch import prepare
from workflows.schedules.models import Firing, Schedule

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]

OF_A, OF_B = {"nodes": {"x": {"model": "a"}}}, {"nodes": {"x": {"model": "b"}}}
OUTER = {"nodes": {"in": {"workflow": "inner"}}}


@pytest.fixture
def limited(acme: Account) -> Account:
    """A key of the tenant for the model a alone."""
    make_model("a")
    make_model("b")
    return for_models(acme, ["a"])


def for_models(acme: Account, models: list[str] | None) -> Account:
    _, key = create_key(acme.tenant, ApiKey.Kind.TENANT, allowed_models=models)
    return with_key(acme, key)


def put(account: Account, name: str, definition: Any) -> Any:
    return account.client.put(f"/api/v1/workflows/{name}", definition, format="json")


def refusal(answer: Any) -> tuple[int, str, str]:
    body = answer.json()
    assert body["errors"][0]["code"] == "model_not_allowed", body
    return answer.status_code, body["errors"][0]["pointer"], body["errors"][0]["detail"]


def started(account: Account, name: str) -> str:
    answer = post(account, f"workflows/{name}/runs")
    assert answer.status_code == 202, answer.json()
    return str(answer.json()["run_id"])


def test_a_definition_with_a_model_of_others_is_refused(limited: Account) -> None:
    assert put(limited, "w", OF_A).status_code == 201
    answer = put(limited, "w", OF_B)
    text = "This key may not submit to 'b', which the node x names."
    assert refusal(answer) == (403, "/nodes/x/model", text)
    handler = {"nodes": {**OF_A["nodes"], "f": {"model": "b"}}, "on_failure": {"node": "f"}}
    assert refusal(put(limited, "w", handler))[1] == "/nodes/f/model"


def test_so_is_one_that_contains_such_a_workflow(limited: Account, acme: Account) -> None:
    put(acme, "inner", {"nodes": {"deep": {"workflow": "deepest"}}})
    put(acme, "deepest", OF_A)
    assert put(limited, "w", OUTER).status_code == 201
    put(acme, "deepest", OF_B)
    text = "This key may not submit to 'b', which the node x of the workflow deepest names."
    assert refusal(put(limited, "v", OUTER)) == (403, "/nodes/in/workflow", text)
    pinned = {"nodes": {"in": {"workflow": "deepest", "version": 1}}}
    assert put(limited, "v", pinned).status_code == 201


def test_a_run_of_a_workflow_with_a_model_of_others_does_not_start(limited: Account, acme: Account) -> None:
    put(acme, "inner", OF_B)
    put(acme, "outer", OUTER)
    assert refusal(post(limited, "workflows/inner/runs"))[:2] == (403, "/nodes/x/model")
    assert refusal(post(limited, "workflows/outer/runs"))[:2] == (403, "/nodes/in/workflow")
    assert not Run.objects.exists()
    assert post(acme, "workflows/outer/runs").status_code == 202


def test_a_newest_version_that_changes_under_a_run_reaches_no_other_model(
    limited: Account, acme: Account, api: ApiHarness
) -> None:
    put(acme, "inner", OF_A)
    put(acme, "outer", OUTER)
    run_id = started(limited, "outer")
    put(acme, "inner", OF_B)
    advance(api, run_id)
    child = Run.objects.get(depth=1)
    advance(api, child.id)
    node = Node.objects.get(run=child)
    assert (node.state, node.code, Job.objects.count()) == ("failed", "model_not_allowed", 0)
    assert node.detail == "the key that started the run may not submit to 'b'"
    advance(api, run_id)
    assert Run.objects.get(id=run_id).state == "failed"


def test_a_run_keeps_the_models_that_its_key_had_at_its_start(
    limited: Account, acme: Account, api: ApiHarness
) -> None:
    put(acme, "w", OF_A)
    run_id = started(limited, "w")
    ApiKey.objects.filter(allowed_models=["a"]).update(allowed_models=[])
    forget_keys()
    advance(api, run_id)
    assert Job.objects.get().model == "a"
    assert refusal(post(limited, "workflows/w/runs"))[0] == 403


def test_a_restart_takes_the_models_of_the_key_that_restarts(
    limited: Account, acme: Account, api: ApiHarness
) -> None:
    put(acme, "w", OF_B)
    run_id = started(acme, "w")
    post(acme, f"runs/{run_id}/cancel")
    advance(api, run_id)
    assert refusal(post(limited, f"runs/{run_id}/restart"))[:2] == (403, "/nodes/x/model")
    assert Run.objects.get(id=run_id).state == "cancelled"
    both = for_models(acme, ["a", "b"])
    assert post(both, f"runs/{run_id}/restart").status_code == 202
    assert Run.objects.get(id=run_id).key_models == ["a", "b"]
    post(acme, f"runs/{run_id}/cancel")
    advance(api, run_id)
    assert post(acme, f"runs/{run_id}/restart").status_code == 202
    assert Run.objects.get(id=run_id).key_models is None


def nightly(account: Account, **target: Any) -> Any:
    body = {"cron": "0 3 * * *", **target}
    return account.client.put("/api/v1/schedules/nightly", body, format="json")


def test_a_schedule_of_a_workflow_that_contains_a_model_of_others_is_refused(
    limited: Account, acme: Account
) -> None:
    put(acme, "inner", OF_B)
    put(acme, "outer", OUTER)
    status, pointer, text = refusal(nightly(limited, workflow={"name": "outer"}))
    assert (status, pointer) == (422, "/workflow/name")
    assert text == "This key may not submit to 'b', which the node x of the workflow inner names."
    assert nightly(acme, workflow={"name": "outer"}).status_code == 201


def test_a_schedule_keeps_the_models_of_the_key_that_stored_it(
    limited: Account, acme: Account, api: ApiHarness
) -> None:
    put(acme, "inner", OF_A)
    put(acme, "outer", OUTER)
    assert nightly(limited, workflow={"name": "outer"}).status_code == 201
    schedule = Schedule.objects.get()
    launch = prepare(schedule, api.clock.now(), api.ports)
    assert launch.run is not None
    assert launch.run.key_models == ["a"]
    put(acme, "inner", OF_B)
    with pytest.raises(Refused) as refused:
        prepare(schedule, api.clock.now(), api.ports)
    assert (refused.value.code, refused.value.pointer) == ("model_not_allowed", "/nodes/in/workflow")
    assert nightly(acme, workflow={"name": "outer"}).status_code == 200  # the same body, of another key
    assert Schedule.objects.get().key_models is None
    assert post(acme, "schedules/nightly/trigger").status_code == 202


def test_a_key_triggers_and_backfills_what_it_may_submit_alone(limited: Account, acme: Account) -> None:
    put(acme, "w", OF_B)
    span = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-03T00:00:00Z"}
    for target in ({"workflow": {"name": "w"}}, {"submit": {"model": "b", "payload": {}}}):
        assert nightly(acme, **target).status_code in (200, 201)
        assert post(limited, "schedules/nightly/trigger").json()["code"] == "model_not_allowed"
        assert post(limited, "schedules/nightly/backfill", span).json()["code"] == "model_not_allowed"
    assert not Firing.objects.exists()
    assert post(acme, "schedules/nightly/trigger").status_code == 202
    assert post(acme, "schedules/nightly/backfill", span).status_code == 202
