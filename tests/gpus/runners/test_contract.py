"""Every runner passes the one contract: sync and async HTTP (on the node), Cog, OpenAI, Ollama, the runner of
pinned workers, and that of the example package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpu_host.local.gpu import LocalRunner
from gpu_host.node.config import NodeConfig
from gpu_host.node.server import Node
from gpus.protocol import Endpoint, ModelSpec
from gpus.runners.base import Runner
from gpus.runners.registry import BUILT_IN
from tests.examples.installed import installed
from tests.examples.turnstile_server import TurnstileServer
from tests.gpus.runners.contract import RunnerContract, ServerContract, ServerStage, Stage
from tests.support.local_bench import Bench
from tests.support.servers.cog_server import CogServer
from tests.support.servers.llm_server import WORDS, Behaviour, LlmServer

REFUSAL = {"error": "refused"}


class NodeStage(ServerStage):
    """A node, in the mode that is the runner's name."""

    payload: Any = {"seconds": 0, "echo": 1}
    held_payload: Any = {"fault": "hang"}
    failing_payload: Any = {"seconds": 0, "fault": "fail"}

    def __init__(self, mode: str) -> None:
        handler = "gpu_host.node.simulator:run"
        self.node = Node(NodeConfig(handler=handler, slots=2, mode=mode, cancel_wait_seconds=30.0))
        self.node.start()
        polls = {"poll_endpoint_template": "/status/{id}"} if mode == "async" else {}
        self.bad_options = dict.fromkeys(polls)
        self.model = ModelSpec("m", "m", mode, cancel_endpoint_template="/cancel/{job_id}", **polls)

    def endpoint(self) -> Endpoint:
        return Endpoint("gpu-1", f"{self.node.url}/generate", max_slots=2)

    def running(self) -> int:
        return int(self.node.health()["active_jobs"])

    def is_right(self, result: Any) -> bool:
        return bool(result["echo"] == 1)

    def refuse(self, status: int) -> None:
        self.node.faults.add({"fault": status})

    def garble(self) -> None:
        self.node.faults.add({"fault": "wrong_json", "on": "status" if self.bad_options else "run"})

    def senders(self) -> list[str]:
        return [entry["job"] for entry in self.node.runs()]

    def stop(self) -> None:
        self.node.stop()


class LlmStage(ServerStage):
    """A server of OpenAI's protocol, or Ollama's, asked for a stream."""

    payload: Any = {"messages": [{"role": "user", "content": "Tell me"}], "stream": True}
    held_payload: Any = payload
    failing_payload: Any = payload
    bad_options = {"health_path": "/healthz"}

    def __init__(self, model_type: str) -> None:
        self.server = LlmServer()
        self.server.__enter__()
        self.model = ModelSpec("m", "m", model_type)

    def endpoint(self) -> Endpoint:
        return Endpoint("gpu-1", self.server.url)

    def running(self) -> int:
        return len(self.server.bodies) - len(self.server.log)

    def is_right(self, result: Any) -> bool:
        message = result["message"] if "message" in result else result["choices"][0]["message"]
        return bool(message["content"] == "".join(WORDS))

    def prepare_hold(self) -> None:
        self.server.does = Behaviour(hang_after=2)

    def prepare_failure(self) -> None:
        self.server.does = Behaviour(error="the model failed")

    def refuse(self, status: int) -> None:
        self.server.does = Behaviour(status=status, body=REFUSAL)

    def garble(self) -> None:
        self.server.does = Behaviour(garbage=b"data: {nonsense\n\n")

    def senders(self) -> list[str]:
        return [headers["X-Job-Id"] for method, _, headers, _ in self.server.asked if method == "POST"]

    def stop(self) -> None:
        self.server.__exit__()


class CogStage(ServerStage):
    payload: Any = {"prompt": "x"}
    held_payload: Any = payload
    failing_payload: Any = payload
    bad_options = {"health_path": "/healthz"}

    def __init__(self) -> None:
        self.cog = CogServer()
        self.cog.webhooks = False  # the contract reads the body that would be pushed
        self.cog.__enter__()
        self.model = ModelSpec("m", "m", "cog")

    def endpoint(self) -> Endpoint:
        return Endpoint("gpu-1", self.cog.url)

    def running(self) -> int:
        return len(self.cog.running)

    def is_right(self, result: Any) -> bool:
        return bool(result["output"] == "picture")

    def pushed(self, attempt_id: str) -> Mapping[str, Any] | None:
        return next((end for end in self.cog.pushed if end["id"] == attempt_id), None)

    def prepare_hold(self) -> None:
        self.cog.hold = True

    def prepare_failure(self) -> None:
        self.cog.outcome = {"status": "failed", "error": "the model failed"}

    def refuse(self, status: int) -> None:
        self.cog.refuse = (status, REFUSAL)

    def garble(self) -> None:
        self.cog.garbled = True

    def senders(self) -> list[str]:
        return [headers["X-Job-Id"] for headers in self.cog.seen]

    def stop(self) -> None:
        self.cog.__exit__()


class TurnstileStage(ServerStage):
    """Of the example package."""

    payload: Any = {"prompt": "x"}
    held_payload: Any = {"hold": True}
    failing_payload: Any = {"fail": "the model failed"}
    bad_options = {"health_path": "/healthz", "remote_model": "a/b"}

    def __init__(self) -> None:
        self.server = TurnstileServer()
        self.server.__enter__()
        self.model = ModelSpec("m", "m", "turnstile")

    def endpoint(self) -> Endpoint:
        return Endpoint("gpu-1", self.server.url, max_slots=2)

    def running(self) -> int:
        return self.server.turning()

    def is_right(self, result: Any) -> bool:
        return bool(result == self.payload)

    def refuse(self, status: int) -> None:
        self.server.refuse = status

    def garble(self) -> None:
        self.server.breaks = True

    def senders(self) -> list[str]:
        return [headers["X-Job-Id"] for headers in self.server.seen]

    def stop(self) -> None:
        self.server.__exit__()


class LocalStage(Stage):
    """A pinned worker's own model process."""

    payload: Any = {"prompt": "x"}

    def __init__(self, bench: Bench) -> None:
        self._gate = bench.path()
        self._bench = bench
        self.model = ModelSpec("a", "a")
        self.held_payload = {"until": str(self._gate)}
        self.failing_payload = {"do": "raises", "what": "shape"}

    def runner(self) -> Runner:
        return LocalRunner(self._bench.gpu)

    def endpoint(self) -> Endpoint:
        return Endpoint("box", "local://box/a")

    def prepare_failure(self) -> None:
        self.model = ModelSpec("wild", "wild")

    def running(self) -> int:
        return len(self._bench.gpu.running())

    def is_right(self, result: Any) -> bool:
        return bool(result["echo"] == self.payload)


SERVERS = {
    "sync": lambda: NodeStage("sync"),
    "async": lambda: NodeStage("async"),
    "openai": lambda: LlmStage("openai"),
    "ollama": lambda: LlmStage("ollama"),
    "cog": CogStage,
    "turnstile": TurnstileStage,
}


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerStage]:
    yield from _server(request.param, tmp_path)


def _server(name: str, folder: Path) -> Iterator[ServerStage]:
    with installed("runner_package", folder):
        stage = SERVERS[name]()
        yield stage
        stage.stop()


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("local"))
    bench.gpu.start()
    yield bench
    bench.gpu.stop()


@pytest.fixture(params=[*SERVERS, "local"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    if request.param == "local":
        yield LocalStage(request.getfixturevalue("local"))
    else:
        yield from _server(request.param, tmp_path)


class TestEveryRunner(RunnerContract):
    pass


class TestEveryServerRunner(ServerContract):
    pass


def test_no_built_in_runner_is_left_out() -> None:
    assert {runner.name for runner in BUILT_IN} <= set(SERVERS)
