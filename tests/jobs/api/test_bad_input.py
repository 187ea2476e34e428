"""Invalid requests get problem+json with a stable code and a pointer."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from rest_framework.test import APIClient

from foundation.http_api import json_body
from foundation.http_api.problems import MAX_ERRORS, FieldError, Problem
from gpus.models import ModelConfig
from jobs.models import Job
from tests.support.api_harness import Account
from tests.support.problems import JOB, SUBMIT, problem

BATCH = "/api/v1/queue/submit-batch"


WRONG_BODIES = [
    ({"model": "nope"}, "unknown_model", "/model"),
    ({"model": "zimg\n"}, "validation_failed", "/model"),
    ({"model": 7}, "validation_failed", "/model"),
    ({"model": None}, "validation_failed", "/model"),
    ({"payload": "text"}, "validation_failed", "/payload"),
    ({"payload": {"text": "a\0b"}}, "validation_failed", "/payload/text"),
    ({"payload": {"a\0b": 1}}, "validation_failed", "/payload"),
    ({"payload": {"half": "\ud800"}}, "validation_failed", "/payload/half"),
    ({"deadline_seconds": -1}, "validation_failed", "/deadline_seconds"),
    ({"deadline_seconds": 0}, "validation_failed", "/deadline_seconds"),
    ({"deadline_seconds": 1e300}, "validation_failed", "/deadline_seconds"),
    ({"deadline_seconds": True}, "validation_failed", "/deadline_seconds"),
    ({"start_deadline_seconds": "5"}, "validation_failed", "/start_deadline_seconds"),
    ({"priority": 0}, "validation_failed", "/priority"),
    ({"priority": 10}, "validation_failed", "/priority"),
    ({"priority": "high"}, "validation_failed", "/priority"),
    ({"priority": 1.5}, "validation_failed", "/priority"),
    ({"max_retries": -1}, "validation_failed", "/max_retries"),
    ({"max_retries": 2**40}, "validation_failed", "/max_retries"),
    ({"tags": ["x"] * 21}, "validation_failed", "/tags"),
    ({"tags": ["x" * 65]}, "validation_failed", "/tags/0"),
    ({"tags": [""]}, "validation_failed", "/tags/0"),
    ({"tags": "x"}, "validation_failed", "/tags"),
    ({"metadata": []}, "validation_failed", "/metadata"),
    ({"metadata": {"x": "y" * 20_000}}, "validation_failed", "/metadata"),
    ({"callback_url": "http://127.0.0.1/hook"}, "callback_url_refused", "/callback_url"),
    ({"callback_url": "http://10.0.0.1/hook"}, "callback_url_refused", "/callback_url"),
    ({"callback_url": "http://169.254.169.254/latest"}, "callback_url_refused", "/callback_url"),
    ({"callback_url": "http://[::1]/hook"}, "callback_url_refused", "/callback_url"),
    ({"callback_url": "ftp://example.com"}, "callback_url_refused", "/callback_url"),
    ({"callback_url": 5}, "validation_failed", "/callback_url"),
    ({"colour": "red"}, "validation_failed", "/colour"),
    ({"a/b~c": 1}, "validation_failed", "/a~1b~0c"),
]


@pytest.mark.parametrize(("change", "code", "pointer"), WRONG_BODIES)
def test_a_wrong_field_is_named(
    acme: Account, zimg: ModelConfig, change: dict[str, Any], code: str, pointer: str
) -> None:
    body = json.dumps(JOB | change)
    answer = acme.client.post(SUBMIT, body, content_type="application/json")
    problem(answer, 422, code, pointer)
    assert not Job.objects.exists()


def test_every_missing_field_is_named(acme: Account) -> None:
    answer = acme.client.post(SUBMIT, {}, format="json")
    content = problem(answer, 422, "validation_failed", "/model")
    assert {(e["pointer"], e["code"]) for e in content["errors"]} == {
        ("/model", "required"),
        ("/payload", "required"),
    }


MALFORMED = [
    "{",
    "",
    "nonsense",
    '{"model": NaN}',
    '{"model": "zimg", "payload": {"x": Infinity}}',
    '{"model": "zimg", "payload": {"x": 1e999}}',
    '{"n": ' + "9" * 5000 + "}",
    '{"model": "zimg", "payload": {"x": ' + "9" * 309 + "}}",
    b"\xff\xfe",
]


@pytest.mark.parametrize("raw", MALFORMED)
def test_malformed_json_is_reported_as_such(acme: Account, zimg: ModelConfig, raw: str | bytes) -> None:
    answer = acme.client.generic("POST", SUBMIT, raw, content_type="application/json")
    problem(answer, *((422, "validation_failed") if raw == "" else (400, "malformed_json")))


@pytest.mark.parametrize(
    "raw",
    [
        '{"model": "zimg", "model": "flux", "payload": {}}',
        '{"model": "zimg", "payload": {"deep": [{"seed": 1, "x": 0, "seed": 1}]}}',
        '{"model": "zimg", "payload": {"a": 1, "\\u0061": 2}}',
    ],
)
@pytest.mark.parametrize("route", ["/api/v1/queue/submit", "/api/v1/queue/submit-batch"])
def test_a_key_given_twice_is_refused(acme: Account, zimg: ModelConfig, raw: str, route: str) -> None:
    answer = acme.client.generic("POST", route, raw, content_type="application/json")
    problem(answer, 400, "duplicate_key")
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("method", "route"), [("POST", "/api/v1/admin/register"), ("PUT", "/api/v1/admin/model-configs/zimg")]
)
def test_a_key_given_twice_is_refused_to_operators_too(
    operator: Account, zimg: ModelConfig, method: str, route: str
) -> None:
    answer = operator.client.generic(
        method, route, '{"slots": 1, "slots": 2}', content_type="application/json"
    )
    problem(answer, 400, "duplicate_key")


def test_the_same_key_in_two_objects_is_no_duplicate(acme: Account, zimg: ModelConfig) -> None:
    answer = acme.client.post(SUBMIT, JOB | {"payload": {"x": [{"x": 1}, {"x": 2}]}}, format="json")
    assert answer.status_code == 202


@pytest.mark.parametrize("raw", ["[]", "5", "null", '"text"'])
def test_a_body_that_is_no_object_is_refused(acme: Account, raw: str) -> None:
    problem(
        acme.client.generic("POST", SUBMIT, raw, content_type="application/json"),
        422,
        "validation_failed",
        "",
    )


@pytest.mark.parametrize(
    "deep", ['{"model": "zimg", "payload": {"x": ' + "[" * 200 + "]" * 200 + "}}", "[" * 100_000]
)
def test_nesting_is_limited(acme: Account, zimg: ModelConfig, deep: str) -> None:
    answer = acme.client.generic("POST", SUBMIT, deep, content_type="application/json")
    assert problem(answer, 422, "validation_failed")["errors"][0]["code"] == "too_deep"


def test_the_number_of_lists_in_a_body_is_limited(acme: Account, zimg: ModelConfig) -> None:
    many = '{"model": "zimg", "payload": {"x": [' + "[]," * 200_000 + "[]]}}"
    answer = acme.client.generic("POST", SUBMIT, many, content_type="application/json")
    [error] = problem(answer, 422, "validation_failed")["errors"]
    assert (error["code"], "200000" in error["detail"]) == ("too_many", True)


def test_a_body_of_two_megabytes_is_refused(acme: Account, zimg: ModelConfig) -> None:
    answer = acme.client.post(SUBMIT, JOB | {"payload": {"x": "y" * 2_000_000}}, format="json")
    detail = problem(answer, 413, "payload_too_large")["detail"]
    assert "(DISPATCHER_MAX_PAYLOAD_BYTES sets this limit). Upload large data as artifacts" in detail


def test_a_batch_may_be_as_long_as_its_setting_says(acme: Account, zimg: ModelConfig, settings: Any) -> None:
    body = json.dumps({"jobs": [JOB | {"payload": {"x": "y" * 10_000}}] * 3})
    for most, status in ((len(body), 202), (len(body) - 1, 413)):
        settings.DISPATCHER = replace(settings.DISPATCHER, max_batch_bytes=most)
        answer = acme.client.generic("POST", BATCH, body, content_type="application/json")
        assert answer.status_code == status
    detail = problem(answer, 413, "payload_too_large")["detail"]
    assert f"up to {len(body) - 1} bytes (DISPATCHER_MAX_BATCH_BYTES sets this limit)" in detail


def test_a_payload_just_over_its_limit_is_named(acme: Account, zimg: ModelConfig) -> None:
    answer = acme.client.post(SUBMIT, JOB | {"payload": {"x": "y" * 1_000_000}}, format="json")
    problem(answer, 413, "payload_too_large", "/payload")


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded"])
def test_only_json_requests_are_accepted(acme: Account, content_type: str) -> None:
    answer = acme.client.generic("POST", SUBMIT, json.dumps(JOB), content_type=content_type)
    problem(answer, 415, "unsupported_media_type")
    assert answer.json()["detail"].endswith("Send `Content-Type: application/json`.")


def test_only_json_responses_are_offered(acme: Account) -> None:
    problem(acme.client.get("/api/v1/queue/jobs", HTTP_ACCEPT="text/html"), 406, "not_acceptable")


@pytest.mark.parametrize(
    "path", ["/api/v1/nothing", "/api/", "/api/v2/queue/jobs", "/api/v1/queue/jobs/x/y/z"]
)
def test_an_unknown_route_is_a_problem(anonymous: APIClient, path: str) -> None:
    problem(anonymous.get(path), 404, "unknown_route")
    problem(anonymous.post(path), 404, "unknown_route")


@pytest.mark.parametrize("debug", [False, True])
def test_an_unknown_route_is_a_problem_with_debug_on_too(
    anonymous: APIClient, settings: Any, debug: bool
) -> None:
    settings.DEBUG = debug
    problem(anonymous.get("/api/v1/nothing"), 404, "unknown_route")


@pytest.mark.parametrize(
    ("method", "path"), [("get", SUBMIT), ("delete", "/api/v1/queue/jobs"), ("put", "/api/v1/queue/stats")]
)
def test_a_wrong_method_names_the_allowed_ones(acme: Account, method: str, path: str) -> None:
    answer = getattr(acme.client, method)(path)
    found = problem(answer, 405, "method_not_allowed")
    assert found["detail"] == f'Method "{method.upper()}" not allowed. Allowed: {answer["Allow"]}.'


@pytest.mark.parametrize("key", ["", "x" * 256, "with space", "né"])
def test_a_bad_idempotency_key_is_named(acme: Account, zimg: ModelConfig, key: str) -> None:
    answer = acme.client.post(SUBMIT, JOB, format="json", HTTP_IDEMPOTENCY_KEY=key)
    content = problem(answer, 400, "invalid_idempotency_key", "/Idempotency-Key")
    assert content["errors"][0]["in"] == "header"


def test_validation_stops_after_a_few_of_a_million_errors(
    acme: Account, zimg: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """50,000 errors would block the web process for a second, because validation holds the GIL."""
    made: list[FieldError] = []

    class Counted(FieldError):
        def __init__(self, *args: Any, **fields: Any) -> None:
            super().__init__(*args, **fields)
            made.append(self)

    monkeypatch.setattr(json_body, "FieldError", Counted)
    body = {"model": "zimg", "payload": {}, "callback_url": 5} | {f"x{number}": 1 for number in range(2000)}
    problem(acme.client.post(SUBMIT, body, format="json"), 422, "validation_failed")
    body = {"model": "zimg", "payload": {}, "metadata": {}, "tags": [1] * 2000}
    problem(acme.client.post(SUBMIT, body, format="json"), 422, "validation_failed")
    assert len(made) <= 4 * MAX_ERRORS


@pytest.mark.parametrize(
    "body", ['["\\u0000"%s]', '{"a":["x"%s,"\\ud800"]}', '"\\u0000"%.0s', '{"\\u0000":1%.0s}']
)
def test_unstorable_text_uses_no_more_memory_than_the_body(body: str) -> None:
    """A path for each of two million texts took 475 MB and 2 s, before the limit."""
    raw = (body % (',"abcdef"' * 50_000)).encode()
    tracemalloc.start()
    try:
        json_body.json_text.read(raw)
        _, plain = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        with pytest.raises(Problem) as refused:
            json_body.read_json(raw)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [error.code for error in refused.value.errors] == ["invalid_text"]
    assert most < 1.5 * plain + 1_000_000


def test_only_a_few_of_a_million_bad_texts_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[FieldError] = []

    class Counted(FieldError):
        def __init__(self, *args: Any, **fields: Any) -> None:
            super().__init__(*args, **fields)
            made.append(self)

    monkeypatch.setattr(json_body, "FieldError", Counted)
    body = {"x" * 100_000: ["\0"] * 2000}
    with pytest.raises(Problem) as refused:
        json_body.read_json(json.dumps(body).encode())
    assert len(made) == MAX_ERRORS
    assert refused.value.errors[0].pointer == f"/{'x' * 100}/0"


def test_more_parameters_than_django_reads_are_a_bad_request(acme: Account) -> None:
    many = "&".join(f"tag={number}" for number in range(2500))
    problem(acme.client.get(f"/api/v1/queue/jobs?{many}"), 400, "bad_request")
