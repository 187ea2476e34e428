"""Input of API clients: bodies, parameters, header fields, addresses."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

from django.http import QueryDict
from hypothesis import strategies as st
from rest_framework.exceptions import APIException

from admin_ui.parts.viewer import find_media
from foundation import json_text
from foundation.http_api import parameters as gpus_parameters
from foundation.http_api.json_body import read_body, read_json
from foundation.http_api.problems import Problem
from foundation.secrets import verified
from jobs.api import bodies, parameters
from jobs.api.jobs import EVENT_ID, last_event_id
from jobs.api.parameters import JobPages
from jobs.api.submit import idempotency_key, preferred_wait, read_submit
from jobs.callbacks.guard import RefusedOrigins, check_callback_url, read_url, receiver_of
from jobs.callbacks.sending import Answer
from jobs.domain.errors import CallbackUrlRefused
from jobs.execution.pushed_results import PUSH_TOKEN
from jobs.submission.request import SubmitRequest, read_item
from tests.fuzz.gpu_servers import HEADERS, NOW, texts_of
from tests.fuzz.parser import JSON, Parser, objects

SUBMIT = objects(
    "model",
    "payload",
    "callback_url",
    "priority",
    "deadline_seconds",
    "start_deadline_seconds",
    "max_retries",
    "max_run_seconds",
    "run_at",
    "if_busy",
    "tags",
    "metadata",
    "idempotency_key",
    values=st.sampled_from(
        ["zimg", 5, 2.5, "reject", "2026-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59", ["a"], {}]
    ),
).map(lambda body: {"model": "zimg", "payload": {}, **body})
FILTER = objects(
    "model",
    "tenant",
    "state",
    "error_code",
    "fingerprint",
    "tag",
    "created_after",
    "created_before",
    "server",
    values=st.sampled_from(["a", "failed", "0123456789abcdef", "2026-01-01T00:00:00Z"]),
)
QUERY = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "cursor",
                "limit",
                "wait",
                "attempts_before",
                "created_after",
                "model",
                "state",
                "fingerprint",
                "x",
            ]
        ),
        st.sampled_from(
            ["5", "2026-01-01T00:00:00Z", "cD0wMUg", "bz0xJnA9MDFI", "0123456789abcdef", "a", "true"]
        ),
    ).map("=".join),
    max_size=4,
).map("&".join)


def header(read: Any) -> Any:
    """A header field as a web server passes it on: its bytes as Latin-1."""
    return lambda text: read(text.encode("utf-8", "surrogateescape").decode("latin-1"))


def submit(body: bytes) -> None:
    wanted = read_submit(read_json(body), key="key", prefer="wait=5")
    assert isinstance(wanted.request, SubmitRequest)
    json.dumps(wanted.request.body.payload, allow_nan=False).encode()


def batch(body: bytes) -> None:
    found = read_json(body)
    with suppress(Problem):
        read_body(bodies.Batch, found)
    assert isinstance(read_item(found), SubmitRequest)


def bulk(body: bytes) -> None:
    """Without a tenant's name: whether it exists is decided by the database."""
    found = read_json(body)
    chosen = read_body(bodies.BulkBody, {"filter": found}).filter.given()
    parameters.body_filter({name: value for name, value in chosen.items() if name != "tenant"}, "/filter")


def query(text: str) -> None:
    request: Any = SimpleNamespace(query_params=QueryDict(text), headers={})
    for read in (
        lambda: JobPages().decode_cursor(request),
        lambda: JobPages().get_page_size(request),
        lambda: parameters.wait_parameter(request),
        lambda: parameters.attempts_before_parameter(request),
        lambda: parameters.time_parameter(request, "created_after"),
        lambda: parameters.fingerprint_parameter(request),
        lambda: gpus_parameters.text_parameter(request, "model"),
        lambda: gpus_parameters.choice_parameter(request, "state", ("a", "b")),
        lambda: gpus_parameters.allow_only(request, ("cursor", "limit")),
        lambda: last_event_id(request, EVENT_ID, ""),
    ):
        with suppress(Problem):
            read()


def prefer(text: str) -> None:
    seconds = preferred_wait(text)
    assert seconds is None or 0 <= seconds < 1e9


def resumed_from(text: str) -> None:
    request: Any = SimpleNamespace(query_params=QueryDict(""), headers={"Last-Event-ID": text})
    assert 0 <= int(last_event_id(request, EVENT_ID, "")) < 2**63


def callback_url(url: str) -> None:
    receiver_of(url)
    read_url(url).authority.encode("ascii")
    check_callback_url(url, RefusedOrigins())


def receivers_retry_after(text: str) -> None:
    seconds = Answer(503, text).retry_after_seconds(NOW)
    assert seconds is None or seconds >= 0


def shown_media(body: bytes) -> None:
    try:
        value = json_text.read(body)
    except json_text.NotReadable:  # no such result is stored
        return
    for media in find_media(value, host="dispatcher.example"):
        if media.is_embedded:
            try:
                media.decoded()
            except ValueError:
                continue


URL = st.sampled_from(
    [
        "https://hooks.example/a?b=c",
        "http://[::1]:80/",
        "http://127.1/",
        "http://0x7f000001/",
        "http://a@b/",
        "https://xn--bcher-kva.example:8443/",
        "http://b\u00fccher.example/\u00fc",
        "http://169.254.169.254/latest",
    ]
)
MEDIA = objects(
    "image",
    "images",
    values=st.sampled_from(["data:image/png;base64,iVBORw0KGgo", "/9j/" * 30, "http://a/b.png"]),
)

PARSERS = [
    Parser("body of a request", read_json, texts_of(JSON), (Problem,)),
    Parser("submit", submit, texts_of(SUBMIT), (Problem,)),
    Parser("batch", batch, texts_of(SUBMIT), (Problem,)),
    Parser("job filter", bulk, texts_of(FILTER), (Problem,)),
    Parser("query parameters", query, QUERY, (APIException,)),
    Parser(
        "Prefer",
        header(prefer),
        st.sampled_from(["wait=5", 'respond-async, wait = "10"', "wait=999999999", ""]),
    ),
    Parser("Idempotency-Key", header(idempotency_key), st.text(max_size=300), (Problem,)),
    Parser("Last-Event-ID", header(resumed_from), st.sampled_from(["0", "17", "999999999999"]), (Problem,)),
    Parser("job id", parameters.job_id_of, st.text(max_size=30), (Problem,)),
    Parser("token of a push", header(partial(verified, purpose=PUSH_TOKEN)), st.text(max_size=60)),
    Parser("callback URL", callback_url, URL, (CallbackUrlRefused,)),
    Parser("Retry-After of a receiver", receivers_retry_after, HEADERS),
    Parser("media in a result", shown_media, texts_of(MEDIA)),
]
