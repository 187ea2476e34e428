"""Results are pushed to the caller's URL, and not twice without need."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from gpu_host.node import work
from tests.support.push_receiver import Receiver
from tests.support.waiting import wait_for


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        yield server


def test_an_async_result_is_pushed_with_its_token(start, receiver):
    node = start(mode="async", push_pause_seconds=0.01)
    node.dispatch({"seconds": 0, "echo": 1}, X_Callback_Url=receiver.url, X_Callback_Token="t0ken")
    assert receiver.asked.wait(30)
    head, body = receiver.pushed()
    assert head.startswith("POST /run HTTP/1.1")
    assert "Authorization: Bearer t0ken" in head
    assert "X-Callback-Token: t0ken" in head
    assert (body["status"], body["result"]["echo"]) == ("success", 1)


def test_a_failure_is_pushed_too(start, receiver):
    node = start(mode="async", push_pause_seconds=0.01)
    node.dispatch({"seconds": 0, "fault": "cuda"}, X_Callback_Url=receiver.url)
    assert receiver.asked.wait(30)
    assert receiver.pushed()[1]["error_code"] == "gpu_fault"


def test_a_push_is_retried(start, receiver):
    node = start(mode="async", push_pause_seconds=0.01)
    receiver.statuses = [500, 503]
    run = node.dispatch({"seconds": 0}, X_Callback_Url=receiver.url).body["job_id"]
    wait_for(lambda: len(receiver.requests) == 3)
    assert node.ask("GET", f"/status/{run}").body["status"] == "success", "it can be polled all the while"


@pytest.mark.parametrize(
    ("statuses", "requests", "delivered"), [([404], 1, False), ([500] * 9, 4, False), ([500, 200], 2, True)]
)
def test_a_push_gives_up(start, receiver, statuses, requests, delivered):
    node = start()
    node.dispatch({"seconds": 0}, Idempotency_Key="a", X_Callback_Url=receiver.url)
    run = node.node.admission._by_attempt["a"]
    receiver.statuses = statuses
    assert work.push(run, threading.Event(), pause_seconds=0.01) is delivered
    assert len(receiver.requests) == requests


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "ftp://x/", "nonsense"])
def test_a_push_to_an_unreachable_url_does_no_harm(start, receiver, url):
    node = start(mode="async", push_pause_seconds=0.01)
    run = node.dispatch({"seconds": 0}, X_Callback_Url=url).body["job_id"]
    wait_for(lambda: node.ask("GET", f"/status/{run}").body["status"] == "success")


def test_a_sync_result_is_pushed_only_if_its_caller_has_gone(start, gate, receiver):
    start().dispatch({"seconds": 0}, X_Callback_Url=receiver.url)
    node = start(handler="tests.gpu_host.node.custom_handlers:held")
    body = b'"late"'
    head = f"POST /x HTTP/1.1\r\nX-Callback-Url: {receiver.url}\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", node.node.port)) as sock:
        sock.sendall(head.encode() + body)
        assert gate.begun.wait(30)
    gate.release.set()
    assert receiver.asked.wait(30)
    assert [receiver.pushed(n)[1]["result"] for n in range(len(receiver.requests))] == ["late"]


def test_a_cancelled_run_is_not_pushed(start, receiver):
    node = start(mode="async", slots=2)
    node.dispatch({"fault": "hang"}, X_Job_Id="j", X_Callback_Url=receiver.url)
    node.ask("POST", "/cancel/j")
    node.dispatch({"seconds": 0, "echo": "other"}, X_Callback_Url=receiver.url)
    assert receiver.asked.wait(30)
    assert receiver.pushed()[1]["result"]["echo"] == "other"


def test_pushes_can_be_switched_off(start, receiver):
    quiet = start(mode="async", push=False)
    run = quiet.dispatch({"seconds": 0}, X_Callback_Url=receiver.url).body["job_id"]
    wait_for(lambda: quiet.ask("GET", f"/status/{run}").body["status"] == "success")
    loud = start(mode="async", push_pause_seconds=0.01)
    loud.dispatch({"seconds": 0}, X_Callback_Url=receiver.url)
    assert receiver.asked.wait(30)
    assert len(receiver.requests) == 1
