"""The callback receiver distinguishes signed messages, and claims nothing that it can't check."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from jobs.callbacks.message import new_secret, sign
from verification.proving.receiver import entry

BODY = json.dumps({"job_id": "job-1", "status": "completed", "result": {"attempt": "attempt-1"}})


def headers(secret: str, body: str = BODY) -> dict[str, str]:
    return sign(secret, "msg-1", datetime.now(UTC), body)


def test_a_signed_message_is_logged_with_its_content():
    secret = new_secret()
    assert entry(BODY.encode(), headers(secret), secret) == {
        "webhook_id": "msg-1",
        "signed": True,
        "job": "job-1",
        "is_long": False,
        "run": "",
        "round": 1,
        "status": "completed",
        "attempt": "attempt-1",
    }


def test_a_wrong_signature_is_seen():
    secret = new_secret()
    assert entry(BODY.encode(), headers(new_secret()), secret)["signed"] is False
    assert entry(BODY.encode() + b" ", headers(secret), secret)["signed"] is False
    assert entry(BODY.encode(), {}, secret)["signed"] is False


def test_without_a_secret_the_signature_is_unknown():
    assert entry(BODY.encode(), headers(new_secret()), "")["signed"] is None


def test_a_long_result_is_a_reference():
    secret = new_secret()
    body = json.dumps({"job_id": "j", "status": "completed", "result": {"$artifact": "a"}})
    logged = entry(body.encode(), headers(secret, body), secret)
    assert (logged["is_long"], logged["attempt"]) == (True, "")


def test_the_round_of_a_run_is_logged():
    secret, body = new_secret(), json.dumps({"run_id": "r", "status": "completed", "round": 2, "output": {}})
    logged = entry(body.encode(), headers(secret, body), secret)
    assert [logged[name] for name in ("job", "run", "round", "signed")] == ["", "r", 2, True]


def test_a_failed_job_names_no_attempt():
    secret, body = new_secret(), json.dumps({"job_id": "j", "status": "failed", "error": {"code": "x"}})
    assert entry(body.encode(), headers(secret, body), secret)["attempt"] == ""
