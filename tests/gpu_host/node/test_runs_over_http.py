"""A run's path through the node, in its three modes."""

from __future__ import annotations

import http.client
import socket

import pytest

from gpu_host.node.http_server import Request
from gpu_host.node.routes import Routes
from tests.support.waiting import wait_for

CUSTOM = "tests.gpu_host.node.custom_handlers"


def test_a_sync_node_answers_with_the_result(start):
    node = start()
    assert node.direct({"seconds": 0, "echo": 1}).body["result"]["echo"] == 1


def test_an_async_node_answers_with_an_id_to_poll(start, gate):
    node = start(handler=f"{CUSTOM}:held", mode="async")
    accepted = node.dispatch({"x": 1}).body
    assert accepted["status"] == "processing"
    status = f"/status/{accepted['job_id']}"
    assert node.ask("GET", status).body["status"] == "processing"
    wait_for(lambda: node.ask("GET", status).body.get("progress") == 0.5)
    gate.release.set()
    assert wait_for(lambda: node.ask("GET", status).body.get("result")) == {"x": 1}


def test_an_auto_node_answers_with_what_comes_first(start):
    for within, seconds, status in ((30.0, 0, "success"), (0.05, 30, "processing")):
        node = start(mode="auto", answer_within_seconds=within)
        assert node.direct({"seconds": seconds}).body["status"] == status


def test_a_slot_is_free_before_its_result_is_out(start):
    """The dispatcher gives the slot to the next job the moment it has the result."""
    node = start(slots=1)
    assert {node.dispatch({"seconds": 0}).status for _ in range(50)} == {200}


def test_a_polled_slot_is_free_before_its_result_is_out(start):
    node = start(slots=1, mode="async")
    for _ in range(20):
        accepted = node.dispatch({"seconds": 0})
        assert accepted.status == 200
        path = f"/status/{accepted.body['job_id']}"
        wait_for(lambda path=path: node.ask("GET", path).body["status"] == "success")


@pytest.mark.parametrize(
    ("handler", "answer"),
    [
        ("only_payload", {"status": "success", "result": {"got": {"x": 1}}}),
        ("with_context", {"status": "success", "result": {"job": "j", "attempt": "a", "model": ""}}),
        ("picky", {"status": "failed", "error": "not like this", "error_code": "bad_input"}),
        ("broken", {"status": "failed", "error": "KeyError: 'missing'", "error_code": "run_failed"}),
    ],
)
def test_a_handlers_end_is_the_answer(start, handler, answer):
    node = start(handler=f"{CUSTOM}:{handler}")
    said = node.dispatch({"x": 1}, X_Job_Id="j", Idempotency_Key="a").body
    trace = said.pop("traceback", "")
    assert said == answer
    assert ("custom_handlers.py" in trace) is (answer["status"] == "failed")


@pytest.mark.parametrize("mode", ["sync", "async", "auto"])
@pytest.mark.parametrize("how", ["exit", "interrupt"])
def test_a_handler_that_ends_its_thread_ends_its_run_alone(start, mode, how):
    node = start(handler=f"{CUSTOM}:exits", mode=mode, slots=1)
    for payload, outcome in ((how, "failed"), (how, "failed"), ("stay", "success")):
        answer = node.dispatch(payload)
        if mode == "async":
            path = f"/status/{answer.body['job_id']}"
            wait_for(lambda path=path: node.ask("GET", path).body["status"] != "processing")
            answer = node.ask("GET", path)
        assert (answer.status, answer.body["status"]) == (200, outcome)
    assert node.health()["active_jobs"] == 0


def test_a_module_may_name_several_models(start):
    node = start(handler="tests.gpu_host.node.many_models")
    assert node.direct({"x": 1}, "/plain/generate").body["result"] == {"got": {"x": 1}}
    assert node.direct({}, "/counting").body["result"] == {"runs": 1, "is_handle": True}
    assert node.direct({}, "/generate").status == 404


@pytest.mark.parametrize(
    ("handler", "code"),
    [("out_of_memory", "gpu_fault"), ("not_json", "run_failed"), ("not_a_number", "run_failed")],
)
def test_a_handler_that_breaks_fails_its_run_alone(start, handler, code):
    node = start(handler=f"{CUSTOM}:{handler}")
    for _ in range(2):
        answer = node.dispatch(None)
        assert (answer.status, answer.body["error_code"]) == (200, code)
    assert node.health()["active_jobs"] == 0


def test_several_models_share_the_slots_of_one_port(start):
    node = start(
        handlers={"a": f"{CUSTOM}:with_context", "b": "gpu_host.node.simulator:run"}, slots=1, mode="async"
    )
    node.dispatch({"seconds": 60}, "/b/generate")
    assert node.dispatch({}, "/a/generate").status == 503
    assert node.dispatch({}, "/c/generate").status == 404


def test_a_repeated_attempt_gets_the_run_it_has(start, gate, monkeypatch):
    node = start(handler=f"{CUSTOM}:held", slots=4)
    admit, admitted = node.node.admission.admit, []

    def noted(order):
        admitted.append(admit(order))
        return admitted[-1]

    monkeypatch.setattr(node.node.admission, "admit", noted)
    first = node.later(node.dispatch, 1, Idempotency_Key="a", X_Job_Id="j")
    wait_for(lambda: node.health()["active_jobs"] == 1)
    during = node.later(node.dispatch, 2, Idempotency_Key="a", X_Job_Id="j")
    wait_for(lambda: len(admitted) == 2)
    gate.release.set()
    after = node.dispatch(3, Idempotency_Key="a", X_Job_Id="j")
    assert first.result().body == during.result().body == after.body
    assert after.body["result"] == 1
    assert len(node.node.runs()) == 1


def test_a_repeated_attempt_of_an_async_run_gets_its_id_and_then_its_result(start):
    node = start(mode="async")
    first = node.dispatch({"seconds": 0.2}, Idempotency_Key="a").body
    assert node.dispatch({"seconds": 0.2}, Idempotency_Key="a").body["job_id"] == first["job_id"]
    wait_for(lambda: node.dispatch({"seconds": 0.2}, Idempotency_Key="a").body["status"] == "success")
    assert len(node.node.runs()) == 1


def test_a_request_whose_sender_hung_up_is_not_run(start):
    """A run that was cancelled while its request was on its way must not begin afterwards."""
    node = start().node
    request = Request("POST", "/generate", {}, b'{"seconds": 0}', gone=lambda: True)
    assert Routes(node).answer(request).cut
    assert node.runs() == []


def test_old_runs_are_dropped(start):
    node = start(keep_runs=2, mode="async")
    ids = []
    for _ in range(3):
        ids.append(node.dispatch({"seconds": 0}).body["job_id"])
        wait_for(lambda: node.ask("GET", f"/status/{ids[-1]}").body["status"] == "success")
    assert [node.ask("GET", f"/status/{one}").status for one in ids] == [404, 200, 200]


def test_large_results_are_dropped(start):
    node = start(keep_bytes=1000, handler=f"{CUSTOM}:only_payload")
    for number in range(5):
        node.dispatch("x" * 600, Idempotency_Key=f"large-{number}")
    node.dispatch("x" * 600, Idempotency_Key="large-0")
    assert len(node.node.runs()) == 6, "the first one was forgotten and ran again"


# -- bad requests ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("POST", "/generate", b"{not json", {}, 400),
        ("POST", "/generate", b"[" * 100_000, {}, 400),
        ("POST", "/generate", b"{}", {"X-Fence": "soon", "X-Slot": "s/0"}, 400),
        ("POST", "/generate", b"x" * 200_001, {}, 413),
        ("POST", "/generate", None, {"Content-Length": "-1"}, 400),
        ("POST", "/generate", None, {"Transfer-Encoding": "chunked"}, 411),
        ("PUT", "/generate", b"{}", {}, 405),
        ("GET", "/generate", None, {}, 404),
        ("GET", "/status/none", None, {}, 404),
        ("POST", "/cancel/none", b"", {}, 404),
    ],
)
def test_a_bad_request_is_refused(start, method, path, body, headers, status):  # noqa: PLR0917
    answer = start(max_body_bytes=200_000).ask(method, path, body, headers)
    assert answer.status == status
    assert answer.body["status"] in ("error", "not_running")


def test_a_caller_that_hangs_up_inside_its_request_does_no_harm(start):
    node = start()
    with socket.create_connection(("127.0.0.1", node.node.port)) as sock:
        sock.sendall(b"POST /generate HTTP/1.1\r\nContent-Length: 100\r\n\r\n{")
    assert node.direct({"seconds": 0}).status == 200
    assert len(node.node.runs()) == 1


def test_a_connection_is_kept_for_further_requests(start):
    node = start()
    connection = http.client.HTTPConnection("127.0.0.1", node.node.port, timeout=10)
    for _ in range(2):
        connection.request("GET", "/health")
        assert connection.getresponse().read()
        kept = connection.sock
    assert kept is connection.sock is not None
    connection.close()


def test_the_log_has_each_run(start):
    node = start(slots=2, log_runs=2)
    for number in range(3):
        node.dispatch({"seconds": 0}, X_Slot="gpu-1/0", X_Fence=str(number), X_Job_Id=f"j{number}")
    text = node.ask("GET", "/runs").body.decode()
    assert text.count("\n") == 2
    first, second = node.node.runs()
    assert (first["job"], first["slot"], first["fence"], first["outcome"]) == ("j1", "gpu-1/0", 1, "success")
    assert first["started"] <= first["ended"] <= second["started"]
