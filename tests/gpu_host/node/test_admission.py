"""Which requests get a slot, and what the node remembers."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.waiting import wait_for

HANG = {"fault": "hang"}


def test_the_dispatcher_is_refused_while_all_slots_are_busy(start):
    node = start(slots=1, mode="async", retry_after_seconds=7)
    running = node.dispatch(HANG).body["job_id"]
    refused = node.dispatch({})
    assert (refused.status, refused.body["code"]) == (503, "busy")
    assert refused.headers["Retry-After"] == "7"
    node.ask("POST", f"/cancel/{running}")
    assert node.dispatch({}).status == 200
    assert node.health()["refused_503"] == 1


def test_direct_callers_queue_and_go_before_the_dispatcher(start):
    node = start(slots=1)
    running = node.later(node.dispatch, HANG, X_Job_Id="first")
    wait_for(lambda: node.health()["active_jobs"] == 1)
    waiting = []
    for number in range(3):
        payload = {"seconds": 0.05, "echo": number}
        waiting.append(node.later(node.direct, payload, X_Job_Id=f"direct-{number}"))
        wait_for(lambda count=number + 1: node.health()["direct_queue"] == count)
    assert node.dispatch({}).status == 503
    node.ask("POST", "/cancel/first")
    assert [one.result().body["result"]["echo"] for one in waiting] == [0, 1, 2]
    assert running.result().body["error_code"] == "cancelled"
    assert [entry["job"] for entry in node.node.runs()] == ["first", "direct-0", "direct-1", "direct-2"]


def test_the_dispatcher_is_refused_while_a_direct_caller_waits(start):
    node = start(slots=1, mode="async")
    node.dispatch(HANG, X_Job_Id="first")
    node.direct(HANG)
    assert "direct caller" in node.dispatch({}).body["error"]


def test_only_so_many_direct_callers_wait(start):
    node = start(slots=1, mode="async", direct_queue=2)
    node.direct(HANG)
    assert [node.direct({}).body.get("position") for _ in range(2)] == [1, 2]
    full = node.direct({})
    assert (full.status, full.body["code"]) == (503, "busy")


def test_a_waiting_caller_can_be_cancelled(start):
    node = start(slots=1, mode="async")
    node.direct(HANG)
    waiting = node.direct({}).body["job_id"]
    assert node.ask("POST", f"/cancel/{waiting}").body == {"status": "cancelled", "running": False}
    assert node.health()["direct_queue"] == 0
    assert node.ask("GET", f"/status/{waiting}").body["error_code"] == "cancelled"


def test_a_caller_that_left_the_queue_is_not_run(start):
    node = start(slots=1)
    node.later(node.dispatch, HANG, X_Job_Id="first")
    wait_for(lambda: node.health()["active_jobs"] == 1)
    sock = socket.create_connection(("127.0.0.1", node.node.port))
    sock.sendall(b"POST /generate HTTP/1.1\r\nContent-Length: 14\r\n\r\n" + b'{"seconds": 0}')
    wait_for(lambda: node.health()["direct_queue"] == 1)
    sock.close()
    node.ask("POST", "/cancel/first")
    wait_for(lambda: [entry["outcome"] for entry in node.node.runs()] == ["cancelled", "cancelled"])


def test_many_dispatchers_never_run_more_than_the_slots(start):
    node = start(slots=3)
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda _: node.dispatch({"seconds": 0.01}).status, range(120)))
    health = node.health()
    assert health["max_running"] <= 3
    assert health["refused_503"] == answers.count(503)
    assert len(node.node.runs()) == answers.count(200) == 120 - answers.count(503)


def test_health_lists_the_active_runs(start):
    node = start(slots=2, mode="async")
    node.dispatch(HANG, X_Job_Id="j", Idempotency_Key="a")
    direct = node.direct(HANG).body["job_id"]
    health = node.health()
    assert (health["status"], health["active_jobs"], health["max_concurrent"]) == ("ok", 2, 2)
    assert health["jobs"] == [{"job_id": "j", "attempt": "a"}, {"job_id": direct, "attempt": ""}]


def test_a_handler_that_does_not_stop_keeps_its_slot(start, gate):
    node = start(
        handler="tests.gpu_host.node.custom_handlers:stubborn", mode="async", cancel_wait_seconds=0.05
    )
    run = node.dispatch({}, X_Job_Id="j").body["job_id"]
    answer = node.ask("POST", "/cancel/j")
    assert (answer.status, answer.body) == (202, {"status": "cancelling", "running": True})
    assert node.health()["active_jobs"] == 1
    gate.release.set()
    wait_for(lambda: node.ask("GET", f"/status/{run}").body["status"] == "success")


@pytest.mark.parametrize(("fence", "status"), [("4", 409), ("5", 200), ("6", 200)])
def test_an_outdated_fence_is_refused_and_counted(start, fence, status):
    node = start(slots=2)
    node.dispatch({"seconds": 0}, X_Slot="gpu-1/0", X_Fence="5")
    answer = node.dispatch({"seconds": 0}, X_Slot="gpu-1/0", X_Fence=fence)
    assert answer.status == status
    assert node.health()["late_senders"] == (status == 409)
    if status == 409:
        assert answer.body["code"] == "stale_fence"
    assert node.dispatch({"seconds": 0}, X_Slot="gpu-1/1", X_Fence="1").status == 200, "fences are per slot"


def test_a_refused_request_moves_the_fence_too(start):
    node = start(slots=1, mode="async")
    node.dispatch(HANG, X_Slot="gpu-1/0", X_Fence="5")
    assert node.dispatch({}, X_Slot="gpu-1/0", X_Fence="7").status == 503
    assert node.dispatch({}, X_Slot="gpu-1/0", X_Fence="6").status == 409


def test_a_restart_keeps_only_the_log(start):
    node = start(slots=2, mode="async")
    before = node.health()
    run = node.dispatch(HANG, X_Slot="gpu-1/0", X_Fence="5").body["job_id"]
    node.node.restart()
    after = node.health()
    assert after["boot_id"] != before["boot_id"]
    assert (after["active_jobs"], after["jobs"], after["max_running"]) == (0, [], 1)
    assert node.ask("GET", f"/status/{run}").status == 404
    assert node.dispatch({"seconds": 0}, X_Slot="gpu-1/0", X_Fence="1").status == 200
    assert node.node.runs()[0]["outcome"] == "restarted"


def test_a_draining_node_lets_its_runs_end_and_their_results_be_fetched(start):
    node = start(slots=2, mode="async")
    run = node.dispatch({"seconds": 0.2}).body["job_id"]
    drained = node.threads.submit(node.node.drain, 10)
    wait_for(lambda: node.health()["status"] == "draining")
    assert node.dispatch({}).status == 503
    assert node.direct({}).status == 503
    wait_for(lambda: node.health()["active_jobs"] == 0)
    assert not drained.done(), "the result has not been fetched yet"
    assert node.ask("GET", f"/status/{run}").body["status"] == "success"
    assert drained.result() is True


def test_a_drain_gives_up_after_its_grace(start):
    node = start(mode="async")
    node.dispatch(HANG)
    assert node.node.drain(0.05) is False


def test_the_log_file_has_starts_ends_and_refusals_in_order(start, tmp_path):
    file = tmp_path / "node.jsonl"
    node = start(slots=1, mode="async", log_file=str(file))
    slot = {"X_Slot": "gpu/0", "Idempotency_Key": "first", "X_Job_Id": "a"}
    run = node.dispatch(HANG, X_Fence="7", **slot).body["job_id"]
    node.dispatch({}, X_Slot="gpu/0", X_Fence="8", X_Job_Id="b")
    node.dispatch({}, X_Slot="gpu/0", X_Fence="6", X_Job_Id="c")
    node.direct(HANG, X_Job_Id="d")
    node.dispatch({}, X_Job_Id="e")
    node.ask("POST", f"/cancel/{run}")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    summary = [(line["what"], line.get("job"), line.get("why") or line.get("outcome")) for line in lines]
    assert summary == [
        ("boot", None, None),
        ("began", "a", None),
        ("refused", "b", "full"),
        ("refused", "c", "stale_fence"),
        ("refused", "e", "direct_caller"),
        ("ended", "a", "cancelled"),
        ("began", "d", None),
    ]
    assert (lines[1]["slot"], lines[1]["fence"], lines[1]["attempt"]) == ("gpu/0", 7, "first")
    assert lines[2]["running"] == 1
