"""Input of the client: answers, events, its own spool."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import mkdtemp

from hypothesis import strategies as st

from dispatcher_client.errors import NoAnswer, Problem, read_problem
from dispatcher_client.job import read_job
from dispatcher_client.spool import Entry, Flushed, Spool
from dispatcher_client.stream import Event, Follower
from dispatcher_client.transport import Answer, Http, pause_after

from .gpu_servers import HEADERS, texts_of
from .parser import Parser, objects

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
    follower = Follower(Http("http://dispatcher.example", "key"), "job", after="", retry_seconds=1.0)
    lines = [line.decode(errors="replace").rstrip("\r\n") for line in body.splitlines(keepends=True)]
    assert all(isinstance(event, Event) for event in follower._parse(lines))
    assert 0 <= follower._pause_seconds <= 30


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
    Parser("client: spool", spooled, SPOOLED),
]
