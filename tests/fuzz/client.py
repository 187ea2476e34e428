"""Input of the client: answers, events, its own spool."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp

from hypothesis import strategies as st

from dispatcher_client.answers import Explanation, Me, Usage, read_page
from dispatcher_client.errors import NoAnswer, Problem, read_problem
from dispatcher_client.job import read_job
from dispatcher_client.reading import read_answer
from dispatcher_client.spool import Entry, Flushed, Spool
from dispatcher_client.stream import Event, EventParser
from dispatcher_client.transport import Answer, pause_after
from tests.fuzz.gpu_servers import HEADERS, texts_of
from tests.fuzz.parser import Parser, objects

PROBLEM = objects(
    "code",
    "detail",
    "retryable",
    "errors",
    "status",
    values=st.lists(objects("pointer", "code", "detail", "in"), max_size=2),
)
JOB = objects(
    "job_id", "status", "result", "error", "outcome", values=st.sampled_from(["queued", "completed", "01H"])
)

ROW = {"key": "", "completed": 1, "failed": 0, "cancelled": 0, "gpu_seconds": 1.5}
REASON = {"code": "no_slot_free", "message": "", "change": "", "evidence": {}}
WHOLE = st.sampled_from(
    [
        {"job_id": "J", "status": "queued", "position": 1, "starts_in": None, "reasons": [REASON]},
        {"tenant": "a", "from": "2026-01-01", "to": "2026-01-02", "by": "day", "rows": [ROW], "total": ROW},
        {
            "tenant": "a",
            "key": {"prefix": "p", "name": "n", "kind": "client", "expires_at": None},
            "scopes": ["submit"],
            "models": [{"model": "m", "payload_schema": {}, "paused": False}],
            "limits": {"max_queued": 5},
            "used": {"running": 0, "waiting": 0, "gpu_seconds_today": 0},
            "day_ends_at": "2026-01-02T00:00:00Z",
        },
    ]
)
"""Answers of which some members are replaced."""
ANSWERS = st.tuples(
    WHOLE, objects("from", "day_ends_at", "rows", "reasons", "position", "key", "limits", "models")
).map(lambda both: {**both[0], **both[1]})
PAGE = st.fixed_dictionaries(
    {},
    optional={
        "results": st.lists(JOB, max_size=3),
        "next": st.none()
        | st.sampled_from(["http://d/api/v1/jobs?cursor=abc", "http://[", "?cursor=", "?cursor=a&cursor=b"])
        | st.text(max_size=20),
    },
)


def problem(body: bytes) -> None:
    for status in (302, 401, 409, 422, 429, 503):
        found = read_problem(status, {"content-type": "application/problem+json", "retry-after": "5"}, body)
        assert isinstance(found, Problem)
        json.dumps(found.as_json())


def retry_after(text: str) -> None:
    found = read_problem(429, {"retry-after": text}, b"")
    assert found.retry_after_seconds is None or found.retry_after_seconds >= 0
    assert pause_after(found, 1) >= 0


def answer(body: bytes) -> None:
    found = read_job(Answer(200, {}, body).json_object())
    assert isinstance(found.status, str)
    assert isinstance(found.is_over, bool)


def events(body: bytes) -> None:
    """The pieces in which the bytes arrive make no difference."""
    whole, bytewise = EventParser("", 100_000), EventParser("", 100_000)
    found = whole.feed(body)
    assert all(isinstance(event, Event) for event in found)
    assert [event for byte in body for event in bytewise.feed(bytes([byte]))] == found
    assert 0 <= whole.pause_seconds == bytewise.pause_seconds <= 30


def typed_answers(body: bytes) -> None:
    for kind in (Explanation, Me, Usage):
        with suppress(NoAnswer):
            assert isinstance(read_answer(kind, Answer(200, {}, body).json_object()), kind)


def page(body: bytes) -> None:
    found = read_page(Answer(200, {}, body).json_object())
    assert all(isinstance(job.status, str) for job in found.jobs)
    assert found.cursor is None or found.cursor


SPOOL = Spool(Path(mkdtemp(prefix="fuzz-spool-")) / "spool")


def spooled(content: bytes) -> None:
    """Each line is sent or refused; none stays, and none ends the flush."""
    SPOOL.path.write_bytes(content)
    sent: list[Entry] = []

    def send(entry: Entry) -> tuple[Problem, ...]:
        sent.append(entry)
        return ()

    flushed = SPOOL.flush(send, lambda: True)
    assert isinstance(flushed, Flushed)
    assert flushed.left == 0
    assert flushed.sent == len(sent)
    SPOOL.path.with_name("spool.refused").unlink(missing_ok=True)


SPOOLED = st.lists(texts_of(objects("path", "idempotency_key", "body", "at")), max_size=2).map(b"\n".join)
STREAM = st.lists(
    st.sampled_from([b"id: 5\n", b"event: done\n", b"data: {}\n", b"retry: 2000\n", b": here\n", b"\n"]),
    max_size=8,
).map(b"".join)

PARSERS = [
    Parser("client: problem", problem, texts_of(PROBLEM)),
    Parser("client: Retry-After", retry_after, HEADERS),
    Parser("client: job", answer, texts_of(JOB), (NoAnswer,)),
    Parser("client: events", events, STREAM),
    Parser("client: explanation, me, usage", typed_answers, texts_of(ANSWERS)),
    Parser("client: page of jobs", page, texts_of(PAGE), (NoAnswer,)),
    Parser("client: spool", spooled, SPOOLED),
]
