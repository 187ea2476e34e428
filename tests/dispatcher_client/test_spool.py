"""The spool: unanswered requests are kept on disk and sent once, despite crashes."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from dispatcher_client import Client, NoAnswer, NotAuthenticated, Spooled
from dispatcher_client.spool import Entry, Spool
from dispatcher_project.supervisor.data_folder import ROOT
from tests.dispatcher_client.scripted import (
    Asked,
    Handler,
    Scripted,
    behave,
    commit_and_drop,
    drop,
    problem,
    says,
)
from tests.support.new_client import NewClient


@pytest.fixture
def offline(nowhere: str, spool: Path, new_client: NewClient) -> Client:
    return new_client(nowhere, "k", spool=spool, retry_seconds=0)


@pytest.fixture
def online(server: Scripted, spool: Path, new_client: NewClient) -> Client:
    return new_client(server.url, "k", spool=spool, retry_seconds=0)


def spooled(client: Client, number: int) -> str:
    """The key under which it will be sent."""
    with pytest.raises(Spooled) as raised:
        client.submit("flux", {"n": number})
    assert raised.value.idempotency_key
    return raised.value.idempotency_key


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_unanswered_requests_are_sent_later_in_order_under_their_keys(
    server: Scripted, offline: Client, online: Client, spool: Path
) -> None:
    keys = [spooled(offline, number) for number in range(3)]
    assert [line["idempotency_key"] for line in lines(spool)] == keys
    flushed = online.flush_spool()
    assert (flushed.sent, flushed.refused, flushed.left, flushed.stopped_by) == (3, 0, 0, None)
    assert server.keys == keys
    assert [asked.body["payload"]["n"] for asked in server.asked] == [0, 1, 2]
    assert not spool.exists()
    assert online.flush_spool().sent == 0


def test_a_lost_answer_and_the_spool_make_one_job(server: Scripted, online: Client) -> None:
    server.will(commit_and_drop)
    key = spooled(online, 1)
    assert online.flush_spool().sent == 1
    assert list(server.jobs) == [key]


def test_an_answer_of_503_to_the_end_is_spooled_and_a_refusal_is_not(
    server: Scripted, online: Client, spool: Path
) -> None:
    server.will(problem(503, "database_unavailable", retryable=True))
    spooled(online, 1)
    server.will(problem(401, "invalid_key"))
    with pytest.raises(NotAuthenticated):
        online.submit("flux", {})
    assert len(lines(spool)) == 1


def test_a_batch_is_spooled_as_one(server: Scripted, offline: Client, online: Client, spool: Path) -> None:
    with pytest.raises(Spooled):
        offline.submit_batch([{"model": "a", "payload": {}}, {"model": "b", "payload": {}}])
    refused = {"status": 422, "code": "unknown_model", "detail": "", "retryable": False}
    server.will(says(202, {"jobs": [{"job_id": "J", "status": "queued"}, refused]}))
    flushed = online.flush_spool()
    assert (flushed.sent, flushed.refused, flushed.left) == (1, 1, 0)
    problem = lines(spool.with_name("spool.jsonl.refused"))[0]["problem"]
    assert [item["code"] for item in problem["items"]] == ["unknown_model"]


def test_a_spooled_request_is_private_and_on_disk_before_submit_raises(
    offline: Client, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    fsync = os.fsync

    def watched(number: int) -> None:
        synced.append(os.fstat(number).st_ino)
        fsync(number)

    monkeypatch.setattr(os, "fsync", watched)
    spooled(offline, 1)
    assert synced == [spool.stat().st_ino, spool.parent.stat().st_ino]
    assert stat.S_IMODE(spool.stat().st_mode) == 0o600


def test_a_full_disk_is_reported_together_with_the_key(
    nowhere: str, tmp_path: Path, new_client: NewClient
) -> None:
    client = new_client(nowhere, "k", spool=tmp_path / "no folder" / "spool", retry_seconds=0)
    with pytest.raises(NoAnswer) as raised:
        client.submit("flux", {})
    assert raised.value.idempotency_key
    assert "could not be spooled" in raised.value.__notes__[0]


def test_a_flush_stops_without_an_answer(server: Scripted, offline: Client, online: Client) -> None:
    keys = [spooled(offline, number) for number in range(3)]
    server.will(behave, problem(503, "database_unavailable", retryable=True))
    flushed = online.flush_spool()
    assert (flushed.sent, flushed.refused, flushed.left) == (1, 0, 2)
    assert flushed.stopped_by is not None
    assert online.flush_spool().sent == 2
    assert server.keys == [keys[0], keys[1], keys[1], keys[2]]


def test_lines_that_alone_get_no_answer_stay_and_others_are_sent(
    server: Scripted, offline: Client, online: Client, spool: Path
) -> None:
    keys = [spooled(offline, number) for number in range(4)]
    server.will(drop, behave, drop, behave)  # after each drop a small request is answered
    flushed = online.flush_spool()
    assert (flushed.sent, flushed.refused, flushed.left, flushed.stopped_by) == (2, 0, 2, None)
    assert [line["idempotency_key"] for line in lines(spool)] == keys[:2]
    assert online.flush_spool().sent == 2


@pytest.mark.parametrize("small", [drop, problem(503, "database_unavailable", retryable=True)])
def test_a_flush_ends_where_a_small_request_gets_no_answer_either(
    server: Scripted, offline: Client, online: Client, small: Any
) -> None:
    for number in range(3):
        spooled(offline, number)
    server.will(drop, small)
    flushed = online.flush_spool()
    assert (flushed.sent, flushed.left) == (0, 3)
    assert isinstance(flushed.stopped_by, NoAnswer)


def test_a_refused_line_is_moved_aside_with_its_problem(
    server: Scripted, offline: Client, online: Client, spool: Path
) -> None:
    keys = [spooled(offline, number) for number in range(3)]
    server.will(behave, problem(422, "unknown_model", pointer="/model"))
    flushed = online.flush_spool()
    assert (flushed.sent, flushed.refused, flushed.left) == (2, 1, 0)
    (refused,) = lines(spool.with_name("spool.jsonl.refused"))
    assert refused["request"]["idempotency_key"] == keys[1]
    assert refused["request"]["body"] == {"model": "flux", "payload": {"n": 1}}
    assert (refused["problem"]["code"], refused["problem"]["errors"][0]["pointer"]) == (
        "unknown_model",
        "/model",
    )


@pytest.mark.parametrize(
    "act",
    [
        problem(401, "invalid_key"),
        problem(403, "tenant_required"),
        problem(404, "unknown_route"),
        problem(429, "throttled", retryable=True),
    ],
)
def test_errors_that_concern_all_lines_drop_none(
    server: Scripted, offline: Client, online: Client, act: Any
) -> None:
    for number in range(2):
        spooled(offline, number)
    server.will(act)
    flushed = online.flush_spool()
    assert (flushed.sent, flushed.refused, flushed.left) == (0, 0, 2)
    assert len(server.asked) == 1
    assert online.flush_spool().sent == 2


@pytest.mark.parametrize(
    "act",
    [problem(500, "internal_error", retryable=True), says(422, b"a proxy's page", Content_Type="text/html")],
)
def test_a_line_that_the_server_fails_on_stays_and_others_are_sent(
    server: Scripted, offline: Client, online: Client, spool: Path, act: Any
) -> None:
    keys = [spooled(offline, number) for number in range(3)]
    server.will(act)
    flushed = online.flush_spool()
    assert (flushed.sent, flushed.refused, flushed.left) == (2, 0, 1)
    assert [line["idempotency_key"] for line in lines(spool)] == keys[:1]
    assert online.flush_spool().sent == 1


def test_a_line_cut_off_by_a_crash_affects_no_other(
    server: Scripted, offline: Client, online: Client, spool: Path
) -> None:
    first = spooled(offline, 1)
    spool.write_bytes(spool.read_bytes() + b'{"path": "/queue/submit", "idempotency_key": "half", "bo')
    second = spooled(offline, 2)
    flushed = online.flush_spool()
    assert (flushed.sent, flushed.refused, flushed.left) == (2, 1, 0)
    assert server.keys == [first, second]
    assert lines(spool.with_name("spool.jsonl.refused"))[0]["problem"]["code"] == "unreadable"


def test_a_writer_does_not_wait_for_a_sender(
    server: Scripted, offline: Client, online: Client, over: threading.Event
) -> None:
    spooled(offline, 1)
    asked, go = threading.Event(), threading.Event()

    def slow(handler: Handler, request: Asked) -> None:
        asked.set()
        go.wait(30)
        behave(handler, request)

    server.will(slow)
    sent: list[int] = []
    flushing = threading.Thread(target=lambda: sent.append(online.flush_spool().sent))
    flushing.start()
    assert asked.wait(10)
    spooled(offline, 2)
    go.set()
    flushing.join(20)
    assert sent == [2]


_FLUSH = """
import sys
from dispatcher_client import Client
print(Client(sys.argv[1], "k", spool=sys.argv[2], retry_seconds=0).flush_spool().sent)
"""
_APPEND = """
import sys
from dispatcher_client.spool import Entry, Spool
for number in range(40):
    Spool(sys.argv[2]).append(Entry("/queue/submit", f"{sys.argv[1]}-{number}", {"n": number}))
"""


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_many_processes_may_write_and_send_at_once(
    server: Scripted, spool: Path, new_client: NewClient
) -> None:
    writers = [start(_APPEND, str(number), str(spool)) for number in range(3)]
    sent = 0
    while any(writer.poll() is None for writer in writers):
        senders = [start(_FLUSH, server.url, str(spool)) for _ in range(2)]
        sent += sum(int(sender.communicate(timeout=60)[0]) for sender in senders)
    sent += new_client(server.url, "k", spool=spool).flush_spool().sent
    assert sent == len(server.asked) == len(server.jobs) == 120, "each once"
    for writer in range(3):
        own = [key for key in server.keys if key.startswith(f"{writer}-")]
        assert own == [f"{writer}-{number}" for number in range(40)], "in order"


def test_a_sender_that_is_killed_between_answer_and_removal_repeats_harmlessly(
    server: Scripted, online: Client, spool: Path
) -> None:
    keys = [f"key-{number}" for number in range(5)]
    for number, key in enumerate(keys):
        Spool(spool).append(Entry("/queue/submit", key, {"n": number}))
    senders: list[subprocess.Popen[str]] = []

    def answer_and_kill(handler: Handler, asked: Asked) -> None:
        behave(handler, asked)
        handler.wfile.flush()
        senders[0].send_signal(signal.SIGKILL)

    started = threading.Event()

    def once_started(handler: Handler, asked: Asked) -> None:
        started.wait(20)
        behave(handler, asked)

    def once_dead(handler: Handler, asked: Asked) -> None:
        senders[0].wait(20)
        behave(handler, asked)

    server.will(once_started, behave, answer_and_kill, once_dead)
    senders.append(start(_FLUSH, server.url, str(spool)))
    started.set()
    senders[0].communicate(timeout=60)
    assert senders[0].returncode == -signal.SIGKILL
    assert online.flush_spool().left == 0
    assert list(server.jobs) == keys
    assert server.keys[-5:] == keys
