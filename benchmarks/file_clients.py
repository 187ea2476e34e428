"""``python -m benchmarks.file_clients URL KEY FILE MEGABYTES SPEED CLIENTS``: clients that upload and
download files in turns until they are killed. They use little CPU time: real clients have CPUs of their own.

Each of CLIENTS threads moves up to SPEED megabytes per second (0: all it can). Time for which the process was
stopped is not made up for. FILE.moved gets the bytes that all have moved.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

MEGABYTE = 1024 * 1024
PIECE_BYTES = 256 * 1024
_BURST_SECONDS = 0.05
_TAIL_BYTES = 64
"""At the end of a file, random: each upload is new content."""
_REPORT_SECONDS = 0.2
_TIMEOUT_SECONDS = 120


class Pace:
    """Bounds the speed of one client. speed: bytes per second; 0: no bound."""

    def __init__(self, speed: float) -> None:
        self._speed, self._due, self.moved = speed, 0.0, 0

    def wait_after(self, size: int) -> None:
        self.moved += size
        if self._speed:
            self._due = max(self._due, time.monotonic() - _BURST_SECONDS) + size / self._speed
            time.sleep(max(0.0, self._due - time.monotonic()))


class FileClient:
    """One client. size: bytes of its files, which are in memory but for their end."""

    def __init__(self, url: str, key: str, size: int, pace: Pace) -> None:
        self._url, self._key, self._pace = url, key, pace
        self._body, self._size = os.urandom(PIECE_BYTES), size
        self._digest = hashlib.sha256()
        left = size - _TAIL_BYTES
        while left:
            length = min(left, PIECE_BYTES)
            self._digest.update(self._body[:length])
            left -= length

    def upload(self) -> str:
        """Upload a new file; return the id of its artifact."""
        tail, digest = os.urandom(_TAIL_BYTES), self._digest.copy()
        digest.update(tail)
        wanted = {"bytes": self._size, "sha256": digest.hexdigest()}
        promised = json.loads(self._api("POST", "/api/v1/artifacts", wanted)[1])
        signed = promised["upload"]
        connection, target = _connect(signed["url"])
        try:
            connection.putrequest("PUT", target, skip_accept_encoding=True)
            for name, value in {**signed["headers"], "Content-Length": str(self._size)}.items():
                connection.putheader(name, value)
            connection.endheaders()
            left = self._size - _TAIL_BYTES
            while left:
                length = min(left, PIECE_BYTES)
                connection.send(self._body if length == PIECE_BYTES else self._body[:length])
                left -= length
                self._pace.wait_after(length)
            connection.send(tail)
            answer = connection.getresponse()
            _require(answer.status in (200, 201), answer)
            answer.read()
        finally:
            connection.close()
        self._api("POST", f"/api/v1/artifacts/{promised['id']}/complete")
        return str(promised["id"])

    def download(self, artifact_id: str) -> None:
        headers, _ = self._api("GET", f"/api/v1/artifacts/{artifact_id}")
        connection, target = _connect(headers["location"])
        try:
            connection.request("GET", target)
            answer = connection.getresponse()
            _require(answer.status == 200, answer)
            buffer, done = bytearray(PIECE_BYTES), 0
            while got := answer.readinto(buffer):
                done += got
                self._pace.wait_after(got)
            if done != self._size:
                raise SystemExit(f"{done} bytes of {self._size} came")
        finally:
            connection.close()

    def delete(self, artifact_id: str) -> None:
        self._api("DELETE", f"/api/v1/artifacts/{artifact_id}")

    def _api(self, method: str, path: str, body: Any = None) -> tuple[Mapping[str, str], bytes]:
        connection, _ = _connect(self._url)
        try:
            headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            _require(answer.status in (200, 201, 204, 302), answer)
            return {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()


def _require(is_right: bool, answer: http.client.HTTPResponse) -> None:
    if not is_right:
        raise SystemExit(f"{answer.status} {answer.read(2000)!r}")


def _connect(url: str) -> tuple[http.client.HTTPConnection, str]:
    """Return a connection, and what to ask it for."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=_TIMEOUT_SECONDS)
    return connection, f"{parts.path}?{parts.query}" if parts.query else parts.path


def main(arguments: list[str]) -> None:
    url, key, file, megabytes, speed, clients = arguments
    paces = [Pace(float(speed) * MEGABYTE) for _ in range(int(clients))]

    def work(pace: Pace) -> None:
        try:
            client = FileClient(url, key, int(megabytes) * MEGABYTE, pace)
            while True:
                client.download(stored := client.upload())
                client.delete(stored)
        except BaseException as error:  # no client may be missing unnoticed
            print(f"a client of files failed: {error!r}", file=sys.stderr, flush=True)
            os._exit(1)

    for pace in paces:
        threading.Thread(target=work, args=(pace,), daemon=True).start()
    report = Path(f"{file}.moved")
    while True:
        time.sleep(_REPORT_SECONDS)
        if all(pace.moved for pace in paces):
            report.write_text(str(sum(pace.moved for pace in paces)))


if __name__ == "__main__":
    main(sys.argv[1:])
