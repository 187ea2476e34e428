"""A receiver of a Cog server's webhooks."""

from __future__ import annotations

from contextlib import AbstractContextManager
from urllib.parse import parse_qs, urlsplit

from django.db import connection

from foundation.http_api.json_body import read_json
from foundation.secrets import verified
from jobs.api.push import PushResult
from jobs.execution.pushed_results import PUSH_TOKEN, accept_push
from tests.support.servers.handlers import QuietHandler, serve_handler
from tests.support.worker_harness import WorkerHarness


def push_route(harness: WorkerHarness) -> AbstractContextManager[str]:
    """Serve the route that results are pushed to, over a real socket, at the yielded URL."""

    class Route(QuietHandler):
        def do_POST(self) -> None:
            parts = urlsplit(self.path)
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            (token,) = parse_qs(parts.query)["token"]
            attempt, job = verified(token, purpose=PUSH_TOKEN), parts.path.rpartition("/")[2]
            if attempt is not None:
                body = read_json(raw, PushResult.escaped_fields)
                accept_push(job, attempt, body, len(raw), ports=harness.ports)
            connection.close()
            self.send_response(401 if attempt is None else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

    return serve_handler(Route)
