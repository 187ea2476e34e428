"""A simulator has the ordered faults; other nodes have none."""

from __future__ import annotations

import http.client
import threading
import time

import pytest

from gpu_host.node.faults import BadFault, FaultPlan
from tests.support.waiting import wait_for

NO_ANSWER = (http.client.HTTPException, OSError)


@pytest.mark.parametrize("fault", ["503", 500, 429, "404"])
def test_a_status_is_answered_and_nothing_runs(start, fault):
    node = start()
    answer = node.dispatch({"fault": fault, "retry_after": 3, "message": "as you wish"})
    assert (answer.status, answer.body["error"]) == (int(fault), "as you wish")
    assert answer.headers["Retry-After"] == "3"
    assert node.node.runs() == []


@pytest.mark.parametrize("fault", ["restart", "drop_reply"])
def test_the_connection_is_cut_without_an_answer(start, fault):
    node = start()
    boot_id = node.health()["boot_id"]
    with pytest.raises(NO_ANSWER):
        node.dispatch({"seconds": 0, "fault": fault})
    assert (node.health()["boot_id"] == boot_id) is (fault == "drop_reply")
    assert [entry["outcome"] for entry in node.node.runs()] == (["success"] if fault == "drop_reply" else [])


def test_a_restart_takes_as_long_as_ordered(start):
    node = start()
    port, began = node.node.port, time.monotonic()
    with pytest.raises(NO_ANSWER):
        node.dispatch({"fault": "restart", "down_seconds": 0.3})
    assert wait_for(lambda: _health_if_up(node))["active_jobs"] == 0
    assert time.monotonic() - began >= 0.3
    assert node.node.port == port


def test_a_node_that_is_down_can_be_stopped(start):
    before = set(threading.enumerate())
    node = start()
    node.node.restart(down_seconds=5)
    node.node.stop()
    with pytest.raises(ConnectionRefusedError):
        node.health()
    assert set(threading.enumerate()) <= before, "nothing is left that would open the port again"


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_reply_with_the_result_is_spoilt(start, mode):
    node = start(mode=mode)

    def result_of(fault):
        answer = node.dispatch({"seconds": 0, **fault})
        if mode == "sync":
            return answer
        path = f"/status/{answer.body['job_id']}"
        wait_for(lambda: node.health()["active_jobs"] == 0)
        return node.ask("GET", path)

    assert result_of({"fault": "slow", "drip_seconds": 0.1}).body["status"] == "success"
    with pytest.raises(ValueError, match="Expecting"):
        result_of({"fault": "wrong_json"})
    assert len(result_of({"fault": "huge_reply", "reply_bytes": 200_000}).body["result"]) > 100_000


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(("fault", "code"), [("fail", "run_failed"), ("cuda", "gpu_fault")])
def test_the_run_fails(start, mode, fault, code):
    node = start(mode=mode)
    answer = node.dispatch({"seconds": 0, "fault": fault}).body
    if mode == "async":
        path = f"/status/{answer['job_id']}"
        answer = wait_for(lambda: (b := node.ask("GET", path).body)["status"] == "failed" and b)
    assert answer["error_code"] == code


def test_a_fault_may_be_for_the_first_requests_of_a_job_only(start):
    node = start()
    payload = {"seconds": 0, "fault": "500", "times": 2}
    assert [node.dispatch(payload, X_Job_Id="j").status for _ in range(3)] == [500, 500, 200]
    assert node.dispatch(payload, X_Job_Id="other").status == 500


def test_posted_faults_are_for_the_next_requests(start):
    node = start()
    assert node.ask("POST", "/faults", {"fault": "503", "count": 2}).status == 201
    assert node.ask("GET", "/faults").body["faults"] == [{"fault": "503", "count": 2, "left": 2}]
    assert [node.dispatch({"seconds": 0}).status for _ in range(3)] == [503, 503, 200]
    node.ask("POST", "/faults", {"fault": "500", "probability": 1})
    node.ask("DELETE", "/faults")
    assert node.dispatch({"seconds": 0}).status == 200


@pytest.mark.parametrize(("place", "path"), [("health", "/health"), ("status", "/status/x")])
def test_faults_may_affect_other_routes(start, place, path):
    node = start()
    node.ask("POST", "/faults", {"fault": "500", "on": place})
    node.ask("POST", "/faults", {"fault": "drop_reply", "on": place})
    assert node.ask("GET", path).status == 500
    with pytest.raises(NO_ANSWER):
        node.ask("GET", path)
    assert node.ask("GET", path).status in (200, 404)


def test_a_fault_may_be_for_one_model(start):
    node = start(handlers={"a": "gpu_host.node.simulator:run", "b": "gpu_host.node.simulator:run"})
    node.ask("POST", "/faults", {"fault": "500", "model": "b"})
    assert node.dispatch({"seconds": 0}, "/a/generate").status == 200
    assert node.dispatch({"seconds": 0}, "/b/generate").status == 500


@pytest.mark.parametrize(
    "wish",
    [
        {},
        {"fault": "typo"},
        {"fault": "200"},
        {"fault": "500", "on": "mars"},
        {"fault": "500", "count": "two"},
        {"fault": "500", "probability": True},
        [],
    ],
)
def test_an_invalid_fault_is_refused(start, wish):
    node = start()
    assert node.ask("POST", "/faults", wish).status == 400
    assert node.ask("GET", "/faults").body == {"faults": []}


def test_a_payload_with_an_unknown_fault_is_bad_input(start):
    assert start().dispatch({"fault": "typo"}).status == 400


def test_a_real_server_accepts_no_faults(start):
    node = start(handler="tests.gpu_host.node.custom_handlers:only_payload")
    assert node.dispatch({"fault": "500"}).body["result"] == {"got": {"fault": "500"}}
    assert node.ask("GET", "/faults").status == 404
    assert node.ask("POST", "/faults", {"fault": "500"}).body["result"] == {"got": {"fault": "500"}}


def test_probability_and_time_limit_a_fault():
    chances = iter([0.9, 0.1])
    plan = FaultPlan(chance=lambda: next(chances))
    plan.add({"fault": "500", "probability": 0.5})
    assert [plan.take("run") is not None for _ in range(2)] == [False, True]
    brief = FaultPlan()
    brief.add({"fault": "500", "seconds": 0})
    assert brief.take("run") is None
    lasting = FaultPlan()
    lasting.add({"fault": "500", "seconds": 60})
    assert all(lasting.take("run") for _ in range(5))


def test_a_fault_is_validated_before_it_is_active():
    plan = FaultPlan()
    with pytest.raises(BadFault):
        plan.add({"fault": "99"})
    assert plan.active() == []


def _health_if_up(node):
    try:
        return node.health()
    except OSError:
        return None


def test_a_late_server_runs_at_once_and_answers_later(start):
    node = start(mode="async")
    began = time.monotonic()
    node.dispatch({"fault": "late", "delay_seconds": 0.4, "seconds": 0})
    assert time.monotonic() - began >= 0.4
    node.ask("POST", "/faults", {"fault": "late", "delay_seconds": 0.4, "on": "health"})
    began = time.monotonic()
    assert node.health()["active_jobs"] == 0
    assert time.monotonic() - began >= 0.4


def test_a_server_with_the_idle_fault_reports_no_runs(start):
    node = start(mode="async")
    node.dispatch({"fault": "hang"})
    node.ask("POST", "/faults", {"fault": "idle", "on": "health"})
    assert (node.health()["active_jobs"], node.health()["active_jobs"]) == (0, 1)
