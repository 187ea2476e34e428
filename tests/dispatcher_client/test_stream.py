"""Broken streams continue after the last event."""

from __future__ import annotations

import threading
import time

import pytest

from dispatcher_client import Client, NoAnswer, NotFound, stream
from tests.dispatcher_client.scripted import Asked, Handler, Scripted, drop, problem, says, streams
from tests.support.new_client import NewClient

JOB = "01J00000000000000000000000"
DONE = b'event: done\ndata: {"status": "completed"}\n\n'


def event(number: int, kind: str = "started") -> bytes:
    return b'id: %d\nevent: %s\ndata: {"seq": %d}\n\n' % (number, kind.encode(), number)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "RETRY_SECONDS", 0.01)


def test_events_come_as_they_happen_and_the_last_is_done(
    server: Scripted, client: Client, over: threading.Event
) -> None:
    more = threading.Event()
    server.will(streams(b"retry: 2000\n\n: still here\n\n", event(1, "queued"), then=lambda: more.wait(30)))
    server.will(streams(DONE, then=lambda: over.wait(30)))
    events = client.stream(JOB)
    first = next(events)
    assert (first.type, first.id, first.data) == ("queued", "1", {"seq": 1})
    more.set()
    assert [one.type for one in events] == ["done"], "it ends although the connection stays"
    assert server.asked[0].headers["accept"] == "text/event-stream"


def test_a_broken_stream_goes_on_after_the_last_whole_event(server: Scripted, client: Client) -> None:
    server.will(
        streams(event(1), event(2), event(3)[:-1]),  # without the empty line it is no event
        drop,
        problem(503, "database_unavailable", retryable=True),
        says(200, b"<html>", Content_Type="text/html"),
        streams(event(3)),
        streams(DONE),
    )
    events = list(client.stream(JOB, after="7"))
    assert [one.id for one in events] == ["1", "2", "3", ""]
    assert events[-1].data == {"status": "completed"}
    asked = [one.headers.get("last-event-id") for one in server.asked]
    assert asked == ["7", "2", "2", "2", "2", "3"]


def test_the_first_request_asks_for_everything(server: Scripted, client: Client) -> None:
    server.will(streams(DONE))
    list(client.stream(JOB))
    assert "last-event-id" not in server.asked[0].headers


def test_the_server_sets_the_pause_before_a_reconnect(server: Scripted, client: Client) -> None:
    server.will(streams(b"retry: 600\n\n", event(1)), streams(DONE))
    began = time.monotonic()
    list(client.stream(JOB))
    assert time.monotonic() - began >= 0.6


def test_a_connection_that_fell_silent_is_replaced(
    server: Scripted, client: Client, over: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "SILENCE_SECONDS", 0.2)
    falls_silent, goes_on = streams(event(1), then=lambda: over.wait(30)), streams(DONE)

    def follow(handler: Handler, asked: Asked) -> None:
        """Read with the client's time-out, which also takes a late answer for silence."""
        (goes_on if asked.headers.get("last-event-id") == "1" else falls_silent)(handler, asked)

    server.will(*[follow] * 50)
    began = time.monotonic()
    assert [one.type for one in client.stream(JOB)] == ["started", "done"]
    assert time.monotonic() - began < 15


def test_a_stream_without_a_server_raises_in_the_end(nowhere: str, new_client: NewClient) -> None:
    with pytest.raises(NoAnswer):
        list(new_client(nowhere, "k", retry_seconds=0.2).stream(JOB))


def test_every_event_renews_the_retry_time(server: Scripted, new_client: NewClient) -> None:
    """It is for one outage, not for the life of a job."""
    pause = threading.Event()
    for number in range(1, 5):
        server.will(streams(event(number), then=lambda: pause.wait(0.15)), drop)
    server.will(streams(DONE))
    events = list(new_client(server.url, "k", retry_seconds=0.3).stream(JOB))
    assert [one.id for one in events] == ["1", "2", "3", "4", ""]


def test_an_unknown_job_has_no_stream(server: Scripted, client: Client) -> None:
    server.will(problem(404, "unknown_job"))
    with pytest.raises(NotFound):
        list(client.stream(JOB))


def test_lines_may_end_and_be_split_in_any_way(server: Scripted, client: Client) -> None:
    server.will(streams(b"id:5\r\neve", b"nt:x\r\ndata:1\r\n", b"data: 2\r\nunknown\r\n\r\n", DONE))
    first = next(client.stream(JOB))
    assert (first.type, first.id, first.data) == ("x", "5", "1\n2")
