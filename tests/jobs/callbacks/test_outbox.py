from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from foundation.json_text import JsonText
from jobs.callbacks.message import callback_for
from jobs.domain.access import TEXTS
from jobs.domain.states import JobState
from jobs.models import Callback, Job, Tenant

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def job(**values: object) -> Job:
    given = {
        "tenant": Tenant(id=1, name="acme"),
        "model": "zimg",
        "tags": ["a"],
        "metadata": {"order": 7},
        "callback_url": "https://hooks.example.com/",
        "state": JobState.COMPLETED,
        "result": {"url": "s3://image.png"},
        "finished_at": NOW,
        "round": 2,
    }
    return Job(**{**given, **values})


def test_the_callback_of_a_completed_job_has_its_result() -> None:
    finished = job()
    callback = callback_for(finished, now=NOW)
    assert callback is not None
    assert json.loads(callback.body) == {
        "job_id": finished.id,
        "status": "completed",
        "result": {"url": "s3://image.png"},
        "model": "zimg",
        "tags": ["a"],
        "metadata": {"order": 7},
        "finished_at": "2030-01-01T00:00:00+00:00",
    }
    assert (callback.url, callback.round, callback.state) == (
        finished.callback_url,
        2,
        Callback.State.PENDING,
    )
    assert callback.next_at == callback.created_at == NOW
    assert callback.id.startswith("msg_")
    assert len(callback.id) == 30


@pytest.mark.parametrize(
    ("state", "code", "error"),
    [
        (JobState.FAILED, "timeout", {"code": "timeout", "message": TEXTS["timeout"]}),
        (JobState.CANCELLED, "", {"code": "cancelled", "message": TEXTS["cancelled"]}),
    ],
)
def test_the_callback_of_any_other_end_has_its_error(
    state: JobState, code: str, error: dict[str, str]
) -> None:
    callback = callback_for(job(state=state, error_code=code, error_message="too long", result=None), now=NOW)
    assert callback is not None
    body = json.loads(callback.body)
    assert body["error"] == error
    assert body["status"] == state.value
    assert "result" not in body


def test_a_result_kept_as_json_text_is_sent_like_any_other() -> None:
    result = {"numbers": [1.5, None], "text": "é"}
    callback = callback_for(job(result=JsonText.of(result)), now=NOW)
    assert callback is not None
    assert json.loads(callback.body)["result"] == result


def test_a_job_without_a_callback_url_has_no_callback() -> None:
    assert callback_for(job(callback_url=""), now=NOW) is None


def test_half_a_surrogate_pair_in_a_result_can_still_be_stored_and_sent() -> None:
    callback = callback_for(job(result={"text": "\ud83d", "nul": "\x00"}), now=NOW)
    assert callback is not None
    assert callback.body.encode()
    assert "\x00" not in callback.body


def test_each_message_has_an_id_of_its_own() -> None:
    first, second = callback_for(job(), now=NOW), callback_for(job(), now=NOW)
    assert first is not None
    assert second is not None
    assert first.id != second.id
