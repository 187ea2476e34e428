from __future__ import annotations

from typing import Any

import pytest

from gpu_host.node.config import NodeConfig
from gpu_host.node.server import Node
from gpus.models import ModelConfig, Server
from gpus.registry.upload_url import upload_url
from gpus.runners import registry
from gpus.runners.http_runner import SyncHttpRunner
from gpus.runners.registry import RunnerRegistry
from gpus.runners.transport import HttpTransport
from tests.support.api_harness import Account, ApiHarness, acme, api, make_model, operator
from tests.support.problems import problem

__all__ = ["acme", "api", "operator"]

REGISTER = "/api/v1/admin/register"
SERVERS = "/api/v1/admin/servers"
CONFIGS = "/api/v1/admin/model-configs"
SERVER = {"model": "flux", "server": "s1", "endpoint": "http://10.0.0.1/generate", "slots": 2}


def test_a_server_is_registered_and_live(operator: Account, api: ApiHarness) -> None:
    answer = operator.client.post(REGISTER, SERVER | {"headers": {"X-Key": "s3cret"}}, format="json")
    assert answer.status_code == 201, answer.content
    body = answer.json()
    assert (body["pool"], body["fleet"], body["slots"], body["live"]) == ("flux", "main", 2, True)
    assert b"s3cret" not in answer.content
    assert api.leases.servers["s1"].slots == 2
    assert [(wake.pool, wake.count) for wake in api.wakes] == [("flux", 2)]
    assert api.announced == ["registry"], "workers look for new pools at once"
    assert operator.client.post(REGISTER, SERVER | {"slots": 1}, format="json").status_code == 200
    assert api.leases.servers["s1"].slots == 1


def test_the_founding_documents_request_works_and_brings_model_fields(operator: Account) -> None:
    body = SERVER | {"model_type": "async", "poll_endpoint_template": "/status/{id}", "id_field": "job_id"}
    assert operator.client.post(REGISTER, body, format="json").status_code == 201
    config = operator.client.get(f"{CONFIGS}/flux").json()
    assert (config["model_type"], config["poll_endpoint_template"]) == ("async", "/status/{id}")
    assert (config["poll_interval"], config["max_poll_time"], config["max_retries"]) == (2.0, 600.0, 50)


class Uploader(SyncHttpRunner):
    """A package's runner whose servers upload files."""

    name = "uploader"
    takes_uploads = True


def test_a_server_whose_runner_takes_uploads_has_an_upload_url(
    operator: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "RUNNERS", RunnerRegistry(built_in=(SyncHttpRunner, Uploader)))
    for name in ("s1", "s2"):
        body = {**SERVER, "model": f"m-{name}", "server": name}
        assert operator.client.post(REGISTER, body, format="json").status_code == 201
    ModelConfig.objects.filter(name="m-s2").update(model_type=Uploader.name)
    shown = {one["server"]: one["upload_url"] for one in operator.client.get(SERVERS).json()["results"]}
    assert shown == {"s1": None, "s2": upload_url(Server.objects.get(name="s2"))}


def test_without_redis_a_server_is_registered_all_the_same(operator: Account, api: ApiHarness) -> None:
    api.leases.away = True
    answer = operator.client.post(REGISTER, SERVER, format="json")
    assert (answer.status_code, answer.json()["live"]) == (201, False)


@pytest.mark.parametrize(
    ("change", "code", "pointer"),
    [
        ({"slots": 0}, "validation_failed", "/slots"),
        ({"slots": "2"}, "validation_failed", "/slots"),
        ({"slots": True}, "validation_failed", "/slots"),
        ({"endpoint": "flux.example.com/generate"}, "invalid_endpoint", "/endpoint"),
        ({"endpoint": 5}, "validation_failed", "/endpoint"),
        ({"server": "a b"}, "validation_failed", "/server"),
        ({"server": "a\n"}, "validation_failed", "/server"),
        ({"model": "../x"}, "validation_failed", "/model"),
        ({"headers": {"X-Key": "a\nb"}}, "validation_failed", "/headers/X-Key"),
        ({"headers": {"X Key": "a"}}, "validation_failed", None),
        ({"model_type": "batch"}, "validation_failed", "/model_type"),
        ({"model_type": "async"}, "poll_template_required", "/poll_endpoint_template"),
        ({"colour": "red"}, "validation_failed", "/colour"),
    ],
)
def test_a_bad_registration_is_named(
    operator: Account, change: dict[str, Any], code: str, pointer: str | None
) -> None:
    problem(operator.client.post(REGISTER, SERVER | change, format="json"), 422, code, pointer)
    assert not Server.objects.exists()
    assert not ModelConfig.objects.exists()


def test_a_server_or_model_of_another_pool_is_a_conflict(operator: Account) -> None:
    operator.client.post(REGISTER, SERVER, format="json")
    answer = operator.client.post(REGISTER, SERVER | {"model": "ltx2"}, format="json")
    problem(answer, 409, "server_in_other_pool", "/server")
    answer = operator.client.post(REGISTER, SERVER | {"pool": "big"}, format="json")
    problem(answer, 409, "model_in_other_pool", "/pool")


def test_a_configuration_is_read_replaced_changed_and_reverted(operator: Account, api: ApiHarness) -> None:
    url = f"{CONFIGS}/flux"
    made = operator.client.put(
        url, {"model_type": "async", "poll_endpoint_template": "/s/{id}", "max_retries": 3}, format="json"
    )
    assert made.status_code == 201
    changed = operator.client.patch(url, {"queue_algorithm": "fifo"}, format="json")
    assert (changed.status_code, changed.json()["max_retries"]) == (200, 3)
    assert api.leases.pools["flux"].algorithm == "fifo"
    shown = operator.client.get(url).json()
    again = operator.client.put(url, shown, format="json")
    assert (again.status_code, again.json()) == (200, shown)
    assert operator.client.delete(url).status_code == 204
    reverted = operator.client.get(url).json()
    assert (reverted["model_type"], reverted["max_retries"], reverted["queue_algorithm"]) == (
        "sync",
        50,
        "fair",
    )
    assert [row["model"] for row in operator.client.get(CONFIGS).json()["results"]] == ["flux"]


@pytest.mark.parametrize(
    ("body", "code", "pointer"),
    [
        ({"poll_interval": 0}, "validation_failed", "/poll_interval"),
        ({"poll_interval": "2"}, "validation_failed", "/poll_interval"),
        ({"max_retries": -1}, "validation_failed", "/max_retries"),
        ({"max_retries": 1.5}, "validation_failed", "/max_retries"),
        ({"queue_algorithm": "lifo"}, "validation_failed", "/queue_algorithm"),
        ({"at_most_once": "yes"}, "validation_failed", "/at_most_once"),
        ({"payload_schema": {"type": 5}}, "invalid_schema", "/payload_schema/type"),
        ({"result_schema": {"type": 5}}, "invalid_schema", "/result_schema/type"),
        ({"output_files": ["a", "images[?x]"]}, "invalid_output_files", "/output_files/1"),
        ({"output_files": "images[*]"}, "validation_failed", "/output_files"),
        ({"output_files": [5]}, "validation_failed", "/output_files/0"),
        ({"output_files": ["a"] * 21}, "validation_failed", "/output_files"),
        ({"poll_endpoint_template": "/status"}, "invalid_template", "/poll_endpoint_template"),
        ({"model_type": "triton"}, "validation_failed", "/model_type"),
        ({"remote_model": ""}, "validation_failed", "/remote_model"),
        ({"keep_alive_seconds": "5m"}, "validation_failed", "/keep_alive_seconds"),
        ({"keep_alive_seconds": -0.5}, "invalid_keep_alive", "/keep_alive_seconds"),
        ({"model": "other"}, "validation_failed", "/model"),
        ({"nothing": 1}, "validation_failed", "/nothing"),
        ([], "validation_failed", ""),
    ],
)
def test_a_bad_configuration_is_named(operator: Account, body: Any, code: str, pointer: str) -> None:
    make_model("flux")
    problem(operator.client.put(f"{CONFIGS}/flux", body, format="json"), 422, code, pointer)


@pytest.mark.parametrize("kind", ["openai", "ollama", "cog"])
def test_a_server_of_another_protocol_is_registered_with_its_model_type(operator: Account, kind: str) -> None:
    body = {
        "model": "llama",
        "server": "box-1",
        "endpoint": "http://box-1:8000",
        "slots": 4,
        "model_type": kind,
        "remote_model": "meta/llama:8b",
    }
    assert operator.client.post("/api/v1/admin/register", body, format="json").status_code == 201
    shown = operator.client.get(f"{CONFIGS}/llama").json()
    assert (shown["model_type"], shown["remote_model"]) == (kind, "meta/llama:8b")


@pytest.mark.parametrize("name", ["nope", "a%20b", "%00", "x" * 65])
def test_an_unknown_model_is_unknown(operator: Account, name: str) -> None:
    problem(operator.client.get(f"{CONFIGS}/{name}"), 404, "unknown_model", "/model")
    problem(operator.client.patch(f"{CONFIGS}/{name}", {}, format="json"), 404, "unknown_model", "/model")
    problem(operator.client.delete(f"{CONFIGS}/{name}"), 404, "unknown_model", "/model")


def test_a_server_is_looked_at_before_it_is_registered(operator: Account, api: ApiHarness) -> None:
    api.transport = HttpTransport()
    with Node(NodeConfig(handlers={"flux": "gpu_host.node.simulator:run"}, slots=2)) as node:
        answer = operator.client.post("/api/v1/admin/inspect", {"url": node.url}, format="json")
        assert answer.status_code == 200, answer.content
        [proposal] = answer.json()["proposals"]
        assert (proposal["certainty"], proposal["test_payload"]) == ("own_protocol", None)
        assert not Server.objects.exists(), "a look stores nothing"
        made = operator.client.post(REGISTER, proposal["register"], format="json")
        assert made.status_code == 201, made.content
    assert ModelConfig.objects.get().model_type == "async"


@pytest.mark.parametrize(
    ("url", "code"),
    [("http://127.0.0.1:1", "server_unreachable"), ("box-1", "invalid_url"), (5, "validation_failed")],
)
def test_a_server_that_cannot_be_looked_at_is_named(operator: Account, url: object, code: str) -> None:
    problem(operator.client.post("/api/v1/admin/inspect", {"url": url}, format="json"), 422, code, "/url")


def test_a_tenants_key_looks_at_no_server(acme: Account) -> None:
    answer = acme.client.post("/api/v1/admin/inspect", {"url": "http://127.0.0.1:1"}, format="json")
    assert answer.status_code == 403
