"""Log lines of a real node, as a dispatcher reads them: while a run goes on, at its end, and pushed."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from foundation.log_lines import LogLine, LogPart
from gpu_host.node.run_lines import MAX_CHARS, RunLines
from gpus.errors import GpuError
from gpus.protocol import Endpoint, ModelSpec
from gpus.runners.base import Abort, Accepted, Finished, RunRequest, StillRunning
from gpus.runners.log_tail import LOG_BYTES
from gpus.runners.registry import runner_for
from tests.gpu_host.node.caller import Caller
from tests.support.node_process import start as start_process
from tests.support.node_process import stop as stop_process
from tests.support.push_receiver import Receiver
from tests.support.waiting import wait_for

PRINTS = "tests.gpu_host.node.custom_handlers:prints"
POLLED = ModelSpec("m", "m", model_type="async", poll_endpoint_template="/status/{id}", poll_interval=0.01)
PLAIN = ModelSpec("m", "m")


class Reader:
    """A run of a node, driven by the dispatcher's runner. parts: what it reported as log lines."""

    def __init__(self, url: str, model: ModelSpec, payload: Any = None, **values: Any) -> None:
        self.parts: list[LogPart] = []
        self.runner = runner_for(model)
        self.request = RunRequest(
            "j", "a", model, Endpoint("box", f"{url}/run"), payload, "box/0", 1, report=self._report, **values
        )

    def _report(self, kind: str, value: Any) -> None:
        if kind == "log":
            self.parts.append(value)

    @property
    def lines(self) -> list[LogLine]:
        return [line for part in self.parts for line in part.lines]

    @property
    def texts(self) -> list[tuple[str, str]]:
        return [(line.stream, line.text) for line in self.lines]

    def start(self) -> Finished | Accepted:
        return self.runner.start(self.request, abort=Abort())

    def poll(self, accepted: Finished | Accepted) -> Finished | StillRunning:
        assert isinstance(accepted, Accepted)
        return self.runner.poll(self.request, accepted.remote_id, abort=Abort())


EXPECTED = [
    ("stdout", "first"),
    ("log", "said step=1"),
    ("stderr", "to stderr"),
    ("stderr", "by logging"),
    ("stdout", "last"),
]


def test_lines_come_with_polls_each_once(start, gate) -> None:
    node: Caller = start(handler=PRINTS, mode="async")
    reader = Reader(node.node.url, POLLED)
    accepted = reader.start()
    wait_for(lambda: reader.poll(accepted) and len(reader.lines) == 4)
    assert isinstance(reader.poll(accepted), StillRunning)
    assert reader.texts == EXPECTED[:4]
    gate.release.set()
    assert wait_for(lambda: isinstance(found := reader.poll(accepted), Finished) and found) == Finished("ok")
    assert reader.texts == EXPECTED
    assert [line.level for line in reader.lines] == ["", "warning", "", "error", ""]
    assert all(line.at is not None for line in reader.lines)
    assert reader.parts[-1].seen == 5


def test_another_worker_goes_on_where_the_first_one_stopped(start, gate) -> None:
    node: Caller = start(handler=PRINTS, mode="async")
    first = Reader(node.node.url, POLLED)
    accepted = first.start()
    wait_for(lambda: first.poll(accepted) and len(first.lines) == 4)
    second = Reader(node.node.url, POLLED, logs_seen=4)
    gate.release.set()
    wait_for(lambda: isinstance(second.poll(accepted), Finished))
    assert second.texts == EXPECTED[4:]


@pytest.mark.parametrize("model", [PLAIN, POLLED])
def test_lines_come_with_the_answer_of_a_run(start, gate, model: ModelSpec) -> None:
    gate.release.set()
    node: Caller = start(handler=PRINTS, mode="sync")
    reader = Reader(node.node.url, model)
    assert reader.start() == Finished("ok")
    assert reader.texts == EXPECTED


def test_lines_come_with_a_failure(start, gate) -> None:
    gate.release.set()
    node: Caller = start(handler=PRINTS)
    reader = Reader(node.node.url, PLAIN, "fail")
    with pytest.raises(GpuError, match="deep inside"):
        reader.start()
    assert reader.texts == EXPECTED[:4]


def test_lines_come_with_a_push(start, gate, monkeypatch) -> None:
    gate.release.set()
    node: Caller = start(handler=PRINTS, mode="async")
    with Receiver() as receiver:
        node.dispatch(None, X_Callback_Url=receiver.url, X_Callback_Token="t")
        assert receiver.asked.wait(30)
        wait_for(lambda: receiver.requests)
        _, body = receiver.pushed()
    reader = Reader(node.node.url, POLLED)
    assert reader.runner.read_pushed(reader.request, body) == Finished("ok")
    assert reader.texts == EXPECTED
    reader.runner.read_pushed(reader.request, body)
    assert reader.texts == EXPECTED, "a poll and a push may both have them"


def test_a_direct_caller_gets_the_result_alone(start, gate) -> None:
    gate.release.set()
    assert start(handler=PRINTS).direct(None).body == {"status": "success", "result": "ok"}


def test_lines_do_not_make_an_answer_too_large(start, gate) -> None:
    """The log of a run may be larger than its model's results."""
    gate.release.set()
    node: Caller = start(handler=PRINTS)
    reader = Reader(node.node.url, ModelSpec("m", "m", max_response_bytes=100), {"lines": 2000})
    assert reader.start() == Finished("ok")
    assert len(reader.lines) > 100
    assert sum(line.left_out for line in reader.lines) > 1000


def test_the_lines_of_a_run_are_bounded_and_count_what_is_lost() -> None:
    kept = RunLines()
    for number in range(3000):
        kept.add([LogLine("stdout", f"{number} " + "\ud7ff" * 90)])
    fields = kept.after(0)
    assert fields["logs_offset"] + len(fields["logs"]) == 3000
    assert MAX_CHARS - 200 < kept.chars <= MAX_CHARS
    assert len(json.dumps(fields)) < LOG_BYTES
    assert kept.after(3000) == {}
    assert kept.after(2999)["logs"][0]["text"].startswith("2999 ")


def test_a_node_in_a_process_of_its_own_sends_prints() -> None:
    process = start_process("-m", "gpu_host.node", "--handler", PRINTS)
    try:
        assert process.stdout is not None
        url = next(word for line in process.stdout for word in line.split() if word.startswith("http://"))
        reader = Reader(url, PLAIN, {"lines": 1})
        assert reader.start() == Finished("ok")
        assert reader.texts == [*EXPECTED[:4], ("stdout", "line 0"), EXPECTED[4]]
    finally:
        stop_process(process)


def test_a_node_routes_prints_after_something_replaced_the_streams(start, gate, monkeypatch) -> None:
    start(handler=PRINTS, mode="sync")  # it still serves
    monkeypatch.setattr("sys.stdout", io.StringIO())
    monkeypatch.setattr("sys.stderr", io.StringIO())
    gate.release.set()
    reader = Reader(start(handler=PRINTS, mode="sync").node.url, PLAIN)
    assert reader.start() == Finished("ok")
    assert ("stdout", "first") in reader.texts
