"""`job`: a job's way, and following it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dispatcher_project.management.commands import job as command
from gpus.errors import BadInput, RunFailed, ServerFailed
from gpus.protocol import LeaseRef
from jobs import transitions
from jobs.domain.retry import Ending, RetryPolicy
from jobs.models import Attempt
from jobs.transitions import End
from tests.support.factories import make_running
from tests.support.queue_harness import QueueHarness
from tests.support.terminal import Terminal, while_waiting

pytestmark = pytest.mark.django_db


def ended(
    queue: QueueHarness, job: Any, attempt: str, ending: Ending, policy: RetryPolicy | None = None
) -> None:
    at = queue.clock.now()
    took = (at - Attempt.objects.get(id=attempt).started_at).total_seconds()
    end = End(job.id, attempt, 1, "gpu-1/0", ending, policy or RetryPolicy(), at, gpu_seconds=took)
    assert transitions.end_attempt(end).won


def test_a_job_is_shown_with_attempts_timeline_and_events(queue: QueueHarness, terminal: Terminal) -> None:
    job = queue.job()
    queue.clock.advance(2)
    attempt = make_running(job, at=queue.clock.now())
    queue.clock.advance(5)
    ended(queue, job, attempt, Ending(error=ServerFailed("boom \x1b[31m")))
    transitions.queue_retry(job.id, queue.clock.now())
    attempt = make_running(job, at=queue.clock.now())
    queue.clock.advance(30)
    ended(queue, job, attempt, Ending())

    lines = terminal("job", job.id.lower()).said.splitlines()
    assert lines[0].split()[:3] == [job.id, "completed", "m"]
    assert "waited 2.0 s, last run 30 s, 35 s in all attempts, total 37 s, 1 try used" in lines[1]
    first, second = (line for line in lines if "gpu-1/0" in line and "█" in line)
    assert first.rstrip().endswith("5.0 s  server_error boom ·[31m")
    assert second.rstrip().endswith("30 s   completed")
    assert [line.split()[-1] for line in lines if "completed    attempt" in line] == ["status=completed"]

    output = terminal("job", job.id, "--json").json
    assert [event["type"] for event in output["events"]] == [
        "queued", "started", "retrying", "queued", "started", "completed",
    ]  # fmt: skip
    assert [attempt["state"] for attempt in output["attempts"]] == ["failed", "completed"]


def test_the_run_time_of_a_waiting_job_counts_its_runs_alone(queue: QueueHarness, terminal: Terminal) -> None:
    job = queue.job()
    attempt = make_running(job, at=queue.clock.now())
    queue.clock.advance(5)
    ended(queue, job, attempt, Ending(error=ServerFailed("boom")))
    transitions.queue_retry(job.id, queue.clock.now())
    queue.clock.advance(30)
    assert "waited 0.0 s, ran 5.0 s, 35 s since the submit, 1 try used" in terminal("job", job.id).said


def test_a_retried_dead_letter_shows_its_new_round(queue: QueueHarness, terminal: Terminal) -> None:
    job = queue.job()
    attempt = make_running(job, at=queue.clock.now())
    queue.clock.advance(5)
    ended(queue, job, attempt, Ending(error=BadInput("no")))
    queue.clock.advance(3600)
    assert transitions.requeue_failed(job.id, queue.clock.now()) is not None
    queue.clock.advance(2)
    make_running(job, at=queue.clock.now())
    queue.clock.advance(7)
    said = terminal("job", job.id).said
    assert "UTC, round 2, waited 0.0 s, last run 7.0 s, 12 s in all attempts, " in said


TRACE = """\
Traceback (most recent call last):
  File "/opt/x/gpu_host/local/child.py", line 165, in _run
    result = self._call(run)
             ^^^^^^^^^^^^^^^
  File "/srv/models/flux.py", line 12, in run
    raise ValueError("no weights")
ValueError: no weights
"""


def test_equal_attempts_are_folded_and_have_no_traceback(queue: QueueHarness, terminal: Terminal) -> None:
    job, policy = queue.job(), RetryPolicy(same_failures=0)
    for text in ["ValueError: no weights"] * 5 + ["exit code 1"] * 2:
        attempt = make_running(job, at=queue.clock.now())
        queue.clock.advance(2)
        ended(queue, job, attempt, Ending(error=RunFailed(text, detail=TRACE)), policy)
        transitions.queue_retry(job.id, queue.clock.now())
    lines = terminal("job", job.id).said.splitlines()
    rows = [line for line in lines if "gpu-1/0" in line and "█" in line]
    assert [row.split()[0] for row in rows] == ["1", "2–5", "6", "7"]
    assert rows[0].endswith("2.0 s    run_failed ValueError: no weights")
    assert rows[1].endswith("≤ 2.0 s  the same error, 4 times")
    assert rows[3].endswith("run_failed exit code 1")
    assert "Traceback" not in "".join(lines)
    started = [line.split("attempt=")[1].split()[0] for line in lines if "started  " in line]
    assert started == ["1", "5", "6", "7"]
    [left_out] = [line for line in lines if line.startswith("…")]
    assert left_out == "… equal attempts: started ×3, retrying ×3, queued ×3"


def test_a_running_job_shows_its_percent_and_text(queue: QueueHarness, terminal: Terminal) -> None:
    job = queue.job()
    attempt = make_running(job, at=queue.clock.now())
    ref = LeaseRef("gpu-1/0", job.id, attempt, 1)
    said = {"part": 1, "progress": 0.62, "text": "step \x1b[31m 12"}
    assert transitions.note_progress(ref, "progress", said, queue.clock.now())
    assert "  running 62 %  step ·[31m 12  m  of" in terminal("job", job.id).said.splitlines()[0]
    row = next(line for line in terminal("jobs").said.splitlines() if job.id in line)
    assert "running 62 %" in row
    assert terminal("jobs", "--json").json["results"][0]["progress"]["value"] == 0.62
    ended(queue, job, attempt, Ending())
    assert "%" not in terminal("job", job.id).said.splitlines()[0]


def test_a_traceback_is_shown_without_the_dispatchers_frames(queue: QueueHarness, terminal: Terminal) -> None:
    job = queue.job()
    assert terminal("job", job.id, "--traceback").said == f"no attempt of job {job.id} has a traceback"
    attempt = make_running(job, at=queue.clock.now())
    ended(queue, job, attempt, Ending(error=RunFailed("ValueError: no weights", detail=TRACE)))
    assert terminal("job", job.id, "--traceback").said.splitlines() == [
        "attempt 1 on gpu-1/0: run_failed",
        "Traceback (most recent call last):",
        '  File "/srv/models/flux.py", line 12, in run',
        '    raise ValueError("no weights")',
        "ValueError: no weights",
    ]
    shown = terminal("job", job.id, "--traceback", "--json").json
    assert shown["error"] == {"code": "run_failed", "message": "ValueError: no weights"}
    assert shown["traceback"].startswith("Traceback")


def test_it_follows_until_the_end(
    queue: QueueHarness, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = queue.job()
    steps: list[Callable[[], Any]] = [
        lambda: make_running(job, at=queue.clock.now()),
        lambda: None,
        lambda: ended(queue, job, type(job).objects.get().live_attempt, Ending()),
    ]

    def step() -> None:
        steps.pop(0)()

    while_waiting(monkeypatch, command, step)
    lines = terminal("job", job.id, "--follow").said.splitlines()
    assert [line.split()[3] for line in lines[-2:]] == ["started", "completed"]
    assert not steps

    run = terminal("job", job.id, "--follow", "--json")
    assert len(run.said.splitlines()) == 2, "over already: what it was, and what it is"


def test_an_unknown_job_is_one_line(terminal: Terminal) -> None:
    run = terminal("job", "nope")
    assert (run.status, run.said) == (
        2,
        "there is no job NOPE: it was never submitted here, or removed after its retention time",
    )
