"""The documented client, with a record of every answer and time-out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from dispatcher_client import Client
from dispatcher_client.errors import NoAnswer, read_problem
from dispatcher_client.transport import Answer, Http

SUBMITS = ("/queue/submit", "/queue/submit-batch")
OnAnswer = Callable[[str, int, str, float, float], None]
"""path, status (0: no answer), Retry-After, time of the request, seconds until the answer."""


class _WatchedHttp(Http):
    def __init__(self, url: str, api_key: str, on_answer: OnAnswer) -> None:
        super().__init__(url, api_key)
        self._on_answer = on_answer

    def request(
        self,
        method: str,
        path: str,
        *,
        timeout_seconds: float,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        began, asked_at = time.monotonic(), time.time()
        try:
            answer = super().request(
                method, path, timeout_seconds=timeout_seconds, body=body, headers=headers
            )
        except NoAnswer:
            self._on_answer(path, 0, "", asked_at, time.monotonic() - began)
            raise
        retry_after = answer.headers.get("retry-after", "")
        self._on_answer(path, answer.status, retry_after, asked_at, time.monotonic() - began)
        return answer


class WatchedClient(Client):
    """A client that reports every answer. retry_seconds: no retry begins later than this after the first
    try."""

    def __init__(
        self, url: str, api_key: str, *, on_answer: OnAnswer = lambda *_: None, retry_seconds: float = 600.0
    ) -> None:
        super().__init__(url, api_key, timeout_seconds=30.0, retry_seconds=retry_seconds)
        self._http = _WatchedHttp(url, api_key, on_answer)

    def page(self, cursor_url: str | None) -> tuple[list[dict[str, Any]], str | None]:
        """Return one page of the tenant's jobs, and the URL of the next one. None: the first."""
        query = urlsplit(cursor_url).query if cursor_url else "limit=200"
        page = self._with_retries(lambda: self._request("GET", f"/queue/jobs?{query}"))
        results = next(value for value in page.values() if isinstance(value, list))
        return results, page.get("next")

    def register(self, body: Mapping[str, Any]) -> None:
        self._with_retries(lambda: self._ask_any("POST", "/admin/register", body))

    def _ask_any(self, method: str, path: str, body: Mapping[str, Any]) -> None:
        answer = self._http.request(method, path, timeout_seconds=30.0, body=body)
        if answer.status not in (200, 201):
            raise read_problem(answer.status, answer.headers, answer.body)
