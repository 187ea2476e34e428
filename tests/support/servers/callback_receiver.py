"""Somebody's web hook: verifies what it gets with the public library of Standard Webhooks."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from standardwebhooks import Webhook

from tests.support.ports import free_port


class Receiver:
    """Its port is closed until `open`."""

    def __init__(self) -> None:
        self._port = free_port()
        self._got: list[tuple[dict[str, str], bytes]] = []
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/hook"

    def open(self) -> None:
        got = self._got

        class Hook(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                got.append(({name.lower(): value for name, value in self.headers.items()}, body))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Hook)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def messages(self, secret: str) -> list[dict[str, Any]]:
        """All bodies so far. Raises WebhookVerificationError for one that is not signed with the secret."""
        hook = Webhook(secret)
        return [dict(hook.verify(body.decode(), headers)) for headers, body in list(self._got)]

    def job_ids(self, secret: str) -> set[str]:
        return {message["job_id"] for message in self.messages(secret)}

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
