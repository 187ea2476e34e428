"""No log line and no response contains a key, wherever a client puts it."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from django.db import OperationalError
from rest_framework.test import APIClient

import jobs.ports
from dispatcher_project.logging import hide_tokens, logging_config
from foundation.secrets import hide_keys
from jobs.api import authentication
from jobs.events import stream
from jobs.models import ApiKey
from tests.support.api_harness import Account, forget_keys

pytestmark = pytest.mark.django_db
SUBMIT, JOBS = "/api/v1/queue/submit", "/api/v1/queue/jobs"


@pytest.fixture(params=["json", "console"])
def log(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Capture everything that this process writes to its log."""
    # structlog is not reconfigured: loggers cached meanwhile would escape later `capture_logs`
    monkeypatch.setattr("dispatcher_project.logging._configure_structlog", lambda: None)
    config = logging_config(style=request.param)
    made = config["formatters"]["line"]
    kind = made.pop("()")
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        kind(**{"processors": made["processors"], "foreign_pre_chain": made["foreign_pre_chain"]})
    )
    root = logging.getLogger()
    root.addHandler(handler)
    yield stream
    root.removeHandler(handler)


def secret_of(key: str) -> str:
    return key.partition(".")[2]


def test_no_log_line_and_no_response_contains_a_key(
    acme: Account, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = acme.key
    client = APIClient(raise_request_exception=False)
    json_body: dict[str, Any] = {"content_type": "application/json"}
    bearer = f"Bearer {key}"
    answers = [
        client.get(f"{JOBS}?api_key={key}"),
        client.get(f"{JOBS}?api_key={key.replace('.', '%2E')}", headers={"Authorization": bearer}),
        client.get(f"{JOBS}?{'x' * 975}={key}"),
        client.get(f"/api/v1/{key}"),
        client.get(f"/{key}"),
        client.get(JOBS, headers={"Authorization": key}),
        client.get(JOBS, headers={"Authorization": f"Basic {key}"}),
        client.get(JOBS, headers={"Authorization": f"Bearer {key}x"}),
        client.get(JOBS, headers={"Authorization": f"Bearer  {key} {key}"}),
        client.get(JOBS, headers={"User-Agent": key, "X-Api-Key": key}),
        client.post(SUBMIT, {"model": key, "payload": {}}, headers={"Authorization": bearer}, format="json"),
        client.post(SUBMIT, f'{{"api_key": "{key}"', headers={"Authorization": bearer}, **json_body),
        client.post(
            SUBMIT, {key: 1}, headers={"Authorization": bearer, "Idempotency-Key": key}, format="json"
        ),
        client.post("/admin/login/", {"username": key, "password": key}),
        client.get("/metrics", headers={"Authorization": bearer}),
    ]

    def breaks(*_: Any, **__: Any) -> Any:
        raise OperationalError(f"can't read {key}")

    monkeypatch.setattr(authentication, "principal_of_key", breaks)
    answers.append(client.get(JOBS, headers={"Authorization": bearer}))
    monkeypatch.setattr(authentication, "principal_of_key", lambda *_: 1 / 0)
    answers.append(client.get(JOBS, headers={"Authorization": bearer}))
    structlog.get_logger("t").info("nested", fields={"key": [key]})
    lines = log.getvalue()
    assert lines.count("request_started") >= 15
    assert "nested" in lines
    assert secret_of(key) not in lines
    assert secret_of(key)[:24] not in lines
    result = [
        answer for answer in answers if answer.wsgi_request.path != "/admin/login/"
    ]  # shows the form again
    assert not [answer.content for answer in result if secret_of(key) in answer.content.decode()]
    assert {answer.status_code for answer in answers} <= {200, 400, 401, 404, 422, 500, 503}
    assert f"{key[:8]}.…" in lines.replace("\\u2026", "…")


def test_a_key_in_a_url_is_not_accepted(acme: Account) -> None:
    for name in ("api_key", "key", "token", "access_token"):
        assert APIClient().get(f"{JOBS}?{name}={acme.key}").status_code == 401


def test_text_that_resembles_a_key_is_not_redacted() -> None:
    for text in ("version 1.2.3", "a.b", f"x.{'a' * 31}", f"x.{'a' * 33}", "job 01Q3ENHSF8DWFKJ164JBY5WGR2"):
        assert hide_keys(text) == text
    assert hide_keys(f"k=abcdefgh.{'A1b2' * 8}&x") == "k=abcdefgh.…&x"


def test_a_truncated_url_contains_no_part_of_a_key() -> None:
    url = f"GET /{'x' * 970}?k=abcdefgh.{'A1b2' * 8}&{'y' * 100}"
    assert "A1b2" not in hide_tokens(None, "", {"request": url})["request"]


def test_the_use_of_a_key_is_recorded_outside_transactions_once_a_minute(
    acme: Account, django_assert_num_queries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[int] = []
    real = authentication._record_use
    monkeypatch.setattr(authentication, "_record_use", lambda row: (noted.append(row.pk), real(row)))
    ApiKey.objects.update(last_used_at=None)
    for _ in range(3):
        forget_keys()
        assert acme.client.get(JOBS).status_code == 200
    first = ApiKey.objects.get(prefix=acme.key[:8]).last_used_at
    assert first is not None
    forget_keys()
    acme.client.get(JOBS)
    assert ApiKey.objects.get(prefix=acme.key[:8]).last_used_at == first
    assert len(noted) == 4


def test_every_stream_checks_its_key_or_ends_within_a_minute() -> None:
    """A stream of a revoked key; the cache of keys adds two seconds."""
    remembered = jobs.ports.KEEP_KEY_SECONDS
    assert stream.CHECK_SECONDS + stream.KEEP_ALIVE_SECONDS + remembered <= 60
    assert stream.STREAM_SECONDS + stream.QUIET_SECONDS + stream.REST_SECONDS + remembered <= 60
