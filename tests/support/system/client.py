"""A client of the dispatcher without its client library: HTTP and JSON."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

FINAL = frozenset({"completed", "failed", "cancelled"})
_LONG_POLL_SECONDS = 30
_LONGEST_SECONDS = 90.0


class Client:
    """accepted: jobs that this client got a 202 for."""

    def __init__(self, url: str, key: str) -> None:
        self.url = url
        self.accepted = 0
        self._key = key

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer's JSON, None without a body; an AssertionError with the problem for anything but 2xx."""
        request = urllib.request.Request(
            f"{self.url}/api/v1{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=_LONGEST_SECONDS) as response:
                return None if response.status == 204 else json.load(response)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read().decode()}") from None

    def submit(self, model: str, payload: Any, **fields: Any) -> str:
        """The job's id."""
        job = self.ask("POST", "/queue/submit", {"model": model, "payload": payload, **fields})
        self.accepted += 1
        return str(job["job_id"])

    def submit_batch(self, model: str, payloads: Sequence[Any], **fields: Any) -> list[str]:
        jobs = [{"model": model, "payload": payload, **fields} for payload in payloads]
        answers = self.ask("POST", "/queue/submit-batch", {"jobs": jobs})["jobs"]
        ids = [str(answer["job_id"]) for answer in answers]
        self.accepted += len(ids)
        return ids

    def job(self, job_id: str) -> dict[str, Any]:
        return dict(self.ask("GET", f"/queue/jobs/{job_id}"))

    def finished(self, job_id: str, *, polls: int = 3) -> dict[str, Any]:
        """The job at its end, by long polls."""
        for _ in range(polls):
            job = dict(self.ask("GET", f"/queue/jobs/{job_id}?wait={_LONG_POLL_SECONDS}"))
            if job["status"] in FINAL:
                return job
        raise AssertionError(f"job {job_id} does not end: {job}")

    def unfinished(self, model: str) -> int:
        """Jobs of the model that are not over."""
        models = self.ask("GET", "/queue/stats")["models"]
        found = next(one for one in models if one["model"] == model)
        return int(found["queued"] + found["running"] + found["retrying"])

    def cancel(self, job_id: str) -> str:
        """The outcome: cancelled or requested."""
        return str(self.ask("POST", f"/queue/jobs/{job_id}/cancel")["outcome"])

    def register(self, model: str, server: str, endpoint: str, slots: int, **fields: Any) -> None:
        body = {"model": model, "server": server, "endpoint": endpoint, "slots": slots, **fields}
        self.ask("POST", "/admin/register", body)
