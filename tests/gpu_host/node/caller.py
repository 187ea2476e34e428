"""Sends requests to a node as a dispatcher or a direct caller, over a real connection each."""

from __future__ import annotations

import http.client
import itertools
import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from gpu_host.node.server import Node

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any
    headers: Mapping[str, str]


class Caller:
    def __init__(self, node: Node) -> None:
        self.node = node
        self.threads = ThreadPoolExecutor(32)

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Return the answer. Raises http.client's or the socket's errors without one."""
        connection = http.client.HTTPConnection("127.0.0.1", self.node.port, timeout=30)
        try:
            data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, dict(headers or {}))
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        is_json = response.headers.get("Content-Type") == "application/json"
        return Answer(response.status, json.loads(text) if is_json else text, dict(response.headers))

    def direct(self, payload: Any, path: str = "/generate", **headers: str) -> Answer:
        return self.ask("POST", path, payload, {k.replace("_", "-"): v for k, v in headers.items()})

    def dispatch(self, payload: Any, path: str = "/generate", **headers: str) -> Answer:
        number = next(_numbers)
        ours = {"X_Source": "dispatcher", "X_Job_Id": f"job-{number}", "Idempotency_Key": f"attempt-{number}"}
        return self.direct(payload, path, **(ours | headers))

    def later(self, call: Callable[..., Answer], *args: Any, **options: Any) -> Future[Answer]:
        return self.threads.submit(call, *args, **options)

    def health(self) -> dict[str, Any]:
        found = self.ask("GET", "/health").body
        assert isinstance(found, dict)
        return found
