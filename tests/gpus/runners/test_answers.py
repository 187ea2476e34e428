from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from gpus.errors import BadInput, GpuError, GpuFault, OutputNotStored, OutputRefused, RunFailed
from gpus.protocol import ModelSpec
from gpus.runners.base import Accepted, CancelUnsupported, Finished, PollFailed, Response, StillRunning
from gpus.runners.http_runner import read_cancel, read_poll, read_progress, read_start
from gpus.runners.transport import Unreadable

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SYNC = ModelSpec("m", "m")
ASYNC = ModelSpec("m", "m", model_type="async", poll_endpoint_template="/status/{id}")


def answer(body: Any, status: int = 200) -> Response:
    return Response(status, {}, json.dumps(body).encode())


def start(body: Any, model: ModelSpec = SYNC, status: int = 200) -> Finished | Accepted:
    return read_start(answer(body, status), model, now=NOW, bare_is_id=model.model_type == "async")


@pytest.mark.parametrize("model", [SYNC, ASYNC])
@pytest.mark.parametrize("word", ["success", "completed", "done", "Succeeded"])
def test_a_success_is_finished_in_both_patterns(model, word):
    assert start({"status": word, "result": [1]}, model) == Finished([1])


def test_a_success_without_a_result_field_returns_the_other_fields():
    assert start({"status": "done", "url": "u"}) == Finished({"url": "u"})
    assert start({"status": "done", "result": None}) == Finished(None)


USAGE = {"images": 4, "details": {"steps": 20}}


@pytest.mark.parametrize(
    ("body", "finished"),
    [
        ({"status": "done", "result": 1, "usage": USAGE}, Finished(1, USAGE)),
        ({"status": "done", "result": {"usage": USAGE}}, Finished({"usage": USAGE}, USAGE)),
        ({"result": 1, "usage": {"images": 4, "at": "http://10.0.0.1"}}, Finished(1, {"images": 4})),
        ({"url": "u", "usage": "much"}, Finished({"url": "u", "usage": "much"})),
    ],
)
def test_counts_beside_or_in_a_result_are_the_usage(body, finished):
    assert start(body) == finished


def test_a_sync_model_may_answer_with_the_bare_result():
    assert start({"url": "u"}) == Finished({"url": "u"})
    assert start({"result": 7, "took": 1}) == Finished(7)


@pytest.mark.parametrize("model", [SYNC, ASYNC])
@pytest.mark.parametrize("word", ["processing", "pending", "queued", "running", "IN_PROGRESS"])
def test_a_run_in_progress_is_accepted_under_its_id(model, word):
    assert start({"status": word, "job_id": "r1"}, model, 202) == Accepted("r1")


@pytest.mark.parametrize(
    ("body", "remote_id"),
    [
        ({"job_id": "a", "id": "b"}, "a"),
        ({"id": "b", "task_id": "c"}, "b"),
        ({"task_id": "c"}, "c"),
        ({"request_id": 7}, "7"),
        ({"job_id": None, "id": "b"}, "b"),
    ],
)
def test_common_id_fields_are_read(body, remote_id):
    assert start(body, ASYNC) == Accepted(remote_id)


def test_a_named_id_field_is_the_only_one():
    named = ModelSpec("m", "m", model_type="async", id_field="ticket")
    assert start({"ticket": "t", "id": "b"}, named) == Accepted("t")
    with pytest.raises(Unreadable, match="ticket"):
        start({"id": "b"}, named)


@pytest.mark.parametrize("value", ["", True, None, {}, "x" * 501])
def test_an_invalid_id_is_refused(value):
    with pytest.raises(Unreadable):
        start({"status": "processing", "job_id": value}, ASYNC)


@pytest.mark.parametrize("body", [[1], "text", 1, None, {"status": "hmm"}, {"status": None}])
def test_an_unknown_answer_is_a_failed_run(body):
    with pytest.raises(RunFailed):
        start(body)


@pytest.mark.parametrize("word", ["failed", "error", "cancelled"])
@pytest.mark.parametrize("read", [start, read_progress])
def test_a_failed_run_says_why(word, read):
    with pytest.raises(RunFailed, match="no luck"):
        read({"status": word, "error": "no luck"})


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"error": "CUDA error: device-side assert"}, GpuFault),
        ({"error": "CUDA out of memory. Tried to allocate"}, GpuFault),
        ({"message": "NVRM: Xid 79"}, GpuFault),
        ({"error": "hm", "error_code": "gpu_fault"}, GpuFault),
        ({"error": "hm", "code": "bad_input"}, BadInput),
        ({"error": "hm", "error_code": "output_not_stored"}, OutputNotStored),
        ({"error": "hm", "error_code": "output_refused"}, OutputRefused),
        ({"error": "the prompt is empty"}, RunFailed),
        ({}, RunFailed),
    ],
)
def test_a_failure_has_the_cost_of_its_cause(body, error):
    with pytest.raises(error) as raised:
        read_progress({"status": "failed", **body})
    assert type(raised.value) is error


@pytest.mark.parametrize(
    "body", [{"error": "hm"}, {"error": "hm", "error_code": "bad_input"}, {"error": "Xid 79"}]
)
def test_a_failures_traceback_is_kept_apart_from_its_text(body):
    with pytest.raises(GpuError) as raised:
        read_progress({"status": "failed", "traceback": "x" * 9000 + "Traceback: deep inside", **body})
    assert "deep inside" not in raised.value.message
    assert raised.value.detail.endswith("xTraceback: deep inside")
    assert len(raised.value.detail) == 3000
    with pytest.raises(GpuError) as raised:
        read_progress({"status": "failed", "traceback": {"not": "a text"}, **body})
    assert raised.value.detail == ""


def test_a_poll_returns_the_progress():
    assert read_poll(answer({"status": "running", "progress": 0.25})) == StillRunning(0.25)
    assert read_poll(answer({"status": "running", "progress": 40})) == StillRunning(1.0)
    assert read_poll(answer({"status": "running", "progress": "half"})) == StillRunning(None)
    said = {"value": 0.25, "text": "step 5 of 20"}
    assert read_poll(answer({"status": "running", "progress": said})) == StillRunning(0.25, "step 5 of 20")


def test_a_poll_returns_the_result():
    assert read_poll(answer({"status": "done", "result": 1})) == Finished(1)
    assert read_poll(answer({"result": 1})) == Finished(1)


@pytest.mark.parametrize("status", [302, 400, 401, 408, 429, 500, 502, 503, 504])
def test_a_poll_without_a_state_may_be_repeated(status):
    with pytest.raises(PollFailed) as raised:
        read_poll(answer({"error": "CUDA error"}, status))
    assert not raised.value.gone


@pytest.mark.parametrize("status", [404, 410])
def test_an_unknown_run_is_reported_as_gone(status):
    with pytest.raises(PollFailed) as raised:
        read_poll(answer({}, status))
    assert raised.value.gone


@pytest.mark.parametrize("body", [{}, {"progress": 1}, [], {"status": 1}])
def test_a_poll_of_another_shape_ends_the_run(body):
    with pytest.raises(Unreadable):
        read_poll(answer(body))


def test_a_pushed_error_is_a_failure():
    with pytest.raises(RunFailed, match="boo"):
        read_progress({"error": "boo"})


@pytest.mark.parametrize(
    ("body", "status", "known", "stopped"),
    [
        ({"status": "cancelled"}, 200, True, True),
        ({"status": "completed"}, 200, True, True),
        ({"status": "not_running"}, 404, False, True),
        ({"running": False}, 200, False, True),
        ({"status": "cancelled", "running": True}, 200, True, False),
        ({"status": "cancelling"}, 202, True, False),
        ({"ok": True}, 200, True, False),
        ({"detail": "Not Found"}, 404, True, True),
        ({"detail": "Not Found"}, 404, False, False),
        ({"status": "cancelled"}, 500, True, False),
        ([], 200, True, False),
    ],
)
def test_only_a_confirmed_cancel_counts(body, status, known, stopped):
    assert read_cancel(answer(body, status), known=known) is stopped


@pytest.mark.parametrize(
    ("body", "status", "stopped"),
    [
        ({"running": False}, 200, True),
        ({"status": "not_running", "running": False}, 404, True),
        ({"status": "cancelling", "running": True}, 202, False),
        ({"status": "cancelled"}, 503, False),
        ({"status": "cancelled"}, 500, False),
        ({"status": "cancelled"}, 429, False),
    ],
)
def test_at_a_guessed_path_only_the_protocols_own_word_is_believed(body, status, stopped):
    assert read_cancel(answer(body, status), known=True, guessed=True) is stopped


@pytest.mark.parametrize("status", [200, 202, 302, 400, 404, 405, 410, 501])
@pytest.mark.parametrize("body", [{"status": "success", "result": "a run of its own"}, {"detail": "no"}, [1]])
def test_another_answer_at_the_default_cancel_path_means_no_cancel_endpoint(body, status):
    with pytest.raises(CancelUnsupported):
        read_cancel(answer(body, status), known=True, guessed=True)


def test_an_empty_answer_to_a_cancel_proves_nothing():
    assert read_cancel(Response(204), known=True) is False
