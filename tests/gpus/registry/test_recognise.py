"""Servers of every protocol are recognised by their pages; hostile pages cost bounded time and memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from foundation.names import validate_name
from gpu_host.node.config import NodeConfig
from gpu_host.node.server import Node
from gpus.errors import RunTimedOut
from gpus.models.model_config import ModelConfig, usable_places
from gpus.registry.model_fields import RegistryRefused
from gpus.registry.recognise import Findings, look_at, registration
from gpus.runners import recognition
from gpus.runners.openapi_document import MAX_EXAMPLE_BYTES, MAX_OPERATIONS, OpenApiDocument
from gpus.runners.registry import RUNNERS
from tests.support.servers.cog_server import CogServer
from tests.support.servers.handlers import QuietHandler, serve_handler
from tests.support.servers.llm_server import LlmServer
from tests.support.servers.raw_server import RawServer, Script

Pages = dict[str, Any]
FASTAPI = {
    "openapi": "3.1.0",
    "paths": {
        "/health": {"get": {}},
        "/cancel/{job}": {"post": {"requestBody": {"content": {"application/json": {"schema": {}}}}}},
        "/generate": {
            "post": {
                "requestBody": {
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Job"}}}
                }
            }
        },
    },
    "components": {
        "schemas": {
            "Job": {
                "type": "object",
                "properties": {
                    "prompt": {"type": "string"},
                    "steps": {"type": "integer", "default": 20},
                    "size": {"$ref": "#/components/schemas/Size"},
                },
                "required": ["prompt", "size"],
            },
            "Size": {"enum": ["small", "large"], "type": "string"},
            "Unused": {"type": "object"},
        }
    },
}


@pytest.fixture
def site() -> Iterator[Callable[[Pages], str]]:
    """``site({path: (status, body)})`` serves these pages, and 404 elsewhere; returns the URL."""
    with ExitStack() as stack:

        def start(pages: Pages) -> str:
            class Handler(QuietHandler):
                def do_GET(self) -> None:
                    found = pages.get(self.path, (404, b"no such page"))
                    status, body = found if isinstance(found, tuple) else (200, json.dumps(found).encode())
                    self.send_response(status)
                    if 300 <= status < 400:
                        self.send_header("Location", "http://127.0.0.1:1/elsewhere")
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            return stack.enter_context(serve_handler(Handler))

        yield start


@pytest.fixture
def raw() -> Iterator[Callable[[Script], RawServer]]:
    with ExitStack() as stack:
        yield lambda script: stack.enter_context(RawServer(script))


def only(found: Findings) -> dict[str, Any]:
    [proposal] = found.proposals
    return registration(proposal)


def check_options(body: dict[str, Any]) -> None:
    """The runner takes the proposed options."""
    fields = {
        name: value for name, value in body.items() if name not in ("server", "endpoint", "slots", "model")
    }
    RUNNERS.all()[body["model_type"]].check_options(ModelConfig(name=body["model"], **fields).spec)


def test_a_nodes_models_are_polled_with_its_slots() -> None:
    config = NodeConfig(
        handlers={"flux": "gpu_host.node.simulator:run", "ltx": "gpu_host.node.simulator:run"}, slots=3
    )
    with Node(config) as node:
        bodies = [registration(one) for one in look_at(node.url).proposals]
    assert [body["model"] for body in bodies] == ["flux", "ltx"]
    assert bodies[0] == {
        "model": "flux",
        "server": f"127.0.0.1-{node.port}",
        "endpoint": f"{node.url}/flux",
        "slots": 3,
        "model_type": "async",
        "poll_endpoint_template": "/status/{id}",
        "cancel_endpoint_template": "/cancel/{job_id}",
    }
    check_options(bodies[0])


def test_a_handler_without_a_name_is_proposed_under_its_modules_name() -> None:
    with Node(NodeConfig(handler="gpu_host.node.simulator:run")) as node:
        body = only(look_at(node.url))
    assert (body["model"], body["endpoint"]) == ("simulator", f"{node.url}/simulator")


def test_ollama_is_preferred_to_the_openai_pages_that_it_has_too() -> None:
    with LlmServer() as server:
        server.does.models = ("llama3:8b", "qwen")
        found = look_at(server.url)
    bodies = [registration(one) for one in found.proposals]
    assert [(body["model_type"], body["model"], body["remote_model"]) for body in bodies] == [
        ("ollama", "llama3-8b", "llama3:8b"),
        ("ollama", "qwen", "qwen"),
    ]
    check_options(bodies[0])


@pytest.mark.parametrize("path", ["", "/v1", "/v1/", "/v1/models", "/v1/chat/completions"])
def test_an_openai_server_is_found_from_any_of_its_addresses(site: Callable[[Pages], str], path: str) -> None:
    url = site({"/v1/models": {"data": [{"id": "meta-llama/Llama-3.1-8B"}]}, "/props": {"total_slots": 4}})
    body = only(look_at(url + path))
    assert body == {
        "model": "Llama-3.1-8B",
        "server": body["server"],
        "endpoint": url,
        "slots": 4,
        "model_type": "openai",
        "remote_model": "meta-llama/Llama-3.1-8B",
    }
    check_options(body)


def test_an_openai_server_under_a_path_keeps_it(site: Callable[[Pages], str]) -> None:
    url = site({"/llm/v1/models": {"data": [{"id": "m"}]}})
    assert only(look_at(f"{url}/llm/v1"))["endpoint"] == f"{url}/llm"


def test_a_cog_container_is_recognised_while_it_starts() -> None:
    with CogServer() as server:
        server.state = "STARTING"
        body = only(look_at(server.url))
    assert (body["model_type"], body["endpoint"], body["slots"]) == ("cog", server.url, 1)
    check_options(body)


def test_a_cog_containers_input_schema_becomes_the_payload_schema(site: Callable[[Pages], str]) -> None:
    schemas = {"Input": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}}
    document = {"openapi": "3.1.0", "components": {"schemas": schemas}}
    found = look_at(site({"/health-check": {"status": "READY"}, "/openapi.json": document}))
    assert only(found)["payload_schema"] == schemas["Input"]
    assert found.proposals[0].test_payload == {"n": 1}


def test_the_post_operations_of_an_openapi_document_are_proposed(site: Callable[[Pages], str]) -> None:
    url = site({"/openapi.json": FASTAPI})
    found = look_at(url)
    body = only(found)
    assert (body["model"], body["endpoint"], body["model_type"]) == ("generate", f"{url}/generate", "sync")
    schema = body["payload_schema"]
    assert set(schema["components"]["schemas"]) == {"Job", "Size"}
    assert found.proposals[0].test_payload == {"prompt": "test", "size": "small"}
    check_options(body)


def test_a_schema_of_an_older_openapi_is_not_proposed(site: Callable[[Pages], str]) -> None:
    """Its schemas are no JSON Schemas: `nullable` would be ignored, and valid payloads refused."""
    found = look_at(site({"/openapi.json": FASTAPI | {"openapi": "3.0.2"}}))
    assert "payload_schema" not in only(found)
    assert found.proposals[0].test_payload == {"prompt": "test", "size": "small"}


def test_a_plain_server_is_proposed_as_it_was_given(site: Callable[[Pages], str]) -> None:
    url = site({})
    found = look_at(f"{url}/run")
    body = only(found)
    assert (body["model"], body["endpoint"], body["model_type"], body["slots"]) == (
        "run",
        f"{url}/run",
        "sync",
        1,
    )
    assert "no /health page" in found.proposals[0].reasons[1]
    assert found.proposals[0].test_payload is None


def refused(url: str, **times: float) -> RegistryRefused:
    with pytest.raises(RegistryRefused) as caught:
        look_at(url, **times)
    return caught.value


@pytest.mark.parametrize(
    "url",
    [
        "box-1:8000",
        "ftp://box-1",
        "http://",
        "http://box:99999",
        "http://a b/",
        "http://x\n",
        "http://me:s3cret@box-1",
    ],
)
def test_an_address_that_is_no_http_url_is_refused(url: str) -> None:
    error = refused(url)
    assert error.code == "invalid_url"
    assert "s3cret" not in str(error), "an endpoint is stored and shown as it is"


def test_an_unreachable_server_is_reported_with_a_remedy() -> None:
    error = refused("http://127.0.0.1:1")
    assert error.code == "server_unreachable"
    assert "Start the server" in str(error)


def test_redirects_are_not_followed(site: Callable[[Pages], str]) -> None:
    pages = {
        path: (302, b"")
        for path in ("/", "", "/health", "/openapi.json", "/v1/models", "/api/tags", "/props")
    }
    error = refused(site(pages | {"/health-check": (307, b"")}))
    assert error.code == "server_unreadable"
    assert "redirects" in str(error)


def test_a_page_of_ten_megabytes_is_not_read(site: Callable[[Pages], str]) -> None:
    found = look_at(site({"/openapi.json": (200, b'{"paths": "' + b"x" * 10_000_000 + b'"}')}))
    assert only(found)["model_type"] == "sync"
    assert any("more than 1,000,000 bytes" in problem for problem in found.problems)


def test_a_server_that_hangs_is_given_up(raw: Callable[[Script], RawServer]) -> None:
    server = raw(lambda visit: visit.wait_for_hang_up())
    error = refused(server.url, page_seconds=0.2, site_seconds=0.5)
    assert error.code == "server_unreadable"
    assert 1 <= server.visits <= 3


def test_all_pages_of_a_slow_server_end_within_the_time_that_the_api_names() -> None:
    now = [0.0]

    def hang(url: str) -> Any:
        now[0] += recognition.PAGE_SECONDS - 0.01
        raise RunTimedOut("no answer")

    slow = recognition.Site("http://box-1:9000", hang, clock=lambda: now[0])
    for number in range(10):
        slow.page(f"http://box-1:9000/{number}")
    assert recognition.SITE_SECONDS - recognition.PAGE_SECONDS < now[0] <= recognition.SITE_SECONDS


@pytest.mark.parametrize(
    "pages",
    [
        {"/health": {"server": "gpu-dispatcher node", "models": [3, None, "a\nb"], "max_concurrent": "many"}},
        {"/health": {"server": "gpu-dispatcher node", "models": ["x"], "max_concurrent": 10**9}},
        {"/health-check": {"status": ["READY"]}, "/openapi.json": []},
        {"/v1/models": {"data": {"id": "m"}}, "/props": {"total_slots": -1}},
        {"/v1/models": {"data": [{"id": "m"}]}, "/props": {"total_slots": True}},
        {"/v1/models": {"data": [{"id": ""}, {"id": "x" * 5000}, {"id": "\u202e"}]}},
        {"/api/tags": {"models": "all"}},
        {"/openapi.json": {"openapi": "3.1.0", "paths": {"/a": {"post": {"requestBody": []}}}}},
        {"/openapi.json": {"openapi": 3, "paths": [1]}},
        {"/openapi.json": (200, b"[" * 100_000)},
    ],
)
def test_pages_of_another_shape_are_skipped(site: Callable[[Pages], str], pages: Pages) -> None:
    for proposal in look_at(site(pages)).proposals:
        body = registration(proposal)
        check_options(body)
        assert 1 <= body["slots"] <= 1024


def test_a_schema_that_the_registry_would_refuse_is_left_out(site: Callable[[Pages], str]) -> None:
    document = json.loads(json.dumps(FASTAPI))
    document["components"]["schemas"]["Job"] = {"type": "objekt"}
    assert "payload_schema" not in only(look_at(site({"/openapi.json": document})))


def test_a_document_whose_parts_refer_to_each_other_is_read_in_bounded_steps() -> None:
    body = {"requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/s0"}}}}}
    schemas = {
        f"s{number}": {"anyOf": [{"$ref": f"#/components/schemas/s{other}"} for other in range(300)]}
        for number in range(300)
    }
    paths = {f"/p{number}": {"post": body} for number in range(100)}
    document = OpenApiDocument({"openapi": "3.1.0", "paths": paths, "components": {"schemas": schemas}})
    found = document.operations()
    assert len(found) == MAX_OPERATIONS
    assert document.steps_left >= 0
    assert found[-1].schema is None, "its steps were used up"


def posted(schema: Any) -> Pages:
    return {"post": {"requestBody": {"content": {"application/json": {"schema": schema}}}}}


def test_paths_that_no_url_can_have_are_left_out(site: Callable[[Pages], str]) -> None:
    paths = ("/a b", "/a?x=1", "/a#f", "/\x1b[31mred", "/\u202egnp", "/a\r\nX: y", "/" + "x" * 3000, "/run")
    document = {"openapi": "3.1.0", "paths": {path: posted({}) for path in paths}}
    url = site({"/openapi.json": document})
    assert only(look_at(url))["endpoint"] == f"{url}/run"


@pytest.mark.parametrize(
    ("schema", "reference"),
    [
        ({"components": "text"}, "#/components/schemas/Job"),
        ({"type": "object"}, "#/type/of"),
        ({"properties": {"of": []}}, "#/properties/of/it"),
    ],
)
def test_a_reference_through_a_schemas_own_keys_costs_that_schema_alone(
    schema: Pages, reference: str
) -> None:
    whole = FASTAPI | {
        "paths": {"/odd": posted(schema | {"items": {"$ref": reference}}), **FASTAPI["paths"]},
        "type": {"of": {}},
        "properties": {"of": {"it": {}}},
    }
    odd, usual = OpenApiDocument(whole).operations()
    assert (odd.path, odd.schema) == ("/odd", None)
    assert usual.schema is not None


def test_examples_that_repeat_a_large_part_of_the_document_are_bounded() -> None:
    names = [f"p{number}" for number in range(1000)]
    schemas = {
        "Job": {
            "properties": {name: {"$ref": "#/components/schemas/Text"} for name in names},
            "required": names,
        },
        "Text": {"example": "x" * 400_000},
    }
    paths = {f"/p{number}": posted({"$ref": "#/components/schemas/Job"}) for number in range(MAX_OPERATIONS)}
    document = OpenApiDocument({"openapi": "3.1.0", "paths": paths, "components": {"schemas": schemas}})
    texts = [text for one in document.operations() for text in one.example.values() if text]
    assert 0 < sum(map(len, texts)) < MAX_EXAMPLE_BYTES


@pytest.mark.parametrize(
    ("pages", "names"),
    [
        ({"/v1/models": {"data": [{"id": "a/llama"}, {"id": "b/llama"}]}}, ["a-llama", "b-llama"]),
        (
            {"/openapi.json": {"paths": {path: posted({}) for path in ("/v1/run", "/v2/run", "/v1-run")}}},
            ["v1-run.2", "v2-run", "v1-run"],
        ),
        ({"/v1/models": {"data": [{"id": "__m__"}, {"id": "..."}]}}, ["m__", "model"]),
    ],
)
def test_each_proposal_has_a_name_of_its_own_that_the_registry_takes(
    site: Callable[[Pages], str], pages: Pages, names: list[str]
) -> None:
    found = [one.model for one in look_at(site(pages)).proposals]
    assert found == names
    for name in found:
        validate_name(name)


@pytest.mark.parametrize("documented", [True, False], ids=["FastAPI", "plain"])
def test_a_server_of_pictures_in_openais_protocol_has_its_files_named(
    site: Callable[[Pages], str], documented: bool
) -> None:
    operation = {"post": {"requestBody": {"content": {"application/json": {"schema": {"type": "object"}}}}}}
    pages: Pages = {"/health": (200, b"OK")}
    if documented:
        pages["/openapi.json"] = {"openapi": "3.1.0", "paths": {"/v1/images/generations": operation}}
    (proposal,) = look_at(f"{site(pages)}/v1/images/generations").proposals
    assert proposal.model_type == "sync"
    assert proposal.options["output_files"] == ["data[*].b64_json", "data[*].url"]
    usable_places(proposal.options["output_files"])
