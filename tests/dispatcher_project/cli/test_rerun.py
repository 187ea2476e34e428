"""`rerun`: a new job with the values of an earlier one, or with changes."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from gpus.models import AuditEntry
from jobs.models import Job
from tests.support.queue_harness import QueueHarness
from tests.support.terminal import Terminal

pytestmark = pytest.mark.django_db


@pytest.fixture
def job(queue: QueueHarness) -> Job:
    queue.server()
    made = queue.job(push=False)
    Job.objects.filter(id=made.id).update(payload={"prompt": "a fox", "size": {"width": 64}}, priority=4)
    return Job.objects.get(id=made.id)


def test_a_job_runs_again_with_its_values(terminal: Terminal, job: Job) -> None:
    run = terminal("rerun", job.id.lower())
    new = Job.objects.exclude(id=job.id).get()
    assert run.said == f"{new.id} leased, runs {job.id} again\n"
    assert (new.rerun_of, new.payload, new.priority) == (job.id, job.payload, 4)
    assert AuditEntry.objects.get().actor.startswith("cli:")


def test_values_of_the_payload_are_changed(terminal: Terminal, job: Job) -> None:
    options = ("--set", "size.width=512", "-s", "prompt=a wolf", "-s", "new.deep=[1]", "--priority", "2")
    document = terminal("rerun", job.id, *options, "--json").json
    new = Job.objects.get(id=document["job_id"])
    assert document["rerun_of"] == job.id
    assert new.payload == {"prompt": "a wolf", "size": {"width": 512}, "new": {"deep": [1]}}
    assert new.priority == 2


def test_a_payload_can_be_read_from_standard_input(
    terminal: Terminal, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b'{"prompt": "x"}')))
    terminal("rerun", job.id, "--payload", "-", "--set", "steps=3")
    assert Job.objects.exclude(id=job.id).get().payload == {"prompt": "x", "steps": 3}


def test_the_same_key_means_the_same_job(terminal: Terminal, job: Job) -> None:
    terminal("rerun", job.id, "--idempotency-key", "k")
    assert "(run again before under this key)" in terminal("rerun", job.id, "--idempotency-key", "k").said
    assert Job.objects.count() == 2


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--set", "prompt.deep=1"), "prompt.deep: the payload has no object there"),
        (("--set", "prompt"), "is not KEY=VALUE"),
        (("--payload", "[]"), "/payload: Must be of type object"),
        (("--payload", "{"), "the payload: it is not valid JSON"),
        (("--priority", "12"), "/priority: Must be at most 9"),
    ],
)
def test_values_that_do_not_fit_are_an_error_in_one_line(
    terminal: Terminal, job: Job, options: tuple[str, ...], text: str
) -> None:
    run = terminal("rerun", job.id, *options)
    assert run.status != 0
    assert text in run.said
    assert Job.objects.count() == 1


def test_a_removed_job_is_an_error_that_says_why(terminal: Terminal, job: Job) -> None:
    job.delete()
    run = terminal("rerun", job.id)
    assert run.status == 2
    assert "retention removed it" in run.said
