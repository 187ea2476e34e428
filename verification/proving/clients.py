"""The documented client, with a record of every answer and time-out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from dispatcher_client import Client
from dispatcher_client.calls import Calls
from dispatcher_client.errors import NoAnswer
from dispatcher_client.schedule_client import Schedules
from dispatcher_client.transport import Answer, Request
from dispatcher_client.urllib_transport import UrllibTransport, run_blocking
from dispatcher_client.workflow_client import Workflows

SUBMITS = ("/queue/submit", "/queue/submit-batch")
OnAnswer = Callable[[str, int, str, float, float], None]
"""path, status (0: no answer), Retry-After, time of the request, seconds until the answer."""
_TIMEOUT_SECONDS = 30.0


class _WatchedTransport(UrllibTransport):
    def __init__(self, url: str, api_key: str, on_answer: OnAnswer) -> None:
        super().__init__(url, api_key)
        self._on_answer = on_answer

    async def request(self, request: Request) -> Answer:
        began, asked_at = time.monotonic(), time.time()
        try:
            answer = await super().request(request)
        except NoAnswer:
            self._on_answer(request.path, 0, "", asked_at, time.monotonic() - began)
            raise
        retry_after = answer.headers.get("retry-after", "")
        self._on_answer(request.path, answer.status, retry_after, asked_at, time.monotonic() - began)
        return answer


class WatchedClient(Client):
    """A client that reports every answer. retry_seconds: no retry begins later than this after the first
    try."""

    def __init__(
        self, url: str, api_key: str, *, on_answer: OnAnswer = lambda *_: None, retry_seconds: float = 600.0
    ) -> None:
        super().__init__(url, api_key)
        transport = _WatchedTransport(url, api_key, on_answer)
        self._calls = Calls(
            transport, spool=None, timeout_seconds=_TIMEOUT_SECONDS, retry_seconds=retry_seconds
        )
        self.workflows = Workflows(self._calls.workflows)
        self.schedules = Schedules(self._calls.schedules)

    def page(self, cursor_url: str | None) -> tuple[list[dict[str, Any]], str | None]:
        """Return one page of the tenant's jobs, and the URL of the next one. None: the first."""
        query = urlsplit(cursor_url).query if cursor_url else "limit=200"
        request = Request("GET", f"/queue/jobs?{query}", _TIMEOUT_SECONDS)
        page = run_blocking(self._calls.send(request, dict))
        results = next(value for value in page.values() if isinstance(value, list))
        return results, page.get("next")

    def register(self, body: Mapping[str, Any]) -> None:
        request = Request("POST", "/admin/register", _TIMEOUT_SECONDS, body)
        run_blocking(self._calls.send(request, dict, accepted=(200, 201)))
