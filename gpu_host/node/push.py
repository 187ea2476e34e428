"""Sends a run's end to the URL that its caller named, instead of waiting to be polled."""

from __future__ import annotations

import http.client
import logging
import ssl
import threading
from urllib.parse import urlsplit

from gpu_host.node.runs import Run

log = logging.getLogger(__name__)

_TRIES = 4
_PAUSE_SECONDS = 0.5
_TIMEOUT_SECONDS = 10.0


def push(run: Run, stopping: threading.Event) -> bool:
    """POSTs the run's answer with the caller's token; tries again for some seconds, then leaves it to the
    poll. A refusal (4xx) is final."""
    for number in range(_TRIES):
        try:
            status = _post(run.order.callback_url, run.order.callback_token, run.answer)
        except (OSError, http.client.HTTPException, ValueError) as error:
            log.info("push_failed job_id=%s error=%s", run.job_id, error)
        else:
            if status < 300:
                return True
            log.info("push_refused job_id=%s status=%s", run.job_id, status)
            if status < 500 and status not in (408, 429):
                return False
        if number + 1 < _TRIES and stopping.wait(_PAUSE_SECONDS * 2**number):
            return False
    return False


def _post(url: str, token: str, body: bytes) -> int:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"not an http(s) URL: {url!r}")
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = ssl.create_default_context()
        connection = http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=_TIMEOUT_SECONDS, context=context
        )
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=_TIMEOUT_SECONDS)
    headers = {"Content-Type": "application/json"}
    if token:
        headers |= {"Authorization": f"Bearer {token}", "X-Callback-Token": token}
    try:
        connection.request("POST", parts.path + (f"?{parts.query}" if parts.query else ""), body, headers)
        return connection.getresponse().status
    finally:
        connection.close()
