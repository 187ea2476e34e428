"""A runner for Turnstile servers, a made-up protocol: see README.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from gpus.errors import ConnectFailed, RunTimedOut, ServerLost
from gpus.protocol import Endpoint, ModelSpec
from gpus.runners.base import (
    Abort,
    Accepted,
    Finished,
    Get,
    Health,
    OptionRefused,
    PollFailed,
    RunRequest,
    StillRunning,
    excerpt,
)
from gpus.runners.http_runner import CANCEL_SECONDS, POLL_SECONDS, HttpRunner, identity_headers
from gpus.runners.refusals import describe_status, error_of, failure_of
from gpus.runners.transport import Unreadable, read_json

_SMALL_BYTES = 64 * 1024


class TurnstileRunner(HttpRunner):
    """A run is a ticket on the server; its remote id is the ticket, which any worker may poll."""

    name = "turnstile"
    summary = "A Turnstile server; the endpoint is its address."
    options: Sequence[str] = ("remote_model",)
    is_polled = True
    is_pushed = False
    stopped_by = "the server reports that the ticket has stopped"

    @classmethod
    def check_options(cls, model: ModelSpec) -> None:
        if model.remote_model is not None and "/" in model.remote_model:
            raise OptionRefused(
                "remote_model", "invalid_remote_model", "A Turnstile server's model has no / in its name."
            )
        super().check_options(model)

    @classmethod
    def health_url(cls, model: ModelSpec, endpoint: Endpoint) -> str:
        return f"{endpoint.url.rstrip('/')}/turnstile"

    @classmethod
    def health(cls, model: ModelSpec, endpoint: Endpoint, get: Get) -> Health:
        answer = get(cls.health_url(model, endpoint))
        state = read_json(answer.body) if answer.status == 200 else None
        if not isinstance(state, dict):
            return Health(
                False, error=f"/turnstile answered {describe_status(answer.status)}: {excerpt(answer)}"
            )
        if state.get("open") is not True:
            return Health(False, error="The turnstile is closed.")
        turning = state.get("turning")
        count = turning if isinstance(turning, int) else None
        return Health(True, boot_id=str(state.get("since", "")), active_jobs=count)

    def start(self, run: RunRequest, *, abort: Abort) -> Accepted:
        """Ask for a ticket."""
        response = self._request(
            "POST",
            f"{run.endpoint.url.rstrip('/')}/tickets",
            run,
            headers={**identity_headers(run), "Content-Type": "application/json"},
            body=_body(run),
            deadline_seconds=min(run.model.run_limit_seconds, run.limit_seconds),
            max_bytes=_SMALL_BYTES,
            abort=abort,
        )
        if response.status != 201:
            raise error_of(response, now=datetime.now(UTC))
        try:
            ticket = read_json(response.body)
            if not isinstance(ticket, dict) or not isinstance(ticket.get("ticket"), str):
                raise Unreadable("The answer has no ticket.")
        except Unreadable as error:
            error.suspect = True  # the run may have begun under an unknown ticket
            raise
        return Accepted(ticket["ticket"])

    def poll(self, run: RunRequest, remote_id: str, *, abort: Abort) -> Finished | StillRunning:
        try:
            response = self._request(
                "GET",
                _ticket_url(run, remote_id),
                run,
                headers=identity_headers(run),
                body=None,
                deadline_seconds=POLL_SECONDS,
                max_bytes=run.model.max_response_bytes,
                abort=abort,
            )
        except (ConnectFailed, ServerLost, RunTimedOut) as error:
            raise PollFailed(f"{error.code}: {error.message}") from error
        if response.status != 200:
            raise PollFailed(f"The poll was answered {response.status}.", gone=response.status == 404)
        return _read_ticket(response.body)

    def cancel(self, run: RunRequest, remote_id: str | None) -> bool:
        """Delete the ticket. Returns False without one: the run can't be stopped then."""
        if remote_id is None:
            return False
        response = self._request(
            "DELETE",
            _ticket_url(run, remote_id),
            run,
            headers=identity_headers(run),
            body=None,
            deadline_seconds=CANCEL_SECONDS,
            max_bytes=_SMALL_BYTES,
            abort=None,
        )
        return response.status in (204, 404)

    def read_pushed(self, run: RunRequest, body: Mapping[str, object]) -> StillRunning:
        """Turnstile servers push no results."""
        return StillRunning()


def _body(run: RunRequest) -> bytes:
    return json.dumps({"input": run.payload, "model": run.model.remote_model or run.model.name}).encode()


def _ticket_url(run: RunRequest, ticket: str) -> str:
    return f"{run.endpoint.url.rstrip('/')}/tickets/{quote(ticket, safe='')}"


def _read_ticket(body: bytes) -> Finished | StillRunning:
    ticket: Any = read_json(body)
    state = ticket.get("state") if isinstance(ticket, dict) else None
    if state == "turning":
        return StillRunning()
    if state == "done":
        return Finished(ticket.get("output"))
    if state == "jammed":
        raise failure_of({"status": "failed", "error": ticket.get("reason")})
    raise Unreadable("The answer is not a ticket.")
