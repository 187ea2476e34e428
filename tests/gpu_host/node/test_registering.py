"""`--register`: a node sends its models to the dispatcher until that answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpu_host.node.config import ConfigError, NodeConfig
from gpu_host.node.registering import KEY_VARIABLE, Registering, bodies, own_address, registration_from
from gpu_host.node.server import Node
from tests.gpu_host.node.caller import Caller
from tests.support.servers.handlers import QuietHandler, serve_handler
from tests.support.waiting import wait_for

SIMULATOR = "gpu_host.node.simulator:run"


@dataclass
class Dispatcher:
    """answers: (status, body) of the next requests; then 201."""

    url: str = ""
    answers: list[tuple[int, Any]] = field(default_factory=list)
    asked: list[tuple[str | None, Any]] = field(default_factory=list)


@pytest.fixture
def dispatcher() -> Iterator[Dispatcher]:
    found = Dispatcher()

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found.asked.append((self.headers["Authorization"], body))
            status, said = found.answers.pop(0) if found.answers else (201, {"warnings": [{"detail": "hm"}]})
            if isinstance(said, bytes):  # as it is, in place of an answer
                self.wfile.write(said)
                self.close_connection = True
                return
            data = json.dumps(said).encode()
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", f"{found.url}/elsewhere")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with serve_handler(Handler) as found.url:
        yield found


def options(url: str, **given: Any) -> dict[str, Any]:
    return {"register": url, "key_file": None, "name": None, "address": None, "model": None} | given


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[str]]]:
    """``run(config, options)`` registers a node of that configuration, and returns what it said."""
    monkeypatch.setenv(KEY_VARIABLE, "op.key")
    with ExitStack() as stack:

        def act(config: NodeConfig, given: dict[str, Any]) -> list[str]:
            node = stack.enter_context(Node(config))
            said: list[str] = []
            registration = registration_from(given, node.config, node.port)
            assert registration is not None
            orders = bodies(registration, config, node.models, given["model"])
            thread = Registering(registration, orders, said.append, first_pause_seconds=0.01)
            stack.callback(thread.stop)
            thread.start()
            thread.join(10)
            assert not thread.is_alive()
            return said

        yield act


def test_a_handler_is_registered_under_its_modules_name(run, dispatcher):
    said = run(NodeConfig(handler=SIMULATOR, slots=2, token="t0ken"), options(f"{dispatcher.url}/"))
    [(key, body)] = dispatcher.asked
    port = body["endpoint"].rpartition(":")[2].partition("/")[0]
    assert key == "Bearer op.key"
    assert body == {
        "model": "simulator",
        "server": f"127.0.0.1-{port}",
        "endpoint": f"http://127.0.0.1:{port}/simulator",
        "slots": 2,
        "model_type": "async",
        "poll_endpoint_template": "/status/{id}",
        "cancel_endpoint_template": "/cancel/{job_id}",
        "headers": {"Authorization": "Bearer t0ken"},
    }
    assert said == [f"simulator is registered as 127.0.0.1-{port} at {dispatcher.url}", "warning: hm"]


def test_several_models_share_a_pool_and_keep_their_names(run, dispatcher):
    run(NodeConfig(handlers={"flux": SIMULATOR, "ltx": SIMULATOR}), options(dispatcher.url, name="box-1"))
    sent = [(body["model"], body["pool"], body["server"]) for _, body in dispatcher.asked]
    assert sent == [("flux", "flux", "box-1"), ("ltx", "flux", "box-1")]


def test_a_dispatcher_that_is_not_up_yet_is_tried_again(run, dispatcher):
    dispatcher.answers += [(503, {}), (429, {}), (500, {})]
    said = run(NodeConfig(handler=SIMULATOR), options(dispatcher.url, model="flux"))
    assert len(dispatcher.asked) == 4
    assert said[0].startswith("flux is registered")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((401, {"code": "no_key", "detail": "A key is needed."}), "401 no_key: A key is needed."),
        ((422, ["?"]), "it answered 422"),
        ((302, {}), "it answered 302"),
    ],
)
def test_a_refusal_is_said_once_and_the_node_serves_on(run, dispatcher, answer, says):
    dispatcher.answers.append(answer)
    [line] = run(NodeConfig(handler=SIMULATOR), options(dispatcher.url, model="flux"))
    assert line == f"flux is not registered: {says}"
    assert len(dispatcher.asked) == 1, "the key is sent nowhere else, and not again"


@pytest.mark.parametrize(
    "cut",
    [
        b"",
        b"HTTP/1.1 201 Created\r\nContent-Length: 99\r\n\r\n{",
        b"SSH-2.0\r\n\r\n",
        b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 422 No\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 201 Created\r\nA: " + b"a" * 70_000 + b"\r\n\r\n",
    ],
)
def test_an_answer_that_breaks_off_is_no_refusal(run, dispatcher, cut):
    dispatcher.answers.append((0, cut))
    [line, _] = run(NodeConfig(handler=SIMULATOR), options(dispatcher.url, model="flux"))
    assert line.startswith("flux is registered")
    assert len(dispatcher.asked) == 2


@pytest.mark.parametrize("said", [[], None, {"warnings": None}, {"warnings": ["x"]}, {"warnings": [{}]}])
def test_an_answer_that_is_no_dispatchers_is_said_for_each_model(run, dispatcher, said):
    dispatcher.answers += [(201, said)] * 2
    lines = run(NodeConfig(handlers={"flux": SIMULATOR, "ltx": SIMULATOR}), options(dispatcher.url))
    assert ["is that its URL?" in line for line in lines] == [True, True]


def test_a_refusal_cannot_act_on_the_terminal(run, dispatcher):
    dispatcher.answers.append((422, {"code": "\x1b[2J", "detail": "\x1b]0;x\x07"}))
    [line] = run(NodeConfig(handler=SIMULATOR), options(dispatcher.url, model="flux"))
    assert line.isprintable()


@pytest.mark.parametrize(
    "changes",
    [
        {"url": "http://me:s3cret@box-0:8000"},
        {"url": "http://box-0:99999"},
        {"url": "http://box-0/a b"},
        {"url": "http://box-0/?x=1"},
        {"address": "http://me:s3cret@box-1:9000"},
        {"address": "box-1:9000"},
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_its_password(changes, monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, "op.key")
    given = options(**({"url": "http://box-0:8000", "address": "http://box-1:9000"} | changes))
    with pytest.raises(ConfigError) as caught:
        registration_from(given, NodeConfig(handler=SIMULATOR), 9000)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("key", ["k\xe9y", "\u2603", "a\rb"])
def test_a_key_that_no_header_can_have_is_refused(monkeypatch, key):
    monkeypatch.setenv(KEY_VARIABLE, key)
    with pytest.raises(ConfigError, match="no key has"):
        registration_from(options("http://127.0.0.1:8000"), NodeConfig(handler=SIMULATOR), 9000)


def test_a_registration_stops_with_its_node(dispatcher, monkeypatch):
    dispatcher.answers += [(503, {})] * 1000
    monkeypatch.setenv(KEY_VARIABLE, "op.key")
    config = NodeConfig(handler=SIMULATOR)
    registration = registration_from(options(dispatcher.url), config, 9000)
    assert registration is not None
    thread = Registering(registration, bodies(registration, config, [""], None), print)
    thread.start()
    wait_for(lambda: dispatcher.asked)
    thread.stop()
    thread.join(5)
    assert not thread.is_alive()


def test_an_address_that_the_dispatcher_cannot_reach_is_refused():
    assert own_address("127.0.0.1", 9000, "127.0.0.1") == "http://127.0.0.1:9000"
    assert own_address("::1", 9000, "localhost") == "http://[::1]:9000"
    assert own_address("10.0.0.7", 9000, "box-0") == "http://10.0.0.7:9000"
    assert own_address("0.0.0.0", 9000, "box-0").endswith(":9000")
    assert "0.0.0.0" not in own_address("0.0.0.0", 9000, "box-0")
    with pytest.raises(ConfigError, match="--address"):
        own_address("127.0.0.1", 9000, "box-0")


def test_missing_options_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    config = NodeConfig(handlers={"a": SIMULATOR, "b": SIMULATOR})
    with pytest.raises(ConfigError, match=KEY_VARIABLE):
        registration_from(options("http://127.0.0.1:8000"), config, 1)
    with pytest.raises(ConfigError, match="can't be read"):
        registration_from(options("http://127.0.0.1:8000", key_file=tmp_path / "none"), config, 1)
    with pytest.raises(ConfigError, match="the dispatcher's URL"):
        registration_from(options("box-0:8000"), config, 1)
    (tmp_path / "key").write_text("op.key\n")
    registration = registration_from(options("http://127.0.0.1:8000", key_file=tmp_path / "key"), config, 1)
    assert registration is not None
    assert registration.key == "op.key"
    with pytest.raises(ConfigError, match="--as names one model"):
        bodies(registration, config, ["a", "b"], "c")


def test_a_node_that_answers_with_results_is_polled_where_that_is_preferred(
    start: Callable[..., Caller],
) -> None:
    caller = start(slots=2, answer_within_seconds=0.05)
    assert caller.dispatch({"seconds": 0.1, "echo": 1}).body["status"] == "success"
    assert caller.dispatch({"seconds": 30}, Prefer="respond-async").body["status"] == "processing"
    assert caller.dispatch({"seconds": 0.1, "echo": 2}, Prefer="no-respond-async").body["status"] == "success"
