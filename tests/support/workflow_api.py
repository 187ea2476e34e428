"""Workflows over the API."""

from __future__ import annotations

from typing import Any

from tests.support.api_harness import Account, ApiHarness
from workflows.execution.advancer import Advancer
from workflows.tasks import advance_now

A_MODEL = {"model": "zimg", "payload": {"prompt": {"$ref": "inputs.prompt"}}}


FILM = {
    "inputs": {"type": "object", "required": ["prompt"]},
    "nodes": {"best": {"human": {"title": "?", "choose_from": ["a", "b"]}}, "image": A_MODEL},
    "output": {"choice": {"$ref": "best"}},
}


def put(account: Account, definition: Any = FILM, name: str = "film") -> Any:
    return account.client.put(f"/api/v1/workflows/{name}", definition, format="json")


def post(account: Account, path: str, body: Any = None, **headers: str) -> Any:
    return account.client.post(f"/api/v1/{path}", body, format="json", headers=headers)


def start(account: Account, **body: Any) -> str:
    answer = post(account, "workflows/film/runs", {"inputs": {"prompt": "x"}, **body})
    assert answer.status_code == 202, answer.json()
    return str(answer.json()["run_id"])


def advance(api: ApiHarness, run_id: str) -> None:
    advance_now(Advancer(api.ports), run_id)
