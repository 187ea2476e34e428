"""A server without a health endpoint is healthy if it answers, gives no proofs, and its operator is
warned."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpus.health.health import probe, record_health
from gpus.models import Server
from gpus.registry import queries
from gpus.runners.base import Health
from gpus.runners.refusals import HEADERS_HINT
from tests.support.factories import make_model, make_server
from tests.support.ports import free_port
from tests.support.servers.health_server import HealthServer
from tests.support.servers.llm_server import LlmServer
from tests.support.servers.plain_server import PlainServer

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SILENT = Health(True, has_endpoint=False)
Registered = Callable[..., Server]


def registered(url: str, **model: object) -> Server:
    make_server("gpu-1", model=make_model("m", **model), endpoint=f"{url}/run")
    return Server.objects.prefetch_related("placements__model").get(name="gpu-1")


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_server_without_a_health_page_is_reachable_and_fit(tmp_path: Path, status: int) -> None:
    with PlainServer(tmp_path, status) as plain:
        server = registered(plain.url)
        assert probe(server) == SILENT
    record_health(server, SILENT, NOW)
    row = Server.objects.get()
    assert (row.healthy, row.tells_health, row.last_error, row.checked_at) == (True, False, "", NOW)
    assert queries.has_capacity("m")


def test_a_bare_word_is_as_good_as_no_page(tmp_path: Path) -> None:
    with PlainServer(tmp_path, 200) as plain:
        assert probe(registered(plain.url)) == SILENT


@pytest.mark.parametrize("status", [400, 401, 403, 500, 502, 503])
def test_any_other_refusal_is_a_sick_server(status: int) -> None:
    with HealthServer() as gpu:
        gpu.status = status
        health = probe(registered(gpu.url))
    assert (health.ok, health.reached, health.refused) == (False, True, False)
    assert str(status) in health.error


@pytest.mark.parametrize("kind", ["sync", "async", "cog"])
@pytest.mark.parametrize("status", [401, 403, 407])
def test_refused_headers_are_reported_with_a_remedy(kind: str, status: int) -> None:
    with HealthServer() as gpu:
        gpu.status = status
        health = probe(registered(gpu.url, model_type=kind))
    assert not health.ok
    assert f"answered {status}. {HEADERS_HINT}" in health.error


@pytest.mark.parametrize("kind", ["openai", "ollama"])
def test_refused_headers_of_an_llm_server_are_reported_with_a_remedy(kind: str) -> None:
    with HealthServer() as gpu:
        gpu.status = 401
        health = probe(registered(gpu.url, model_type=kind))
    assert f"answered 401. {HEADERS_HINT}" in health.error


def test_a_server_that_is_gone_is_refused_and_not_reached() -> None:
    health = probe(registered(f"http://127.0.0.1:{free_port()}"))
    assert (health.ok, health.reached, health.refused) == (False, False, True)


def test_a_later_health_answer_updates_the_row() -> None:
    server = registered("http://127.0.0.1:9")
    record_health(server, SILENT, NOW)
    assert record_health(server, Health(True, boot_id="b"), NOW)
    assert Server.objects.get().tells_health is True


def test_a_models_health_path_is_probed() -> None:
    with HealthServer() as gpu:
        gpu.runs("a")
        assert probe(registered(gpu.url, health_path="/deep/healthz?full=1")).runs("a")
        assert gpu.asked[0]["path"] == "/deep/healthz?full=1"


def test_a_path_that_was_named_must_answer(tmp_path: Path) -> None:
    with PlainServer(tmp_path, 404) as plain:
        health = probe(registered(plain.url, health_path="/healthz"))
    assert not health.ok
    assert "/healthz answered 404" in health.error


def test_an_openai_server_of_a_single_page_is_fit_too() -> None:
    with LlmServer() as llm:
        llm.does.health = 405
        assert probe(registered(llm.url, model_type="openai")).ok
