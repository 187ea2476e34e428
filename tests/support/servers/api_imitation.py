"""The few requests of the API that `gpu-dispatcher check` sends, answered without a dispatcher."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

ME: dict[str, Any] = {
    "tenant": "acme",
    "key": {"prefix": "ab12", "name": "", "kind": "tenant", "expires_at": None},
    "scopes": ["cancel", "read", "submit"],
    "models": [
        {
            "model": "zimg",
            "payload_schema": None,
            "result_schema": None,
            "paused": False,
            "typical_run_seconds": None,
        }
    ],
}
READY = {"status": "ready", "checks": {"database": {"ok": True}, "redis": {"ok": True}}}


@dataclass
class ApiImitation:
    """An ASGI application.

    stream_seconds: length of an event stream; mute_seconds: time before its first byte. answers: path →
    status and document."""

    stream_seconds: float = 3.0
    mute_seconds: float = 0.0
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        job = {"job_id": "job1", "status": "completed", "result": {}, "error": None}
        usual = {
            "/livez": (200, {"status": "alive"}),
            "/readyz": (200, READY),
            "/api/v1/me": (200, ME),
            "/api/v1/queue/submit": (202, job | {"status": "scheduled"}),
            "/api/v1/queue/jobs/job1": (200, job),
            "/api/v1/queue/jobs/job1/cancel": (200, {"job_id": "job1", "outcome": "cancelled"}),
            "/api/v1/queue/jobs/job1/explain": (200, {"reasons": [{"message": "No server runs zimg."}]}),
        }
        self.answers = usual | self.answers

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        self.asked.append(path)
        await self._read(receive)
        if path.endswith("/events"):
            await self._stream(send)
            return
        status, document = self.answers.get(path, (404, {"detail": "no such page"}))
        if wait := parse_qs(scope["query_string"].decode()).get("wait"):
            await asyncio.sleep(min(float(wait[0]), 0.05))  # as the real one, so that polls are few
        kind = b"application/json" if status < 400 else b"application/problem+json"
        content = json.dumps(document).encode()
        headers = [(b"content-type", kind), (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content, "more_body": False})

    async def _read(self, receive: Any) -> None:
        while (await receive()).get("more_body", False):
            pass

    async def _stream(self, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await asyncio.sleep(self.mute_seconds)
        await send({"type": "http.response.body", "body": b"retry: 2000\n\n", "more_body": True})
        await asyncio.sleep(self.stream_seconds)
        await send({"type": "http.response.body", "body": b"event: done\ndata: {}\n\n", "more_body": False})
