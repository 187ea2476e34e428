"""Server-Sent Events of a job: parsing, and reconnecting."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from http.client import HTTPResponse
from typing import Any

from .errors import NoAnswer, Unavailable, read_json, read_problem
from .transport import Http, as_no_answer, lower_case, pause_after

SILENCE_SECONDS = 45.0
"""The dispatcher sends a comment every 15 s; after three missing ones the connection is dead."""
RETRY_SECONDS = 2.0
"""The pause before a reconnect, unless the server sends another."""
_MAX_RETRY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a job. type: queued, started, …; the last one is done. id: in the job's event log; "" for
    done."""

    type: str
    id: str
    data: Any


class Follower:
    """One event stream of one job, across reconnects."""

    def __init__(self, http: Http, job_id: str, *, after: str, retry_seconds: float) -> None:
        self._http = http
        self._path = f"/queue/jobs/{job_id}/events"
        self._last_id = after
        self._retry_seconds = retry_seconds
        self._pause_seconds = RETRY_SECONDS
        self._last_line_at = time.monotonic()

    def events(self) -> Iterator[Event]:
        """Yield events until `done`.

        Raises NoAnswer or Unavailable if no reconnect succeeded for `retry_seconds`, and Problem if it was
        refused."""
        failures, failing_since = 0, 0.0
        while True:
            try:
                for event in self._connection():
                    yield event
                    if event.type == "done":
                        return
                pause = self._pause_seconds
            except (NoAnswer, Unavailable) as error:
                now = time.monotonic()
                if not failures or self._last_line_at > failing_since:
                    failures, failing_since = 0, now
                failures += 1
                pause = pause_after(error, failures)
                if now + pause > failing_since + self._retry_seconds:
                    raise
            time.sleep(pause)

    def _connection(self) -> Iterator[Event]:
        headers = {"Accept": "text/event-stream"}
        if self._last_id:
            headers["Last-Event-ID"] = self._last_id
        with self._http.opened(
            "GET", self._path, timeout_seconds=SILENCE_SECONDS, headers=headers
        ) as response:
            if response.status != 200:
                with as_no_answer():
                    body = response.read()
                raise read_problem(response.status, lower_case(response), body)
            if not (response.headers.get("Content-Type") or "").startswith("text/event-stream"):
                raise NoAnswer("the answer is not an event stream")
            yield from self._parse(self._lines(response))

    def _lines(self, response: HTTPResponse) -> Iterator[str]:
        while True:
            with as_no_answer():
                line = response.readline()
            if not line:
                return
            self._last_line_at = time.monotonic()
            yield line.decode(errors="replace").rstrip("\r\n")

    def _parse(self, lines: Iterable[str]) -> Iterator[Event]:
        """Yield the events in these lines. An event ends with an empty line; one that was cut off is dropped
        (SSE standard)."""
        data: list[str] = []
        kind = event_id = ""
        for line in lines:
            if not line:
                if data:
                    self._last_id = event_id or self._last_id
                    yield Event(kind or "message", event_id, _read_data("\n".join(data)))
                kind, data, event_id = "", [], ""
                continue
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "event":
                kind = value
            elif name == "data":
                data.append(value)
            elif name == "id":
                event_id = value
            elif name == "retry" and value.isascii() and value.isdigit():
                self._pause_seconds = min(int(value[:9]) / 1000, _MAX_RETRY_SECONDS)


def _read_data(text: str) -> Any:
    try:
        return read_json(text)
    except ValueError:
        return text
