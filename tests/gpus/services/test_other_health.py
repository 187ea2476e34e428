"""Servers that do not speak our node's protocol, asked in their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from gpus.models import Server
from gpus.services.evidence import Health
from gpus.services.health import health_url, probe
from tests.builders import make_model, make_server
from tests.gpus.runners.cog_server import CogServer
from tests.gpus.runners.llm_server import LlmServer

pytestmark = pytest.mark.django_db


@pytest.fixture
def llm() -> Iterator[LlmServer]:
    with LlmServer() as llm:
        yield llm


def asked(kind: str, endpoint: str, *, slots: int = 1, **fields: Any) -> Health:
    model = make_model("m", model_type=kind, **fields)
    server = make_server("gpu-1", model=model, endpoint=endpoint, slots=slots)
    return probe(Server.objects.prefetch_related("placements__model").get(pk=server.pk))


def test_an_openai_server_needs_no_more_than_its_health(llm: LlmServer) -> None:
    assert asked("openai", f"{llm.url}/v1") == Health(True)
    assert [path for _, path, _, _ in llm.asked] == ["/health", "/metrics"]


@pytest.mark.parametrize("path", ["", "/v1", "/v1/chat/completions"])
def test_one_without_a_health_page_is_asked_for_its_models(llm: LlmServer, path: str) -> None:
    llm.does.health = 404
    assert asked("openai", llm.url + path).ok
    assert "/v1/models" in [path for _, path, _, _ in llm.asked]


def test_one_that_loads_is_not_ok_and_says_why(llm: LlmServer) -> None:
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
def test_its_metrics_say_how_many_run(llm: LlmServer, metrics: str, running: int | None) -> None:
    llm.does.metrics = metrics
    assert asked("openai", llm.url).active_jobs == running


@pytest.mark.parametrize("name", ["llama3:8b", "llama3:latest"])
def test_ollama_is_ok_where_it_has_the_model(llm: LlmServer, name: str) -> None:
    llm.does.models = (name, "other")
    remote = name.removesuffix(":latest")
    assert asked("ollama", f"{llm.url}/api/chat", remote_model=remote) == Health(True)


def test_ollama_without_the_model_is_not_ok(llm: LlmServer) -> None:
    health = asked("ollama", llm.url, remote_model="llama3:70b")
    assert not health.ok
    assert "llama3:70b" in health.error


def test_cogs_states_are_health_and_slots() -> None:
    with CogServer() as cog:
        boot = "2026-01-01T00:00:00+00:00"
        ready = asked("cog", f"{cog.url}/predictions")
        assert ready == Health(True, boot_id=boot, active_jobs=None, max_concurrent=1), "it may have more slots"
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
