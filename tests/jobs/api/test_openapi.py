"""The published contract is OpenAPI 3.1, lists every route, and the running app conforms to it."""

from __future__ import annotations

import json
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any
from unittest.mock import patch

import pytest
from jsonschema import Draft202012Validator
from rest_framework.test import APIClient

from foundation.program import ROOT
from jobs.api import documents
from jobs.models import ApiKey
from tests.support.api_harness import account, make_model
from tests.support.live_web import redis_url, web
from tests.support.routes import ROUTES
from tests.support.servers.web import Web

__all__ = ["redis_url", "web"]

EXAMPLES = int(os.environ.get("FUZZ_CASES", "1"))
"""Valid ones and as many invalid ones for each operation."""
ITEM_BY_ITEM = ("submit_batch",)
"""A batch is accepted with wrong items in it: each gets its own problem."""
FRAMING = ("Content-Length", "Transfer-Encoding", "Connection", "Upgrade", "Expect", "Host")
"""Headers of HTTP itself: the web server refuses a wrong one, and the app never gets the request."""


def document(client: APIClient) -> dict[str, Any]:
    answer = client.get("/api/v1/schema")
    assert answer.status_code == 200
    return json.loads(answer.content)  # type: ignore[no-any-return]


def test_the_document_is_openapi_3_1_and_lists_every_route(anonymous: APIClient) -> None:
    found = document(anonymous)
    assert found["openapi"].startswith("3.1")
    listed = {(method, path) for path, methods in found["paths"].items() for method in methods}
    expected = {(m, p.replace("<str:", "{").replace(">", "}")) for m, p in ROUTES}
    of_servers = {("post", f"/api/v1/tasks/{kind}/{{job_id}}") for kind in ("callback", "artifacts")}
    assert expected | of_servers == listed


def test_the_submit_comes_first_with_the_readmes_example(anonymous: APIClient) -> None:
    found = document(anonymous)
    assert next(iter(found["paths"])) == "/api/v1/queue/submit"
    sections = ["queue", "artifacts", "workflows", "schedules", "account", "gpu servers", "admin"]
    assert [one["name"] for one in found["tags"]] == sections
    content = found["paths"]["/api/v1/queue/submit"]["post"]["requestBody"]["content"]["application/json"]
    assert json.dumps(content["example"]) in (ROOT / "README.md").read_text()
    assert Draft202012Validator(content["schema"] | {"components": found["components"]}).is_valid(
        content["example"]
    )


def test_the_document_is_generated_once_and_cached_by_etag(anonymous: APIClient) -> None:
    """The document is public, so any client may request it often."""
    first = anonymous.get("/api/v1/schema")
    again = anonymous.get("/api/v1/schema", headers={"If-None-Match": first["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    with patch("jobs.api.documents.SchemaGenerator", side_effect=AssertionError("it was made again")):
        assert anonymous.get("/api/v1/schema").content == first.content


def test_every_operation_names_its_errors_and_is_unique(anonymous: APIClient) -> None:
    paths = document(anonymous)["paths"].values()
    operations = [operation for methods in paths for operation in methods.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(names) == len(set(names))
    for operation in operations:
        for status, answer in operation["responses"].items():
            if int(status) >= 400:
                assert list(answer["content"]) == ["application/problem+json"]


def test_every_component_is_a_json_schema(anonymous: APIClient) -> None:
    for schema in document(anonymous)["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_the_page_loads_no_external_file(anonymous: APIClient) -> None:
    page = anonymous.get("/api/v1/docs")
    assert page.status_code == 200
    text = page.content.decode()
    assert "/static/drf_spectacular_sidecar/" in text
    assert not [part for part in text.split('"') if part.startswith(("http://", "https://", "//"))]


@pytest.mark.long
def test_the_running_app_keeps_the_contract(web: Web) -> None:
    """Generated valid and invalid requests to every operation get responses that match the document.

    The gate sends the simplest ones; `FUZZ_CASES=50 python3 manage.py test tests/jobs/api` more.
    """
    import schemathesis  # takes 2 s, so it is not done at import

    ops = account("ops", ApiKey.Kind.OPERATOR)
    make_model("zimg")
    schema = schemathesis.openapi.from_url(f"{web.url}/api/v1/schema")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) == len(ROUTES) + 2
    for operation in operations:
        _try_out(operation, headers={"Authorization": f"Bearer {ops.key}"})


def _try_out(operation: Any, *, headers: dict[str, str]) -> None:
    import schemathesis
    from hypothesis import HealthCheck, given, settings
    from schemathesis.specs.openapi.checks import (
        ignored_auth,
        negative_data_rejection,
        positive_data_acceptance,
    )

    # a schema has no registered models or valid cursors: 400 and 422 are correct then
    # tests/jobs/api/test_access.py sends each route a request without a key, once
    excluded = [positive_data_acceptance, ignored_auth]
    if operation.definition.raw["operationId"] in ITEM_BY_ITEM:
        excluded.append(negative_data_rejection)
    for mode in schemathesis.GenerationMode:

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(
            max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
        )
        def try_out(case: Any) -> None:
            for name in FRAMING:
                case.headers.pop(name, None)
            case.call_and_validate(headers=headers, timeout=120, excluded_checks=excluded)

        try_out()


def test_concurrent_first_readers_generate_the_document_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Counter[str]()
    others_are_there = Event()

    def make() -> tuple[bytes, str]:
        made["begun"] += 1
        if made["begun"] - made["ended"] > 1:
            made["together"] += 1
            others_are_there.set()
        others_are_there.wait(0.2)  # time for the others to enter, unless the lock keeps them out
        made["ended"] += 1
        return b"{}", '"etag"'

    monkeypatch.setattr(documents, "_generate", make)
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(documents._document) for _ in range(4)]
        assert [answer.result(30) for answer in answers] == [(b"{}", '"etag"')] * 4
    assert made["together"] == 0
