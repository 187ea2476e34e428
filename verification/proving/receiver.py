"""``python -m verification.proving.receiver --log FILE --port N``: a callback receiver.

Tenants' secrets come as one line of JSON on stdin, ``{tenant: secret}``. Messages for ``/<tenant>`` are
verified with the public library of Standard Webhooks, logged, and answered 204."""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TextIO

from standardwebhooks import Webhook
from standardwebhooks.webhooks import WebhookVerificationError


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m verification.proving.receiver", description=__doc__)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    secrets: dict[str, str] = json.loads(sys.stdin.readline())
    with options.log.open("a", buffering=1) as log, _server(options.port, secrets, log) as server:
        sys.stdout.write("{}\n")
        sys.stdout.flush()
        server.serve_forever()


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True


def _server(port: int, secrets: dict[str, str], log: TextIO) -> _Server:
    lock = threading.Lock()

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            line = entry(body, headers, secrets.get(self.path.strip("/"), ""))
            with lock:
                log.write(json.dumps({"at": time.time(), **line}) + "\n")
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    return _Server(("127.0.0.1", port), Hook)


def entry(body: bytes, headers: dict[str, str], secret: str) -> dict[str, Any]:
    """Return the log entry of a message. secret: empty if unknown: then `signed` is null."""
    signed: bool | None = None
    if secret:
        try:
            Webhook(secret).verify(body.decode(), headers)
            signed = True
        except (WebhookVerificationError, ValueError):
            signed = False
    try:
        reported = json.loads(body)
    except ValueError:
        reported = {}
    result = reported.get("result")
    return {
        "webhook_id": headers.get("webhook-id", ""),
        "signed": signed,
        "job": reported.get("job_id", ""),
        "is_long": isinstance(result, dict) and "$artifact" in result,
        "run": reported.get("run_id", ""),
        "round": reported.get("round", 1),
        "status": reported.get("status", ""),
        "attempt": result.get("attempt", "") if isinstance(result, dict) else "",
    }


if __name__ == "__main__":
    main()
