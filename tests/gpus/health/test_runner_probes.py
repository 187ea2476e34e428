"""Health probes of servers with other protocols than the dispatcher's own."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gpus.health.health import health_url, probe
from gpus.models import Server
from gpus.protocol import Endpoint, ModelSpec
from gpus.runners.base import Get, Health, Response
from gpus.runners.ollama_http import has_model
from gpus.runners.openai_http import OpenAiRunner
from gpus.runners.transport import HttpTransport
from tests.support.factories import make_model, make_server
from tests.support.servers.cog_server import CogServer
from tests.support.servers.llm_server import LlmServer

pytestmark = pytest.mark.django_db


@pytest.fixture
def llm() -> Iterator[LlmServer]:
    with LlmServer() as llm:
        yield llm


def asked(kind: str, endpoint: str, *, slots: int = 1, **fields: Any) -> Health:
    model = make_model("m", model_type=kind, **fields)
    server = make_server("gpu-1", model=model, endpoint=endpoint, slots=slots)
    return probe(Server.objects.prefetch_related("placements__model").get(pk=server.pk))


def test_metrics_of_lines_that_never_end_cost_no_more_than_their_length(llm: LlmServer) -> None:
    llm.does.metrics = "vllm:num_requests_running{\n" * 36_000  # a megabyte
    began = time.process_time()
    assert asked("openai", f"{llm.url}/v1") == Health(True)
    assert time.process_time() - began < 5.0, "it was 27 s"


def test_an_openai_server_is_ok_by_its_health_endpoint_alone(llm: LlmServer) -> None:
    assert asked("openai", f"{llm.url}/v1") == Health(True)
    assert [path for _, path, _, _ in llm.asked] == ["/health", "/metrics"]


@pytest.mark.parametrize("path", ["", "/v1", "/v1/chat/completions"])
def test_without_a_health_endpoint_the_list_of_models_is_probed(llm: LlmServer, path: str) -> None:
    llm.does.health = 404
    assert asked("openai", llm.url + path).ok
    assert "/v1/models" in [path for _, path, _, _ in llm.asked]


def test_a_loading_server_is_not_ok_with_a_reason(llm: LlmServer) -> None:
    llm.does.health = 503
    health = asked("openai", llm.url)
    assert not health.ok
    assert "503" in health.error


@pytest.mark.parametrize(
    ("metrics", "running"),
    [
        (
            '# HELP x\nvllm:num_requests_running{model_name="m"} 2.0\nvllm:num_requests_waiting{m="m"} 1.0\n',
            3,
        ),
        ("llamacpp:requests_processing 0\nllamacpp:requests_deferred 0\n", 0),
        ("tgi_batch_current_size 4\ntgi_queue_size 0\n", 4),
        ("process_cpu_seconds_total 12\n", None),
        ("vllm:num_requests_running 1e999\n", None),
    ],
)
def test_metrics_give_the_number_of_running_jobs(llm: LlmServer, metrics: str, running: int | None) -> None:
    llm.does.metrics = metrics
    assert asked("openai", llm.url).active_jobs == running


def getting(*, metrics_seconds: float = 5.0) -> Get:
    def get(url: str) -> Response:
        return HttpTransport().request(
            "GET",
            url,
            headers={},
            body=None,
            connect_timeout_seconds=5.0,
            deadline_seconds=metrics_seconds if url.endswith("/metrics") else 5.0,
            max_bytes=1000,
        )

    return get


@pytest.mark.parametrize(("metrics", "seconds"), [("x 1\n", 0.0), ("x 1\n" * 1000, 5.0)])
def test_late_or_large_metrics_do_not_make_a_server_unhealthy(
    llm: LlmServer, metrics: str, seconds: float
) -> None:
    llm.does.metrics = metrics
    model, endpoint = ModelSpec("m", "m", model_type="openai"), Endpoint("gpu-1", llm.url)
    assert OpenAiRunner.health(model, endpoint, getting(metrics_seconds=seconds)) == Health(True)


@pytest.mark.parametrize("remote", ["llama3:8b", "llama3:70b"])
def test_ollama_is_ok_with_or_without_the_model(llm: LlmServer, remote: str) -> None:
    llm.does.models = ("llama3:8b", "other")
    assert asked("ollama", f"{llm.url}/api/chat", remote_model=remote) == Health(True)


@pytest.mark.parametrize("name", ["llama3:8b", "llama3:latest"])
def test_ollamas_list_matches_the_short_model_name(name: str) -> None:
    said = Response(200, {}, b'{"models": [{"name": "%s"}]}' % name.encode())
    assert has_model(said, name.removesuffix(":latest")) is True
    assert has_model(said, "other") is False
    assert has_model(Response(200, {}, b"[]"), name) is None


def test_cogs_states_are_health_and_slots() -> None:
    with CogServer() as cog:
        boot = "2026-01-01T00:00:00+00:00"
        ready = asked("cog", f"{cog.url}/predictions")
        assert ready == Health(True, boot_id=boot, active_jobs=None, max_concurrent=1), (
            "it may have more slots"
        )
        cog.running["a"] = False
        server = Server.objects.prefetch_related("placements__model").get(pk="gpu-1")
        assert probe(server) == dataclasses.replace(ready, active_jobs=1)
        server.slots = 2
        cog.slots = 2
        assert probe(server).active_jobs is None, "one of two may run"
        for state in ("STARTING", "SETUP_FAILED", "DEFUNCT", "UNHEALTHY"):
            cog.state = state
            assert not probe(server).ok
            assert state in probe(server).error


@pytest.mark.parametrize(
    ("kind", "url"),
    [
        ("openai", "http://box:1/health"),
        ("ollama", "http://box:1/api/tags"),
        ("cog", "http://box:1/deep/health-check"),
        ("sync", "http://box:1/health"),
    ],
)
def test_where_each_kind_is_asked(kind: str, url: str) -> None:
    model = make_model("m", model_type=kind)
    assert health_url(make_server("gpu-1", model=model, endpoint="http://box:1/deep")) == url
