"""The table of docs/reference/failures.md, as far as it depends on the HTTP status."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from gpus.errors import (
    AccessForbidden,
    BadInput,
    CredentialsRefused,
    GpuBusy,
    GpuFault,
    RunFailed,
    ServerFailed,
    ServerLost,
    StaleFence,
    Verdict,
)
from gpus.runners.base import Response
from gpus.runners.refusals import HEADERS_HINT, error_of, failure_of, message_of, retry_after_seconds

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (301, ServerFailed),
        (400, BadInput),
        (401, CredentialsRefused),
        (403, AccessForbidden),
        (407, CredentialsRefused),
        (404, BadInput),
        (408, ServerFailed),
        (409, GpuBusy),
        (413, BadInput),
        (422, BadInput),
        (425, ServerFailed),
        (429, GpuBusy),
        (500, ServerFailed),
        (501, ServerFailed),
        (502, ServerLost),
        (503, GpuBusy),
        (504, ServerLost),
        (524, ServerLost),
    ],
)
def test_each_status_has_its_cost(status, error):
    assert type(error_of(Response(status), now=NOW)) is error


@pytest.mark.parametrize(
    ("status", "counts", "blames"),
    [(401, False, Verdict.SERVER), (407, False, Verdict.SERVER), (403, True, Verdict.EITHER)],
)
def test_refused_credentials_are_the_operators_matter(status: int, counts: bool, blames: Verdict) -> None:
    """A 403 may be about one payload alone: it is no reason to close the server for all jobs."""
    error = error_of(Response(status, {}, b'{"error": "no such token"}'), now=NOW)
    assert (error.code, error.counts, error.blames) == ("credentials_refused", counts, blames)
    assert error.retryable
    assert error.elsewhere
    assert not error.suspect
    assert error.message == f"{status}: no such token. {HEADERS_HINT}."


def test_a_stale_fence_is_a_lost_lease_without_a_suspect_slot():
    error = error_of(Response(409, {}, b'{"code": "stale_fence"}'), now=NOW)
    assert isinstance(error, StaleFence)
    assert not error.suspect


@pytest.mark.parametrize("body", [b'{"detail": "CUDA error: sticky"}', b'{"error_code": "gpu_fault"}'])
def test_a_500_of_a_broken_gpu_is_a_gpu_fault(body):
    assert isinstance(error_of(Response(500, {}, body), now=NOW), GpuFault)


@pytest.mark.parametrize(
    "text",
    [
        "torch.AcceleratorError: CUDA error: device-side assert triggered",
        "RuntimeError: CUDA out of memory. Tried to allocate 2 GiB",
        "INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS",
        "NVRM: Xid (PCI:0000:01:00): 79",
    ],
)
def test_a_text_that_is_a_gpu_librarys_own_is_believed(text):
    body = json.dumps({"detail": text}).encode()
    assert isinstance(error_of(Response(500, {}, body), now=NOW), GpuFault)
    assert isinstance(failure_of({"status": "failed", "error": text}), GpuFault)


@pytest.mark.parametrize(
    "text",
    [
        "the prompt 'CUDA error: x' has no image",
        "ValueError: CUDA error: is no caption",
        "could not parse: out of memory",
        "KeyError: 'Xid'",
        "CUDA errors are explained in the manual",
    ],
)
def test_a_text_that_quotes_gpu_errors_is_no_gpu_fault(text):
    body = json.dumps({"detail": text}).encode()
    assert type(error_of(Response(500, {}, body), now=NOW)) is ServerFailed
    assert type(failure_of({"status": "failed", "error": text})) is RunFailed


def test_the_exceptions_name_is_believed_beside_any_text():
    body = json.dumps({"error": {"type": "torch.AcceleratorError", "message": "oh"}}).encode()
    assert isinstance(error_of(Response(500, {}, body), now=NOW), GpuFault)


def test_a_client_that_writes_of_cuda_is_not_a_broken_gpu():
    response = Response(422, {}, b'{"detail": "not a prompt: CUDA error"}')
    assert isinstance(error_of(response, now=NOW), BadInput)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": " 0.5 "}, 0.5),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Thu, 01 Jan 99999999999999999999 12:00:00 GMT"}, None),
        ({"retry-after": "Thu, 01 Jan 2026 12:00:30 +99999999999999999999"}, None),
        ({"retry-after": "Thu, 01 Jan 2026 12:00:30 GMT"}, 30.0),
        ({"retry-after": "Thu, 01 Jan 2026 11:00:00 GMT"}, 0.0),
        # the server's clock is an hour behind: its own Date header counts
        (
            {"retry-after": "Thu, 01 Jan 2026 11:00:30 GMT", "date": "Thu, 01 Jan 2026 11:00:00 GMT"},
            30.0,
        ),
        ({"retry-after": "7", "date": "Thu, 01 Jan 99999999999999999999 12:00:00 GMT"}, 7.0),
    ],
)
def test_retry_after_is_seconds_or_a_date(headers, seconds):
    assert retry_after_seconds(Response(503, headers), now=NOW) == seconds
    assert error_of(Response(503, headers), now=NOW).retry_after_seconds == seconds


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"detail": "d", "error": "e"}, "d"),
        ({"error": "e", "message": "m"}, "e"),
        ({"error": {"message": "inner"}}, "inner"),
        ({"message": "m"}, "m"),
        ({"detail": [{"loc": ["x"], "msg": "bad"}]}, '[{"loc": ["x"], "msg": "bad"}]'),
    ],
)
def test_the_servers_own_words_are_kept(body, message):
    assert message_of(Response(422, {}, json.dumps(body).encode())) == message


def test_words_that_are_not_json_are_kept_and_cut():
    assert message_of(Response(500, {}, b"<h1>Oops\x00</h1>")) == "<h1>Oops</h1>"
    assert len(message_of(Response(500, {}, b"x" * 10_000))) == 500
    assert len(message_of(Response(500, {}, json.dumps({"error": "x" * 10_000}).encode()))) == 500
    assert message_of(Response(500)) == "no reason given"


@pytest.mark.parametrize(
    ("status", "body", "is_for_client"),
    [
        (422, b'{"detail": "prompt is missing"}', True),
        (400, b'{"error": {"message": "too many tokens"}}', True),
        (400, b"<html>nginx at gpu-7.internal</html>", False),
        (404, b'{"detail": "no route /srv/x"}', False),
        (405, b'{"detail": "10.0.0.7 takes no POST"}', False),
    ],
)
def test_an_error_text_not_for_the_client_is_stored_as_detail(
    status: int, body: bytes, is_for_client: bool
) -> None:
    """A tenant reads the message of a `bad_input`."""
    response = Response(status, {}, body)
    error = error_of(response, now=NOW)
    said = f"{status}: {message_of(response)}"
    plain = f"The GPU server rejected the request ({status})."
    assert (error.message, error.detail) == ((said, "") if is_for_client else (plain, said))
