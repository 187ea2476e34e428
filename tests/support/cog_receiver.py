"""A receiver of a Cog server's webhooks."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from django.db import connection

from foundation.http_api.json_body import read_json
from foundation.secrets import verified
from jobs.api.push import PushResult
from jobs.execution.pushed_results import PUSH_TOKEN, accept_push
from tests.support.shop import Shop


class Receiver:
    """The route that results are pushed to, over a real socket."""

    def __init__(self, shop: Shop) -> None:
        class Route(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                parts = urlsplit(self.path)
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                (token,) = parse_qs(parts.query)["token"]
                attempt, job = verified(token, purpose=PUSH_TOKEN), parts.path.rpartition("/")[2]
                if attempt is not None:
                    body = read_json(raw, PushResult.escaped_fields)
                    accept_push(job, attempt, body, len(raw), ports=shop.ports)
                connection.close()
                self.send_response(401 if attempt is None else 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Route)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://127.0.0.1:{self._server.server_port}"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)
