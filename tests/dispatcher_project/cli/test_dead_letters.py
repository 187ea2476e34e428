"""`dlq`: looking at dead letters, and retrying or dismissing some."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from django.core.serializers.json import DjangoJSONEncoder
from rest_framework.test import APIRequestFactory

from dispatcher_project.cli import job_filters
from dispatcher_project.management.commands import dlq
from gpus.api.permissions import IsOperator
from gpus.models import AuditEntry
from jobs.api.job_control import DeadLetterGroups
from jobs.domain.states import JobState
from jobs.models import Job
from jobs.reports import retried
from jobs.transitions import end_waiting
from tests.support.queue_harness import QueueHarness
from tests.support.terminal import Terminal, while_waiting

pytestmark = pytest.mark.django_db


def fail(queue: QueueHarness, message: str = "exit code 1", **fields: object) -> Job:
    job = queue.job(push=False, **fields)
    end_waiting(job.id, JobState.FAILED, queue.clock.now(), code="run_failed", message=message)
    queue.clock.advance(1)
    return job


def states() -> list[str]:
    return list(Job.objects.order_by("id").values_list("state", flat=True))


def test_the_latest_dead_letters_and_their_groups_are_listed(queue: QueueHarness, terminal: Terminal) -> None:
    first, second = fail(queue, "exit code 1"), fail(queue, "exit code 2", model="other")
    odd = fail(queue, "out of memory")
    assert [line.split()[0] for line in terminal("dlq").said.splitlines()[1:]] == [
        odd.id,
        second.id,
        first.id,
    ]
    assert [one["job_id"] for one in terminal("dlq", "--model", "other", "--json").json] == [second.id]
    groups = terminal("dlq", "groups", "--json").json["results"]
    assert [(one["count"], one["models"]) for one in groups] == [(2, {"m": 1, "other": 1}), (1, {"m": 1})]
    assert groups[0]["fingerprint"] in terminal("dlq", "groups").said
    only = terminal("dlq", "list", "--fingerprint", groups[1]["fingerprint"], "--json").json
    assert [one["job_id"] for one in only] == [odd.id]


def test_groups_have_the_apis_document(
    queue: QueueHarness, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(queue, "exit code 1")
    fail(queue, "out of memory", model="other")
    monkeypatch.setattr(IsOperator, "has_permission", lambda *_: True)
    answer = DeadLetterGroups.as_view()(APIRequestFactory().get("/api/v1/admin/dlq/groups"))
    assert len(answer.data["results"]) == 2
    assert terminal("dlq", "groups", "--json").json == json.loads(
        json.dumps(answer.data, cls=DjangoJSONEncoder)
    )


def test_a_group_is_retried_and_nothing_else(
    queue: QueueHarness, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_filters, "PAGE_JOBS", 2)
    queue.server()
    for number in range(5):
        fail(queue, f"exit code {number}")
    fail(queue, "out of memory")
    group = terminal("dlq", "groups", "--json").json["results"][0]["fingerprint"]
    assert (
        terminal("dlq", "retry", "--fingerprint", group, "--dry-run").said == "would retry 5 dead letters\n"
    )
    assert set(states()) == {"failed"}
    run = terminal("dlq", "retry", "--fingerprint", group, "--yes", "--json")
    counts = {"completed": 0, "failed": 0, "cancelled": 0, "unfinished": 5, "gone": 0}
    assert run.json == {"done": 5, "refused": 0, "remaining": 0, **counts}
    assert states() == ["queued"] * 5 + ["failed"]
    entries = list(AuditEntry.objects.values_list("actor", "action"))
    assert {action for _, action in entries} == {"retry_jobs"}
    assert all(actor.startswith("cli:") for actor, _ in entries)


def fail_again(queue: QueueHarness, message: str = "again") -> None:
    for job in Job.objects.filter(state="queued"):
        end_waiting(job.id, JobState.FAILED, queue.clock.now(), code="bad_input", message=message)


def test_a_retry_says_which_jobs_failed_again(
    queue: QueueHarness, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dlq, "RETRY_WAIT_SECONDS", 60.0)
    jobs = [fail(queue) for _ in range(2)]
    while_waiting(monkeypatch, retried, lambda: fail_again(queue))
    run = terminal("dlq", "retry", "--all", "--yes")
    lines = run.said.splitlines()
    assert (run.status, lines[0]) == (1, "2 retried: 2 failed again")
    assert "--client-errors" in lines[1]
    assert terminal("dlq").said == "no dead letters\n"
    found = terminal("dlq", "--client-errors", "--json").json
    assert {one["job_id"] for one in found} == {job.id for job in jobs}
    run = terminal("dlq", "retry", jobs[0].id)
    assert (run.status, run.said.splitlines()[0]) == (1, f"{jobs[0].id} retried, failed again")


def test_a_retry_waits_no_longer_than_it_may(queue: QueueHarness, terminal: Terminal) -> None:
    first, second = fail(queue), fail(queue)
    assert terminal("dlq", "retry", first.id, "--wait", "0").said == f"{first.id} retried, queued\n"
    run = terminal("dlq", "retry", "--all", "--yes", "--wait", "0.01")
    assert run.said == "1 retried: 1 not finished yet\n"
    assert terminal("dlq", "retry", second.id, "--wait", "9999").status != 0


def test_an_unclear_or_unconfirmed_command_changes_nothing(queue: QueueHarness, terminal: Terminal) -> None:
    fail(queue)
    assert "Confirm with --yes" in terminal("dlq", "retry", "--all").said, "no terminal to answer from"
    assert "give job ids, a filter" in terminal("dlq", "dismiss").said
    assert "not both" in terminal("dlq", "retry", "X", "--model", "m").said
    assert "ids are for retry" in terminal("dlq", "list", "X").said
    assert states() == ["failed"]


@pytest.mark.parametrize(("answer", "state"), [("y\n", "queued"), ("\n", "failed"), ("", "failed")])
def test_a_person_at_the_terminal_is_asked_to_confirm(
    queue: QueueHarness, terminal: Terminal, monkeypatch: pytest.MonkeyPatch, answer: str, state: str
) -> None:
    class Keyboard(StringIO):
        def isatty(self) -> bool:
            return True

    fail(queue)
    monkeypatch.setattr("sys.stdin", Keyboard(answer))
    run = terminal("dlq", "retry", "--all")
    assert states() == [state]
    assert (run.said == "not confirmed: nothing was changed") == (state == "failed")


def test_ids_that_are_not_dead_letters_are_reported(queue: QueueHarness, terminal: Terminal) -> None:
    letter, waiting = fail(queue), queue.job(push=False)
    run = terminal("dlq", "dismiss", letter.id.lower(), waiting.id)
    assert run.status == 1
    assert run.said.splitlines() == [f"{letter.id} done", f"{waiting.id} The job is not a dead letter."]
    assert terminal("dlq").said == "no dead letters\n"
    assert AuditEntry.objects.get().target == f"job:{letter.id}"


def test_a_job_that_fails_again_meanwhile_is_not_retried_twice(
    queue: QueueHarness, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a retry of jobs that fail at once would never end."""
    monkeypatch.setattr(job_filters, "PAGE_JOBS", 2)
    for _ in range(3):
        fail(queue)
    real, calls = job_filters.retry_jobs, []

    def retry_and_fail_again(*arguments: object, **options: object) -> object:
        outcome = real(*arguments, **options)  # type: ignore[arg-type]
        calls.append(outcome)
        assert len(calls) <= 2
        for job in Job.objects.filter(state="queued"):
            end_waiting(job.id, JobState.FAILED, queue.clock.now(), code="run_failed", message="again")
        return outcome

    monkeypatch.setattr(job_filters, "retry_jobs", retry_and_fail_again)
    assert terminal("dlq", "retry", "--all", "--yes", "--json").json["done"] == 3


@pytest.mark.parametrize("command", ["list", "groups", "retry"])
def test_an_unknown_tenant_is_an_error_that_lists_the_tenants(terminal: Terminal, command: str) -> None:
    result = terminal("dlq", command, "--tenant", "unknown")
    assert result.status == 2
    assert result.said.startswith("no tenant is named unknown; there are ")
