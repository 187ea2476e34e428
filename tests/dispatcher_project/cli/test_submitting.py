"""`submit`: through the service and the API's own checks."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from artifacts.uploads import Wanted, promise
from dispatcher_project.management.commands import submit as submitting
from gpus.models import AuditEntry, ModelConfig, Process
from gpus.registry.audit import cli_actor
from jobs.domain.states import JobState
from jobs.models import ApiKey, Job, Tenant
from jobs.operations.tenants import create_key
from jobs.transitions import end_waiting
from tests.support.queue_harness import QueueHarness
from tests.support.terminal import Terminal, while_waiting

pytestmark = pytest.mark.django_db
PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


def test_a_job_is_stored_with_its_options_and_queued(queue: QueueHarness, terminal: Terminal) -> None:
    queue.server()
    options = ("--priority", "2", "--tag", "night", "--tag", "x", "--json")
    first = terminal("submit", "m", '{"a": 1}', *options).json
    job = Job.objects.get(id=first["job_id"])
    assert (job.payload, job.priority, job.tags, job.tenant) == ({"a": 1}, 2, ["night", "x"], queue.tenant)
    assert (first["outcome"], queue.leases.depth("m").waiting) == ("leased", {"m": 1})
    assert terminal("submit", "m", "{}").said.strip().endswith("queued, position 2")


def test_a_submit_is_audited_once(queue: QueueHarness, terminal: Terminal) -> None:
    queue.server()
    for _ in range(2):
        terminal("submit", "m", "{}", "--idempotency-key", "k1")
    [job], [entry] = Job.objects.all(), AuditEntry.objects.all()
    assert (entry.actor, entry.action, entry.target) == (cli_actor(), "submit_job", f"job:{job.id}")
    assert entry.detail == {"tenant": job.tenant_id}


def test_a_key_makes_a_repetition_harmless(queue: QueueHarness, terminal: Terminal) -> None:
    queue.server()
    key = ("--idempotency-key", "k1")
    first = terminal("submit", "m", "{}", *key, "--json").json
    again = terminal("submit", "m", "{}", *key, "--json").json
    assert (again["job_id"], again["replayed"]) == (first["job_id"], True)
    other = terminal("submit", "m", '{"b": 2}', *key)
    assert (other.status, "another body" in other.said) == (2, True)


def test_payloads_come_from_stdin_and_files_too(
    queue: QueueHarness, terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.server()
    (tmp_path / "p.json").write_text('{"from": "file"}')
    monkeypatch.setattr(
        submitting.sys, "stdin", SimpleNamespace(buffer=io.BytesIO('{"from": "stdin é"}'.encode()))
    )
    for payload in (f"@{tmp_path}/p.json", "-"):
        assert terminal("submit", "m", payload).status == 0
    assert [job.payload["from"] for job in Job.objects.order_by("id")] == ["file", "stdin é"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nope", "{}"], "No model 'nope' is registered."),
        (["m", "[1]"], "/payload: Must be of type object"),
        (["m", "{bad"], "the payload: it is not valid JSON"),
        (["m", '{"a": "\\u0000"}'], "the payload: /a: Text must not contain the NUL"),
        (["m", "@/nowhere"], "the payload cannot be read"),
        (["m", "{}", "--priority", "10"], "/priority: Must be at most 9"),
        (["m", "{}", "--tenant", "who"], "no tenant is named who; there are"),
        (["m", "{}", "--callback-url", "http://169.254.1.1/"], "callback"),
    ],
)
def test_a_wrong_submit_is_one_line_and_stores_nothing(
    queue: QueueHarness, terminal: Terminal, arguments: list[str], says: str
) -> None:
    queue.server()
    run = terminal("submit", *arguments)
    assert (run.status, says in run.said) == (2, True), run.said
    assert not Job.objects.exists()


def test_the_tenant_must_be_clear(queue: QueueHarness, terminal: Terminal) -> None:
    queue.server()
    Tenant.objects.create(name="acme")
    assert "name a tenant with --tenant:" in terminal("submit", "m", "{}").said
    ops = Tenant.objects.create(name="ops")
    create_key(ops, ApiKey.Kind.OPERATOR, name="k")
    assert terminal("submit", "m", "{}").status == 0
    assert Job.objects.get().tenant == ops, "the only one with an operator's key"
    Job.objects.all().delete()
    operator = Tenant.objects.create(name="operator")
    assert terminal("submit", "m", "{}").status == 0
    assert Job.objects.get().tenant == operator


@pytest.mark.parametrize(("state", "status"), [("completed", 0), ("failed", 1)])
def test_wait_prints_the_result_or_the_error(
    queue: QueueHarness, terminal: Terminal, monkeypatch: pytest.MonkeyPatch, state: str, status: int
) -> None:
    queue.server()

    def work() -> None:
        job = Job.objects.get()
        end_waiting(job.id, JobState.FAILED, queue.clock.now(), code="timeout", message="too slow")
        if state == "completed":
            Job.objects.update(state=state, result={"url": "s3://x"})

    while_waiting(monkeypatch, submitting, work)
    run = terminal("submit", "m", "{}", "--wait")
    assert run.status == status
    assert ('"url": "s3://x"' if state == "completed" else "failed timeout too slow") in run.said


def test_wait_that_runs_out_has_a_status_of_its_own(
    queue: QueueHarness, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    while_waiting(monkeypatch, submitting, lambda: None)
    queue.server()
    run = terminal("submit", "m", "{}", "--wait", "0.001", "--json")
    assert (run.status, run.json["status"]) == (3, "queued")


def test_without_redis_the_job_is_durable(queue: QueueHarness, terminal: Terminal) -> None:
    queue.server()
    queue.redis_is_gone = True
    run = terminal("submit", "m", "{}")
    assert (run.status, Job.objects.get().state) == (0, "queued")


def test_no_file_is_submitted_from_a_host_that_may_not_have_the_webs_folder(
    queue: QueueHarness, terminal: Terminal, tmp_path: Path, settings: Any
) -> None:
    settings.ARTIFACT_FOLDER = tmp_path / "store"
    settings.DISPATCHER = replace(settings.DISPATCHER, artifact_reserve_bytes=0)
    queue.server()
    image = {"type": "string", "format": "uri", "contentMediaType": "image/png"}
    ModelConfig.objects.filter(name="m").update(payload_schema={"properties": {"image": image}})
    queue.ports.registry.clear()
    digest, now = hashlib.sha256(PNG).hexdigest(), queue.ports.clock.now()
    promised = promise(Wanted(queue.tenant.pk, digest, len(PNG)), queue.ports.artifact_store, now).artifact
    uri = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    payloads = [json.dumps({"image": one}) for one in (uri, {"$artifact": promised.pk})]
    Process.objects.create(name="web-9:7:a", kind="web", layout=1, started_at=now, beat_at=now)
    for payload in payloads:
        run = terminal("submit", "m", payload)
        assert (run.status, "DISPATCHER_ARTIFACT_STORE" in run.said) == (2, True), run.said
    assert terminal("submit", "m", "{}").status == 0
    assert [one for one in (tmp_path / "store").rglob("*") if one.is_file()] == []
    Process.objects.all().delete()
    assert terminal("submit", "m", payloads[0]).status == 0
