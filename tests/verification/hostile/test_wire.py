"""The attacker's tools: limited in count and time, and no answer raises."""

from __future__ import annotations

import time

from verification.hostile.attacks.base import Attack
from verification.hostile.gpu import CraftedReply, HostileServer, ReceivedRequest, json_reply
from verification.hostile.wire import Answer, IdleConnections, ask, exchange, flood, head, status_of


class QuietBaseline(Attack):
    id, title = "x", "for tests"


def test_a_flood_ends_with_its_count_and_with_its_time() -> None:
    calls: list[int] = []
    assert flood(calls.append, workers=4, until=time.monotonic() + 60, at_most=50) == 50
    assert sorted(calls) == list(range(50))
    assert flood(calls.append, workers=4, until=time.monotonic() - 1) == 0


def test_a_hostile_server_answers_as_crafted() -> None:
    def behave(asked: ReceivedRequest) -> CraftedReply | None:
        if asked.path == "/odd":
            return CraftedReply((b"a", b"b"), 418, {"X-Odd": "1"}, length=-1)
        return json_reply({"code": "busy"}, 503, Retry_After="0") if asked.method == "POST" else None

    server = HostileServer(behave)
    url = f"http://127.0.0.1:{server.port}"
    try:
        odd = ask(url, "GET", "/odd")
        assert (odd.status, odd.body, odd.headers["x-odd"]) == (418, b"ab", "1")
        busy = ask(url, "POST", "/run", body={"a": 1})
        assert (busy.label, busy.retry_after) == ("503 busy", "0")
        assert server.requests[-1].body == b'{"a": 1}'
        assert ask(url, "GET", "/health").said["status"] == "ok"
        assert status_of(exchange(url, head("GET", "/odd"), at_most=1)) == 418
    finally:
        server.close()
    assert ask(url, "GET", "/odd", timeout=1.0).status == 0


def test_idle_connections_record_received_bytes_and_closes() -> None:
    server = HostileServer(lambda asked: None)
    connections = IdleConnections(f"http://127.0.0.1:{server.port}")
    try:
        connections.open(3, head("GET", "/health"), until=time.monotonic() + 30)
        until = time.monotonic() + 30
        answered: set[int] = set()
        while len(answered) < 3 and time.monotonic() < until:
            answered |= {n for n, said in enumerate(connections.said()) if status_of(said) == 200}
        assert answered == {0, 1, 2}
    finally:
        connections.close()
        server.close()


def test_server_errors_and_refusals_without_retry_after_are_findings() -> None:
    attack = QuietBaseline()
    for answer in (Answer(202), Answer(422), Answer(0), Answer(503, headers={"retry-after": "1"})):
        attack.note(answer, "POST /x")
    assert attack.wrongs() == []
    attack.note(Answer(500, "internal_error"), "GET /x?y=1")
    attack.note(Answer(429, "rate_limited"), "POST /x")
    attack.note(Answer(429, "rate_limited"), "POST /x")
    assert attack.wrongs() == [
        "GET /x was answered 500 internal_error",
        "POST /x was answered 429 rate_limited without Retry-After",
    ]
