"""Callbacks of runs: one per round, in the transaction that ends it, sent as those of jobs are."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection
from django.utils import timezone
from standardwebhooks import Webhook

from jobs.callbacks.message import renew_secret
from jobs.domain.errors import CallbackUrlRefused
from jobs.models import Callback
from jobs.sweeps import retention
from tests.support.receivers import Receiver, deliver, loopback_allowed, receiver
from tests.workflows.workflow_harness import WorkflowHarness, model
from workflows.domain.advance import RunEnd
from workflows.domain.states import RunState
from workflows.execution import advancer as advancing
from workflows.execution.callbacks import callback_for
from workflows.models import Run
from workflows.operations.erase import erase_run_data
from workflows.operations.restart import restart_run
from workflows.sweeps import old_runs, stalled_runs

__all__ = ["loopback_allowed", "receiver"]
pytestmark = pytest.mark.django_db(transaction=True)
NODES = {"a": model(payload={"echo": {"$ref": "inputs.x"}})}
DEFINITION = {"nodes": NODES, "output": {"said": {"$ref": "a.echo"}}}
FAILING = {"nodes": {"a": model(payload={"fault": {"$ref": "inputs.fault"}})}}


def ended(harness: WorkflowHarness, url: str, definition: Any = DEFINITION, inputs: Any = None) -> Run:
    run = harness.start(definition, {"x": "a secret"} if inputs is None else inputs, callback_url=url)
    return harness.to_end(run)


@pytest.mark.usefixtures("loopback_allowed")
def test_the_end_of_a_run_is_signed_and_sent_once(harness: WorkflowHarness, receiver: Receiver) -> None:
    secret, woken = renew_secret(harness.tenant), list[str]()
    harness.ports = harness.advancer.ports = replace(harness.ports, wake_callbacks=woken.extend)
    run = ended(harness, receiver.url)
    [message] = Callback.objects.all()
    assert (message.job_id, message.subject, woken) == (None, f"run:{run.id}", [message.id])
    assert deliver(message.id, now=timezone.now()) == "delivered"
    [got] = receiver.got
    body = Webhook(secret).verify(got.body, got.headers)
    assert got.headers["webhook-id"] == message.id
    assert {name: body[name] for name in ("run_id", "workflow", "version", "status", "round", "output")} == {
        "run_id": run.id, "workflow": "w", "version": 1, "status": "completed", "round": 1,
        "output": {"said": "a secret"},
    }  # fmt: skip


def test_each_round_has_its_own_callback(harness: WorkflowHarness) -> None:
    run = ended(harness, "https://hooks.example.com/", FAILING, {"fault": "fail"})
    restart_run(run.id, ports=harness.ports)
    harness.to_end(run)
    bodies = [json.loads(one.body) for one in Callback.objects.order_by("id")]
    assert [(body["round"], body["status"]) for body in bodies] == [(1, "failed"), (2, "failed")]
    assert bodies[0]["error"]["code"] == "node_failed"
    assert bodies[0]["error"]["node"] == "a"


@pytest.mark.database
def test_a_second_callback_of_a_round_is_impossible(harness: WorkflowHarness) -> None:
    run = ended(harness, "https://hooks.example.com/")
    again = callback_for(run, RunEnd(RunState.COMPLETED), None, now=timezone.now())
    assert again is not None
    with pytest.raises(IntegrityError):
        again.save(force_insert=True)


def test_a_run_does_not_end_without_its_callback(
    harness: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction that ends the run is the one that writes the row."""
    real = advancing.statements.delete_all

    def fail(model: Any, ids: Any) -> None:
        real(model, ids)
        if Callback.objects.exists():
            raise SystemExit("the process dies here")

    run = harness.start(DEFINITION, {"x": 1}, callback_url="https://hooks.example.com/")
    monkeypatch.setattr(advancing.statements, "delete_all", fail)
    with pytest.raises(SystemExit, match="dies"):
        harness.to_end(run)
    run.refresh_from_db()
    assert (run.state, Callback.objects.count()) == ("running", 0)
    monkeypatch.undo()
    harness.to_end(run)
    assert Callback.objects.count() == 1


@pytest.mark.database
def test_a_stalled_run_gets_its_callback(harness: WorkflowHarness) -> None:
    harness.keeps_laws = False  # no node ends
    run = harness.start(DEFINITION, {"x": 1}, callback_url="https://hooks.example.com/")
    harness.advance(run)
    connection.cursor().execute("DELETE FROM workflows_node WHERE run_id = %s", [run.id])
    Run.objects.filter(id=run.id).update(created_at=timezone.now() - timedelta(hours=1))
    stalled_runs.sweep(harness.ports)
    [message] = Callback.objects.all()
    assert json.loads(message.body)["error"]["code"] == "stalled"


def test_an_address_that_must_not_be_called_starts_no_run(harness: WorkflowHarness) -> None:
    with pytest.raises(CallbackUrlRefused):
        harness.start(DEFINITION, {"x": 1}, callback_url="http://127.0.0.1/hook")
    assert not Run.objects.exists()


@pytest.mark.database
def test_old_runs_go_with_their_callbacks_once_these_were_sent(
    harness: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ended(harness, "https://hooks.example.com/")
    monkeypatch.setattr(retention, "summed_up_to", lambda: 2**40)  # all is counted
    Run.objects.filter(id=run.id).update(finished_at=timezone.now() - timedelta(days=999))
    old_runs.sweep(harness.ports)
    assert Run.objects.exists(), "the callback is pending"
    Callback.objects.update(state="delivered")
    old_runs.sweep(harness.ports)
    assert not Run.objects.exists()
    assert not Callback.objects.exists()


@pytest.mark.database
def test_erasing_a_run_erases_its_callbacks(harness: WorkflowHarness) -> None:
    run = ended(harness, "https://hooks.example.com/")
    assert "a secret" in Callback.objects.get().body
    erase_run_data(run.id, ports=harness.ports)
    assert "a secret" not in Callback.objects.get().body
