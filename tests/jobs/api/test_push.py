from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from foundation.ids import new_id
from foundation.secrets import signed
from gpus.models import ModelConfig
from jobs import ports
from jobs.domain.errors import AttemptOver
from jobs.execution.pushed_results import PUSH_TOKEN, accept_push, admit_push
from jobs.models import Attempt, Job, PushedResult
from jobs.operations.erase import erase_job_data
from jobs.reports import counters
from tests.support.api_harness import ApiHarness
from tests.support.factories import make_job, make_running
from tests.support.problems import problem

BODY = {"status": "success", "result": {"url": "x"}}
GOES_ON = {"status": "processing"}


@pytest.fixture
def job(zimg: ModelConfig) -> Job:
    return make_job(zimg, at=timezone.now())


@pytest.fixture
def attempt(job: Job) -> str:
    return make_running(job, at=timezone.now())


def url(job: Job) -> str:
    return f"/api/v1/tasks/callback/{job.id}"


def push(client: APIClient, job: Job, attempt: str, body: Any = BODY) -> Any:
    return client.post(
        url(job), body, format="json", HTTP_X_CALLBACK_TOKEN=signed(attempt, purpose=PUSH_TOKEN)
    )


def end(attempt: str) -> None:
    Attempt.objects.filter(id=attempt).update(state="succeeded", finished_at=timezone.now())


def test_a_push_with_its_token_is_stored_and_announced(
    anonymous: APIClient, job: Job, attempt: str, api: ApiHarness
) -> None:
    for _ in range(2):
        answer = push(anonymous, job, attempt)
        assert (answer.status_code, answer.json()) == (200, {"accepted": True})
    assert PushedResult.objects.get().body == BODY
    assert api.announced == [job.id] * 2


def test_the_token_can_be_a_bearer_token(anonymous: APIClient, job: Job, attempt: str) -> None:
    header = f"Bearer {signed(attempt, purpose=PUSH_TOKEN)}"
    assert anonymous.post(url(job), BODY, format="json", HTTP_AUTHORIZATION=header).status_code == 200


def test_the_token_can_be_in_the_query(anonymous: APIClient, job: Job, attempt: str) -> None:
    """Cog's webhooks set no headers."""
    answer = anonymous.post(f"{url(job)}?token={signed(attempt, purpose=PUSH_TOKEN)}", BODY, format="json")
    assert answer.status_code == 200
    problem(anonymous.post(f"{url(job)}?token=nonsense", BODY, format="json"), 401, "invalid_push_token")


@pytest.mark.parametrize("token", ["", "nonsense", "x.y", "é", "a" * 300, f"{'0' * 26}.{'0' * 40}"])
def test_a_push_without_its_token_is_refused(anonymous: APIClient, job: Job, token: str) -> None:
    answer = anonymous.post(url(job), BODY, format="json", HTTP_X_CALLBACK_TOKEN=token)
    problem(answer, 401, "invalid_push_token")
    assert not PushedResult.objects.exists()


def test_a_push_must_be_an_object(anonymous: APIClient, job: Job, attempt: str) -> None:
    problem(push(anonymous, job, attempt, [1]), 422, "validation_failed", "")


@pytest.mark.database
def test_a_push_can_arrive_before_its_attempts_row(anonymous: APIClient, job: Job) -> None:
    assert push(anonymous, job, new_id()).status_code == 200


def test_a_push_for_an_ended_attempt_is_not_stored(anonymous: APIClient, job: Job, attempt: str) -> None:
    end(attempt)
    problem(push(anonymous, job, attempt), 409, "attempt_over")
    assert not PushedResult.objects.exists()


def test_a_final_push_can_be_repeated_after_the_attempt(
    anonymous: APIClient, job: Job, attempt: str, api: ApiHarness
) -> None:
    """The sender may not have received the first response; the body is not read again."""
    assert push(anonymous, job, attempt).status_code == 200
    end(attempt)
    answer = push(anonymous, job, attempt, {"status": "success", "result": "another"})
    assert (answer.status_code, answer.json()) == (200, {"accepted": True})
    assert PushedResult.objects.get().body == BODY
    assert api.announced == [job.id]


@pytest.mark.parametrize("body", [{"status": "success", "result": "secret"}, {**GOES_ON, "logs": "secret"}])
def test_a_push_is_erased_with_its_job_and_can_still_be_repeated(
    anonymous: APIClient, job: Job, attempt: str, body: dict[str, Any]
) -> None:
    assert push(anonymous, job, attempt, body).status_code == 200
    end(attempt)
    complete(job)
    before = push(anonymous, job, attempt, body).status_code
    erase_job_data(job.id, ports=ports.production_ports())
    assert PushedResult.objects.get().body == {"status": body["status"]}
    assert push(anonymous, job, attempt, body).status_code == before
    assert "secret" not in str(PushedResult.objects.get().body)


def complete(job: Job) -> None:
    Job.objects.filter(id=job.id).update(
        state="completed", live_attempt=None, finished_at=timezone.now(), result={}
    )


def test_a_push_without_its_attempts_row_is_erased_with_its_job(anonymous: APIClient, job: Job) -> None:
    body = {"status": "success", "result": "secret"}
    assert push(anonymous, job, new_id(), body).status_code == 200
    complete(job)
    erase_job_data(job.id, ports=ports.production_ports())
    assert PushedResult.objects.get().body == {"status": "success"}


@pytest.mark.database
@pytest.mark.parametrize("earlier", [[], [{**GOES_ON, "logs": "early"}]], ids=["first", "later"])
@pytest.mark.parametrize("body", [{**GOES_ON, "logs": "secret"}, {"status": "success", "result": "secret"}])
def test_a_push_whose_body_ends_after_the_erasure_of_its_job_is_not_stored(
    anonymous: APIClient, job: Job, attempt: str, earlier: list[dict[str, Any]], body: dict[str, Any]
) -> None:
    for one in earlier:
        assert push(anonymous, job, attempt, one).status_code == 200
    assert admit_push(job.id, attempt, ports.production_ports()) is not None
    end(attempt)
    complete(job)
    erase_job_data(job.id, ports=ports.production_ports())
    with pytest.raises(AttemptOver):
        accept_push(job.id, attempt, body, 100, ports=ports.production_ports())
    assert [row.body for row in PushedResult.objects.all()] == [GOES_ON for _ in earlier]


def test_a_token_without_an_attempt_is_valid_until_the_job_ends(anonymous: APIClient, job: Job) -> None:
    Job.objects.filter(id=job.id).update(state="cancelled", finished_at=timezone.now())
    problem(push(anonymous, job, new_id()), 409, "attempt_over")


@pytest.mark.parametrize("has_row", [True, False])
def test_a_token_expires_with_the_longest_run(anonymous: APIClient, zimg: ModelConfig, has_row: bool) -> None:
    """`max_poll_time` of the model: 600 s."""
    early = timezone.now() - timedelta(seconds=700)
    job = make_job(zimg, at=early)
    attempt = make_running(job, at=early) if has_row else new_id(early.timestamp())
    problem(push(anonymous, job, attempt), 409, "attempt_over")


@pytest.mark.parametrize("which", ["no such job", "another job"])
def test_a_token_is_valid_for_one_job(anonymous: APIClient, job: Job, attempt: str, which: str) -> None:
    where = job.id if which == "no such job" else make_job("zimg").id
    if which == "no such job":
        Job.objects.all().delete()
    answer = anonymous.post(
        f"/api/v1/tasks/callback/{where}",
        BODY,
        format="json",
        HTTP_X_CALLBACK_TOKEN=signed(attempt, purpose=PUSH_TOKEN),
    )
    problem(answer, 404, "unknown_job")
    assert not PushedResult.objects.exists()


def test_a_push_is_limited_by_the_models_result_size(anonymous: APIClient, job: Job, attempt: str) -> None:
    ModelConfig.objects.filter(name="zimg").update(max_response_bytes=1000)
    body = {"status": "success", "result": "x" * 1000}
    found = problem(push(anonymous, job, attempt, body), 413, "payload_too_large")
    assert "1000" in found["detail"]
    assert not PushedResult.objects.exists()


@pytest.mark.database
@pytest.mark.parametrize("bound", [{"pushes_per_attempt": 3}, {"push_bytes_per_attempt": 60}])
def test_pushes_of_one_attempt_are_limited(
    anonymous: APIClient, job: Job, attempt: str, settings: Any, bound: dict[str, int]
) -> None:
    settings.DISPATCHER = settings.DISPATCHER.__class__(**bound)
    for _ in range(3):
        assert push(anonymous, job, attempt, GOES_ON).status_code == 200  # 23 bytes each
    refused = push(anonymous, job, attempt)
    problem(refused, 429, "too_many_pushes")
    assert refused.headers["Retry-After"] == "10"
    assert PushedResult.objects.get().pushes == 3
    assert counters.read(counters.Name.PUSHES_REFUSED) == [("", "too_many_pushes", 1)]
    PushedResult.objects.update(received_at=timezone.now() - timedelta(seconds=10))
    assert push(anonymous, job, attempt).status_code == 200, (
        "a server that sent many lines delivers its result"
    )
    assert PushedResult.objects.get().body == BODY


def test_the_latest_log_is_kept_until_the_result(anonymous: APIClient, job: Job, attempt: str) -> None:
    for logs in ("a", "b" * 300_000):
        push(anonymous, job, attempt, {"status": "processing", "input": {"prompt": "x"}, "logs": logs})
        kept = PushedResult.objects.get().body
        assert kept["logs"] == logs[-262_144:]
        assert kept.get("logs_offset", 0) == max(0, len(logs) - 262_144)
        assert "input" not in kept
    push(anonymous, job, attempt)
    accept_push(job.id, attempt, {"status": "processing", "logs": "late"}, 9, ports=ports.production_ports())
    assert PushedResult.objects.get().body == BODY, "a line that comes late replaces no result"


def test_a_refusal_is_counted_without_a_write_for_each(
    anonymous: APIClient, job: Job, attempt: str, api: ApiHarness
) -> None:
    end(attempt)
    for _ in range(3):
        problem(push(anonymous, job, attempt), 409, "attempt_over")
    assert counters.read(counters.Name.PUSHES_REFUSED) == [("", "attempt_over", 1)]
    api.push_refusals.write_seconds = 0.0
    problem(push(anonymous, job, attempt), 409, "attempt_over")
    assert counters.read(counters.Name.PUSHES_REFUSED) == [("", "attempt_over", 4)]
